"""Calls an exported SavedModel where neither Keras nor this package can be imported.

Run by its path, `python -P fresh_process.py REQUEST ANSWER`. REQUEST is a JSON file with

- `folder`, the SavedModel;
- `load_operations`, whether tensorflow-text's operations are loaded first;
- `custom_ops`, the names of such operations;
- `calls`, a list of `{"signature": …, "inputs": {name: nested lists}}`;
- `rewrite_graph`, whether sessions may rearrange arithmetic as they do by default.

ANSWER gets for each of the two loaders, `session` (which TensorFlow Serving and the C library
use) and `module` (`tf.saved_model.load`), the outputs of each call, how long it took, and what
the loader left uninitialized; and which of `custom_ops` the process knew.
"""

import importlib.util
import json
import os
import sys
import time

FOREIGN = ("keras", "tf_keras", "keras_transformer")
# A server has none of these, and `import tensorflow` takes Keras where it finds it: with None in
# its place an import ends in ImportError.
sys.modules.update(dict.fromkeys(FOREIGN))

import tensorflow as tf  # noqa: E402
import tensorflow.python.framework.op_def_registry as op_def_registry  # noqa: E402


def load_operations():
    """Registers tensorflow-text's SentencePiece operations from their shared object.

    Not by `import tensorflow_text`, whose Python files import Keras.
    """
    package = importlib.util.find_spec("tensorflow_text").submodule_search_locations[0]
    tf.load_op_library(os.path.join(package, "python", "ops", "_sentencepiece_tokenizer.so"))


def plain(values):
    """An array as nested lists, strings decoded."""
    if isinstance(values, list):
        return [plain(each) for each in values]
    if isinstance(values, bytes):
        return values.decode("utf-8")
    return values


def answer(load, calls):
    """Loads with `load() -> (call, uninitialized)` and makes each call."""
    start = time.perf_counter()
    call, uninitialized = load()
    seconds = [time.perf_counter() - start]
    results = []
    for each in [] if uninitialized else calls:
        start = time.perf_counter()
        outputs = call(each["signature"], each["inputs"])
        seconds.append(time.perf_counter() - start)
        results.append({name: plain(values.tolist()) for name, values in outputs.items()})
    return {
        "results": results,
        "uninitialized": uninitialized,
        "load_seconds": round(seconds[0], 3),
        "call_seconds": [round(each, 3) for each in seconds[1:]],
    }


def load_in_session(session, folder):
    """The TensorFlow 1 loader: tensors by name."""
    meta = tf.compat.v1.saved_model.loader.load(session, ["serve"], folder)
    handles = [each for each in session.graph.get_operations() if each.type == "VarHandleOp"]
    ready = session.run(
        {op.name: tf.raw_ops.VarIsInitializedOp(resource=op.outputs[0]) for op in handles}
    )
    uninitialized = [name for name, is_ready in ready.items() if not is_ready]

    def call(name, inputs):
        signature = meta.signature_def[name]
        given = {}
        for argument, values in inputs.items():
            info = signature.inputs[argument]
            given[info.name] = tf.make_ndarray(tensor_proto(values, info.dtype, info.tensor_shape))
        return session.run({key: each.name for key, each in signature.outputs.items()}, given)

    return call, uninitialized


def tensor_proto(values, dtype, shape):
    """Nested lists as a tensor, an empty one too."""
    empty = [0] * len(shape.dim)
    return tf.make_tensor_proto(values, dtype, shape=None if values else empty)


def load_as_module(folder):
    """The TensorFlow 2 loader: the signature is a function."""
    module = tf.saved_model.load(folder)

    def call(name, inputs):
        signature = module.signatures[name]
        given = {}
        for argument, spec in signature.structured_input_signature[1].items():
            values = inputs[argument]
            empty = [0] * spec.shape.rank
            given[argument] = tf.constant(values, spec.dtype, shape=None if values else empty)
        return {key: each.numpy() for key, each in signature(**given).items()}

    return call, []


def main(request_path, answer_path):
    with open(request_path, encoding="utf-8") as file:
        request = json.load(file)
    folder, calls = request["folder"], request["calls"]
    if request["load_operations"]:
        load_operations()
    answers = {}
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = not request["rewrite_graph"]
    # The session first, so that nothing that the other loader made can help it.
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        answers["session"] = answer(lambda: load_in_session(session, folder), calls)
    answers["module"] = answer(lambda: load_as_module(folder), calls)
    imported = {name.split(".")[0] for name, module in sys.modules.items() if module is not None}
    answers["imported"] = sorted(imported & set(FOREIGN))
    answers["known_ops"] = [each for each in request["custom_ops"] if op_def_registry.get(each)]
    with open(answer_path, "w", encoding="utf-8") as file:
        json.dump(answers, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
