"""From text files to BLEU on a GPU, with the commands, and the same sentences in transformers."""

import contextlib
import csv
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from benchmarks.compilations import write_corpus
from keras_transformer.base.errors import InputError, first_line

ROOT = pathlib.Path(__file__).parents[1]
_RECIPE = ROOT / "training/recipes/multi30k_en_de.yaml"
_BEAMS = (1, 4)


def measure_commands(
    work: pathlib.Path,
    text: pathlib.Path | None,
    epochs: int,
    small: bool,
    write: Callable[..., None],
) -> list[str]:
    """Trains, evaluates, exports and translates, then again in new processes.

    Returns a line for each step that failed; steps that need it are not tried.

    Args:
        work: Empty directory.
        text: Directory with train*, val* and test* in .en and .de; None: made-up words.
        epochs: Epochs of the training.
        small: Few lines and a tiny model.
        write: Function that gets figures by name as soon as they are there.
    """
    write_corpus(work, text, *((300, 40) if small else (29_000,)))
    settings = [f"data.folder={work}", "data.validation={source: val.en, target: val.de}"]
    settings += [f"training.epochs={epochs}"]
    if small:
        settings += ["text.vocabulary_size=200", "model={model_dim: 16, num_heads: 2, "]
        settings[-1] += "intermediate_dim: 24, num_encoder_layers: 1, num_decoder_layers: 1}"
    else:
        settings.append("training.dtype_policy=mixed_bfloat16")
        if text is None:
            settings.append("text.vocabulary_size=2000")
    sets = [word for setting in settings for word in ("--set", setting)]
    environment = {
        **os.environ,
        "KERAS_TRANSFORMER_COMPILATION_CACHE": str(work / "programs"),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    test = work / "test.en", work / "test.de"
    errors: list[str] = []

    words_of = commands(work, sets)

    def call(name, source=None):
        """Runs a command, and writes its seconds; returns what it writes to stdout."""
        with contextlib.ExitStack() as stack:
            stdin = subprocess.DEVNULL if source is None else stack.enter_context(open(source))
            log = stack.enter_context(open(work / f"{name.replace(' ', '_')}.log", "w+"))
            start = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-m", "keras_transformer", *words_of[name]],
                env=environment,
                cwd=work,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            seconds = round(time.perf_counter() - start, 1)
            log.seek(0)
            lines = [line.strip() for line in log if line.strip()] or ["no message"]
        if done.returncode:
            errors.append(f"{name}: exit code {done.returncode}: {lines[-1]:.200}")
            write(**{name: {"seconds": seconds, "error": errors[-1]}})
            raise InputError(errors[-1])
        write(**{name: {"seconds": seconds}})
        return done.stdout

    with contextlib.suppress(InputError):
        run, exported = work / "run", work / "exported"
        call("train")
        write(training=_of_training(run, work))
        scores = json.loads(call("evaluate"))
        write(bleu=scores["bleu"], chrf=scores["chrf"])
        with contextlib.suppress(InputError):
            call("export")
        call("translate", source=test[0])
        # The same again: what the first processes compiled is read.
        with contextlib.suppress(InputError):
            call("train again, one epoch")
        call("evaluate again")
        call("translate again", source=test[0])
        with contextlib.suppress(InputError):
            call("export again")
        try:
            write(same_weights=_side_by_side(run, exported, test[0], 100 if small else 1000))
        except Exception as error:
            errors.append(f"same weights: {first_line(error)}")
    return errors


def commands(work: pathlib.Path, sets: Sequence[str] = ()) -> dict[str, list[str]]:
    """Returns the words of each command by the name of its figure.

    Args:
        work: Directory of the texts and of all outputs.
        sets: Settings of the recipe, such as `["--set", "training.epochs=30"]`.
    """
    model = "--model", work / "run"
    train = "train", _RECIPE, *sets
    evaluate = "evaluate", *model, "--source", work / "test.en", "--reference", work / "test.de"
    export = "export", *model, "--format", "hugging_face", "--output"
    translate = "translate", *model
    words_of = {
        "train": (*train, "--output", work / "run"),
        "evaluate": evaluate,
        "export": (*export, work / "exported"),
        "translate": translate,
        "train again, one epoch": (*train, "--set", "training.epochs=1", "--output", work / "one"),
        "evaluate again": evaluate,
        "translate again": translate,
        "export again": (*export, work / "exported_again"),
    }
    return {name: [str(word) for word in words] for name, words in words_of.items()}


def _of_training(run, work):
    """Reads the seconds of the epochs, and what the first one waited for."""
    with open(run / "history.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    seconds = [float(row["seconds"]) for row in rows]
    metrics = json.loads((run / "metrics.json").read_text("utf-8"))
    log = (work / "train.log").read_text("utf-8", "replace").splitlines()
    return {
        "epochs": len(rows),
        "seconds_of_the_first_epoch": round(seconds[0], 2),
        "seconds_of_an_epoch": round(statistics.median(seconds), 3),
        "tokens_per_second": round(float(rows[-1]["tokens_per_second"]), 1),
        "validation_bleu": metrics.get("best_validation_bleu"),
        "compiled": [line for line in log if line.startswith("compiled ")],
    }


def _side_by_side(run, exported, source, count):
    """Seconds of the first and of later calls, of the run and of transformers with its weights."""
    from keras_transformer import Translator

    sentences = source.read_text("utf-8").splitlines()[:count]
    translator = Translator.load(run)
    figures = {}
    for beams in _BEAMS:

        def ours(beams=beams):
            return translator.translate(sentences, beam_size=beams, length_penalty=1.0)

        figures[f"ours, beam {beams}"] = _seconds(ours)
    try:
        import torch
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
    except ImportError as error:
        return {**figures, "transformers": f"not measured: {first_line(error)}"}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(exported)
    model = AutoModelForSeq2SeqLM.from_pretrained(exported, dtype=torch.bfloat16).to(device)
    for beams in _BEAMS:

        def theirs(beams=beams):
            batch = tokenizer(sentences, return_tensors="pt", padding=True, truncation=True)
            with torch.inference_mode():
                ids = model.generate(**batch.to(device), num_beams=beams)
            return tokenizer.batch_decode(ids, skip_special_tokens=True)

        figures[f"transformers, beam {beams}"] = _seconds(theirs)
    return figures


def _seconds(call):
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        call()
        seconds.append(round(time.perf_counter() - start, 3))
    return {"first": seconds[0], "later": min(seconds[1:])}
