"""The folder of a run: what engines, exports, reports and trainings read and write there."""

import contextlib
import copy
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from keras_transformer.base.errors import InputError, as_input_error
from keras_transformer.base.files import (
    MANIFEST,
    OwnedFolder,
    check_version,
    write_whole,
)
from keras_transformer.base.memory import check_memory
from keras_transformer.base.options import parse_options
from keras_transformer.base.reading import (
    escape_field,
    iterate_lines,
    read_json,
    reading_errors,
    unescape_field,
)
from keras_transformer.formats import FORMATS
from keras_transformer.runs import names
from keras_transformer.runs.history import Rows, read_history, write_history
from keras_transformer.runs.model_file import load_model, weight_bytes
from keras_transformer.runs.sections import (
    VERSION,
    DecodingSection,
    recipe_text,
    section_of,
    sections_of,
    write_sections,
)
from keras_transformer.text import Labels, Tokenizer
from keras_transformer.text.dialog import Turns, turns_of
from keras_transformer.text.languages import Languages
from keras_transformer.text.shortlist import Shortlist

MAX_SAMPLE_PAIRS = 300
"""Maximum number of pairs in `samples.tsv`."""
RESUME = "--resume to continue it, "
"""Option of a training that helps where its folder exists, for `check_replaceable`."""


