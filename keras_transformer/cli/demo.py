"""Trains, evaluates and exports on built-in data: dates in many languages -> 2026-11-20."""

import os
import pathlib
import time

from keras_transformer.base.errors import print_message, writing
from keras_transformer.base.files import OwnedFolder
from keras_transformer.cli.dates import LOCALES, date_corpus
from keras_transformer.engine.translator import Translator
from keras_transformer.export import export_run
from keras_transformer.formats import FORMATS
from keras_transformer.runs.run_folder import RunFolder

# The smallest model that learns the task. Compiling a shape takes half as long as an epoch.
_RECIPE = {
    "text": {"vocabulary_size": 500, "split_digits": True},
    "model": {
        "model_dim": 64,
        "num_heads": 4,
        "intermediate_dim": 128,
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "dropout": 0.1,
        "normalize_first": True,
    },
    "training": {
        "epochs": 4,
        "batch_tokens": 1024,
        "max_shapes": 2,
        "warmup_steps": 300,
        "learning_rate": 0.0072,
        "label_smoothing": 0.05,
        "ema_momentum": 0.99,
    },
    "decoding": {"beam_size": 2, "max_source_length": 64, "max_target_length": 32},
}
_PARTS, _SIDES = ("held_out", "train", "validation"), ("source", "target")
_HELD_OUT = 500
_EXAMPLES = (
    "Freitag, 20. November 2026",
    "20 novembre 2026",
    "Friday, November 20, 2026",
    "2026年11月20日",
    "пятница, 20 ноября 2026 г.",
)


def run_demo(output: str | os.PathLike, overwrite: bool = False) -> str:
    """Makes data, trains, evaluates on held-out dates, exports, translates with the export.

    Args:
        output: Path of the folder to make: `data/`, `run/` and `export/`.
        overwrite: Replace an earlier demo there, if nothing else is in its folder.

    Returns:
        A short table as text.

    Raises:
        InputError: The folder exists, or another process writes to it.
    """
    folder = pathlib.Path(output)
    owned = _owned(folder)
    with owned.locked():
        owned.check_replaceable(overwrite)
        return _run_demo(folder, overwrite)


def _run_demo(folder, overwrite):
    # Late: it imports Keras, which takes seconds.
    from keras_transformer.training import Recipe, train

    sources, targets = _prepare(folder, overwrite)
    files = {part: {side: f"{part}.{side}" for side in _SIDES} for part in _PARTS[1:]}
    values = {"data": {"folder": str(folder / "data"), **files}, **_RECIPE}
    recipe = Recipe.from_dict(values, where="the demo's recipe")
    start = time.perf_counter()
    train(recipe, folder / "run")
    minutes = (time.perf_counter() - start) / 60

    print_message("evaluating on held-out dates")
    translator = Translator.load(folder / "run")
    translations = [translation.text for translation in translator.translate(sources)]
    num_correct = sum(
        translation == target for translation, target in zip(translations, targets, strict=True)
    )

    print_message("exporting the SavedModel and comparing it with the trained model")
    report = export_run(folder / "run", folder / "export", signatures=["beam"])
    exported = Translator.load(folder / "export").translate(list(_EXAMPLES))
    rows = [
        ("languages and formats", f"{len(LOCALES)} locales"),
        ("training time", f"{minutes:.1f} minutes"),
        (
            "held-out dates right",
            f"{num_correct} of {len(targets)} ({num_correct / len(targets):.1%})",
        ),
        ("export", _equal_texts(report.verification)),
        *(
            (example, translation.text)
            for example, translation in zip(_EXAMPLES, exported, strict=True)
        ),
        (
            "data, run, SavedModel",
            ", ".join(str(folder / name) for name in ("data", "run", "export")),
        ),
    ]
    if FORMATS["web"].is_present:
        rows += _browser_rows(folder)
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _browser_rows(folder):
    from keras_transformer.extras.web.export import npm_command

    page = f"{folder}-page"
    return [
        ("in a browser", npm_command()),
        ("", f"keras-transformer export --model {folder / 'run'} --format web --output {page}"),
        ("", f"python -m http.server --bind 127.0.0.1 --directory {page} 8000"),
        ("", "http://localhost:8000"),
    ]


def _equal_texts(verification):
    return f"equal to the model on {verification['equal']} of {verification['texts']} texts"


def _prepare(folder, overwrite):
    """Replaces the folder by one with data; returns the held-out texts."""
    owned = _owned(folder)
    with owned.replaced(lambda: owned.check_replaceable(overwrite)) as new_folder:
        (new_folder / "data").mkdir()
        return _write_data(new_folder / "data")


def _owned(folder):
    """Returns the folder, which a demo marks by the file that `_write_data` writes first."""
    run, export = RunFolder(folder / "run").owned().files(), OwnedFolder(folder / "export").files()
    data = rf"data/({'|'.join(_PARTS)})\.({'|'.join(_SIDES)})"
    # Only `run` or `export` is the place of a lock or a temporary folder.
    files = f"{data}|run|run/({run})|export|export/({export})"
    return OwnedFolder(folder, f"data/{_PARTS[0]}.{_SIDES[0]}", files)


def _write_data(folder):
    """Writes three parts that share no date; returns the held-out one, which only tests."""
    corpus = date_corpus(num_held_out=2 * _HELD_OUT)
    parts = {
        "held_out": (corpus.held_out_source[_HELD_OUT:], corpus.held_out_target[_HELD_OUT:]),
        "train": (corpus.train_source, corpus.train_target),
        "validation": (corpus.held_out_source[:_HELD_OUT], corpus.held_out_target[:_HELD_OUT]),
    }
    for part, texts in parts.items():
        for side, lines in zip(_SIDES, texts, strict=True):
            text = "".join(line + "\n" for line in lines)
            path = folder / f"{part}.{side}"
            with writing(path):
                path.write_text(text, encoding="utf-8")
    return parts["held_out"]
