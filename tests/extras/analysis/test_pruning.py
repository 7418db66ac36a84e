"""Heads switched off and heads taken out: the same translations, from a smaller model."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.base.errors import InputError
from keras_transformer.extras.analysis import attention, heads_off, prune_heads
from keras_transformer.extras.analysis.heads import head_table
from keras_transformer.models import Classifier, LanguageModel

SOURCE = np.array([[3, 5, 7, 11, 2], [13, 17, 2, 0, 0]])
TARGET = np.array([[1, 17, 19, 2, 0], [1, 7, 11, 13, 2]])
# Layers are left with other numbers of heads than their neighbours.
NAMES = ["encoder.1.2", "encoder.1.0", "decoder.0.1", "decoder.2.0", "cross.0.1", "cross.0.2"]


def logits(model):
    return ops.convert_to_numpy(model((SOURCE, TARGET)))


def test_a_head_that_is_off_gives_nothing_and_comes_back(model, attention_of):
    before = logits(model)
    layer = attention_of("encoder", 1)
    inputs = np.random.default_rng(7).normal(size=(2, 5, 15)).astype("float32")
    whole = ops.convert_to_numpy(layer(inputs, inputs))
    inputs = ops.convert_to_tensor(inputs)
    outputs, _ = layer.attend(layer.project_query(inputs), layer.project_key_value(inputs))
    kernel = ops.convert_to_numpy(layer.projections[-1].kernel)
    shares = [ops.convert_to_numpy(outputs)[:, :, head] @ kernel[head] for head in (0, 2)]
    with heads_off(model, ["encoder.1.2", "cross.0.1", "encoder.1.0"]):
        without = ops.convert_to_numpy(layer(inputs, inputs))
        np.testing.assert_allclose(without, whole - sum(shares), atol=1e-5)
        assert np.abs(logits(model) - before).max() > 1e-3
        assert not ops.convert_to_numpy(attention_of("cross", 0).projections[-1].kernel)[1].any()
    np.testing.assert_array_equal(logits(model), before)


def test_a_head_that_is_not_there_is_named_with_those_that_are_and_the_last_one_stays(model):
    known = r"encoder \[3, 3\], decoder \[3, 3, 3\], cross \[3, 3, 3\]"
    for name in ("encoder.2.0", "encoder.0.3", "cross.0", "x.0.0", "cross.-1.0", ""):
        with pytest.raises(InputError, match=known), heads_off(model, [name]):
            pass
    with pytest.raises(InputError, match=r"At least one head must be left in .*block_1/self"):
        prune_heads(model, [f"encoder.1.{head}" for head in range(3)])


SIZES = dict(model_dim=15, num_heads=3, intermediate_dim=13)
TURNS = dict(num_encoder_layers=2, num_decoder_layers=1, turn_layers=1, turn_id=5)
LAYERS = dict(num_encoder_layers=2, num_decoder_layers=3)
PRUNED = [(Transformer, LAYERS, NAMES, [(3, 1), (2, 3, 2), (1, 3, 3)])]
PRUNED += [(Transformer, TURNS, ["encoder.1.0", "cross.0.1"], [(3, 2), (3,), (2,)])]
PRUNED += [(LanguageModel, dict(num_decoder_layers=2), ["decoder.1.0"], [(), (3, 2), ()])]
PRUNED += [(Classifier, dict(num_encoder_layers=2), ["encoder.0.1"], [(2, 3), (), ()])]


@pytest.mark.parametrize(("model_class", "fields", "names", "left"), PRUNED)
def test_a_pruned_model_computes_what_the_whole_one_does_without_the_heads(
    randomize, model_class, fields, names, left
):
    model = randomize(model_class(model_class.config_class(29, **SIZES, **fields)))
    inputs = (SOURCE, TARGET) if model_class is Transformer else SOURCE
    before = ops.convert_to_numpy(model(inputs))
    with heads_off(model, names):
        expected = ops.convert_to_numpy(model(inputs))
    pruned = prune_heads(model, names)
    assert type(pruned) is model_class
    np.testing.assert_allclose(ops.convert_to_numpy(pruned(inputs)), expected, atol=1e-5)
    assert np.abs(expected - before).max() > 1e-3
    np.testing.assert_array_equal(ops.convert_to_numpy(model(inputs)), before)
    assert [pruned.config.heads_of(kind) for kind in ("encoder", "decoder", "cross")] == left
    # Of each head: query, key and value of 15 x 5 with a bias of 5, and 5 x 15 of the output.
    removed = model.count_params() - pruned.count_params()
    assert removed == len(names) * (4 * 15 * 5 + 3 * 5)


def test_a_pruned_model_decodes_with_its_cache_as_it_computes_at_once(model):
    pruned = prune_heads(model, NAMES)
    expected = logits(pruned)
    cache = pruned.start_decoding(ops.convert_to_tensor(SOURCE), 5, 1)
    for weights in (None, pruned.step_weights()):
        step, now = pruned.step_function(weights=weights), cache
        for index in range(3):
            step_logits, now = step(ops.convert_to_tensor(TARGET[:, index : index + 1]), now)
            real, step_logits = TARGET[:, index] != 0, ops.convert_to_numpy(step_logits)
            np.testing.assert_allclose(step_logits[real, 0], expected[real, index], atol=1e-5)


def test_a_pruned_model_is_saved_and_pruned_again(model, tmp_path):
    pruned = prune_heads(prune_heads(model, NAMES[:3]), ["decoder.2.0", "cross.0.1", "cross.0.1"])
    pruned.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.config == pruned.config
    np.testing.assert_array_equal(logits(loaded), logits(pruned))


def test_the_heads_that_are_left_are_seen_and_measured(model):
    pruned = prune_heads(model, NAMES)
    with heads_off(model, NAMES):
        whole = attention(model, SOURCE, TARGET)
    maps = attention(pruned, SOURCE, TARGET)
    np.testing.assert_allclose(maps.encoder[:, 1, 0], whole.encoder[:, 1, 1], atol=1e-5)
    np.testing.assert_allclose(maps.cross[:, 0, 0], whole.cross[:, 0, 0], atol=1e-5)
    assert not maps.encoder[:, 1, 1:].any()
    table = head_table(pruned, [([3, 5, 2], [17, 2])])
    names = [head.name.removeprefix("encoder.") for head in table[:4]]
    assert names == ["0.0", "0.1", "0.2", "1.0"] and table[4].name == "decoder.0.0"


def test_blocks_over_turns_are_no_layers_of_the_encoder(randomize):
    model = randomize(Transformer(TransformerConfig(29, **SIZES, **TURNS)))
    maps = attention(model, SOURCE, TARGET)
    assert maps.encoder.shape == (2, 2, 3, 5, 5)  # Layers, then heads.
    # The separator, 5, begins a turn: no token sees another turn's.
    assert not maps.encoder[0, :, :, 1:, :1].any() and not maps.encoder[0, :, :, :1, 1:].any()
    with pytest.raises(InputError, match=r"encoder \[3, 3\], decoder \[3\], cross \[3\]"):
        prune_heads(model, ["encoder.2.0"])


@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
@pytest.mark.usefixtures("uncollected")
def test_a_quantized_projection_is_refused():
    model = Transformer(TransformerConfig(11, num_encoder_layers=1, num_decoder_layers=1, **SIZES))
    model.quantize("int8")
    with pytest.raises(ValueError, match=r"only from plain projections. Received: .*block_0/self"):
        prune_heads(model, ["encoder.0.1"])


def test_heads_that_share_keys_and_values_are_not_pruned():
    sizes = dict(model_dim=8, num_heads=4, intermediate_dim=8, num_kv_heads=2)
    model = Transformer(TransformerConfig(11, num_encoder_layers=1, num_decoder_layers=1, **sizes))
    with pytest.raises(InputError, match="cannot be pruned. Received: model.num_kv_heads=2"):
        prune_heads(model, ["encoder.0.1"])
    # They are looked at and switched off as others are.
    maps = attention(model, SOURCE % 11, TARGET % 11)
    assert maps.encoder.shape == (2, 1, 4, 5, 5)
    before = ops.convert_to_numpy(model((SOURCE % 11, TARGET % 11)))
    with heads_off(model, ["encoder.0.1"]):
        after = ops.convert_to_numpy(model((SOURCE % 11, TARGET % 11)))
    assert np.abs(after - before).max() > 1e-4
