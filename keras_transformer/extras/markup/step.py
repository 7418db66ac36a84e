"""The step of a text that protects its markup."""

from keras_transformer.base.errors import InputError
from keras_transformer.base.ids import UNK_ID
from keras_transformer.base.options import check_choice
from keras_transformer.engine.steps.step import (
    MARKUP,
    Markup,
    TextEngine,
    TextStep,
    check_writes_text,
)
from keras_transformer.engine.steps.tag import tagged, without_tags
from keras_transformer.extras.markup.protecting import protect
from keras_transformer.extras.markup.restoring import restore


class MarkupStep(TextStep):
    """Removes the markup of texts, and puts it into their translations; blocks are texts.

    Args:
        markup: `"placeholders"` or `"html"`.
        engine: Its vocabulary decides what the model reads for an item.
    """

    needs_whole_texts = True

    def __init__(self, markup: Markup, engine: TextEngine):
        self._markup, self._placeholders = markup, engine.text_features.placeholders
        self.needs_alignment = markup == "html"
        source = engine.source_tokenizer
        self._tokenizers = source, engine.target_tokenizer
        # The tags that a text begins with become each block's tags.
        self._split_tags = (lambda text: ("", text)) if source is None else source.split_tags
        # A model cannot copy a word that its vocabulary lacks.
        self._has_stand_ins = not any(
            tokenizer is not None and UNK_ID in tokenizer.tokenize("X1")
            for tokenizer in (source, engine.target_tokenizer)
        )

    def before(self, text, language=None, target_language=None):
        tags, text = self._split_tags(text)
        blocks = protect(text, self._markup, self._placeholders, self._has_stand_ins, language)
        return [(tagged(block.text_to_read, tags or None), block) for block in blocks]

    def after(self, translation, state, texts_read):
        first, *others = texts_read
        texts_read = [without_tags(first, state.text_to_read), *others]
        return restore(translation, state, texts_read, self._tokenizers)

    def begins_translation(self, state):
        return (
            not state.quote
        )  # A reader sees the value of an attribute beside the text, if at all.

    def aligned_places(self, state):
        return state.places_to_align()


def markup_step(engine: TextEngine, markup: Markup) -> MarkupStep:
    """Makes the step of the option `markup`."""
    check_writes_text(engine, "markup")
    check_choice("markup", markup, MARKUP)
    if markup == "html" and "align" not in engine.capabilities:
        rule = "`markup=html` needs alignments: a run, or an export of a model with attention"
        raise InputError(f"{rule}. Received: {engine.noun}.")
    return MarkupStep(markup, engine)
