import sys

import keras
import numpy as np
import pytest

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.benchmark.keras_hub import KerasHubBart, forced_inputs
from keras_transformer.config import EOS_ID
from keras_transformer.errors import InputError

pytestmark = pytest.mark.tensorflow


@pytest.fixture(scope="module")
def make_engine(model, set_random_weights):
    pytest.importorskip("keras_hub", reason="KerasHub comes with the extra [peers]")

    def make_engine():
        engine = KerasHubBart(model)
        set_random_weights(engine.model(1).backbone)
        return engine

    return make_engine


@pytest.fixture(scope="module")
def engine(make_engine):
    return make_engine()


def test_bart_has_the_sizes_of_our_model(engine, model):
    backbone, config = engine.model(1).backbone, model.config
    assert backbone.vocabulary_size == config.vocabulary_size
    assert backbone.num_layers == config.num_encoder_layers == config.num_decoder_layers
    assert backbone.num_heads == config.num_heads
    assert backbone.hidden_dim == config.model_dim
    assert backbone.intermediate_dim == config.intermediate_dim


def test_every_forced_step_takes_the_best_id(engine, source_ids):
    steps = 5
    found = np.array(engine.translate(source_ids, 1, steps))
    assert found.shape == (len(source_ids), steps)
    inputs = forced_inputs(source_ids, steps)
    inputs["decoder_token_ids"][:, 1:] = found
    inputs["decoder_padding_mask"][:] = 1
    # The whole of what was found at once, without a cache.
    logits = keras.ops.convert_to_numpy(engine.model(1)(inputs))
    np.testing.assert_array_equal(found, logits[:, :-1].argmax(axis=-1))


@pytest.mark.parametrize("beam_size", [1, 4])
def test_the_decoder_runs_once_for_the_cache_and_then_once_a_step(
    make_engine, source_ids, beam_size
):
    engine, widths = make_engine(), []
    model = engine.model(beam_size)
    decode = model.call_decoder_with_cache

    def counted(*args, decoder_token_ids, **kwargs):
        widths.append(tuple(decoder_token_ids.shape))
        return decode(*args, decoder_token_ids=decoder_token_ids, **kwargs)

    model.call_decoder_with_cache = counted
    model.run_eagerly = True  # the loop in Python, where calls can be counted
    found = engine.translate(source_ids, beam_size, 5)
    assert [len(ids) for ids in found] == [5, 5, 5]
    assert widths == [(3, 6)] + [(3 * beam_size, 1)] * 5


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_second_call_does_not_compile_again(engine, source_ids, beam_size):
    others = [[*ids[-2::-1], EOS_ID] for ids in source_ids]
    first, second = (engine.translate(ids, beam_size, 5) for ids in (source_ids, others))
    assert first != second
    model = engine.model(beam_size)
    assert model.jit_compile
    assert model.generate_function.experimental_get_tracing_count() == 1


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"num_decoder_layers": 2}, "num_encoder_layers=1, num_decoder_layers=2"),
        (
            {"target_vocabulary_size": 17, "tie_embeddings": "none"},
            "vocabulary_size=13, target_vocabulary_size=17",
        ),
    ],
)
def test_a_model_that_bart_cannot_be_is_an_error(fields, expected):
    pytest.importorskip("keras_hub", reason="KerasHub comes with the extra [peers]")
    sizes = dict(model_dim=4, num_heads=2, intermediate_dim=3, num_encoder_layers=1)
    config = TransformerConfig(13, **{**sizes, "num_decoder_layers": 1, **fields})
    with pytest.raises(InputError, match=expected):
        KerasHubBart(Transformer(config))


def test_without_the_package_the_error_names_the_extra(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "keras_hub", None)
    with pytest.raises(ImportError, match=r"keras_transformer\[peers\]"):
        KerasHubBart(model)
