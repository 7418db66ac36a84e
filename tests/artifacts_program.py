"""Writes a run and its exports, or translates with them, in the environment that runs it.

python tests/artifacts_program.py write FOLDER
python tests/artifacts_program.py read FOLDER RESULT

`RESULT` is a JSON file: the texts of each artifact, or the line that says why there are none.
"""

import json
import pathlib
import sys

from small_corpus import PAIRS, recipe_values, repeat_pairs, write_corpus

from keras_transformer import Translator
from keras_transformer.base.errors import InputError
from keras_transformer.export import export_run
from keras_transformer.training import Recipe, train

FORMATS = ("saved_model", "litert", "ctranslate2")
ARTIFACTS = ("run", *FORMATS)
WORDS = [word for source, _ in PAIRS for word in source.split()]
TEXTS = [" ".join(WORDS[start : start + 1 + start % 9]) for start in range(200)]


def write(folder):
    corpus = write_corpus(folder / "corpus")
    values = recipe_values(corpus, epochs=2, learning_rate=0.00375)
    repeat_pairs(corpus, values, 40)
    train(Recipe.from_dict(values), folder / "run")
    for name in FORMATS:
        try:
            export_run(folder / "run", folder / name, name)
        except InputError as error:
            (folder / f"{name}.error").write_text(str(error), encoding="utf-8")


def read(folder, result):
    texts = {}
    for name in ARTIFACTS:
        error = folder / f"{name}.error"
        if error.exists():
            texts[name] = f"not written: {error.read_text(encoding='utf-8')}"
            continue
        try:
            translations = Translator.load(folder / name).translate(TEXTS, beam_size=2)
            texts[name] = [translation.text for translation in translations]
        except InputError as error:
            texts[name] = f"not read: {error}"
    result.write_text(json.dumps(texts), encoding="utf-8")


if __name__ == "__main__":
    call, *paths = sys.argv[1:]
    {"write": write, "read": read}[call](*map(pathlib.Path, paths))
