"""Size, quality, speed, memory and load time of what a run can be exported to, as a table.

    python -m benchmarks.artifact_table --model RUN --source FILE --reference FILE --work FOLDER

Each artifact is made in FOLDER (or taken from there), and measured in processes of their own that
import what the artifact needs and nothing of this package: peak memory and load time are then the
artifact's. The search is beam 4. There is a process for each way to use two threads; a rate is that
of the best one, which stands beside it (batches at once × threads of each). Tokens are those of the
translations, including EOS. The table goes to stdout, all figures to FOLDER/artifacts.json.
"""

import argparse
import importlib.util
import json
import pathlib
import statistics
import subprocess
import sys
import time

BEAM = 4
ARTIFACTS = (
    "SavedModel",
    "LiteRT float32",
    "LiteRT float16",
    "LiteRT int8",
    "CTranslate2 float32",
    "CTranslate2 int8",
)
_QUANTIZE = {"LiteRT float32": "none", "LiteRT float16": "float16", "LiteRT int8": "int8"}
_SETTINGS = {"SavedModel": ["1x2"], "LiteRT": ["1x1", "1x2"], "CTranslate2": ["1x1", "1x2", "2x1"]}
_REPEATS = 3
_FIRST = 100  # Sentences that are translated one by one.


def make(name, run, work):
    """The folder of an artifact, exported if it is not there."""
    from keras_transformer.export import export_run

    kind = name.split()[0]
    folder = work / (kind if kind == "CTranslate2" else name.replace(" ", "_"))
    if not folder.exists():
        print(f"exporting {name}", file=sys.stderr)
        if kind == "SavedModel":
            export_run(run, folder, beam_size=BEAM)
        elif kind == "LiteRT":
            options = {"beam_size": BEAM, "quantize": _QUANTIZE[name]}
            export_run(run, folder, "tflite", **options)
        else:
            export_run(run, folder, "ctranslate2")
    return folder


def files_of(name, folder):
    """The files that are needed to translate."""
    if name.startswith("LiteRT"):
        return [folder / "model.tflite", *folder.glob("*tokenizer.model")]
    return [path for path in folder.rglob("*") if path.is_file()]


def load_saved_model(folder, threads):
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    import tensorflow_text  # noqa: F401 (registers the tokenizer's operations)

    module = tf.saved_model.load(str(folder))
    signature = module.signatures["serving_default"]

    def translate(lines, batch_size, module=module):  # Held: it owns the variables.
        texts = []
        for start in range(0, len(lines), batch_size):
            found = signature(text=tf.constant(lines[start : start + batch_size]))
            texts += [text.decode("utf-8") for text in found["translation"].numpy().tolist()]
        return texts

    return translate


def load_litert(folder, threads):
    path = pathlib.Path(__file__).parents[1] / "export" / "litert" / "translate.py"
    spec = importlib.util.spec_from_file_location("litert_translate", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    model = example.load(folder, threads)
    return lambda lines, batch_size: example.translate(model, lines, "beam", batch_size)


def load_ctranslate2(folder, compute_type, batches, threads):
    import ctranslate2
    import sentencepiece

    translator = ctranslate2.Translator(
        str(folder), compute_type=compute_type, inter_threads=batches, intra_threads=threads
    )
    names = json.loads((folder / "export.json").read_text(encoding="utf-8"))
    source, target = (
        sentencepiece.SentencePieceProcessor(str(folder / names[name]))
        for name in ("source_tokenizer", "target_tokenizer")
    )

    def translate(lines, batch_size):
        tokens = source.encode(lines, out_type=str)
        found = translator.translate_batch(tokens, beam_size=BEAM, max_batch_size=batch_size)
        return target.decode([each.hypotheses[0] for each in found])

    return translate


def measure(name, folder, lines, setting):
    """Figures of one artifact in this process."""
    start = time.perf_counter()
    batches, threads = map(int, setting.split("x"))
    if name == "SavedModel":
        translate = load_saved_model(folder, threads)
    elif name.startswith("LiteRT"):
        translate = load_litert(folder, threads)
    else:
        translate = load_ctranslate2(folder, name.split()[1], batches, threads)
    figures = {"setting": setting, "load_seconds": time.perf_counter() - start}
    start = time.perf_counter()
    translate(lines[:1], 1)
    figures["first_sentence_seconds"] = time.perf_counter() - start
    for batch_size, part in ((1, lines[:_FIRST]), (32, lines)):
        # Of similar length together, as the other artifacts sort for themselves.
        order = sorted(range(len(part)), key=lambda place: len(part[place]))
        part = [part[place] for place in order] if batch_size > 1 else part
        texts = translate(part, batch_size)  # Compiles and warms up.
        seconds = []
        for _ in range(_REPEATS):
            start = time.perf_counter()
            translate(part, batch_size)
            seconds.append(time.perf_counter() - start)
        figures[f"seconds_{batch_size}"] = statistics.median(seconds)
        figures[f"texts_{batch_size}"] = texts
    figures["texts"] = [""] * len(lines)
    for place, text in zip(order, texts, strict=True):
        figures["texts"][place] = text
    figures["peak_megabytes"] = _peak_megabytes()
    return figures


def _peak_megabytes():
    # Not `ru_maxrss`, which a process takes over from the one that started it.
    status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    kilobytes = next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1]
    return int(kilobytes) / 1024


