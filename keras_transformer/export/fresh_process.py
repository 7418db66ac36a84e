"""Programs that run in a process of their own, where what an export must do without is hidden.

Run by its path, `python -P fresh_process.py PROGRAM REQUEST ANSWER`: calls one of `PROGRAMS` with
the content of the JSON file REQUEST and writes what it returns to ANSWER, for `child_process`.
Three call an export; one converts graphs, because TensorFlow's converter to LiteRT leaks.
"""

import contextlib
import ctypes
import importlib.machinery
import importlib.util
import json
import os
import signal
import stat
import sys
import threading
import time

IDS_FILE, TEXT_FILE = "model_ids.tflite", "model.tflite"
EOS_ID, UNK_ID = 2, 3

_PR_SET_PDEATHSIG = 1  # of linux/prctl.h

_REGISTRAR = "tensorflow_text.core.pybinds.tflite_registrar"


def _folder_of(package):
    """Where a package lies, also while it is hidden; None if it is not installed."""
    spec = importlib.machinery.PathFinder.find_spec(package)
    return spec and spec.submodule_search_locations[0]


def _load_operations(*libraries):
    """Registers tensorflow-text's operations from their shared objects.

    Not by `import tensorflow_text`, whose Python files import Keras and take seconds.
    """
    import tensorflow as tf

    folder = os.path.join(_folder_of("tensorflow_text"), "python", "ops")
    for name in libraries:
        tf.load_op_library(os.path.join(folder, f"_{name}.so"))


@contextlib.contextmanager
def _timed(seconds):
    start = time.perf_counter()
    yield
    seconds.append(round(time.perf_counter() - start, 3))


def call_saved_model(folder, load_operations, custom_ops, calls, rewrite_graph):
    """Calls an exported SavedModel through both of TensorFlow's loaders.

    `calls` are `{"signature": …, "inputs": {name: nested lists}}`; with `load_operations`
    tensorflow-text's are loaded first, with `rewrite_graph` sessions may rearrange arithmetic as
    they do by default. Gives for each of the loaders, `session` (which TensorFlow Serving and the C
    library use) and `module` (`tf.saved_model.load`), the outputs of each call, how long it took,
    and what the loader left uninitialized; and which of `custom_ops` the process knew.
    """
    import tensorflow as tf
    from tensorflow.python.framework import op_def_registry

    if load_operations:
        _load_operations("sentencepiece_tokenizer")
    answers = {}
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = not rewrite_graph
    # The session first, so that nothing that the other loader made can help it.
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        answers["session"] = _answers(lambda: _load_in_session(session, folder), calls)
    answers["module"] = _answers(lambda: _load_as_module(folder), calls)
    answers["known_ops"] = [each for each in custom_ops if op_def_registry.get(each)]
    return answers


def _answers(load, calls):
    """Loads with `load() -> (call, uninitialized)` and makes each call."""
    seconds, results = [], []
    with _timed(seconds):
        call, uninitialized = load()
    for each in [] if uninitialized else calls:
        with _timed(seconds):
            outputs = call(each["signature"], each["inputs"])
        results.append({name: _decoded(values.tolist()) for name, values in outputs.items()})
    return {
        "results": results,
        "uninitialized": uninitialized,
        "load_seconds": seconds[0],
        "call_seconds": seconds[1:],
    }


def _decoded(values):
    """Nested lists with strings instead of bytes."""
    if isinstance(values, list):
        return [_decoded(each) for each in values]
    return values.decode("utf-8") if isinstance(values, bytes) else values


def _load_in_session(session, folder):
    """The TensorFlow 1 loader: tensors by name."""
    import tensorflow as tf

    meta = tf.compat.v1.saved_model.loader.load(session, ["serve"], folder)
    handles = [each for each in session.graph.get_operations() if each.type == "VarHandleOp"]
    ready = session.run(
        {op.name: tf.raw_ops.VarIsInitializedOp(resource=op.outputs[0]) for op in handles}
    )

    def call(name, inputs):
        signature = meta.signature_def[name]
        given = {}
        for argument, values in inputs.items():
            info = signature.inputs[argument]
            shape = None if values else [0] * len(info.tensor_shape.dim)
            tensor = tf.make_tensor_proto(values, info.dtype, shape)
            given[info.name] = tf.make_ndarray(tensor)
        return session.run({key: each.name for key, each in signature.outputs.items()}, given)

    return call, [name for name, is_ready in ready.items() if not is_ready]


def _load_as_module(folder):
    """The TensorFlow 2 loader: the signature is a function."""
    import tensorflow as tf

    module = tf.saved_model.load(folder)

    def call(name, inputs):
        signature = module.signatures[name]
        given = {}
        for argument, spec in signature.structured_input_signature[1].items():
            values = inputs[argument]
            shape = None if values else [0] * spec.shape.rank
            given[argument] = tf.constant(values, spec.dtype, shape=shape)
        return {key: each.numpy() for key, each in signature(**given).items()}

    return call, []


