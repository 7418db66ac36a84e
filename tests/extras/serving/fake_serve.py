"""`keras-transformer` with an engine whose translations are known, also in the server's processes.

A text in upper case is its translation. "busy" takes half a second, "endless" all time, and "fail"
is an error. The export's manifest may say `damaged`, `load_seconds`, or `endless` for its start.
"""

import json
import pathlib
import time

import numpy as np
import upper_case

from keras_transformer import Translation, Translator
from keras_transformer.base.errors import InputError
from keras_transformer.base.files import MANIFEST
from keras_transformer.cli.main import main


class Engine(upper_case.Engine):
    def translate(self, texts, **options):
        if self.manifest.get("endless") or any(text.startswith("endless") for text in texts):
            time.sleep(10_000)
        if any("fail" in text for text in texts):
            raise InputError("this text fails")
        if any(text.startswith("busy") for text in texts):
            time.sleep(0.5)
        return [self._translation(text, options) for text in texts]

    def _translation(self, text, options):
        words = text.split()
        fields = {"source_tokens": (*words,), "tokens": tuple(map(str.upper, words))}
        if options.get("alignment"):
            fields["alignment"] = np.eye(len(words), dtype="float32")
        return Translation(text.upper(), 0.5, **fields)


def load(path, threads=None):
    manifest = json.loads((pathlib.Path(path) / MANIFEST).read_text())
    time.sleep(manifest.get("load_seconds", 0))
    if manifest.get("damaged"):
        raise InputError(f"{path}: damaged.")
    return Translator(Engine(**manifest))


Translator.load = load  # The server's processes import this file, too.

if __name__ == "__main__":
    main()