class RunFolder:
    """A run folder: paths of its files, and their only reader and writer.

    `Recipe.of_run` reads the recipe of a training.

    An epoch counts only when its checkpoint is complete. All other files of the epoch are written
    before, and may exist without the checkpoint. `roll_back` of `training/checkpoints.py` removes
    what is newer than an epoch, wherever writing was interrupted.

    Args:
        path: Path of the folder, which need not exist.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = pathlib.Path(path)
        self.recipe_file = self.path / names.RECIPE
        self.model_file = self.path / names.MODEL
        self.labels_file = self.path / names.LABELS
        self.languages_file = self.path / names.LANGUAGES
        self.shortlist_file = self.path / names.SHORTLIST
        self.sample_pairs_file = self.path / names.SAMPLE_PAIRS
        self.metrics_file = self.path / names.METRICS
        self.digests_file = self.path / names.DIGESTS
        self.history_file = self.path / names.HISTORY
        self.samples_file = self.path / names.SAMPLES
        self.bad_batch_file = self.path / names.BAD_BATCH
        self.tensorboard = self.path / names.TENSORBOARD
        self.checkpoints = self.path / names.CHECKPOINTS
        self.base_file = self.checkpoints / names.BASE
        self.checkpoint_suffix = ".keras"
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
            if (export := _described_export(folder.path)) is not None:
                advice = "Give the run that it was made of"
                raise InputError(f"{path}: this is {export}, not a run. {advice}.")
            raise InputError(f"{path}: not a run folder: it has no {names.RECIPE}.")
        return folder

    def tokenizers(self) -> tuple[Tokenizer, Tokenizer | Labels]:
        """Returns the source's and the target's `Tokenizer`, the same object if it is joint.

        A classifier has `Labels` instead of the target's tokenizer.
        """
        joint = self.path / names.TOKENIZER
        if joint.exists() or not (self.path / names.SOURCE_TOKENIZER).exists():
            tokenizer = Tokenizer.load(joint)
            return tokenizer, tokenizer
        source, labels = Tokenizer.load(self.path / names.SOURCE_TOKENIZER), self.labels_file
        if labels.exists():
            return source, Labels.load(labels)
        return source, Tokenizer.load(self.path / names.TARGET_TOKENIZER)

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

    @property
    def model_bytes(self) -> int:
        """Bytes that the best model's weights take in memory; 0 if there is none."""
        return weight_bytes(self.model_file)

    def check_memory(self, task: str, copies: float = 1.0) -> None:
        """Prepares this process for the run's model; see `memory.check_memory`."""
        check_memory(self.model_bytes, f"{self.path}: {task}", copies)

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
        return parse_options(DecodingSection, self.section("decoding"), f"{self.recipe_file}: ")

    def origin(self) -> dict[str, Any]:
        """Returns what the import of the model recorded, also of one that training started from.

        It is empty for a model that was not imported.
        """
        return {name: value for name, value in self.section("origin").items() if value}

    def metrics(self) -> dict[str, Any]:
        """Returns the content of `metrics.json`, or an empty dict without this file."""
        if not self.metrics_file.exists():
            return {}
        return read_json(self.metrics_file, noun="the metrics of a training")

    def turns(self) -> Turns | None:
        """Returns the rule that joins the turns of a source, where sources are conversations."""
        separator = self.section("text").get("turn_separator")
        return turns_of(separator, self.section("data").get("context_turns"))

    def longest_trained(self) -> int:
        """Returns the maximum number of tokens of the texts that the model was trained on."""
        return self.section("data").get("max_length", self.decoding().max_source_length)

    def sections(self) -> dict[str, Any]:
        """Returns the sections of the recipe.

        Raises:
            InputError: The file is not a recipe, or another version of this package made the run.
        """
        text = recipe_text(self.recipe_file)
        # Parsing takes long. The text decides, because a training may replace the file.
        if text != self._parsed[0]:
            self._parsed = text, sections_of(text, self.recipe_file)
        sections = copy.deepcopy(self._parsed[1])
        check_version(sections.pop(VERSION, None), self.path)
        return sections

    def section(self, name: str) -> dict[str, Any]:
        """Returns a section of the recipe, empty if it is missing or null."""
        return section_of(self.sections(), name, self.recipe_file)

    def engine_options(
        self, tokenizers: Callable[[], Sequence[Any]] | None = None
    ) -> dict[str, Any]:
        """Returns the model's arguments of the engine: limits, turns, shortlist, languages, rules.

        Takes the argument of `shortlist`.
        """
        decoding = self.decoding()
        options: dict[str, Any] = {
            "max_source_length": decoding.max_source_length,
            "max_target_length": decoding.max_target_length,
            "turns": self.turns(),
            "shortlist": self.shortlist(tokenizers),
            "languages": self.languages(),
            # A classifier's engine has none.
            "text_rules": decoding.text_rules if any(decoding.text_rules) else None,
        }
        return {name: value for name, value in options.items() if value is not None}

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
        return OwnedFolder(self.path, names.MARKER, names.OWNED)

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

    def create(
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
        with as_input_error(self.path):
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        source, target = tokenizers
        if source == target:
            source.save(self.path / names.TOKENIZER)
        else:
            source.save(self.path / names.SOURCE_TOKENIZER)
            is_classifier = isinstance(target, Labels)
            target.save(self.labels_file if is_classifier else self.path / names.TARGET_TOKENIZER)
        write_whole(self.digests_file, json.dumps(digests, indent=2) + "\n")
        if languages is not None:
            languages.save(self.languages_file)
        self.write_sections(sections)

    def write_sections(self, sections: Mapping[str, Any]) -> None:
        """Writes `recipe.yaml`."""
        write_sections(self.recipe_file, sections)

    def checkpoint_file(self, epoch: int) -> pathlib.Path:
        """Returns the path of the checkpoint after `epoch` epochs."""
        return self.checkpoints / names.EPOCH.format(epoch=epoch, suffix=self.checkpoint_suffix)

    def checkpoint_epochs(self) -> list[int]:
        """Returns the epochs that have a checkpoint, in order."""
        matches = (
            re.fullmatch(rf"epoch-(\d{{4,}})\{self.checkpoint_suffix}", file.name)
            for file in self.checkpoints.glob("*")
        )
        return sorted(int(match.group(1)) for match in matches if match)

    def candidate_file(self, epoch: int) -> pathlib.Path:
        """Returns the path of an epoch's model that may become the best or part of an average."""
        return self.checkpoints / names.CANDIDATE.format(epoch=epoch)

    def digests(self) -> dict[str, dict[str, str]]:
        """Returns the SHA-256 checksums of the texts that the run started with."""
        with reading_errors(self.digests_file, "checksums of the texts"):
            digests = json.loads(self.digests_file.read_bytes())
            digests = {part: {**sides} for part, sides in digests.items()}
        return digests

    def samples(self) -> str:
        """Returns the text of `samples.txt`, or an empty text without this file."""
        try:
            return self.samples_file.read_bytes().decode("utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def add_samples(self, text: str) -> None:
        """Appends the sample translations of an epoch to `samples.txt`."""
        write_whole(self.samples_file, self.samples() + text + "\n")

    def write_bad_batch(self, report: Mapping[str, Any]) -> None:
        """Writes `bad_batch.json`."""
        write_whole(self.bad_batch_file, json.dumps(report, indent=2) + "\n")

    def write_history(self, rows: Rows) -> None:
        """Writes `history.csv`: dicts of numbers, in the order of the epochs."""
        write_history(self.history_file, rows)

    def history(self) -> Rows:
        """Returns the lines of `history.csv` as dicts of numbers, in the order of the epochs.

        Raises:
            InputError: The file is damaged.
        """
        return read_history(self.history_file)

    def write_metrics(self, metrics: dict) -> None:
        """Writes `metrics.json`."""
        write_whole(self.metrics_file, json.dumps(metrics, indent=2, allow_nan=False) + "\n")


def _described_export(folder):
    """Returns words for the export in a folder, None if there is none."""
    if not (folder / MANIFEST).is_file():
        return None
    with contextlib.suppress(InputError):
        format = str(read_json(folder / MANIFEST).get("format")).partition(".")[2]
        if format in FORMATS:
            return f"an export for {format}"
    return "an export"
