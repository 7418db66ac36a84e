"""Converts graphs to LiteRT models in a process of its own: the converter leaks at each call.

Run by its path, `python -P litert_conversion.py REQUEST ANSWER`. REQUEST is a JSON list of dicts:
`graph`, the path of a serialized GraphDef without variables; `inputs` and `outputs`, the names of
its tensors; `custom_operations`, whether operations that LiteRT does not bring may stay; `content`,
the path to write the model to. ANSWER gets `null`.
"""

import importlib.util
import json
import sys
from pathlib import Path

import tensorflow as tf


def load_operations():
    """Registers tensorflow-text's operations without its Python files, which take seconds."""
    package = importlib.util.find_spec("tensorflow_text").submodule_search_locations[0]
    for library in sorted(Path(package).glob("python/ops/_*sentencepiece*.so")):
        tf.load_op_library(str(library))


def convert(graph, inputs, outputs, custom_operations, content):
    definition = tf.compat.v1.GraphDef.FromString(Path(graph).read_bytes())
    whole = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(definition, name=""), [])
    tensors = (
        [whole.graph.get_tensor_by_name(name) for name in names] for names in (inputs, outputs)
    )
    # Not `from_concrete_functions`, which asks for the object that holds the variables: all that
    # the function needs is in it, as constants.
    converter = tf.lite.TFLiteConverter([whole.prune(*tensors)])
    converter.allow_custom_ops = custom_operations
    Path(content).write_bytes(converter.convert())


def main(request_path, answer_path):
    with open(request_path, encoding="utf-8") as file:
        requests = json.load(file)
    if any(each["custom_operations"] for each in requests):
        load_operations()
    for each in requests:
        convert(**each)
    Path(answer_path).write_text("null", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
