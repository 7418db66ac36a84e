"""Folder of a run: its files, and how engines, exports and reports read them.

recipe.yaml         the recipe with every default written out, and the version of the files
tokenizer.model     or source_tokenizer.model and target_tokenizer.model
labels.json         a classifier's labels, next to source_tokenizer.model
data.json           SHA-256 checksums of the texts
model.keras         the best model, or the average of some epochs where that is better
checkpoints/        the last epochs and steps, with the optimizer's state; models to be averaged
history.csv         one line per epoch
samples.tsv         validation pairs that exports are verified with
samples.txt         sample translations of each epoch
languages.json      directions of a model of several languages, and their tokens
shortlist.npy       target tokens that each source token is likely to become, if it was made
bad_batch.json      the batch whose loss was NaN or infinite, if there was one
metrics.json        the best epoch, minutes, filter statistics of the data
tensorboard/        event files

Readers need no other files: `model.keras` holds its configuration, and the recipe's section
`decoding` the search defaults. Only `training/` reads the rest of the recipe.
"""

import contextlib
import copy
import functools
import json
import math
import os
import pathlib
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import pydantic

from keras_transformer.decoding.search_options import RunSearchOptions, run_search_options
from keras_transformer.engine.device import DevicePlan
from keras_transformer.errors import InputError
from keras_transformer.files import (
    FORMAT_VERSION,
    OwnedFolder,
    check_space,
    check_version,
    parts_folder,
    replaced_file,
    write_whole,
)
from keras_transformer.options import option, options_class, parse_options, received
from keras_transformer.reading import (
    BoundedYaml,
    check_file,
    decode_text,
    escape_field,
    iterate_lines,
    readable,
    unescape_field,
)
from keras_transformer.text import Labels, Tokenizer
from keras_transformer.text.dialog import Turns, turns_of
from keras_transformer.text.languages import Languages
from keras_transformer.text.shortlist import SHORTLIST_FILE, Shortlist

SAMPLE_PAIRS = 300
"""Maximum number of pairs in `samples.tsv`."""
# Paths of a run's files. A user may have a `recipe.yaml`, so a tokenizer marks a run.
_FILES = (
    r"recipe\.yaml|(source_|target_)?tokenizer\.model|labels\.json|data\.json|model\.keras|history\.csv"
    r"|languages\.json|samples\.(tsv|txt)|shortlist\.npy|bad_batch\.json|metrics\.json|checkpoints/(epoch|best)-\d+\.(keras|npz)"
    r"|checkpoints/base\.keras|checkpoints/step-\d+-\d+\.(keras|npz|json)"
    r"|tensorboard/(train|validation|attention)/events\.out\.tfevents\.[^/]*"
)
_MARKER, _VERSION = "*tokenizer.model", "format_version"
_MAX_RECIPE_BYTES = 1_000_000  # which take seconds to parse
_MAX_ITEM_BYTES, _FREE_BYTES = 4, 1 << 20


@options_class
class DecodingSection(RunSearchOptions):
    """Defaults of `translate`, `evaluate` and `export`."""

    max_source_length: int = option(
        512,
        "Maximum number of source tokens; longer texts raise an error, are split or truncated.",
        ge=2,
    )
    max_target_length: int = option(
        256,
        "Maximum number of tokens of a translation; twice the source's number plus 10 is a "
        "further limit.",
        ge=2,
    )

    @pydantic.model_validator(mode="after")
    def _check_lengths(self) -> "DecodingSection":
        if self.min_length > self.max_target_length:
            rule = "`decoding.min_length` must be at most `decoding.max_target_length`."
            values = f"min_length={self.min_length}, max_target_length={self.max_target_length}"
            raise InputError(f"{rule} Received: {values}.")
        return self

    @property
    def search(self) -> dict[str, Any]:
        """Search options of `translate` by their names."""
        return run_search_options(vars(self))


RESUME = "--resume to continue it, "
"""Option of a training that helps where its folder exists, for `check_replaceable`."""