def convert_to_litert(functions):
    """Converts graphs without variables to LiteRT models.

    `functions` is a list of dicts: `graph`, the path of a serialized GraphDef; `inputs` and
    `outputs`, the names of its tensors; `custom_operations`, whether operations that LiteRT does
    not bring may stay; `content`, the path to write the model to.
    """
    import tensorflow as tf

    if any(each["custom_operations"] for each in functions):
        _load_operations("sentencepiece_tokenizer", "fast_sentencepiece_tokenizer")
    for each in functions:
        with open(each["graph"], "rb") as file:
            definition = tf.compat.v1.GraphDef.FromString(file.read())
        whole = tf.compat.v1.wrap_function(
            lambda definition=definition: tf.import_graph_def(definition, name=""), []
        )
        tensors = (
            [whole.graph.get_tensor_by_name(name) for name in each[side]]
            for side in ("inputs", "outputs")
        )
        # Not `from_concrete_functions`, which asks for the object that holds the variables: all
        # that the function needs is in it, as constants.
        converter = tf.lite.TFLiteConverter([whole.prune(*tensors)])
        converter.allow_custom_ops = each["custom_operations"]
        with open(each["content"], "wb") as file:
            file.write(converter.convert())


def tokenizer_operations():
    """Functions that register tensorflow-text's SentencePiece operations with an interpreter.

    They are taken from its shared object: importing the package would import TensorFlow, which
    nothing here computes with. Raises `ImportError` where it is not installed.
    """
    registrar = sys.modules.get(_REGISTRAR)  # Of the package, where that is imported already.
    if registrar is None:
        framework, text = (_folder_of(name) for name in ("tensorflow", "tensorflow_text"))
        if framework is None or text is None:
            raise ImportError("A text model needs the operations of tensorflow-text.")
        # The registrar finds it by its name. Not for all to see: LiteRT has functions of these
        # names.
        ctypes.CDLL(os.path.join(framework, "libtensorflow_framework.so.2"))
        path = os.path.join(text, "core", "pybinds", "tflite_registrar.so")
        spec = importlib.util.spec_from_file_location(_REGISTRAR, path)
        registrar = sys.modules[_REGISTRAR] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(registrar)
    return [registrar.AddFastSentencepieceTokenize, registrar.AddFastSentencepieceDetokenize]


def translate_with_litert(folder, batches, lengths):
    """Translates with both files of an exported folder, by all its searches.

    `lengths` has for each batch of texts the length of the signature of ids to call, or None: the
    shortest that fits. Gives for each file the time to load it, and for each search the
    translations, the scores and, where the file gives them, the ids of each batch, and the times of
    the calls.
    """
    manifest = _manifest(folder)
    kinds = {"ids": lambda: litert_ids(folder, manifest)}
    if os.path.exists(os.path.join(folder, TEXT_FILE)):
        kinds["text"] = lambda: litert_text(folder)
    answers = {}
    for kind, load in kinds.items():
        loaded, searches = [], {}
        with _timed(loaded):
            translate = load()
        for search in manifest["searches"]:
            results, seconds = [], []
            for batch, length in zip(batches, lengths, strict=True):
                with _timed(seconds):
                    found = translate(batch, search, length) if batch else ([], [], [])
                results.append(dict(zip(("translation", "score", "ids"), found, strict=True)))
            searches[search] = {"results": results, "call_seconds": seconds}
        answers[kind] = {"load_seconds": loaded[0], "searches": searches}
    return answers


def litert_ids(folder, manifest):
    """`translate(texts, search, length)` with the file of ids, SentencePiece and LiteRT alone."""
    import numpy as np
    from ai_edge_litert.interpreter import Interpreter

    source, target = _tokenizers(folder, manifest)
    interpreter = Interpreter(os.path.join(folder, IDS_FILE), num_threads=2)
    lengths, sizes = manifest["source_lengths"], manifest.get("batch_sizes")

    def translate(texts, search, length):
        if sizes and len(texts) > sizes[-1]:
            parts = [texts[start : start + sizes[-1]] for start in range(0, len(texts), sizes[-1])]
            found = zip(*(translate(part, search, length) for part in parts), strict=True)
            return tuple(sum(each, []) for each in found)
        encoded = _encoded(source, texts, manifest)
        ids = [each[: lengths[-1] - 1] + [EOS_ID] for each in encoded]
        length = length or next(each for each in lengths if max(map(len, ids)) <= each)
        count = next(each for each in sizes if len(ids) <= each) if sizes else len(ids)
        padded = np.zeros((count, length), "int32")
        for row, text, each in zip(padded, texts, ids, strict=False):
            # A blank text is left as padding: its translation is empty.
            row[: len(each)] = each if text.strip() and len(each) > 1 else 0
        shape = f"{count}x{length}" if sizes else length
        found = interpreter.get_signature_runner(f"{search}_{shape}")(source_ids=padded)
        ids = found["ids"].reshape(count, -1, found["ids"].shape[-1])[: len(texts), 0]
        ids = [[i for i in row if i] for row in ids.tolist()]
        translations = [target.decode([i for i in row if i > EOS_ID]) for row in ids]
        return translations, _best(found["score"], count)[: len(texts)], ids

    return translate


