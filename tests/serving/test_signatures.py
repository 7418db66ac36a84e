"""Which functions of a graph are offered, and how they are told of."""

import pytest
from google.protobuf import json_format

from keras_transformer.serving.signatures import Signature, Tensor, metadata, read_signatures

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
    assert signature == Signature(
        inputs={"text": Tensor("beam_text:0", "string", "DT_STRING", (None,))},
        outputs={
            "count": Tensor("beam_count:0", "int64", "DT_INT64", (None,)),
            "score": Tensor("beam_score:0", "float32", "DT_FLOAT", (None, 5)),
        },
    )
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


def test_the_metadata_is_what_tensorflow_serving_documents():
    text = Tensor("serving_default_text:0", "string", "DT_STRING", (None,))
    score = Tensor("StatefulPartitionedCall:1", "float32", "DT_FLOAT", (None, 5))
    told = metadata({"serving_default": Signature({"text": text}, {"score": score})})
    assert told == {
        "serving_default": {
            "inputs": {
                "text": {
                    "dtype": "DT_STRING",
                    "tensor_shape": {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False},
                    "name": "serving_default_text:0",
                }
            },
            "outputs": {
                "score": {
                    "dtype": "DT_FLOAT",
                    "tensor_shape": {
                        "dim": [{"size": "-1", "name": ""}, {"size": "5", "name": ""}],
                        "unknown_rank": False,
                    },
                    "name": "StatefulPartitionedCall:1",
                }
            },
            "method_name": "tensorflow/serving/predict",
            "defaults": {},
        }
    }


def test_the_metadata_is_the_graphs_own_as_protobuf_writes_it():
    graph = make_graph(serving_default=(TEXT, SCORES), ids=(SCORES, TEXT))
    # TensorFlow Serving writes it so: with the names of the fields, and those that are empty.
    written = {
        name: json_format.MessageToDict(
            definition, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        for name, definition in graph.signature_def.items()
    }
    assert metadata(read_signatures(graph)) == written