class RunFiles:
    """Paths and files of a run: the files that readers need, and the first files of a run."""

    def __init__(self, path: str | os.PathLike):
        self.path = pathlib.Path(path)
        self.recipe_file = self.path / "recipe.yaml"
        self.model_file = self.path / "model.keras"
        self.checkpoints = self.path / "checkpoints"
        self.sample_pairs_file = self.path / "samples.tsv"
        self.digests_file = self.path / "data.json"
        self.metrics_file = self.path / "metrics.json"
        self.shortlist_file = self.path / SHORTLIST_FILE
        self.languages_file = self.path / "languages.json"
        self._parsed: tuple[str | None, dict[str, Any]] = None, {}

    @classmethod
    def existing(cls, path: str | os.PathLike) -> Self:
        """Returns a folder that holds a run.

        Raises:
            InputError: There is no run.
        """
        folder = cls(path)
        if not folder.path.is_dir():
            raise InputError(f"{path}: no such run folder.")
        if not folder.recipe_file.is_file():
            raise InputError(f"{path}: not a run folder: it has no recipe.yaml.")
        return folder

    def tokenizers(self) -> tuple[Tokenizer, Tokenizer | Labels]:
        """Returns the source's and the target's `Tokenizer`, the same object if it is joint.

        A classifier has `Labels` instead of the target's tokenizer.
        """
        joint = self.path / "tokenizer.model"
        if joint.exists() or not (self.path / "source_tokenizer.model").exists():
            tokenizer = Tokenizer.load(joint)
            return tokenizer, tokenizer
        source, labels = Tokenizer.load(self.path / "source_tokenizer.model"), self._labels_file
        if labels.exists():
            return source, Labels.load(labels)
        return source, Tokenizer.load(self.path / "target_tokenizer.model")

    @property
    def _labels_file(self):
        return self.path / "labels.json"

    def shortlist(self, tokenizers: Callable[[], Sequence[Any]] | None = None) -> Shortlist | None:
        """Returns the run's shortlist, or None if it has none.

        Args:
            tokenizers: Gives both tokenizers, for a caller that needs them too; by default the
                method of this name.

        Raises:
            InputError: The file is damaged, or made for other vocabularies.
        """
        if not self.shortlist_file.is_file():
            return None
        shortlist = Shortlist.load(self.shortlist_file)
        source_size, target_size = (
            side.vocabulary_size for side in (tokenizers or self.tokenizers)()
        )
        if shortlist.source_vocabulary_size > source_size or shortlist.largest_id >= target_size:
            rule = f"the shortlist must be of the run's {source_size} and {target_size} token ids"
            sizes = (
                f"{shortlist.source_vocabulary_size} source ids, target id {shortlist.largest_id}"
            )
            advice = "Make another one with `keras-transformer shortlist`."
            raise InputError(f"{self.shortlist_file}: {rule}. Received: {sizes}. {advice}")
        return shortlist

    def languages(self) -> Languages | None:
        """Returns the languages of the run's model, or None if they are unknown."""
        return Languages.load(self.languages_file) if self.languages_file.is_file() else None

    def model(self):
        """Returns the best model.

        Raises:
            InputError: The run has no model yet, or the file is damaged or of another kind.
        """
        return load_model(self.model_file, compile=False)

    def decoding(self) -> DecodingSection:
        """Returns the run's search defaults.

        Raises:
            InputError: An option in the recipe's section `decoding` is invalid.
        """
        return parse_options(DecodingSection, self._section("decoding"), f"{self.recipe_file}: ")

    def origin(self) -> dict[str, Any]:
        """Returns what the import of the model recorded, also of one that training started from.

        It is empty for a model that was not imported.
        """
        return {name: value for name, value in self._section("origin").items() if value}

    def described_origin(self) -> str:
        """Returns the texts of `origin` as a line: the model's name, then the others.

        An absolute path is shortened to its last name, because exports have the line in a README.
        """
        texts = {name: text for name, text in self.origin().items() if isinstance(text, str)}
        if not texts:
            return ""
        if os.path.isabs(name := texts.get("name", "")):
            texts["name"] = os.path.basename(os.path.normpath(name))
        texts.setdefault("licence", "not named")
        return ", ".join(
            text if name == "name" else f"{name} {text}" for name, text in texts.items()
        )

    def metrics(self) -> dict[str, Any]:
        """Returns the content of `metrics.json`, or an empty dict without this file."""
        metrics: dict[str, Any] = {}
        if self.metrics_file.exists():
            with readable(self.metrics_file, "the metrics of a training"):
                metrics = {**json.loads(self.metrics_file.read_bytes())}
        return metrics

    def training_summary(self) -> dict[str, Any]:
        """Returns what a model card says: training texts, and BLEU if training measured it.

        The texts have their names in the recipe, without folders of this machine.
        """
        with readable(self.recipe_file, "a recipe"):
            names = self._training_files()
        if not (metrics := self.metrics()):
            return {"training_texts": names}
        with readable(self.metrics_file, "the metrics of a training"):
            average, measure = metrics.get("average") or {}, {}
            bleu = metrics.get("best_validation_bleu")
            if average.get("is_the_best_model"):
                bleu = average.get("val_bleu", bleu)
            if bleu is not None:
                signature = metrics.get("validation_signatures", {}).get("bleu")
                measure = {"validation_bleu": round(bleu, 2), "bleu_signature": signature}
        return {"training_texts": names, **measure}

    def _training_files(self):
        data = self._section("data")
        corpora = data.get("train") or ()
        folder = pathlib.Path(str(data.get("folder") or "")).name
        names = []
        for corpus in corpora if isinstance(corpora, (list, tuple)) else [corpora]:
            paths = [corpus.get(key) for key in ("source", "target", "tmx")]
            files = [pathlib.Path(path) for path in paths if path]
            names += [
                pathlib.Path(folder, file).as_posix() if file.name == str(file) else file.name
                for file in files
            ]
        return names

    def turns(self) -> Turns | None:
        """Returns the rule that joins the turns of a source, where sources are conversations."""
        separator = self._section("text").get("turn_separator")
        return turns_of(separator, self._section("data").get("context_turns"))

    def longest_trained(self) -> int:
        """Returns the maximum number of tokens of the texts that the model was trained on."""
        return self._section("data").get("max_length", self.decoding().max_source_length)

    def sections(self) -> dict[str, Any]:
        """Returns the sections of the recipe.

        Raises:
            InputError: The file is no recipe, or another version of this package made the run.
        """
        text = _recipe_text(self.recipe_file)
        # Parsing takes long. The text decides, because a training may replace the file.
        if text != self._parsed[0]:
            self._parsed = text, _sections_of(text, self.recipe_file)
        sections = copy.deepcopy(self._parsed[1])
        check_version(sections.pop(_VERSION, None), self.path)
        return sections

    def _section(self, name):
        return section_of(self.sections(), name, self.recipe_file)

    def engine_options(
        self, tokenizers: Callable[[], Sequence[Any]] | None = None
    ) -> dict[str, Any]:
        """Returns the model's arguments of the engine: limits, turns, shortlist, languages.

        Takes the argument of `shortlist`.
        """
        decoding = self.decoding()
        options: dict[str, Any] = {
            "max_source_length": decoding.max_source_length,
            "max_target_length": decoding.max_target_length,
            "turns": self.turns(),
            "shortlist": self.shortlist(tokenizers),
            "languages": self.languages(),
        }
        return {name: value for name, value in options.items() if value is not None}

    def engine(self, plan: DevicePlan | None = None):
        """Returns the engine with the run's model, tokenizers and limits.

        Args:
            plan: Shapes and rows of its searches; by default those that suit the device.
        """
        from keras_transformer.engine.model_engine import engine_of

        tokenizers = functools.cache(self.tokenizers)
        options, model = self.engine_options(tokenizers), self.model()
        try:
            return engine_of(model, *tokenizers(), frozen=True, plan=plan, **options)
        except InputError as error:
            raise InputError(f"{self.path}: {error}") from None

    def sample_pairs(self) -> list[tuple[str, str]]:
        """Returns the pairs of `samples.tsv`; an empty list without this file.

        Raises:
            InputError: A line is not two texts with a tab between.
        """
        if not self.sample_pairs_file.is_file():
            return []
        pairs = []
        for number, line in enumerate(iterate_lines(self.sample_pairs_file, True), start=1):
            source, tab, target = line.partition("\t")
            if not tab or "\t" in target:
                index = f"{self.sample_pairs_file}, line {number}"
                raise InputError(
                    f"{index}: expected a source and a target. Received: {line!r:.80}."
                )
            pairs.append((unescape_field(source), unescape_field(target)))
        return pairs

    def write_sample_pairs(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Writes `samples.tsv`, one line per pair of a source and a target text."""
        lines = ("\t".join(map(escape_field, pair)) + "\n" for pair in pairs)
        write_whole(self.sample_pairs_file, "".join(lines))

    def owned(self) -> OwnedFolder:
        """Returns the folder with the rule which files a run made; other files are preserved."""
        return OwnedFolder(self.path, _MARKER, _FILES)

    @contextlib.contextmanager
    def replaced(self, check: Callable[[], object]) -> Iterator[Self]:
        """Gives a run in a temporary folder, whose files become this run when the block succeeds.

        An earlier run stays whole until then. The caller holds the lock of `owned`. `check` raises
        `InputError` if the folder may not be replaced.
        """
        with self.owned().replaced(check) as folder:
            yield type(self)(folder)

    def check_replaceable(
        self,
        overwrite: bool,
        inputs: Mapping[str, str | os.PathLike | None],
        other_options: str = "",
    ) -> None:
        """Checks that a new run may use the folder: it is missing, empty or may be overwritten.

        Args:
            overwrite: Whether an existing run is replaced, if its folder holds nothing else.
            inputs: Input files of the new run, by their names in messages.
            other_options: Options of the command that help, other than `--overwrite`.

        Raises:
            InputError: The folder may not be replaced.
        """
        self.owned().check_replaceable(overwrite, other_options)
        for name, file in inputs.items():
            if file and pathlib.Path(file).resolve().is_relative_to(self.path.resolve()):
                raise InputError(
                    f"{self.path}: is not overwritten, because {name} is in it: {file}. "
                    "Give another --output."
                )

    def write_start(
        self,
        sections: Mapping[str, Any],
        tokenizers: Sequence[Any],
        digests: Mapping[str, Any],
        languages: Languages | None = None,
    ) -> None:
        """Writes the files of a run that exist before the first step.

        The recipe comes last, because a folder with a recipe is a run.

        Args:
            sections: Sections of the recipe.
            tokenizers: `Tokenizer` of the source, `Tokenizer` or `Labels` of the target.
            digests: SHA-256 checksums of the texts, by which a resumed run recognizes them.
            languages: Languages of the model, if they are known.

        Raises:
            InputError: The folder cannot be made.
        """
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.path}: cannot make the folder: {error.strerror}.") from None
        source, target = tokenizers
        if source == target:
            source.save(self.path / "tokenizer.model")
        else:
            source.save(self.path / "source_tokenizer.model")
            is_classifier = isinstance(target, Labels)
            target.save(
                self._labels_file if is_classifier else self.path / "target_tokenizer.model"
            )
        write_whole(self.digests_file, json.dumps(digests, indent=2) + "\n")
        if languages is not None:
            languages.save(self.languages_file)
        self.write_sections(sections)

    def write_sections(self, sections: Mapping[str, Any]) -> None:
        """Writes `recipe.yaml`."""
        import yaml

        values = {_VERSION: FORMAT_VERSION, **sections}
        text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
        write_whole(self.recipe_file, text)


def read_sections(path: str | os.PathLike) -> dict[str, Any]:
    """Reads a YAML file of sections without checking them; raises `InputError` for other files.

    It may be the recipe of a run.
    """
    sections = _sections_of(_recipe_text(path), path)
    if _VERSION in sections:
        check_version(sections.pop(_VERSION), path)
    return sections


def _recipe_text(path):
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_RECIPE_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot read the recipe: {error.strerror}.") from None
    if len(content) > _MAX_RECIPE_BYTES:
        raise InputError(f"{path}: a recipe must have at most {_MAX_RECIPE_BYTES:,} bytes.")
    return decode_text(content, path)


def _sections_of(text, path):
    values = parse_yaml(text, path)
    if not isinstance(values, dict):
        raise InputError(f"{path}: a recipe must have sections such as `data:` and `model:`.")
    return values


def section_of(sections: dict[str, Any], name: str, where: object) -> dict[str, Any]:
    """Returns a section of a file's sections, empty if it is missing or null."""
    section = sections.get(name) or {}
    if not isinstance(section, dict):
        rule = f"`{name}` must be a section with keys"
        raise InputError(f"{where}: {rule}. Received: {received(section)}.")
    return section


def parse_yaml(text: str, where: object) -> Any:
    """Parses YAML; `1e-3` is a number and equal keys are an error, as in YAML 1.2."""
    import yaml

    class Loader(BoundedYaml, yaml.SafeLoader):
        def compose_mapping_node(self, anchor):
            node, keys = super().compose_mapping_node(anchor), {}
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and keys.setdefault(key.value, key) is not key:
                    problem = f"duplicate key {received(key.value)}"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            return node

    number = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "cannot be read"
        raise InputError(f"{where}{line}: not valid YAML: {problem:.200}.") from None
    except (AttributeError, LookupError):  # !!bool maybe
        raise InputError(f"{where}: not valid YAML: a value does not fit its tag.") from None
    except (ValueError, RecursionError) as error:  # 2026-99-99, or 5,000 brackets
        raise InputError(f"{where}: not valid YAML: {error!s:.200}.") from None


def load_model(path: str | os.PathLike, compile: bool):
    """Loads a model from a `.keras` file, without running any code that the file may hold.

    Raises:
        InputError: The file is missing, damaged, or holds something else.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such model file.")
    check_file(path)  # Before Keras, which takes seconds.
    import keras

    from keras_transformer.models import KINDS

    with readable(path, "a Keras model"):
        if compile or keras.backend.backend() != "jax":
            model = keras.saving.load_model(path, compile=compile, safe_mode=True)
        else:
            model = _load_without_drawing(path)
    if not isinstance(model, tuple(KINDS.values())):
        names = ", ".join(kind.__name__ for kind in KINDS.values())
        raise InputError(f"{path}: expected one of {names}. Received: {type(model).__name__}.")
    return model


def _load_without_drawing(path):
    """Loads a model without the initial weights that Keras would draw and then replace."""
    import keras

    from keras_transformer.models.initial_values import without_drawing

    with zipfile.ZipFile(path) as archive:
        config = json.loads(archive.read("config.json"))
    config.pop("compile_config", None)
    model = without_drawing(lambda: keras.saving.deserialize_keras_object(config, safe_mode=True))
    model.load_weights(path)
    return model


def save_model(model, path: str | os.PathLike) -> None:
    """Saves a model under a temporary name, then renames it: `path` is never half a file.

    Keras would build the file in memory. It writes the file's parts to a folder instead.
    """
    variables = [*model.variables, *getattr(getattr(model, "optimizer", None), "variables", ())]
    size = sum(math.prod(variable.shape) for variable in variables) * _MAX_ITEM_BYTES
    with replaced_file(path) as temporary, parts_folder(temporary) as folder:
        # For the parts and the file: HDF5 crashes on a full disk.
        check_space(temporary, 2 * (size + _FREE_BYTES))
        model.save(folder, zipped=False)
        with zipfile.ZipFile(temporary, "w") as archive:
            for part in filter(pathlib.Path.is_file, sorted(folder.rglob("*"))):
                archive.write(part, part.relative_to(folder))
