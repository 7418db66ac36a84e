"""Facts about a run for a model card: its origin, licence, training texts and measures."""

import os
import pathlib
from typing import Any

from keras_transformer.base.reading import reading_errors
from keras_transformer.runs.run_folder import RunFolder


def described_origin(run: RunFolder) -> str:
    """Returns the texts of `origin` as a line: the model's name, then the others.

    An absolute path is shortened to its last name, because exports have the line in a README.
    """
    texts = {name: text for name, text in run.origin().items() if isinstance(text, str)}
    if not texts:
        return ""
    if os.path.isabs(name := texts.get("name", "")):
        texts["name"] = os.path.basename(os.path.normpath(name))
    texts.setdefault("licence", "not named")
    return ", ".join(text if name == "name" else f"{name} {text}" for name, text in texts.items())


def training_summary(run: RunFolder) -> dict[str, Any]:
    """Returns what a model card says: licence, training texts, and BLEU if it was measured.

    The texts have their names in the recipe, without folders of this machine.
    """
    with reading_errors(run.recipe_file, "a recipe"):
        names = _training_files(run)
    about: dict[str, Any] = {"training_texts": names}
    if licence := run.origin().get("licence"):
        about["licence"] = licence
    if not (metrics := run.metrics()):
        return about
    with reading_errors(run.metrics_file, "the metrics of a training"):
        average, measure = metrics.get("average") or {}, {}
        bleu = average.get("val_bleu", metrics.get("best_validation_bleu"))
        if bleu is not None:
            signature = metrics.get("validation_signatures", {}).get("bleu")
            measure = {"validation_bleu": round(bleu, 2), "bleu_signature": signature}
    return {**about, **measure}


def _training_files(run):
    data = run.section("data")
    corpora = data.get("train") or ()
    folder = pathlib.Path(str(data.get("folder") or "")).name
    names = []
    for corpus in corpora if isinstance(corpora, (list, tuple)) else [corpora]:
        paths = [corpus.get(key) for key in ("source", "target")]
        files = [pathlib.Path(path) for path in paths if path]
        names += [
            pathlib.Path(folder, file).as_posix() if file.name == str(file) else file.name
            for file in files
        ]
    return names
