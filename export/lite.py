"""Exports a run for LiteRT in 8 bits, and translates without keras_transformer and TensorFlow.

    python export/lite.py write RUN FOLDER
    python export/lite.py translate FOLDER "A text."

`write` needs `pip install ".[litert]"`, and `translate` only `pip install ai-edge-litert
sentencepiece`. export/litert/translate.py translates whole files, in batches.
"""

import json
import pathlib
import sys

END = 2  # 0 is padding, 1 the beginning of a sentence.


def write(run, folder):
    from keras_transformer.export import export_run

    # The file has a signature per source length. A device allocates them all: few, short ones.
    report = export_run(run, folder, "litert", quantize="int8", source_lengths=[32, 64])
    print(report.summary())


def translate(folder, text):
    import numpy as np
    import sentencepiece
    from ai_edge_litert.interpreter import Interpreter

    folder = pathlib.Path(folder)
    manifest = json.loads((folder / "export.json").read_text(encoding="utf-8"))
    source, target = (
        sentencepiece.SentencePieceProcessor(str(folder / manifest[f"{side}_tokenizer"]))
        for side in ("source", "target")
    )
    # The smallest signature that holds the source is the fastest. A longer source is truncated.
    longest = manifest["source_lengths"][-1]
    ids = [*source.encode(text)[: longest - 1], END]
    length = next(length for length in manifest["source_lengths"] if len(ids) <= length)
    interpreter = Interpreter(str(folder / "model.tflite"), num_threads=2)
    search = interpreter.get_signature_runner(f"greedy_{length}")
    source_ids = np.array([ids + [0] * (length - len(ids))], "int32")  # (batch, length)
    results = search(source_ids=source_ids)
    print(target.decode([id for id in results["ids"][0].tolist() if id > END]))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", run, folder]:
            write(run, folder)
        case ["translate", folder, text]:
            translate(folder, text)
        case _:
            sys.exit(__doc__)
