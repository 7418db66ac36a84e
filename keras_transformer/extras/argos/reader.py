"""Reads packages of Argos Translate: CTranslate2's model, its tokenizer, and its languages."""

import os
from collections.abc import Sequence
from pathlib import Path

from keras_transformer.base.errors import InputError
from keras_transformer.base.options import received
from keras_transformer.base.reading import read_json
from keras_transformer.extras.ctranslate2 import reader as ctranslate2
from keras_transformer.extras.foreign.foreign_model import ForeignModel
from keras_transformer.text.languages import languages_of_pair

METADATA = "metadata.json"
SEARCH = {**ctranslate2.SEARCH, "beam_size": 4, "length_penalty": 0.2}
"""Search options of Argos Translate."""
_CODES = {"pb": "pt-BR", "zt": "zh-Hant"}  # codes that only Argos Translate has


def is_model(folder: Path) -> bool:
    """Returns whether a folder is an unpacked package."""
    return (folder / METADATA).is_file() and (folder / "model").is_dir()


def read(folder: Path, sentencepiece: Sequence[str | os.PathLike] = ()) -> ForeignModel:
    """Reads the model of an unpacked package, with the search of Argos Translate."""
    path = folder / METADATA
    metadata = read_json(path)
    for name, neutral in (("type", "translate"), ("target_prefix", "")):
        if (value := metadata.get(name) or neutral) != neutral:
            rule = f"only packages with `{name}` {neutral!r} are imported"
            raise InputError(f"{path}: {rule}. Received: {received(value)}.")
    names = [metadata.get(f"{side}_name") for side in ("from", "to")]
    names = [name if isinstance(name, str) else "an unnamed language" for name in names]
    model = ctranslate2.read(folder / "model", sentencepiece)
    notes = ("an Argos package, {:.80} to {:.80}".format(*names), *model.notes)
    codes = [str(metadata.get(f"{side}_code")) for side in ("from", "to")]
    languages = languages_of_pair(*(_CODES.get(code, code) for code in codes))
    return model._replace(decoding=SEARCH, notes=notes, languages=languages)
