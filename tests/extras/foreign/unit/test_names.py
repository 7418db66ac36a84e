"""Each program has one table of names, which its writer and its reader use."""

import keras
import numpy as np
import pytest

from keras_transformer.extras.ctranslate2 import names as ctranslate2_names
from keras_transformer.extras.foreign.foreign_model import inverted
from keras_transformer.extras.foreign.weights import matrix_of, named_arrays, named_weights
from keras_transformer.extras.hugging_face import names as hugging_face_names
from keras_transformer.extras.marian import reader as marian
from keras_transformer.models import Transformer
from keras_transformer.models.config import TransformerConfig

SIZES = {"vocabulary_size": 29, "model_dim": 12, "num_heads": 3, "intermediate_dim": 7}
SIZES |= {"num_encoder_layers": 2, "num_decoder_layers": 3}


def model_of(**fields):
    return Transformer(TransformerConfig(**SIZES, **fields))


@pytest.mark.parametrize(
    "table", [ctranslate2_names.ACTIVATIONS, hugging_face_names.ACTIVATIONS, marian.ACTIVATIONS]
)
def test_each_activation_that_is_written_is_read_as_itself(table):
    for ours, theirs in inverted(table).items():
        equal = keras.activations.get(table[theirs]), keras.activations.get(ours)
        assert equal[0] is equal[1]


@pytest.mark.parametrize("is_pre", [False, True])
def test_transformers_has_a_name_for_each_weight(is_pre):
    kind = "pegasus" if is_pre else "marian"
    config = {"model_type": kind, "encoder_layers": 2, "decoder_layers": 3}
    known = hugging_face_names.marian_names(config)
    weights = {name for name, _ in named_weights(model_of(normalize_first=is_pre))}
    in_blocks = {name for key, name in known.items() if "layer" in key}
    assert weights <= in_blocks
    # The decoder attends to the source, and the encoder does not.
    assert {name for name in in_blocks - weights if "encoder" not in name} == set()
    for key in known:
        assert hugging_face_names.without_prefix(hugging_face_names.with_prefix(key)) == key


@pytest.mark.parametrize("is_pre", [False, True])
def test_ctranslate2_has_a_variable_for_each_weight_that_is_read_as_written(is_pre):
    specs = pytest.importorskip("ctranslate2", reason="comes with the extra [ctranslate2]").specs
    sides = specs.transformer_spec
    spec = specs.TransformerSpec(
        sides.TransformerEncoderSpec(2, 3, pre_norm=is_pre),
        sides.TransformerDecoderSpec(3, 3, pre_norm=is_pre),
    )
    weights, found = dict(named_arrays(model_of(normalize_first=is_pre))), []
    variables: list = []
    specs.model_spec.visit_spec(spec, lambda _, name, value: variables.append((name, value)))
    for variable, value in variables:
        names = ctranslate2_names.marian_names(variable, "_pre" if is_pre else "")
        found += names
        if names and weights.keys() >= {*names}:
            arrays = [weights[name] for name in names]
            numbers = ctranslate2_names.join(variable, arrays)
            parts = ctranslate2_names.split(variable, numbers, len(names))
            assert all(map(np.array_equal, parts, arrays))
        elif value is None:  # CTranslate2 needs it.
            assert {name.split("_")[-1] for name in names} <= {"Wemb", "W"}, variable
    assert len(found) == len({*found})
    assert weights.keys() <= {*found}


def test_heads_are_consecutive_columns_and_missing_ones_are_zeros():
    model = model_of(encoder_heads=(1, 2), normalize_first=False)
    kernel = np.asarray(model.encoder.blocks[0].self_attention.projections[0].kernel)
    assert kernel.shape == (12, 1, 4)
    heads = {"encoder": 2, "decoder": 3}
    arrays = {
        name: matrix_of(name, variable, heads[name[:7]]) for name, variable in named_weights(model)
    }
    expected = np.concatenate([kernel[:, 0], np.zeros((12, 4))], axis=1)
    assert np.array_equal(arrays["encoder_l1_self_Wq"], expected)
    assert arrays["encoder_l1_self_Wo"].shape == (8, 12)
    assert arrays["encoder_l1_self_bq"].shape == (8,)
    assert not arrays["encoder_l1_self_Wo"][4:].any()
    kernel = np.asarray(model.decoder.blocks[0].self_attention.projections[0].kernel)
    for head in range(3):
        columns = arrays["decoder_l1_self_Wq"][:, 4 * head : 4 * head + 4]
        assert np.array_equal(columns, kernel[:, head])
