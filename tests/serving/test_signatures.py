"""Which functions of a graph are offered, and how they are told of."""

import numpy as np
import pytest

from keras_transformer.serving.reporting import Rejection
from keras_transformer.serving.signatures import (
    Signature,
    Tensor,
    join,
    read_signatures,
    to_array,
    to_values,
)

pytestmark = pytest.mark.tensorflow

tf = pytest.importorskip("tensorflow")

from tensorflow.core.protobuf import meta_graph_pb2  # noqa: E402


def make_graph(**signatures):
    """A graph with signatures of `(inputs, outputs)`: dicts of a type and a shape by name."""
    graph = meta_graph_pb2.MetaGraphDef()
    for name, sides in signatures.items():
        definition = graph.signature_def[name]
        definition.method_name = "tensorflow/serving/predict"
        for infos, tensors in zip((definition.inputs, definition.outputs), sides, strict=True):
            for key, (dtype, shape) in tensors.items():
                infos[key].name = f"{name}_{key}:0"
                infos[key].dtype = dtype.as_datatype_enum
                infos[key].tensor_shape.CopyFrom(tf.TensorShape(shape).as_proto())
    return graph


TEXT = {"text": (tf.string, [None])}
SCORES = {"score": (tf.float32, [None, 5]), "count": (tf.int64, [None])}


def test_inputs_and_outputs_have_their_types_and_shapes():
    signature = read_signatures(make_graph(beam=(TEXT, SCORES)))["beam"]
    assert signature.inputs == {"text": Tensor("string", (None,))}
    assert signature.outputs == {
        "count": Tensor("int64", (None,)),
        "score": Tensor("float32", (None, 5)),
    }
    # An order that the map of the file does not give: requests without names go by it.
    assert list(signature.outputs) == ["count", "score"]


@pytest.mark.parametrize(
    "sides",
    [
        ({}, TEXT),
        (TEXT, {}),
        ({**TEXT, "temperature": (tf.float32, [])}, SCORES),
        (TEXT, {**SCORES, "loss": (tf.float32, [])}),
        ({"text": (tf.string, [3])}, SCORES),
        (TEXT, {"score": (tf.float32, [7, None])}),
        (TEXT, {"score": (tf.float32, None)}),
    ],
    ids=[
        "no input",
        "no output",
        "a scalar beside a batch",
        "a scalar comes out",
        "a fixed number of texts",
        "a fixed number of scores",
        "an unknown rank",
    ],
)
def test_what_is_no_batch_is_left_out(sides):
    graph = make_graph(serving_default=(TEXT, SCORES), other=sides)
    assert list(read_signatures(graph)) == ["serving_default"]


def test_a_definition_has_the_form_that_tensorflow_serving_documents():
    definition = read_signatures(make_graph(beam=(TEXT, {"score": SCORES["score"]})))["beam"]
    assert definition.definition == {
        "inputs": {
            "text": {
                "dtype": "DT_STRING",
                "tensor_shape": {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False},
                "name": "beam_text:0",
            }
        },
        "outputs": {
            "score": {
                "dtype": "DT_FLOAT",
                "tensor_shape": {
                    "dim": [{"size": "-1", "name": ""}, {"size": "5", "name": ""}],
                    "unknown_rank": False,
                },
                "name": "beam_score:0",
            }
        },
        "method_name": "tensorflow/serving/predict",
        "defaults": {},
    }


def tensor(dtype, *shape):
    return Tensor(dtype, (None, *shape))


def test_shorter_rows_are_padded_with_nothing():
    ids = to_array([[2, 3], [5]], tensor("int32", None))
    assert ids.dtype == np.int32 and ids.tolist() == [[2, 3], [5, 0]]
    words = to_array([[b"a"], [b"b", b"c"]], tensor("string", None))
    assert words.tolist() == [[b"a", b""], [b"b", b"c"]]
    assert to_array([b"a", b"bc"], tensor("string")).tolist() == [b"a", b"bc"]
    assert to_array([[[1.0], []]], tensor("float32", None, None)).tolist() == [[[1.0], [0.0]]]


