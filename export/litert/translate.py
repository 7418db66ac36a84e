"""Translates stdin with a LiteRT export, without our package; only "\\n" ends a line.

pip install ai-edge-litert sentencepiece
python translate.py FOLDER [--search beam] [--batch-size 8] [--threads 2] < in.txt > out.txt
"""

import argparse
import json
import pathlib
import sys

try:
    import numpy as np
    import sentencepiece
    from ai_edge_litert.interpreter import Interpreter
except ImportError as error:
    sys.exit(f"translate: {error}: pip install ai-edge-litert sentencepiece")

END_ID, UNKNOWN_ID = 2, 3  # 0 is padding, 1 the beginning of a sentence


def load(folder, threads=2):
    if not (folder / "model.tflite").is_file():
        sys.exit(f"{folder}: not a LiteRT export: no model.tflite.")
    manifest = json.loads((folder / "export.json").read_text(encoding="utf-8"))
    source, target = (
        sentencepiece.SentencePieceProcessor(str(folder / manifest[name]))
        for name in ("source_tokenizer", "target_tokenizer")
    )
    interpreter = Interpreter(str(folder / "model.tflite"), num_threads=threads)

    def encode(lines):
        rows = source.encode(lines)
        if manifest.get("whole_words"):  # One <unk> for each unknown word.
            pairs = [zip(row, [*row[1:], END_ID], strict=False) for row in rows]
            rows = [
                [UNKNOWN_ID if after == UNKNOWN_ID else id for id, after in row if id != UNKNOWN_ID]
                for row in pairs
            ]
        return rows

    shortlist = read_shortlist(folder / "shortlist.npy") if manifest.get("shortlist") else None
    return encode, target, interpreter, manifest["source_lengths"], shortlist


def read_shortlist(file):
    """Returns the ids that every translation may contain, and those of each source id."""
    numbers = np.load(file).astype(int)
    num_frequent, num_sources = numbers[:2]
    counts, frequent, rest = np.split(numbers[2:], np.cumsum([num_sources, num_frequent]))
    return frequent, np.split(rest, np.cumsum(counts)[:-1])


def candidates_of(shortlist, sources):
    """Returns the inputs that let each translation of a batch have its own candidates only."""
    frequent, lists = shortlist
    known = [[lists[id] for id in source if id < len(lists)] for source in sources]
    rows = [np.concatenate([frequent, *row]) for row in known]
    candidates = np.unique(np.concatenate(rows)).astype("int32")
    bias = [np.where(np.isin(candidates, row), 0, -1e9) for row in rows]
    return {"candidates": candidates, "candidate_bias": np.array(bias, "float32")}


def translate(model, lines, search="greedy", batch_size=8):
    encode, target, interpreter, lengths, shortlist = model
    sources = [ids[: lengths[-1] - 1] + [END_ID] for ids in encode(lines)]
    order = sorted(range(len(lines)), key=lambda index: len(sources[index]))
    translations = [""] * len(lines)  # A blank line stays one.
    order = [index for index in order if lines[index].strip() and len(sources[index]) > 1]
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        # The smallest signature that the longest source fits in; sources are padded with 0.
        length = next(size for size in lengths if len(sources[chosen[-1]]) <= size)
        source_ids = np.zeros((len(chosen), length), "int32")
        for row, index in zip(source_ids, chosen, strict=True):
            row[: len(sources[index])] = sources[index]
        runner = interpreter.get_signature_runner(f"{search}_{length}")
        inputs = {"source_ids": source_ids}
        if shortlist is not None:
            inputs |= candidates_of(shortlist, [sources[index] for index in chosen])
        ids = runner(**inputs)["ids"]
        best = ids.reshape(len(chosen), -1, ids.shape[-1])[:, 0].tolist()
        for index, row in zip(chosen, best, strict=True):
            translations[index] = target.decode([id for id in row if id > END_ID])
    return translations


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--search", choices=["greedy", "beam"], default="greedy")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if options.batch_size < 1:
        parser.error(f"--batch-size must be a positive integer. Received: {options.batch_size}.")
    sys.stdin.reconfigure(encoding="utf-8-sig", newline="\n")
    lines = [line.removesuffix("\n").removesuffix("\r") for line in sys.stdin]
    model = load(options.folder, options.threads)
    for text in translate(model, lines, options.search, options.batch_size):
        print(" ".join(text.splitlines()))
