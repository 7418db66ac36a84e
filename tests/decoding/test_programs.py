"""What is compiled once is kept: options that are no part of a program share it."""

import pytest

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.decoding import DecodingOptions
from keras_transformer.decoding.programs import Programs


@pytest.fixture(scope="module")
def programs():
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    config = TransformerConfig(11, model_dim=4, num_heads=2, intermediate_dim=3, **layers)
    return Programs(Transformer(config), 16, 16, False, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"length_penalty": 1.3},
        {"max_length": 7},
        {"min_length": 2},
        {"banned_ids": (5,)},
        {"max_length_ratio": 1.1},
    ],
)
def test_other_values_share_a_search(programs, change):
    plain = programs.stages(DecodingOptions(beam_size=3))
    assert programs.stages(DecodingOptions(beam_size=3, **change)) is plain


@pytest.mark.parametrize(
    "change",
    [
        {"beam_size": 2},
        {"n_best": 2},
        {"coverage_penalty": 0.1},
        {"no_repeat_ngram_size": 2},
        {"beam_size": 1, "sampling": True},
    ],
)
def test_another_search_is_another_program(programs, change):
    plain = programs.stages(DecodingOptions(beam_size=3))
    options = DecodingOptions(**{"beam_size": 3, **change})
    assert programs.stages(options) is not plain
    assert programs.stages(options) is programs.stages(options)


def test_scoring_is_kept_for_each_choice_of_heads(programs):
    options = DecodingOptions()
    assert programs.forced_targets(options, True) is programs.forced_targets(options, True)
    assert programs.forced_targets(options, True) is not programs.forced_targets(options, False)
    first_head = DecodingOptions(attention_heads=(0,))
    assert programs.forced_targets(first_head, True) is not programs.forced_targets(options, True)


def test_nothing_is_compiled_before_it_runs(programs):
    assert programs.compilations == 0
