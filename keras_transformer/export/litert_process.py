"""Runs LiteRT files where neither TensorFlow, Keras nor this package can be imported.

Run by its path, `python -P litert_process.py FOLDER REQUEST ANSWER`. REQUEST is a JSON file with
`batches`, a list of lists of texts, and `lengths`, for each the length of the signature of ids to
call or null: the shortest that fits. ANSWER gets for each file the time to load it, and for each
search the translations, the scores and, where the file gives them, the ids of each batch, and the
times of the calls.
"""

import ctypes
import importlib.util
import json
import os
import sys
import time

FOREIGN = ("tensorflow", "keras", "tf_keras", "tensorflow_text", "keras_transformer")
TEXT_FILE, IDS_FILE = "model.tflite", "model_ids.tflite"
EOS_ID = 2

_REGISTRAR = "tensorflow_text.core.pybinds.tflite_registrar"


def tokenizer_operations():
    """Functions that register tensorflow-text's SentencePiece operations with an interpreter.

    They are taken from its shared object: importing the package would import TensorFlow, which
    nothing here computes with.

    Raises:
        ImportError: tensorflow-text is not installed.
    """
    if sys.modules.get(_REGISTRAR) is not None:
        registrar = sys.modules[_REGISTRAR]  # Of the package, which is imported already.
        return [registrar.AddFastSentencepieceTokenize, registrar.AddFastSentencepieceDetokenize]
    folders = [importlib.util.find_spec(name) for name in ("tensorflow", "tensorflow_text")]
    if None in folders:
        raise ImportError("A text model needs the operations of tensorflow-text.")
    framework, text = (each.submodule_search_locations[0] for each in folders)
    # The registrar finds it by its name. Not for all to see: LiteRT has functions of these names.
    ctypes.CDLL(os.path.join(framework, "libtensorflow_framework.so.2"))
    path = os.path.join(text, "core", "pybinds", "tflite_registrar.so")
    spec = importlib.util.spec_from_file_location(_REGISTRAR, path)
    registrar = sys.modules[_REGISTRAR] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(registrar)
    return [registrar.AddFastSentencepieceTokenize, registrar.AddFastSentencepieceDetokenize]


class Ids:
    """Text to text with `model_ids.tflite`, SentencePiece and the plain interpreter."""

    def __init__(self, folder, manifest):
        import sentencepiece
        from ai_edge_litert.interpreter import Interpreter

        self.interpreter = Interpreter(os.path.join(folder, IDS_FILE), num_threads=2)
        self.source, self.target = (
            sentencepiece.SentencePieceProcessor(os.path.join(folder, manifest[name]))
            for name in ("source_tokenizer", "target_tokenizer")
        )
        self.lengths = manifest["source_lengths"]

    def translate(self, texts, search, length):
        import numpy as np

        longest = self.lengths[-1]
        ids = [each[: longest - 1] + [EOS_ID] for each in self.source.encode(texts)]
        length = length or next(each for each in self.lengths if max(map(len, ids)) <= each)
        padded = np.zeros((len(ids), length), "int32")
        for row, text, each in zip(padded, texts, ids, strict=True):
            # A blank text is left as padding: its translation is empty.
            row[: len(each)] = each if text.strip() and len(each) > 1 else 0
        found = self.interpreter.get_signature_runner(f"{search}_{length}")(source_ids=padded)
        ids = found["ids"].reshape(len(texts), -1, found["ids"].shape[-1])[:, 0]
        ids = [[i for i in row if i] for row in ids.tolist()]
        texts = [self.target.decode([i for i in row if i > EOS_ID]) for row in ids]
        return texts, found["score"].reshape(len(texts), -1)[:, 0].tolist(), ids


class Text:
    """Text to text with `model.tflite` and tensorflow-text's operations."""

    def __init__(self, folder, operations):
        from ai_edge_litert.interpreter import InterpreterWithCustomOps

        self.interpreter = InterpreterWithCustomOps(
            custom_op_registerers=operations,
            model_path=os.path.join(folder, TEXT_FILE),
            num_threads=2,
        )

    def translate(self, texts, search, length):
        import numpy as np

        encoded = np.array([text.encode("utf-8") for text in texts], dtype=object)
        found = self.interpreter.get_signature_runner(search)(text=encoded)
        texts = [
            text.decode("utf-8") for text in found["translation"].reshape(len(texts), -1)[:, 0]
        ]
        return texts, found["score"].reshape(len(texts), -1)[:, 0].tolist(), None


def answer(load, searches, batches, lengths):
    """Loads, and translates each batch by each search."""
    start = time.perf_counter()
    model = load()
    report = {"load_seconds": round(time.perf_counter() - start, 3), "searches": {}}
    for search in searches:
        results, seconds = [], []
        for batch, length in zip(batches, lengths, strict=True):
            start = time.perf_counter()
            texts, scores, ids = model.translate(batch, search, length) if batch else ([], [], [])
            seconds.append(round(time.perf_counter() - start, 3))
            results.append({"translation": texts, "score": scores, "ids": ids})
        report["searches"][search] = {"results": results, "call_seconds": seconds}
    return report


def main(folder, request_path, answer_path):
    # Looked for before the packages that it lies in are hidden.
    operations = tokenizer_operations if os.path.exists(os.path.join(folder, TEXT_FILE)) else None
    operations = operations and operations()
    sys.modules.update(dict.fromkeys(FOREIGN))
    with open(request_path, encoding="utf-8") as file:
        request = json.load(file)
    with open(os.path.join(folder, "export.json"), encoding="utf-8") as file:
        manifest = json.load(file)
    searches = manifest["searches"]
    answers = {"ids": answer(lambda: Ids(folder, manifest), searches, **request)}
    if operations is not None:
        answers["text"] = answer(lambda: Text(folder, operations), searches, **request)
    with open(answer_path, "w", encoding="utf-8") as file:
        json.dump(answers, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
