"""The step of a text that protects its markup."""

from collections.abc import Callable

from keras_transformer.steps.markup.protecting import protect
from keras_transformer.steps.markup.restoring import restore
from keras_transformer.steps.step import Markup, TextStep
from keras_transformer.steps.tag import tagged, without_tags
from keras_transformer.text.symbols import Placeholders


class MarkupStep(TextStep):
    """Removes the markup of texts, and puts it into their translations; blocks are texts.

    Args:
        markup: `"placeholders"` or `"html"`.
        placeholders: Placeholders of the vocabulary.
        split_tags: Splits off the tags that a text begins with, which become each block's tags.
    """

    def __init__(
        self,
        markup: Markup,
        placeholders: Placeholders,
        split_tags: Callable[[str], tuple[str, str]],
    ):
        self._markup, self._placeholders, self._split_tags = markup, placeholders, split_tags
        self.needs_alignment = markup == "html"

    def before(self, text):
        tags, text = self._split_tags(text)
        blocks = protect(text, self._markup, self._placeholders)
        return [(tagged(block.text, tags or None), block) for block in blocks]

    def after(self, translation, memory, text_read):
        return restore(translation, memory, without_tags(text_read, memory.text))

    def uses_alignment(self, memory):
        return bool(memory.source_parts)
