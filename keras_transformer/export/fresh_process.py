"""Translates with an exported SavedModel where neither Keras nor this package can be imported.

Run by its path, `python -P fresh_process.py FOLDER REQUEST ANSWER`. REQUEST is a JSON file with
`batches`, a list of lists of texts, and `rewrite_graph`, whether sessions may rearrange
arithmetic as they do by default. ANSWER gets for each of the two loaders, `session` (which
TensorFlow Serving and the C library use) and `module` (`tf.saved_model.load`), the translations
and scores of each batch, how long it took, and what it left uninitialized.
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


def load_operations():
    """Registers tensorflow-text's SentencePiece operations from their shared object.

    Not by `import tensorflow_text`, whose Python files import Keras.
    """
    package = importlib.util.find_spec("tensorflow_text").submodule_search_locations[0]
    tf.load_op_library(os.path.join(package, "python", "ops", "_sentencepiece_tokenizer.so"))


def answer(load, batches):
    """Loads with `load() -> (translate, uninitialized)` and translates each batch."""
    start = time.perf_counter()
    translate, uninitialized = load()
    seconds = [time.perf_counter() - start]
    results = []
    for batch in [] if uninitialized else batches:
        start = time.perf_counter()
        texts, scores = translate(batch)
        seconds.append(time.perf_counter() - start)
        texts = [text.decode("utf-8") for text in texts.tolist()]
        results.append({"translation": texts, "score": scores.tolist()})
    return {
        "results": results,
        "uninitialized": uninitialized,
        "load_seconds": round(seconds[0], 3),
        "call_seconds": [round(each, 3) for each in seconds[1:]],
    }


def load_in_session(session, folder):
    """The TensorFlow 1 loader: tensors by name."""
    meta = tf.compat.v1.saved_model.loader.load(session, ["serve"], folder)
    signature = meta.signature_def["serving_default"]
    handles = [each for each in session.graph.get_operations() if each.type == "VarHandleOp"]
    ready = session.run(
        {op.name: tf.raw_ops.VarIsInitializedOp(resource=op.outputs[0]) for op in handles}
    )
    uninitialized = [name for name, is_ready in ready.items() if not is_ready]

    def translate(batch):
        outputs = [signature.outputs[name].name for name in ("translation", "score")]
        return session.run(outputs, {signature.inputs["text"].name: batch})

    return translate, uninitialized


def load_as_module(folder):
    """The TensorFlow 2 loader: the signature is a function."""
    module = tf.saved_model.load(folder)

    def translate(batch):
        result = module.signatures["serving_default"](text=tf.constant(batch, tf.string))
        return result["translation"].numpy(), result["score"].numpy()

    return translate, []


def main(folder, request_path, answer_path):
    with open(request_path, encoding="utf-8") as file:
        request = json.load(file)
    batches = request["batches"]
    load_operations()
    answers = {}
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = not request["rewrite_graph"]
    # The session first, so that nothing that the other loader made can help it.
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        answers["session"] = answer(lambda: load_in_session(session, folder), batches)
    answers["module"] = answer(lambda: load_as_module(folder), batches)
    imported = {name.split(".")[0] for name, module in sys.modules.items() if module is not None}
    answers["imported"] = sorted(imported & set(FOREIGN))
    with open(answer_path, "w", encoding="utf-8") as file:
        json.dump(answers, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