def test_a_float32_is_written_as_the_shortest_decimal_that_means_it():
    values = to_values(np.array([0.1, -np.inf, 3.0], "float32"))
    assert values == [0.1, -np.inf, 3.0]
    random = np.random.default_rng(7)
    bits = random.integers(0, 2**32, 20_000, dtype=np.uint32).view("float32")
    few = random.uniform(-1, 1, (4, 5000)).round(3).astype("float32")
    ends = np.array([0.0, -0.0, 1e-45, 3.4028235e38, np.nan, 16777216, 0.5 + 2**-24], "float32")
    for array in (bits, few.reshape(-1), ends, random.uniform(0, 1, 20_000).astype("float32")):
        np.testing.assert_array_equal(to_values(array), array.astype("U").astype(float))


def joined(parts, outputs, padded=True, max_bytes=10_000):
    columns = join(parts, Signature({}, outputs, padded), max_bytes)
    return {key: np.asarray(values, object).tolist() for key, values in columns.items()}


def test_sentences_from_batches_of_different_widths_fit_together():
    outputs = {"ids": tensor("int32", None)}
    parts = [{"ids": [2, 0, 0, 0, 0]}, {"ids": [3, 5, 0]}]
    assert joined(parts, outputs) == {"ids": [[2, 0], [3, 5]]}
    arrays = [{"ids": np.array(part["ids"])} for part in parts]
    assert joined(arrays, outputs) == {"ids": [[2, 0], [3, 5]]}


def test_zeros_at_the_end_of_a_foreign_models_answer_stay():
    outputs = {"ids": tensor("int32", None), "words": tensor("string", None)}
    part = {"ids": np.array([2, 0, 0]), "words": np.array([b"a", b""], object)}
    assert joined([part], outputs, padded=False) == {"ids": [[2, 0, 0]], "words": [[b"a", b""]]}
    # Of batches of different widths the widest decides.
    shorter = {"ids": np.array([3]), "words": np.array([b"b"], object)}
    assert joined([part, shorter], outputs, padded=False) == {
        "ids": [[2, 0, 0], [3, 0, 0]],
        "words": [[b"a", b""], [b"b", b""]],
    }


def test_an_answer_that_is_certainly_too_long_is_refused_before_it_is_made():
    outputs = {"alignment": tensor("float32", None, None)}
    parts = [{"alignment": np.ones((20, 10))}, {"alignment": np.ones((10, 20))}]
    # 2 x 20 x 20 numbers of at least five characters each.
    assert np.shape(joined(parts, outputs, max_bytes=4000)["alignment"]) == (2, 20, 20)
    with pytest.raises(Rejection, match="At most 3999 bytes an answer") as caught:
        joined(parts, outputs, max_bytes=3999)
    assert caught.value.status == 413


def test_an_axis_of_a_fixed_size_keeps_its_empty_places():
    outputs = {"translation": tensor("string", 3), "score": tensor("float32", 3)}
    part = {"translation": [b"a", b"", b""], "score": [0.0, -np.inf, -np.inf]}
    assert joined([part], outputs) == {
        "translation": [[b"a", b"", b""]],
        "score": [[0.0, -np.inf, -np.inf]],
    }


def test_an_alignment_is_as_large_as_its_tokens_though_its_last_weights_are_0():
    outputs = {
        "source_tokens": tensor("string", None),
        "target_tokens": tensor("string", None),
        "alignment": tensor("float32", None, None),
    }
    part = {
        "source_tokens": [b"a", b"b", b"", b""],
        "target_tokens": [b"A", b"", b""],
        "alignment": [[1.0, 0.0, 0.0, 0.0], [0.0] * 4, [0.0] * 4],
    }
    assert joined([part], outputs) == {
        "source_tokens": [[b"a", b"b"]],
        "target_tokens": [[b"A"]],
        "alignment": [[[1.0, 0.0]]],
    }
