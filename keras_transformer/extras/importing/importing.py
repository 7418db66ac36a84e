"""Models of Marian, Hugging Face, Firefox, CTranslate2 and Argos as models of this package.

A folder is read without Keras, which takes seconds, so that errors come first.
"""

import contextlib
import dataclasses
import functools
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from keras_transformer.base.errors import InputError, has_folder, print_lines
from keras_transformer.base.imports import import_keras
from keras_transformer.base.memory import check_memory
from keras_transformer.base.options import check_choice, option, options_class, parse_options
from keras_transformer.base.reading import read_lines
from keras_transformer.extras.foreign.foreign_model import ForeignModel
from keras_transformer.extras.foreign.vocabulary import tokenizer_of
from keras_transformer.extras.foreign.weights import fill
from keras_transformer.extras.importing.local_folder import LocalModel
from keras_transformer.models.config import TransformerConfig
from keras_transformer.runs.model_file import WEIGHT_DTYPES, save_model
from keras_transformer.runs.run_folder import MAX_SAMPLE_PAIRS, RunFolder
from keras_transformer.runs.sections import DecodingSection
from keras_transformer.text import Tokenizer
from keras_transformer.text.languages import languages_of_pair, languages_of_tags
from keras_transformer.text.sentences import TextRules

if TYPE_CHECKING:
    from keras_transformer.models import Transformer

__all__ = ["ImportedModel", "import_model", "import_run"]

_LEVELS, _SHOWN_FOLDERS = 2, 8  # below a folder, where its model is looked for
# Names of models with their languages: in lists, of OPUS-MT, and of the files of Firefox.
_CODE = "([a-z]{2,3}(?:[-_](?:[A-Z][a-z]{3}|[A-Z]{2}))?)"
_DIRECTIONS = [
    re.compile(rf"{start}{_CODE}-{_CODE}(?![\w-])")
    for start in ("^(?:firefox|argos):", r"(?:^|[/\\])opus-mt-(?:tc-[a-z]+-)?")
]
_DIRECTIONS.append(re.compile(r"^model\.([a-z]{2})([a-z]{2})\."))


@options_class
class OriginSection:
    """Where an imported model comes from: the section `origin` of its run's recipe."""

    name: str | None = option(None, "Name of the imported model: a path, a URL, or a hub id.")
    revision: str | None = option(None, "Commit of its repository, or its version in a list.")
    licence: str | None = option(None, "The field `license` of its model card.")
    files: dict[str, str] = option({}, "SHA-256 checksums of its files.")


class ImportedModel(NamedTuple):
    """A model with its tokenizers.

    Attributes:
        model: `Transformer`, not compiled.
        source_tokenizer: Tokenizer of the source side.
        target_tokenizer: Tokenizer of the target side; the same object if both are equal.
        decoding: Options of `Translator.translate` from the folder's files.
    """

    model: "Transformer"
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    decoding: dict[str, Any]


def import_model(
    folder: str | os.PathLike, sentencepiece: Sequence[str | os.PathLike] = ()
) -> ImportedModel:
    """Reads a model of another program, with equal word probabilities.

    Args:
        folder: Path of the model's folder. It is a model of Marian or OPUS-MT, a model of Hugging
            Face with `model_type: marian`, a student of Bergamot or Firefox, a Transformer of
            CTranslate2, or an Argos package. Or another name of a model, see `import_run`.
        sentencepiece: Paths of the SentencePiece file of both sides, or of each side, for a model
            of CTranslate2. The default is the files in the folder or in the folder above it.

    Raises:
        InputError: There is no such model, or it is a model that a `Transformer` cannot be.
    """
    with _local_model(folder, None) as local:
        return _import(local, sentencepiece)[0]


@functools.cache
def _readers() -> dict[str, Any]:
    """Returns the modules that read models, by the programs whose folders are there.

    They are in the order in which they recognize a model's folder.
    """
    readers = {}
    if has_folder("extras/argos") and has_folder("extras/ctranslate2"):
        from keras_transformer.extras.argos import reader as argos

        readers["argos"] = argos
    if has_folder("extras/ctranslate2"):
        from keras_transformer.extras.ctranslate2 import reader as ctranslate2

        readers["ctranslate2"] = ctranslate2
    if has_folder("extras/hugging_face"):
        from keras_transformer.extras.hugging_face import reader as hugging_face

        readers["hugging_face"] = hugging_face
    if has_folder("extras/marian"):
        from keras_transformer.extras.marian import reader as marian

        readers["marian"] = marian
    return readers