def row(name, run, work, source, reference):
    """One artifact: made, measured in fresh processes, its translations scored."""
    from keras_transformer.data import read_pairs
    from keras_transformer.training import RunFolder, evaluate

    lines, references = read_pairs(source, reference)
    folder = make(name, run, work)
    command = [sys.executable, "-m", "benchmarks.artifact_table", "--measure", name]
    command += ["--work", folder, "--source", source]
    tried = []
    for setting in _SETTINGS[name.split()[0]]:
        asked = [*map(str, command), "--setting", setting]
        done = subprocess.run(asked, stdout=subprocess.PIPE, check=True)
        tried.append(json.loads(done.stdout))
    one, many = (min(tried, key=lambda each: each[f"seconds_{size}"]) for size in (1, 32))
    tokenizer = RunFolder(run).tokenizers()[1]

    def tokens_per_second(figures, batch_size):
        tokens = sum(map(len, tokenizer.tokenize(figures[f"texts_{batch_size}"], add_eos=True)))
        return round(tokens / figures[f"seconds_{batch_size}"])

    return {
        "artifact": name,
        "megabytes": round(sum(each.stat().st_size for each in files_of(name, folder)) / 1e6, 2),
        "bleu": evaluate(many["texts"], references)["bleu"],
        "tokens_per_second_1": tokens_per_second(one, 1),
        "setting_1": one["setting"],
        "tokens_per_second_32": tokens_per_second(many, 32),
        "setting_32": many["setting"],
        "peak_megabytes": round(many["peak_megabytes"]),
        "load_seconds": round(many["load_seconds"], 2),
        "first_sentence_seconds": round(many["first_sentence_seconds"], 2),
    }


def table(rows):
    """The rows as Markdown."""
    yield "| artifact | MB | BLEU | tokens/s, 1 | tokens/s, 32 | peak MB | load s | first s |"
    yield "|---|---|---|---|---|---|---|---|"
    for each in rows:
        name, size, bleu, one, of_one, many, of_many, peak, load, first = each.values()
        yield (
            f"| {name} | {size:.1f} | {bleu:.2f} | {one:,} ({of_one}) | {many:,} ({of_many}) "
            f"| {peak:,} | {load:.2f} | {first:.2f} |"
        )


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.artifact_table", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--reference", type=pathlib.Path)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--artifacts", nargs="+", choices=ARTIFACTS, default=ARTIFACTS)
    parser.add_argument("--measure", choices=ARTIFACTS, help=argparse.SUPPRESS)
    parser.add_argument("--setting", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        lines = options.source.read_text(encoding="utf-8").split("\n")[:-1]
        json.dump(measure(options.measure, options.work, lines, options.setting), sys.stdout)
        return
    options.work.mkdir(parents=True, exist_ok=True)
    path = options.work / "artifacts.json"
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    for name in options.artifacts:
        rows = [each for each in rows if each["artifact"] != name]
        rows.append(row(name, options.model, options.work, options.source, options.reference))
        path.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    rows.sort(key=lambda each: ARTIFACTS.index(each["artifact"]))
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
