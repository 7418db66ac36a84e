"""The step of a text that protects its markup."""

from collections.abc import Callable

from keras_transformer.errors import InputError
from keras_transformer.markup.protecting import protect
from keras_transformer.markup.restoring import restore
from keras_transformer.options import check_choice
from keras_transformer.steps.step import MARKUP, Markup, TextEngine, TextStep, check_writes_text
from keras_transformer.steps.tag import tagged, without_tags
from keras_transformer.text.symbols import Placeholders


class MarkupStep(TextStep):
    """Removes the markup of texts, and puts it into their translations; blocks are texts.

    Args:
        markup: `"placeholders"` or `"html"`.
        placeholders: Placeholders of the vocabulary.
        split_tags: Splits off the tags that a text begins with, which become each block's tags.
    """

    needs_whole_texts = True

    def __init__(
        self,
        markup: Markup,
        placeholders: Placeholders,
        split_tags: Callable[[str], tuple[str, str]],
    ):
        self._markup, self._placeholders, self._split_tags = markup, placeholders, split_tags
        self.needs_alignment = markup == "html"

    def before(self, text, language=None, target_language=None):
        tags, text = self._split_tags(text)
        blocks = protect(text, self._markup, self._placeholders)
        return [(tagged(block.text_to_read, tags or None), block) for block in blocks]

    def after(self, translation, memory, text_read):
        return restore(translation, memory, without_tags(text_read, memory.text_to_read))

    def begins_translation(self, memory):
        return (
            not memory.quote
        )  # A reader sees the value of an attribute beside the text, if at all.

    def uses_alignment(self, memory):
        return bool(memory.source_parts)


def markup_step(engine: TextEngine, markup: Markup) -> MarkupStep:
    """Makes the step of the option `markup`."""
    check_writes_text(engine, "markup")
    check_choice("markup", markup, MARKUP)
    if markup == "html" and "align" not in engine.capabilities:
        rule = "`markup=html` needs alignments: a run, a CTranslate2 export, or a SavedModel"
        raise InputError(f"{rule} with `align`. Received: {engine.noun}.")
    tokenizer = engine.source_tokenizer
    split_tags = (lambda text: ("", text)) if tokenizer is None else tokenizer.split_tags
    return MarkupStep(markup, engine.text_features.placeholders, split_tags)