def litert_text(folder):
    """The same with the file of texts and tensorflow-text's operations; it gives no ids."""
    interpreter = _text_interpreter(folder)

    def translate(texts, search, length):
        found = interpreter.get_signature_runner(search)(text=_bytes(texts))
        translations = _decoded(_best(found["translation"], len(texts)))
        return translations, _best(found["score"], len(texts)), None

    return translate


def _text_interpreter(folder):
    from ai_edge_litert.interpreter import InterpreterWithCustomOps

    return InterpreterWithCustomOps(
        custom_op_registerers=tokenizer_operations(),
        model_path=os.path.join(folder, TEXT_FILE),
        num_threads=2,
    )


def _bytes(texts):
    import numpy as np

    return np.array([text.encode("utf-8") for text in texts], dtype=object)


def call_litert_classifier(folder, calls, **others):
    """Calls the file of a classifier; as `call_saved_model`, whose other options do not matter."""
    run = _text_interpreter(folder).get_signature_runner()

    def call(name, inputs):
        texts = _bytes(inputs["text"])
        return run(text=texts) if len(texts) else {"label": texts, "probabilities": texts}

    return {"litert": _answers(lambda: (call, []), calls)}


def _best(values, rows):
    """Of each row the first hypothesis, where a search gives several."""
    return values.reshape(rows, -1)[:, 0].tolist()


def _manifest(folder):
    with open(os.path.join(folder, "export.json"), encoding="utf-8") as file:
        return json.load(file)


def _tokenizers(folder, manifest):
    import sentencepiece

    return [
        sentencepiece.SentencePieceProcessor(os.path.join(folder, manifest[f"{side}_tokenizer"]))
        for side in ("source", "target")
    ]


def _encoded(tokenizer, texts, manifest):
    """Ids of each text; of whole words one `<unk>` for each unknown one."""
    rows = tokenizer.encode(texts)
    if manifest.get("whole_words"):
        pairs = (zip(row, [*row[1:], EOS_ID], strict=False) for row in rows)
        rows = [
            [UNK_ID if after == UNK_ID else id for id, after in row if id != UNK_ID]
            for row in pairs
        ]
    return rows


def translate_with_ctranslate2(folder, texts, beam_sizes, max_length):
    """For each beam size `tokens` and `translations`, an element for each text, and `seconds`."""
    import ctranslate2

    manifest = _manifest(folder)
    source, target = _tokenizers(folder, manifest)
    translator = ctranslate2.Translator(folder, compute_type="float32", intra_threads=2)
    most = manifest["max_source_length"] - 1  # and the end of the sentence
    sources = [source.id_to_piece(ids[:most]) for ids in _encoded(source, texts, manifest)]
    answers = []
    for beam_size in beam_sizes:
        seconds = []
        with _timed(seconds):
            results = translator.translate_batch(
                sources,
                beam_size=beam_size,
                # No other is defined as the live model's is.
                length_penalty=0,
                min_decoding_length=0,
                max_decoding_length=max_length,
                # What the live model never chooses: padding and the beginning.
                suppress_sequences=[[target.id_to_piece(id)] for id in (0, 1)],
                max_batch_size=32,
            )
        tokens = [result.hypotheses[0] for result in results]
        translations = [target.decode(each) for each in tokens]
        answers.append({"tokens": tokens, "translations": translations, "seconds": seconds[0]})
    return answers


_KERAS = ("keras", "tf_keras", "keras_transformer")
_TENSORFLOW = ("tensorflow", "tensorflow_text")
PROGRAMS = {
    # A server has none of these, and `import tensorflow` takes Keras where it finds it.
    "saved_model": (call_saved_model, _KERAS),
    "litert": (translate_with_litert, _KERAS + _TENSORFLOW),
    "litert_classifier": (call_litert_classifier, _KERAS + _TENSORFLOW),
    "ctranslate2": (translate_with_ctranslate2, _KERAS + _TENSORFLOW),
    "conversion": (convert_to_litert, ()),
}
"""For each program its function, and the packages that it must do without."""


def main(program, request_path, answer_path):
    run, hidden = PROGRAMS[program]
    # With None in a module's place its import ends in ImportError.
    sys.modules.update(dict.fromkeys(hidden))
    with open(request_path, encoding="utf-8") as file:
        answer = run(**json.load(file))
    loaded = {name for name, module in sys.modules.items() if module is not None} - {_REGISTRAR}
    if wrong := {name.split(".")[0] for name in loaded} & set(hidden):
        sys.exit(f"{', '.join(sorted(wrong))} imported while it ran")
    with open(answer_path, "w", encoding="utf-8") as file:
        json.dump(answer, file)


def end_with_parent():
    """Ends this process when stdin does, if that is the pipe that `child_process` holds."""

    def watch():
        os.read(0, 1)
        os._exit(1)

    if stat.S_ISFIFO(os.fstat(0).st_mode):
        threading.Thread(target=watch, daemon=True).start()
        with contextlib.suppress(AttributeError):
            # Linux does it at once; the thread waits for the converter, which holds Python's lock.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    end_with_parent()
    main(*sys.argv[1:])
