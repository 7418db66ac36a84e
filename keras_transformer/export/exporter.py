"""Base of the export formats: one exporter per format, with manifest, README and report."""

import abc
import dataclasses
import gc
import importlib.metadata
import inspect
import json
import logging
import os
import re
import string
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_transformer.base.errors import InputError, declared_requirements
from keras_transformer.base.files import FORMAT_VERSION, MANIFEST, OwnedFolder, write_whole
from keras_transformer.base.memory import give_back, is_large
from keras_transformer.base.reading import file_digests
from keras_transformer.engine.engine import Engine
from keras_transformer.export.readme_languages import example_of, language_section
from keras_transformer.formats import FORMATS, Format
from keras_transformer.text.symbols import TextFeatures

if TYPE_CHECKING:
    from keras_transformer.engine.model_engine import TrainedEngine

_logger = logging.getLogger(__name__)  # The command line shows its messages.


_FILE_OPTION = re.compile("--(config|model) ")


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """Result of an export and of its verification.

    Attributes:
        folder: Path of the folder.
        manifest: The content of its `export.json`: options, sizes, operations, versions.
        verification: The content of its `verification.json`.
        seconds: Time that export and verification took.
    """

    folder: str
    manifest: dict
    verification: dict
    seconds: float

    @property
    def bytes(self) -> int:
        """Size of the folder in bytes."""
        paths = Path(self.folder).rglob("*")
        return sum(path.stat().st_size for path in paths if path.is_file())

    def summary(self) -> str:
        """Returns one line: folder, format, size, equal translations, seconds and what comes next.

        Example: `exported/en-de: SavedModel, 11.2 MB, 64 of 64 translations equal the trained
        model's (71 s). Next: keras-transformer translate --model exported/en-de < in.txt`
        """
        format = FORMATS[self.manifest["format"].partition(".")[2]]
        equal, texts = (self.verification[name] for name in ("equal", "texts"))
        noun = "labels" if "labels" in self.manifest else "translations"
        names = {"folder": self.folder, "package": self.manifest.get("package")}
        if format.next_command is not None:
            next_command = format.next_command.format(**names)
        else:  # The files that the manifest's command names are in the folder.
            folder, command = os.path.join(self.folder, ""), self.manifest.get("command", "")
            next_command = _FILE_OPTION.sub(lambda match: match[0] + folder, command)
        others = f"ther programs: {os.path.join(self.folder, 'README.md')}"
        others = f"Next: {next_command}; o{others}" if next_command else f"O{others}"
        return (
            f"{self.folder}: {format.noun}, {self.bytes / 1e6:.1f} MB, {equal} of {texts} "
            f"{noun} equal the trained model's ({self.seconds:.0f} s). {others}"
        )


