"""The step of a text that protects its markup."""

from collections.abc import Callable

from keras_transformer.steps.markup.protecting import Markup, protect
from keras_transformer.steps.markup.restoring import restore
from keras_transformer.steps.step import TextStep
from keras_transformer.steps.tag import tagged, without_tags
from keras_transformer.text.symbols import Placeholders


class MarkupStep(TextStep):
    """Removes the markup of texts, and puts it into their translations; blocks are texts.

    Args:
        markup: `"placeholders"` or `"html"`.
        placeholders: Placeholders of the vocabulary.
        split_tag: Splits the tag off a text that begins with one, which becomes each block's tag.
    """

    def __init__(
        self,
        markup: Markup,
        placeholders: Placeholders,
        split_tag: Callable[[str], tuple[str, str]],
    ):
        self._markup, self._placeholders, self._split_tag = markup, placeholders, split_tag
        self.needs_alignment = markup == "html"

    def before(self, text):
        tag, text = self._split_tag(text)
        blocks = protect(text, self._markup, self._placeholders)
        return [(tagged(block.text, tag or None), block) for block in blocks]

    def after(self, translation, memory, text_read):
        return restore(translation, memory, without_tags(text_read, memory.text))

    def uses_alignment(self, memory):
        return bool(memory.pieces)
