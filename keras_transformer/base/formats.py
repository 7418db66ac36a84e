"""Tables of formats, of exports and corpora: names of modules and texts; it imports none of them.

`export` writes a format, `Translator.load` opens it, and commands, messages and pages name it. A
new format is a folder with an `Exporter`, its options and perhaps an engine, and a row here.
"""

import importlib
import importlib.util
import pathlib
import re
import sys
from typing import Any, NamedTuple

from keras_transformer.base.errors import DISTRIBUTION, InputError

PACKAGE = __package__.partition(".")[0]


def load(name: str) -> Any:
    """Imports what a row names as `MODULE:NAME`, a module of this package.

    Raises:
        InputError: The folder of the module, an extra, was deleted.
    """
    module, _, attribute = name.partition(":")
    _check_present(module)
    return getattr(importlib.import_module(f"{PACKAGE}.{module}"), attribute)


def _check_present(module):
    if not _is_present(module):
        folder = f"{PACKAGE}/{module.rpartition('.')[0].replace('.', '/')}"
        raise InputError(f"This needs the folder {folder}: install {DISTRIBUTION} again.")


def _is_present(module):
    """Returns whether a module of this package is there; imports only the packages around it."""
    name = f"{PACKAGE}.{module}"
    try:
        return name in sys.modules or importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # The folder around it is not there.
        return False


class Format(NamedTuple):
    """An export format.

    Attributes:
        name: Name in Python, on the command line and in `export.json`.
        noun: Name in messages, without an article.
        options: Class of its options, `MODULE:CLASS`; imports no Keras.
        exporter: Class of its `Exporter`, `MODULE:CLASS`.
        engine: Function of a path and a number of threads that opens it, `MODULE:FUNCTION`; None
            for a format that only other programs read.
        file: Pattern of the names of the file by which its folder is recognized, for the engine.
        next_command: What comes after the export. `{folder}` is the export, `{package}` a file in
            it; None for the `command` in the manifest, if it has one.
        made_of: Module of another format that its export contains, None without one.
    """

    name: str
    noun: str
    options: str
    exporter: str
    engine: str | None = None
    file: str | None = None
    next_command: str | None = "keras-transformer translate --model {folder} < in.txt"
    made_of: str | None = None

    @property
    def is_present(self) -> bool:
        """True if the folders of the format are there; an extra's folder may be deleted."""
        modules = [self.exporter.partition(":")[0], self.made_of]
        return all(module is None or _is_present(module) for module in modules)

    def load(self, field: str) -> Any:
        """Imports what `options`, `exporter` or `engine` names; raises `InputError` as `load`."""
        if self.made_of is not None:
            _check_present(self.made_of)
        return load(getattr(self, field))

    def is_at(self, path: pathlib.Path) -> bool:
        """Returns whether a path is an export of the format, or its file, that an engine opens."""
        return self.file is not None and (path.match(self.file) or any(path.glob(self.file)))


_ROWS = (
    Format(
        name="saved_model",
        noun="SavedModel",
        options="export.saved_model.export_options:SavedModelOptions",
        exporter="export.saved_model.export:SavedModelExporter",
        engine="export.saved_model.engine:open_export",
        file="saved_model.pb",
    ),
    Format(
        name="litert",
        noun="LiteRT model",
        options="export.litert.export_options:LiteRTOptions",
        exporter="export.litert.export:LiteRTExporter",
        engine="export.litert.engine:open_export",
        file="model.tflite",
    ),
    Format(
        name="web",
        noun="page for browsers",
        options="extras.web.export_options:WebOptions",
        exporter="extras.web.export:WebExporter",
        next_command="python -m http.server --bind 127.0.0.1 --directory {folder} 8000",
        made_of="export.litert.export",
    ),
    Format(
        name="ctranslate2",
        noun="CTranslate2 model",
        options="export.options:QuantizedOptions",
        exporter="extras.ctranslate2.export:CTranslate2Exporter",
        engine="extras.ctranslate2.engine:open_export",
        file="model.bin",
    ),
    Format(
        name="marian",
        noun="model of Marian",
        options="export.options:RankedOptions",
        exporter="extras.marian.export:MarianExporter",
        next_command=None,
    ),
    Format(
        name="hugging_face",
        noun="model for transformers",
        options="export.options:SearchedOptions",
        exporter="extras.hugging_face.export:HuggingFaceExporter",
        next_command="keras-transformer import {folder} --output RUN",
    ),
    Format(
        name="argos",
        noun="package for Argos Translate",
        options="extras.argos.export_options:ArgosOptions",
        exporter="extras.argos.export:ArgosExporter",
        next_command="keras-transformer import {folder}/{package} --output RUN",
        made_of="extras.ctranslate2.export",
    ),
)
FORMATS = {row.name: row for row in _ROWS}
"""The formats by their names."""
PAIR_FILES = {"tmx": "extras.corpora.translation_memory:TranslationMemory"}
"""Classes of files of sentence pairs, by their key in a recipe; see `data.pairs.PairFile`."""
LEARN_SHORTLIST = "extras.corpora.learn_shortlist:learn_shortlist"
"""Function that learns the shortlist of a run from its training pairs."""
IMPORTED_NAME = re.compile(r"(?:firefox|argos):([\w-]+)\S*|[\w.-]+/([\w.-]+?)(?:@\S+)?", re.ASCII)
"""A name that `keras-transformer import` takes, of a published list or of Hugging Face."""
