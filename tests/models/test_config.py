"""TransformerConfig: every rule, the presets, the way to a dict and back."""

import itertools

import pytest

from keras_transformer import TransformerConfig
from keras_transformer.models.config import (
    CONFIGURATIONS,
    ClassifierConfig,
    LanguageModelConfig,
    RecurrentConfig,
)

POSITIVE = "vocabulary_size model_dim num_heads intermediate_dim num_encoder_layers".split()
POSITIVE += ["num_decoder_layers", "max_length", "target_vocabulary_size"]
RATES = ["dropout", "attention_dropout", "feed_forward_dropout"]


@pytest.mark.parametrize(
    ("names", "values", "rule"),
    [
        (POSITIVE, [0, -3, 2.0, True, "7"], "a positive integer"),
        (RATES, [-0.1, 1, float("nan"), "0.1", True, None], "a number of at least 0 and below 1"),
    ],
)
def test_a_number_out_of_range_is_named_with_its_rule(names, values, rule):
    for name, value in itertools.product(names, values):
        with pytest.raises(ValueError) as caught:
            TransformerConfig(**{"vocabulary_size": 23, name: value})
        full_rule = rule + ", or null" * (name == "target_vocabulary_size")
        assert str(caught.value) == f"`{name}` must be {full_rule}. Received: {value!r}."


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(tie_embeddings="both"), "must be one of all, decoder, none. Received: 'both'"),
        (
            dict(positions="rotory"),
            "must be one of sinusoidal, learned, rotary, relative, alibi, none.",
        ),
        (
            dict(positions="rotary", model_dim=9, num_heads=3),
            "heads of an even width. Received: key_dim=3",
        ),
        (
            dict(positions="alibi", num_heads=1),
            "which have different slopes. Received: num_heads=1.",
        ),
        (dict(positions="alibi", encoder_heads=(1,) * 6), "are not pruned. Received: encoder_h"),
        (dict(relative_values=True, positions="rotary"), "needs `positions="),
        (dict(positions="none", combine_positions="concatenate"), "Received: positions='none'."),
        (dict(combine_positions="multiply"), "must be one of add, concatenate. Received: 'mult"),
        (dict(num_kv_heads=3), "Received: num_heads=8, num_kv_heads=3."),
        (dict(num_kv_heads=0), "`num_kv_heads` must be a positive integer, or null."),
        (dict(sliding_window=0), "`sliding_window` must be a positive integer, or null."),
        (dict(num_kv_heads=2, cross_heads=[8] * 6), "are not pruned. Received: cross_heads="),
        (dict(normalize_first=1), "`normalize_first` must be true or false. Received: 1."),
        (dict(activation=print), "`activation` must be text. Received: <built-in"),
        (dict(activation="reul"), "Did you mean `relu`?"),
        (dict(layer_norm_epsilon=0), "`layer_norm_epsilon` must be a number above 0. Received: 0."),
        (dict(model_dim=512, num_heads=7), "Received: model_dim=512, num_heads=7."),
        (
            dict(vocabulary_size=23, target_vocabulary_size=29),
            "Received: vocabulary_size=23, target_vocabulary_size=29.",
        ),
    ],
)
def test_each_rule_names_the_field_and_the_value(fields, message):
    with pytest.raises(ValueError) as caught:
        TransformerConfig(**{"vocabulary_size": 23, **fields})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (ClassifierConfig, dict(pooling="sum"), "`pooling` must be one of mean, max, attention"),
        (ClassifierConfig, dict(word_dropout=1.0), "`word_dropout` must be a number of"),
        (ClassifierConfig, dict(num_decoder_layers=2), "There is no option `num_decoder_layers`"),
        (LanguageModelConfig, dict(num_encoder_layers=2), "no option `num_encoder_layers`"),
        (LanguageModelConfig, dict(turn_id=4), "There is no option `turn_id`"),
        (LanguageModelConfig, dict(tie_embeddings="decoder"), "must be one of all, none"),
        (RecurrentConfig, dict(cell="rnn"), "`cell` must be one of gru, lstm"),
        (RecurrentConfig, dict(attention="none", input_feeding=True), "need an attention"),
        (RecurrentConfig, dict(model_dim=15), "`model_dim` must be even"),
        (RecurrentConfig, dict(attention_score="cosine"), "`attention_score` must be one of dot"),
        (TransformerConfig, dict(turn_layers=1), "`turn_layers` needs sources whose turns a token"),
        (TransformerConfig, dict(turn_layers=1.5), "must be an integer of at least 0"),
    ],
)
def test_each_kind_has_rules_of_its_own(kind, fields, message):
    with pytest.raises(ValueError, match=message):
        kind(**{"vocabulary_size": 23, **fields})


PRESET_SIZES = [("transformer_tiny", (4, 128, 256, 4, 0.3))]
PRESET_SIZES += [("transformer_base", (6, 512, 2048, 8, 0.1))]
PRESET_SIZES += [("transformer_big", (6, 1024, 4096, 16, 0.3))]


@pytest.mark.parametrize(("preset", "sizes"), PRESET_SIZES)
def test_presets_have_the_sizes_of_their_papers(preset, sizes):
    c = TransformerConfig.from_preset(preset, vocabulary_size=23)
    assert c.num_encoder_layers == c.num_decoder_layers
    fields = (c.num_encoder_layers, c.model_dim, c.intermediate_dim, c.num_heads, c.dropout)
    assert fields == sizes
    assert (c.vocabulary_size, c.normalize_first, c.tie_embeddings) == (23, False, "all")


def test_fields_replace_those_of_a_preset_and_are_checked():
    config = TransformerConfig.from_preset("transformer_tiny", 23, num_heads=8)
    assert (config.num_heads, config.model_dim) == (8, 128)
    with pytest.raises(ValueError, match="model_dim=128, num_heads=7"):
        TransformerConfig.from_preset("transformer_tiny", 23, num_heads=7)
    with pytest.raises(ValueError, match="tiny, transformer_base, .*'transformer_huge'"):
        TransformerConfig.from_preset("transformer_huge", 23)


@pytest.mark.parametrize("heads", [(3,), (3, 0), (3, 8), (3, True), 3, "33"])
def test_heads_are_given_for_each_block(heads):
    with pytest.raises(ValueError, match="`encoder_heads` must (give each of the 2|be a list)"):
        TransformerConfig(23, model_dim=77, num_heads=7, num_encoder_layers=2, encoder_heads=heads)


@pytest.mark.parametrize("kind", list(CONFIGURATIONS.values()))
@pytest.mark.parametrize("value", [7, None])
def test_an_unknown_field_of_a_dict_is_named(kind, value):
    with pytest.raises(ValueError, match="There is no option `modeldim`. Did you mean `model_dim`"):
        kind.from_dict({"vocabulary_size": 23, "modeldim": value})


def test_sizes_are_positional_in_the_papers_order():
    c = TransformerConfig(23, 77, 7, 13, num_encoder_layers=2, num_decoder_layers=3)
    assert (c.vocabulary_size, c.model_dim, c.num_heads, c.intermediate_dim) == (23, 77, 7, 13)
    assert (c.num_encoder_layers, c.num_decoder_layers) == (2, 3)
    with pytest.raises(ValueError, match="`vocabulary_size` must be .* Received: nothing"):
        TransformerConfig()
    with pytest.raises(ValueError, match="at most 4 values without a name. Received: 5."):
        TransformerConfig(*range(1, 6))