def _local_model(name, output):
    """Gives the folder of a model as `fetching.local_model` does, which a folder does not need."""
    if os.path.isdir(name):
        return contextlib.nullcontext(LocalModel(Path(name), os.fspath(name)))
    from keras_transformer.extras.importing.fetching import local_model

    return local_model(name, output, check_config)


def check_config(folder: Path) -> None:
    """Raises `InputError` if a configuration in a folder is of a model that is not imported."""
    hugging_face = _readers().get("hugging_face")
    if hugging_face is not None and hugging_face.is_model(folder):
        hugging_face.check_config(folder / hugging_face.CONFIG)


def read_model(folder: Path, sentencepiece: Sequence[str | os.PathLike] = ()) -> ForeignModel:
    """Reads a folder of any supported layout, without Keras; see `import_model`."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder.")
    folder = model_folder(folder)
    readers = _readers()
    program = next((name for name in readers if readers[name].is_model(folder)), "marian")
    if program in ("argos", "ctranslate2"):
        return readers[program].read(folder, sentencepiece)
    if sentencepiece:
        rule = "only models of CTranslate2 take SentencePiece files"
        raise InputError(f"{folder}: {rule}. Received: {', '.join(map(str, sentencepiece))}.")
    if program not in readers:
        raise InputError(f"{folder}: no model of these programs: {', '.join(readers)}.")
    return readers[program].read(folder)


def model_folder(folder: Path) -> Path:
    """Returns the folder that holds the model: a folder, or the only one below it that has a model.

    Archives often have a folder with the model next to other files. It is found up to two levels
    below. Without a model the folder itself is returned.

    Raises:
        InputError: Several folders have a model.
    """
    folders = _model_folders(folder, _LEVELS)
    if len(folders) > 1:
        names = ", ".join(map(str, folders[:_SHOWN_FOLDERS]))
        raise InputError(f"{folder}: expected one model. Received: {len(folders)}, in {names}.")
    return folders[0] if folders else folder


def _model_folders(folder, levels):
    if any(reader.is_model(folder) for reader in _readers().values()):
        return [folder]
    folders = []
    for path in sorted(folder.iterdir()) if levels else ():
        with contextlib.suppress(OSError):  # A folder may hold folders that the user may not read.
            if path.is_dir() and not path.name.startswith((".", "__MACOSX")):
                folders += _model_folders(path, levels - 1)
    return folders


def _import(local: LocalModel, sentencepiece, dtype: str | None = "float32"):
    """Reads a model as `import_model` does; also returns it as its folder has it.

    Its weights have a dtype of `WEIGHT_DTYPES`. None: the dtype of most numbers of the folder.
    """
    print_lines(f"{local.name}: reading the model")
    foreign_model = read_model(local.folder, sentencepiece)
    for note in (*foreign_model.notes, "making the tokenizers"):
        print_lines(f"{local.name}: {note}")
    source_vocabulary, target_vocabulary = foreign_model.vocabularies
    target = tokenizer_of(target_vocabulary, is_target=True)
    if source_vocabulary == target_vocabulary:
        source = target  # Use the target tokenizer for both sides: their vocabularies are equal.
    else:
        source = tokenizer_of(source_vocabulary, is_target=False)
    # Dropout that a model was not trained with makes its predictions nearly useless in a training.
    fields = {"dropout": 0.0, "output_bias": True, **foreign_model.fields}
    fields |= {"vocabulary_size": source.vocabulary_size}
    fields["tie_embeddings"] = foreign_model.tensors.tied_embeddings
    if source != target:
        fields["target_vocabulary_size"] = target.vocabulary_size
    dtype = dtype or foreign_model.tensors.dtype
    size = foreign_model.tensors.count * (4 if dtype == "float32" else 2)
    check_memory(size, f"{local.name}: the import")
    import_keras()
    from keras_transformer.base.large_variables import zero_initialized
    from keras_transformer.layers.half_precision import HalfPrecisionWeights
    from keras_transformer.models import Transformer

    policy = dtype if dtype == "float32" else HalfPrecisionWeights(dtype)
    with zero_initialized():
        model = Transformer(TransformerConfig(**fields), dtype=policy)
    print_lines(f"{local.name}: {model.count_params():,} parameters")
    fill(model, foreign_model.tensors, foreign_model.vocabularies)
    decoding = dict(foreign_model.decoding)
    return ImportedModel(model, source, target, decoding), foreign_model


def import_run(
    folder: str | os.PathLike,
    output: str | os.PathLike,
    samples: str | os.PathLike | None = None,
    overwrite: bool = False,
    sentencepiece: Sequence[str | os.PathLike] = (),
    dtype: str | None = None,
) -> str:
    """Imports a model of another program as a run folder.

    Args:
        folder: Path of a folder, or path or URL of an archive `.zip`, `.tar.gz` or `.argosmodel`.
            Or a name: `ORGANIZATION/NAME` or `ORGANIZATION/NAME@REVISION` of Hugging Face,
            `firefox:en-de`, `firefox:en-de/tiny` or `argos:en-de`. A path that exists comes first.
        output: Path of the run folder to make.
        samples: Path of source sentences that exports are verified with; built-in ones by default.
        overwrite: Whether an existing run is replaced.
        sentencepiece: SentencePiece files of a model of CTranslate2; see `import_model`.
        dtype: Of the run's weights: "float32", or "float16" or "bfloat16" for half the file and
            half the memory. By default the dtype of most numbers of the model. Computations are in
            float32.

    Returns:
        `output`.

    Raises:
        InputError: There is no such model, it cannot be downloaded or imported, the output cannot
            be made, or another process writes to it.
    """
    if dtype is not None:
        check_choice("dtype", dtype, WEIGHT_DTYPES)
    run = RunFolder(output)
    inputs = {"the model": folder, "--samples": samples}
    check = functools.partial(run.check_replaceable, overwrite, inputs)
    with run.owned().locked():
        check()
        sample_texts = None if samples is None else read_lines(samples)[:MAX_SAMPLE_PAIRS]
        with _local_model(folder, output) as local:
            imported, foreign_model = _import(local, sentencepiece, dtype)
            origin = local.origin(model_folder(local.folder))
            origin = parse_options(OriginSection, origin, f"{folder}: ")
            languages = foreign_model.languages or _languages_of_names(local)
        model, source_tokenizer, target_tokenizer, decoding = imported
        if not (languages and languages.tokens) and languages_of_tags(source_tokenizer.tag_tokens):
            languages = None  # The vocabulary tells them.
        for line in _lacking_signs(source_tokenizer, target_tokenizer):
            print_lines(f"{run.path}: {line}")
        fields = model.config.to_dict()
        is_joint = source_tokenizer == target_tokenizer or fields["tie_embeddings"] == "all"
        # All models of translation that are published have learned from sentences.
        rules = TextRules(split_sentences=True, copy_symbols=True, keep_case=True)._asdict()
        options = decoding | foreign_model.limits | rules
        defaults = parse_options(DecodingSection, options, f"{folder}: ")
        tokenizer_fields = ("vocabulary_size", "target_vocabulary_size", "turn_id")
        sections = {
            "text": {"vocabulary_size": source_tokenizer.vocabulary_size, "joint": is_joint},
            "model": {
                name: value for name, value in fields.items() if name not in tokenizer_fields
            },
            "decoding": dataclasses.asdict(defaults),
            "origin": dataclasses.asdict(origin),
        }
        from keras_transformer.export.verification import SENTENCES  # Late: it imports Keras.

        texts = SENTENCES if sample_texts is None else sample_texts
        print_lines(f"{run.path}: writing the run")
        with run.replaced(check) as new_run:
            tokenizers = source_tokenizer, target_tokenizer
            new_run.create(sections, tokenizers, {}, languages)
            new_run.write_sample_pairs((text, "") for text in texts)
            if foreign_model.shortlist is not None:
                foreign_model.shortlist.save(new_run.shortlist_file)
            save_model(model, new_run.model_file)
    return str(output)


def _languages_of_names(local: LocalModel):
    """Returns the languages that a model's name or the name of a Firefox file tells, or None."""
    names = local.name, *(path.name for path in sorted(local.folder.rglob("model.*.bin")))
    pairs = (pattern.search(name) for name in names for pattern in _DIRECTIONS)
    return next((languages_of_pair(*pair.groups()) for pair in pairs if pair), None)


def _lacking_signs(source_tokenizer, target_tokenizer):
    """Yields a line per vocabulary that lacks signs which many texts have."""
    tokenizers = {"the source vocabulary": source_tokenizer}
    tokenizers["the target vocabulary"] = target_tokenizer
    if source_tokenizer == target_tokenizer:
        tokenizers = {"the vocabulary": target_tokenizer}
    for noun, tokenizer in tokenizers.items():
        if signs := tokenizer.lacking_signs():
            yield f"{noun} lacks these signs: {' '.join(signs)}"
