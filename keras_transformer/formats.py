"""The export formats, and the doors to their code: what imports an extra for the core.

`export` writes a format, `Translator.load` opens it, and commands, messages and pages name it. A
new format is a folder with an `Exporter`, its options and perhaps an engine, and a class here. Its
methods import the code at their call, because the parts below a format know it only by this table.
"""

import abc
import pathlib
from typing import TYPE_CHECKING

from keras_transformer.base.errors import check_folder, has_folder

if TYPE_CHECKING:
    from keras_transformer.engine.engine import Engine
    from keras_transformer.export.exporter import Exporter


class Format(abc.ABC):
    """An export format.

    Attributes:
        name: Name in Python, on the command line and in `export.json`.
        noun: Name in messages, without an article.
        folders: Folders of this package with the code of the format, which may be deleted.
        file: Pattern of the names of the file by which an export is recognized, for `open_export`;
            None for a format that only other programs read.
        next_command: What comes after the export. `{folder}` is the export, `{package}` a file in
            it; None for the `command` in the manifest, if it has one.
    """

    name: str
    noun: str
    folders: tuple[str, ...]
    file: str | None = None
    next_command: str | None = "keras-transformer translate --model {folder} < in.txt"

    @abc.abstractmethod
    def options(self) -> type:
        """Returns the class of the format's options; imports no Keras."""

    @abc.abstractmethod
    def exporter(self) -> "Exporter":
        """Returns the format's exporter."""

    def open_export(self, path: pathlib.Path, threads: int | None) -> "Engine":
        """Returns the engine of an export, on a number of threads."""
        raise NotImplementedError

    @property
    def is_present(self) -> bool:
        """True if the folders of the format are there."""
        return all(map(has_folder, self.folders))

    def check_present(self) -> None:
        """Raises `InputError` if a folder of the format was deleted."""
        for folder in self.folders:
            check_folder(folder)

    def is_at(self, path: pathlib.Path) -> bool:
        """Returns whether a path is an export of the format, or its file, that an engine opens."""
        return self.file is not None and (path.match(self.file) or any(path.glob(self.file)))


class SavedModelFormat(Format):
    name = "saved_model"
    noun = "SavedModel"
    folders = ("export/saved_model",)
    file = "saved_model.pb"

    def options(self):
        from keras_transformer.export.saved_model.export_options import SavedModelOptions

        return SavedModelOptions

    def exporter(self):
        from keras_transformer.export.saved_model.export import SavedModelExporter

        return SavedModelExporter()

    def open_export(self, path, threads):
        from keras_transformer.export.saved_model.engine import open_export

        return open_export(path, threads)


class LiteRTFormat(Format):
    name = "litert"
    noun = "LiteRT model"
    folders = ("export/litert",)
    file = "model.tflite"

    def options(self):
        from keras_transformer.export.litert.export_options import LiteRTOptions

        return LiteRTOptions

    def exporter(self):
        from keras_transformer.export.litert.export import LiteRTExporter

        return LiteRTExporter()

    def open_export(self, path, threads):
        from keras_transformer.export.litert.engine import LiteRTEngine

        return LiteRTEngine(path, threads or 2)


class WebFormat(Format):
    name = "web"
    noun = "page for browsers"
    folders = ("extras/web", "export/litert")
    next_command = "python -m http.server --bind 127.0.0.1 --directory {folder} 8000"

    def options(self):
        from keras_transformer.extras.web.export_options import WebOptions

        return WebOptions

    def exporter(self):
        from keras_transformer.extras.web.export import WebExporter

        return WebExporter()


class CTranslate2Format(Format):
    name = "ctranslate2"
    noun = "CTranslate2 model"
    folders = ("extras/ctranslate2",)
    file = "model.bin"

    def options(self):
        from keras_transformer.export.options import QuantizedOptions

        return QuantizedOptions

    def exporter(self):
        from keras_transformer.extras.ctranslate2.export import CTranslate2Exporter

        return CTranslate2Exporter()

    def open_export(self, path, threads):
        from keras_transformer.extras.ctranslate2.engine import CTranslate2Engine

        return CTranslate2Engine(path, threads)


class MarianFormat(Format):
    name = "marian"
    noun = "model of Marian"
    folders = ("extras/marian",)
    next_command = None

    def options(self):
        from keras_transformer.export.options import RankedOptions

        return RankedOptions

    def exporter(self):
        from keras_transformer.extras.marian.export import MarianExporter

        return MarianExporter()


class HuggingFaceFormat(Format):
    name = "hugging_face"
    noun = "model for transformers"
    folders = ("extras/hugging_face",)
    next_command = "keras-transformer import {folder} --output RUN"

    def options(self):
        from keras_transformer.export.options import SearchedOptions

        return SearchedOptions

    def exporter(self):
        from keras_transformer.extras.hugging_face.export import HuggingFaceExporter

        return HuggingFaceExporter()


class ArgosFormat(Format):
    name = "argos"
    noun = "package for Argos Translate"
    folders = ("extras/argos", "extras/ctranslate2")
    next_command = "keras-transformer import {folder}/{package} --output RUN"

    def options(self):
        from keras_transformer.extras.argos.export_options import ArgosOptions

        return ArgosOptions

    def exporter(self):
        from keras_transformer.extras.argos.export import ArgosExporter

        return ArgosExporter()


_FORMATS: tuple[Format, ...] = (
    SavedModelFormat(),
    LiteRTFormat(),
    WebFormat(),
    CTranslate2Format(),
    MarianFormat(),
    HuggingFaceFormat(),
    ArgosFormat(),
)
FORMATS = {format.name: format for format in _FORMATS}
"""The formats by their names."""
