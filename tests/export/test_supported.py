"""Formats × kinds of models and options: a format takes it, or lacks it in one line.

A format, a kind or an option that is new has new cells, which fail until somebody has decided them.
"""

import types

import pytest
from fakes import FakeEngine, FakeTokenizer

from keras_transformer.base.errors import InputError
from keras_transformer.export import exporter_of
from keras_transformer.formats import FORMATS
from keras_transformer.models.config import (
    ClassifierConfig,
    LanguageModelConfig,
    RecurrentConfig,
    TransformerConfig,
)

pytestmark = pytest.mark.tensorflow

SIZES = dict(model_dim=12, num_heads=2, intermediate_dim=16)
SIDES = dict(num_encoder_layers=1, num_decoder_layers=1)
MODELS = {
    "classifier": ClassifierConfig(11, **SIZES, num_encoder_layers=1, target_vocabulary_size=3),
    "language model": LanguageModelConfig(11, **SIZES, num_decoder_layers=1),
    "recurrent": RecurrentConfig(11, model_dim=12),
    "turns": TransformerConfig(11, **SIZES, **SIDES, turn_id=4, turn_layers=1),
    "conversation": TransformerConfig(11, **SIZES, **SIDES, turn_id=4),
    "positions": TransformerConfig(11, **SIZES, **SIDES, positions="rotary"),
    "alibi": TransformerConfig(11, **SIZES, **SIDES, positions="alibi"),
    "concatenated": TransformerConfig(11, **SIZES, **SIDES, combine_positions="concatenate"),
}
# What each format says, beside the name of what needs something else.
MESSAGES = {
    "classifier": r"needs a Transformer\. Received: model\.kind='classifier'\.",
    "language model": r"needs a Transformer\. Received: model\.kind='language_model'\.",
    "recurrent": r"needs a Transformer\. Received: model\.kind='recurrent'\.",
    "turns": r"without layers over turns\. Received: model\.turn_layers=1\.",
    "conversation": r"does not read conversations; a SavedModel does\.",
    "positions": r"no positions, added\. Received: model\.positions='rotary', .*='add'\.",
    "alibi": r"no positions, added\. Received: model\.positions='alibi', .*='add'\.",
    "concatenated": r"no positions, added\. Received: .*, combine_positions='concatenate'\.",
}
LIMITED = sorted(FORMATS.keys() - {"saved_model"})


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("format", LIMITED)
def test_a_format_that_lacks_a_kind_of_model_says_so_in_one_line(format, kind):
    model = types.SimpleNamespace(config=MODELS[kind], count_params=lambda: 1)
    tokenizer = FakeTokenizer()
    engine = FakeEngine(model=model, source_tokenizer=tokenizer, target_tokenizer=tokenizer)
    exporter = exporter_of(format)
    with pytest.raises(InputError, match=MESSAGES[kind]) as caught:
        exporter.resolve_export_options(engine, exporter.options())
    assert "\n" not in str(caught.value)


SEARCHED = {"languages", "beam_size", "early_stopping"}
TAKES = {
    "saved_model": {*SEARCHED, "signatures"},
    "litert": {*SEARCHED, "shortlist", "quantize", "source_lengths", "n_best"},
    "web": {*SEARCHED, "shortlist", "quantize", "source_lengths"},
    "ctranslate2": {*SEARCHED, "shortlist", "quantize"},
    "marian": {"languages", "beam_size"},
    "hugging_face": SEARCHED,
    "argos": {"languages", "quantize", "package_version"},
}
OPTIONS = {
    "languages": "en-de",
    "beam_size": 2,
    "early_stopping": False,
    "shortlist": True,
    "quantize": "int8",
    "source_lengths": [16],
    "signatures": ["beam"],
    "n_best": 2,
    "package_version": "1.1",
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("format", sorted(FORMATS))
def test_a_format_takes_an_option_of_its_export_or_refuses_it_in_one_line(format, option):
    options, values = FORMATS[format].options(), {option: OPTIONS[option]}
    if option in TAKES[format]:
        assert getattr(options(**values), option) != getattr(options(), option)
    else:
        with pytest.raises(InputError, match=f"no option `{option}`") as caught:
            options(**values)
        assert "\n" not in str(caught.value)