class Exporter(abc.ABC):
    """Base class of a format's exporter, which writes, describes and verifies a folder.

    A subclass declares the type of engine that it takes: a `ModelEngine`, or also a
    `ClassifierEngine`. Its `resolve_export_options` refuses others.

    Attributes:
        format_name: Key of its format in `FORMATS`, which has the noun and the class of options.
        packages: Packages whose versions the manifest names.
        reading_packages: Packages that open the export; the manifest names the oldest versions that
            the tests open it with.
        template: Name of the README's template next to the module, for `string.Template`: the
            manifest's fields and `readme_fields`.
        has_quantized_layers: Whether the format takes a model after Keras' `quantize`.
        has_model_card: Whether the README tells how the model was trained.
        search: Values of search options that the format's program always has.
    """

    format_name: str
    packages: tuple[str, ...] = ()
    reading_packages: tuple[str, ...] = ()
    template = "readme.md"
    has_quantized_layers = False
    has_model_card = False
    search: Mapping[str, Any] = {}

    @property
    def format(self) -> Format:
        """Its format."""
        return FORMATS[self.format_name]

    @property
    def options(self) -> type:
        """Declared class of the format's options."""
        return self.format.options()

    def resolve_export_options(self, engine: Any, options: Any) -> dict[str, Any]:
        """Returns the manifest's fields about `options`, by default the options.

        Raises:
            InputError: The format does not support the model or an option, or a package that it
                needs is not installed.
        """
        return dict(vars(options))

    @abc.abstractmethod
    def write(self, engine: Any, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
        """Writes all files except the manifest and the README; returns fields of the manifest.

        `options` are the result of `resolve_export_options`, and `origin` if it is known.
        """

    @abc.abstractmethod
    def verify(
        self,
        engine: Any,
        folder: Path,
        manifest: dict,
        texts: Sequence[str] | None,
        disposable_weights: bool = False,
    ) -> dict[str, Any]:
        """Compares the folder with the trained model's engine; raises `VerificationError`.

        `disposable_weights` says whether the weights of the trained model may be released.

        Returns:
            The content of `verification.json`; `texts` and `equal` are the number of texts that
            were compared and of equal translations.
        """

    def readme_fields(self, manifest: dict) -> dict[str, str]:
        """Returns fields of the template in addition to the manifest's fields."""
        return {}

    def readme(self, manifest: dict) -> str:
        """Returns the README of an export."""
        versions = _listed(manifest["versions"])
        if manifest["oldest_versions"]:
            versions += f"; opens with {_listed(manifest['oldest_versions'])} and later"
        fields = {**manifest, "versions": versions}
        if "labels" in manifest:
            fields["labels"] = ", ".join(f"`{label}`" for label in manifest["labels"])
            return read_template(__file__, "readme_classifier.md").substitute(fields)
        fields["example"] = example_of(manifest).text
        fields |= self.readme_fields(manifest)
        text = read_template(inspect.getfile(type(self)), self.template).substitute(fields)
        text += language_section(manifest)
        if manifest.get("whole_words"):
            text += read_template(__file__, "readme_whole_words.md").template
        if "origin" in manifest:
            text += read_origin().substitute(fields)
        return text

    def export(
        self,
        engine: "TrainedEngine",
        output: str | os.PathLike,
        verification_texts: Sequence[str] | None = None,
        overwrite: bool = False,
        origin: str = "",
        training: Mapping[str, Any] | None = None,
        disposable_weights: bool = False,
        **options: Any,
    ) -> ExportReport:
        """Writes a verified folder, or nothing. The folder gets its name when it is complete.

        Args:
            engine: `ModelEngine` or `ClassifierEngine` of a run.
            output: Path of the folder to make.
            verification_texts: Source sentences to verify with, such as the run's
                `samples.tsv`; built-in English ones by default.
            overwrite: Whether an earlier export of that name is replaced.
            origin: Where an imported model comes from, for the README; empty for other models.
            training: Fields of the manifest about the training, for a model card.
            disposable_weights: Whether nobody uses the model after the export, so that the
                verification may release its weights.
            **options: Fields of the class `options`.

        Raises:
            InputError: An option is out of range, `output` exists, the format does not support the
                model, or a package that it needs is not installed.
            VerificationError: The export's translations differ from the trained model's. Nothing is
                written.
        """
        start = time.perf_counter()
        if engine.labels is not None:
            for name in options:
                raise InputError(f"The export of a classifier has no `{name}`.")
        self._check_quantization(engine)
        checked = self.options(**options)
        if engine.languages is not None:
            if checked.languages is None:
                checked = dataclasses.replace(checked, languages=engine.languages.only_direction)
            else:
                engine.languages.check_named(checked.languages)
        if vars(checked).get("shortlist"):
            engine.request(shortlist=True)  # It has one, or raises an error.
        resolved = self.resolve_export_options(engine, checked)
        common = {**self._common_fields(engine), "languages": checked.languages}
        if self.has_model_card:
            common |= training or {}
        if origin:
            common["origin"] = resolved["origin"] = origin
        with OwnedFolder(output).staged(overwrite) as folder:
            fields = self.write(engine, folder, resolved)
            manifest = {**common, "name": Path(output).resolve().name, **fields}
            manifest.setdefault("files", file_digests(folder))
            _write_json(folder / MANIFEST, manifest)
            write_whole(folder / "README.md", self.readme(manifest))
            if is_large(engine.model):  # Graphs and specifications hold weights in circles.
                gc.collect()
                give_back()
            verification = self.verify(
                engine, folder, manifest, verification_texts, disposable_weights
            )
            _write_json(folder / "verification.json", verification)
            seconds = time.perf_counter() - start
        return ExportReport(os.fspath(output), manifest, verification, seconds)

    def _check_quantization(self, engine):
        from keras_transformer.layers.quantization import layers_in

        layers = () if self.has_quantized_layers else layers_in(engine.model)
        for layer in layers:
            if layer.quantization_mode is not None:
                rule = "Only a SavedModel takes a model after `quantize`. Export it before."
                raise InputError(f"{rule} Received: {layer.quantization_mode} in {layer.path}.")

    def _common_fields(self, engine):
        import keras_transformer

        tokenizer, languages = engine.source_tokenizer, engine.languages
        turns = {"turns": list(engine.turns)} if engine.turns else {}
        return {
            "format": f"keras_transformer.{self.format.name}",
            "format_version": FORMAT_VERSION,
            "kind": engine.model.config.kind,
            "max_source_length": engine.max_source_length,
            "max_target_length": engine.max_target_length,
            "source_vocabulary_size": engine.source_tokenizer.vocabulary_size,
            "target_vocabulary_size": engine.target_tokenizer.vocabulary_size,
            **turns,
            **TextFeatures.of(tokenizer).to_manifest(),
            **engine.text_rules.to_manifest(),
            **({"language_tokens": languages.to_dict()} if languages else {}),
            **({"labels": engine.labels} if engine.labels is not None else {}),
            **({"whole_words": True} if engine.source_tokenizer.whole_words else {}),
            "versions": {
                "keras_transformer": keras_transformer.__version__,
                **{name: _version(name) for name in self.packages},
            },
            "oldest_versions": oldest_versions(self.reading_packages),
        }


def _listed(versions):
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:  # a package of another name: keras-nightly
        return sys.modules[name].__version__


def oldest_versions(packages: Sequence[str]) -> dict[str, str]:
    """Returns the lower bounds of packages in the metadata of this package, if it is installed."""
    return {
        requirement.name: specifier.version
        for requirement in declared_requirements()
        for specifier in requirement.specifier
        if requirement.name in packages and specifier.operator == ">="
    }


def check_tensorflow(noun: str) -> None:
    """Raises `InputError` on another backend of Keras, where `noun` cannot be exported."""
    import keras

    if (backend := keras.backend.backend()) != "tensorflow":
        rule = f"A {noun} is exported on Keras' TensorFlow backend."
        raise InputError(f"{rule} Received: backend={backend!r}.")


def write_tokenizers(engine: Engine, folder: Path) -> dict[str, str]:
    """Writes the SentencePiece models, one file if both sides share it; returns manifest fields."""
    source, target = engine.source_tokenizer, engine.target_tokenizer
    if source == target:
        write_whole(folder / "tokenizer.model", source.model_bytes)
        return dict.fromkeys(("source_tokenizer", "target_tokenizer"), "tokenizer.model")
    write_whole(folder / "source_tokenizer.model", source.model_bytes)
    write_whole(folder / "target_tokenizer.model", target.model_bytes)
    return {f"{side}_tokenizer": f"{side}_tokenizer.model" for side in ("source", "target")}


def read_template(module_file: str, name: str) -> string.Template:
    """Reads a template next to a module, whose `__file__` is given."""
    return string.Template(Path(module_file).with_name(name).read_text(encoding="utf-8"))


def read_origin() -> string.Template:
    """Reads the template about the origin of an imported model."""
    return read_template(__file__, "readme_origin.md")


def _write_json(path, content):
    write_whole(path, json.dumps(content, indent=2) + "\n")


def log_step(message: str) -> None:
    """Logs the next step of an export; the command line shows it as a line."""
    _logger.info("%s", message)
