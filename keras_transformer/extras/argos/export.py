"""Export as a package of Argos Translate: CTranslate2's model, its tokenizer, and its languages.

Which files argostranslate reads, and how it searches, was read in its versions 1.9 to 1.11.
"""

import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_transformer.base.errors import InputError
from keras_transformer.base.files import replaced_file, temporary_folder
from keras_transformer.base.ids import BOS_ID, PAD_ID, UNK_ID
from keras_transformer.engine.translation import Translation
from keras_transformer.export.child_process import KERAS, TENSORFLOW, ChildProcess
from keras_transformer.export.exporter import log_step, read_origin, read_template
from keras_transformer.export.verification import verify
from keras_transformer.extras.argos.export_options import ArgosOptions
from keras_transformer.extras.argos.reader import METADATA, SEARCH
from keras_transformer.extras.ctranslate2.export import CTranslate2Exporter
from keras_transformer.text.languages import language_name

if TYPE_CHECKING:
    from keras_transformer.engine import ModelEngine

# Version of Argos Translate that needs no folder for the sentences; 1.9 needs `stanza`.
_ARGOS_VERSION = "1.10"
_PROGRAM = str(Path(__file__).with_name("program.py"))
_SPLITTERS = ("minisbd", "stanza", "spacy")
_MAX_DECODING_LENGTH = 256  # CTranslate2's default, which Argos Translate leaves as it is
_DOWNLOADED = "Argos Translate downloads a model that splits texts into sentences, once."
_PACKED = "The package contains a model that splits texts into sentences (`{}`)."


class ArgosExporter(CTranslate2Exporter):
    """The format `argos`: a folder with an `.argosmodel`, for Argos Translate and LibreTranslate.

    Argos Translate has a search of its own, `SEARCH`, which bans no token. The verification
    unpacks the package and translates with CTranslate2 and SentencePiece as Argos Translate does,
    in float32 and without splitting texts, in a process without this package.
    """

    format_name = "argos"
    packages: tuple[str, ...] = ("ctranslate2", "sentencepiece")
    banned_ids = (PAD_ID, BOS_ID, UNK_ID)
    search: Mapping[str, Any] = {**SEARCH, "word_penalty": 0.0}

    def resolve_export_options(
        self, engine: "ModelEngine", options: ArgosOptions
    ) -> dict[str, Any]:
        resolved = super().resolve_export_options(engine, options)
        if options.languages is None:
            rule = "A package of Argos Translate names its languages"
            raise InputError(f"{rule}: give `languages`, such as --languages en-de.")
        tokenizer = engine.source_tokenizer
        for is_lacking, has, received in (
            (tokenizer != engine.target_tokenizer, "one vocabulary for both sides", "two"),
            (tokenizer.whole_words, "subword tokens", "a vocabulary of whole words"),
            (tokenizer.tag_tokens, "no tags before texts", ", ".join(tokenizer.tag_tokens)),
            (
                engine.languages is not None and engine.languages.tokens,
                "one direction",
                f"{len(engine.languages.directions) if engine.languages else 0} directions",
            ),
        ):
            if is_lacking:
                rule = f"A package of Argos Translate has {has}"
                raise InputError(f"{rule}. Received: {received}. Choose another format.")
        if options.sentence_splitter is not None:
            _check_splitter(Path(options.sentence_splitter))
        return resolved

    def write(self, engine: "ModelEngine", folder: Path, options: dict[str, Any]) -> dict[str, Any]:
        source, target = options["languages"]
        version = options["package_version"]
        root = f"translate-{source}_{target}-{version.replace('.', '_')}"
        metadata = {
            "package_version": version,
            "argos_version": _ARGOS_VERSION,
            "from_code": source,
            "from_name": language_name(source),
            "to_code": target,
            "to_name": language_name(target),
        }
        package = f"{root}.argosmodel"
        with temporary_folder(folder / "model-") as model, replaced_file(folder / package) as path:
            tokenizer = super().write(engine, model, options)["source_tokenizer"]
            log_step("packing the files")
            files = {f"model/{file.name}": file for file in model.iterdir()}
            files["sentencepiece.model"] = files.pop(f"model/{tokenizer}")
            splitter = options["sentence_splitter"]
            if splitter is not None:
                splitter = Path(splitter).resolve()
                files |= {
                    f"{splitter.name}/{file.relative_to(splitter).as_posix()}": file
                    for file in sorted(splitter.rglob("*"))
                    if file.is_file()
                }
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, file in files.items():
                    archive.write(file, f"{root}/{name}")
                archive.writestr(f"{root}/{METADATA}", json.dumps(metadata, indent=2) + "\n")
                archive.writestr(f"{root}/README.md", _description(metadata, options.get("origin")))
        # Without the path, which tells about this machine.
        fields = {"sentence_splitter": splitter and splitter.name, "package": package}
        return {**options, **fields, "metadata": metadata}

    def verify(
        self,
        engine: "ModelEngine",
        folder: Path,
        manifest: dict,
        texts: Sequence[str] | None,
        disposable_weights: bool = False,
    ) -> dict[str, Any]:
        longest = min(_MAX_DECODING_LENGTH, engine.max_target_length)
        limits = {
            "max_input_length": engine.max_source_length,
            "max_decoding_length": longest,
        }
        trained = {**SEARCH, "max_length": longest, "max_length_ratio": math.inf}
        search_options = {name: trained.pop(name) for name in ("beam_size", "length_penalty")}
        hidden = (*KERAS, *TENSORFLOW, "keras_transformer")
        with temporary_folder(folder / "unpacked-") as unpacked:
            with zipfile.ZipFile(folder / manifest["package"]) as archive:
                archive.extractall(unpacked)
            (package,) = map(str, unpacked.iterdir())
            function = f"{_PROGRAM}:open_package"
            with ChildProcess(function, hidden, package=package, limits=limits) as child:
                tolerance = self.tolerances[manifest["quantize"]]
                return verify(
                    child,
                    engine,
                    texts,
                    tolerance,
                    disposable_weights,
                    _translations,
                    only_trained=trained,
                    **search_options,
                )

    def readme_fields(self, manifest: dict) -> dict[str, str]:
        splitter = manifest["sentence_splitter"]
        sentences = _DOWNLOADED if splitter is None else _PACKED.format(splitter)
        return {**manifest["metadata"], "sentences": sentences}


def _check_splitter(folder):
    rule = f"`sentence_splitter` must be a folder named {', '.join(_SPLITTERS)}, with files"
    if folder.resolve().name not in _SPLITTERS or not folder.is_dir() or not any(folder.iterdir()):
        raise InputError(f"{rule}. Received: {folder}.")


def _description(metadata, origin):
    """Returns the README of a package, which Argos Translate shows."""
    text = read_template(__file__, "package.md").substitute(metadata)
    return text + (read_origin().substitute(origin=origin) if origin else "")


def _translations(answer):
    return [Translation(text, score, log_probability=math.nan) for text, score in answer]
