"""A recipe of a training: read from YAML, overridden, merged with a run, and checked."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import pydantic

from keras_transformer.base.errors import InputError, InvalidFileError
from keras_transformer.base.ids import UNK_ID
from keras_transformer.base.options import (
    check_choice,
    check_keys,
    options_class,
    options_of,
    parse_options,
    received,
)
from keras_transformer.base.reading import expanded_path
from keras_transformer.decoding.search_options import without_excluded
from keras_transformer.models.config import CONFIGURATIONS, ModelConfig, TransformerConfig
from keras_transformer.runs.run_folder import RunFolder
from keras_transformer.runs.sections import (
    DecodingSection,
    read_sections,
    section_of,
    set_value,
)
from keras_transformer.text.sentences import TextRules
from keras_transformer.text.tags import check_new_tag
from keras_transformer.training.recipe_sections import (
    PARTS,
    DataSection,
    TextSection,
    TrainingSection,
)

# Options, or values of options, that some kinds of model do not have, and the reasons.
_NEEDS_TWO_TEXTS = "needs a source and a target, but a language model has only one text."
_NOT_OF_A_KIND = {
    "language_model": {
        "text.placeholders": _NEEDS_TWO_TEXTS,
        "text.joint: false": _NEEDS_TWO_TEXTS,
        "text.turn_separator": _NEEDS_TWO_TEXTS,
        "data.bleu_tokenizer": _NEEDS_TWO_TEXTS,
        "training.shortlist": _NEEDS_TWO_TEXTS,
        "training.select_by: bleu": _NEEDS_TWO_TEXTS,
        "training.select_by: chrf": _NEEDS_TWO_TEXTS,
    },
    "classifier": {
        "text.placeholders": "needs a model that writes text.",
        "data.glossary": "needs a model that writes text.",
        "text.turn_separator": "needs a model that answers, which a classifier does not.",
        "data.bleu_tokenizer": "needs a model that writes text.",
        "training.shortlist": "needs a model that writes text.",
        "training.select_by: bleu": "needs a model that writes text: set loss or accuracy.",
        "training.select_by: chrf": "needs a model that writes text: set loss or accuracy.",
    },
}


@options_class
class Recipe:
    """A checked recipe.

    Attributes:
        data: Files and checks of the pairs.
        text: Options of the vocabulary.
        model: Dict of `kind`, a key of `CONFIGURATIONS`, by default `transformer`; fields of its
            configuration except vocabulary sizes; and for a Transformer a `preset`.
        training: Options of batches and of the optimizer.
        decoding: Search defaults.
        origin: What an import has recorded, also of the run that training starts from.
    """

    data: DataSection = DataSection()
    text: TextSection = TextSection()
    model: dict = pydantic.Field(default_factory=dict)
    training: TrainingSection = TrainingSection()
    decoding: DecodingSection = DecodingSection()
    origin: dict = pydantic.Field(
        default_factory=dict, description="What `keras-transformer import` has recorded."
    )

    @classmethod
    def from_dict(cls, values: dict, where: str = "recipe") -> "Recipe":
        """Makes a recipe; checks names, types, ranges, and contradictions between sections.

        Args:
            values: Dict of sections; None for a section means its defaults. Without `text`, a
                recipe with `training.start_from` gets `text`, `model` and `decoding` of that run;
                without `origin`, it gets the run's.
            where: Beginning of error messages.

        Raises:
            InputError: The message names `where`, the key, and the expected value.
        """
        if isinstance(values, dict):
            values = {key: {} if value is None else value for key, value in values.items()}
            # Training reports a run that is missing.
            values = sections_of_start(values, where, must_exist=False)
        recipe = parse_options(cls, values, f"{where}: ")
        if recipe.translates_sentences and "max_source_length" not in values.get("decoding", {}):
            recipe = recipe._with_limit_of_training()
        # The configuration is only checked here, so any id does.
        turn_id = None if recipe.text.turn_separator is None else UNK_ID + 1
        config = recipe.model_config(*recipe.text.sizes, turn_id, where)
        if config.position_limit is None:
            return recipe
        return recipe._limited(config.position_limit, values.get("decoding", {}), where)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike,
        overrides: Sequence[str] = (),
        resumed: str | os.PathLike | None = None,
    ) -> "Recipe":
        """Reads a YAML file, then applies overrides.

        Args:
            path: Path of the recipe.
            overrides: Texts `section.key=value`, with values in YAML. `null` removes a key that
                cannot be null, so that its default holds.
            resumed: Run folder that the recipe resumes. If it has a recipe, the run of
                `training.start_from` is not read.

        Raises:
            InputError: The file cannot be read, or is not a recipe.
        """
        values = read_sections(path)
        null_keys = [set_value(values, override) for override in overrides]
        values = sections_of_start(values, path, resumed)
        for parts in filter(None, null_keys):
            _remove_null(values, parts)
        try:
            return cls.from_dict(values, where=str(path))
        except InvalidFileError as error:
            message = str(error).removeprefix(f"{path}: ")
            for key in (override.partition("=")[0].strip() for override in overrides):
                if _is_about(message, key):
                    raise InvalidFileError(f"--set {key}: {message}") from None
            raise

    @classmethod
    def of_run(cls, run: RunFolder) -> "Recipe":
        """Reads the recipe of a run."""
        return cls.from_dict(run.sections(), where=str(run.recipe_file))

    def with_training(self, **defaults: Any) -> "Recipe":
        """Returns the recipe with these values of `training` where it has null."""
        training = self.training
        values = {
            name: default for name, default in defaults.items() if getattr(training, name) is None
        }
        return dataclasses.replace(self, training=dataclasses.replace(training, **values))

    def _with_limit_of_training(self):
        """Returns the recipe with sources of at most as many tokens as in training."""
        longest = min(self.decoding.max_source_length, self.data.max_length)
        decoding = dataclasses.replace(self.decoding, max_source_length=longest)
        return dataclasses.replace(self, decoding=decoding)

    def with_text_rules(self, rules: TextRules) -> "Recipe":
        """Returns the recipe with these rules where `decoding` has null."""
        values = {
            name: value
            for name, value in rules._asdict().items()
            if getattr(self.decoding, name) is None
        }
        return dataclasses.replace(self, decoding=dataclasses.replace(self.decoding, **values))

    @property
    def translates_sentences(self) -> bool:
        """False for classifiers, language models and models of conversations."""
        has_turns = self.text.turn_separator is not None
        return self.with_sources and not self.gives_labels and not has_turns

    @pydantic.model_validator(mode="after")
    def _check(self) -> "Recipe":
        self._check_model()
        for is_fulfilled, message in _contradictions(self):
            if is_fulfilled:
                raise InputError(message)
        for tag in self.data.tags if self.training.start_from is None else ():
            check_new_tag(tag)
        if self.has_data:
            self.check_files()
        return self

    def _check_model(self):
        check_choice("model.kind", self.kind, tuple(CONFIGURATIONS))
        keys = model_keys(self.kind)
        # For an option of another kind, the nearest name would be another option, not a correction.
        keys_of_other_kinds = {
            key for kind in CONFIGURATIONS for key in model_keys(kind)
        }.difference(keys)
        for key, value in self.model.items():
            if key in keys_of_other_kinds:
                problem = f"a {self.kind} model has no `{key}`"
                raise InputError(f"{problem}. Received: model.{key}={received(value)}.")
        check_keys(self.model, keys, "model")

    def has(self, option_or_value: str) -> bool:
        """Returns whether the recipe sets `section.option`, or has `section.option: value`."""
        path, _, value = option_or_value.partition(": ")
        section, name = path.split(".")
        received_value = getattr(getattr(self, section), name)
        if value:
            return str(received_value).lower() == value
        return received_value not in (None, 0)  # 0 and false are as good as null.

    def _limited(self, positions, decoding, where):
        """Returns the recipe with limits of at most `positions` tokens, which a table has."""
        limits = {}
        for key in ("data.max_length", "decoding.max_source_length", "decoding.max_target_length"):
            section, name = key.split(".")
            limit = getattr(getattr(self, section), name)
            if limit > positions and (section == "data" or name in decoding):
                raise InputError(
                    f"{where}: learned positions end at `model.max_length`, which must be at least "
                    f"`{key}`. Received: model.max_length={positions}, {key}={received(limit)}."
                )
            if section == "decoding":
                limits[name] = min(limit, positions)
        return dataclasses.replace(self, decoding=dataclasses.replace(self.decoding, **limits))

    @property
    def has_data(self) -> bool:
        """False for the recipe of an imported model, which names no files."""
        return self.data != DataSection()

    def check_files(self) -> None:
        """Raises `InputError` unless both parts of the data name their files."""
        for part in PARTS:
            if not all(corpus.source for corpus in self.data.corpora(part)):
                rule = "must name its files: {source: FILE, target: FILE}"
                if part == "validation":
                    rule += ", or set `data.hold_out_every: 50` to validate on every 50th "
                    rule += "training pair, which is then not trained on"
                raise InputError(f"`data.{part}` {rule}.")

    @property
    def kind(self) -> str:
        """The kind of the model, a key of `CONFIGURATIONS`."""
        return self.model.get("kind", "transformer")

    @property
    def config_class(self) -> type[ModelConfig]:
        """Class of the model's configuration."""
        return CONFIGURATIONS[self.kind]

    @property
    def with_sources(self) -> bool:
        """True for a model that reads sources; a language model reads only targets."""
        return self.config_class.reads_sources

    @property
    def gives_labels(self) -> bool:
        """True for a classifier, whose targets are labels."""
        return not self.config_class.writes_text

    def to_dict(self) -> dict:
        """Returns plain values, including all defaults."""
        return dataclasses.asdict(self)

    def model_config(
        self,
        vocabulary_size: int,
        target_vocabulary_size: int | None = None,
        turn_id: int | None = None,
        where: str = "recipe",
    ) -> ModelConfig:
        """Makes the model's configuration for vocabularies of these sizes."""
        fields = {key: value for key, value in self.model.items() if key not in ("kind", "preset")}
        if target_vocabulary_size is not None:
            fields["target_vocabulary_size"] = target_vocabulary_size
            # Two vocabularies cannot share one table, so "all" would be an error.
            if not self.gives_labels:
                fields.setdefault("tie_embeddings", "decoder")
        if turn_id is not None and "turn_id" in self.config_class.__dataclass_fields__:
            fields["turn_id"] = turn_id
        try:
            if "preset" in self.model:
                preset = self.model["preset"]
                return TransformerConfig.from_preset(preset, vocabulary_size, **fields)
            return self.config_class(vocabulary_size=vocabulary_size, **fields)
        except ValueError as error:
            raise InputError(" ".join(f"{where}: model: {error!s:.400}".split())) from None


def model_keys(kind: str) -> tuple[str, ...]:
    """Returns the names of the options of `model` for a kind of model."""
    names = [field.name for field in dataclasses.fields(CONFIGURATIONS[kind])]
    names_of_kind = ("kind", "preset") if kind == "transformer" else ("kind",)
    names_of_options = (
        name for name in names if "vocabulary_size" not in name and name != "turn_id"
    )
    return (*names_of_kind, *names_of_options)


def _contradictions(recipe: Recipe) -> list[tuple[object, str]]:
    """Returns the contradictions between options: a condition, and the message if it is true."""
    data, text, training = recipe.data, recipe.text, recipe.training
    has_turns = text.turn_separator is not None
    has_one_sequence = recipe.with_sources and not has_turns
    languages = data.languages
    return [
        (
            data.hold_out_every and data.validation != DataSection().validation,
            "`data.hold_out_every` and `data.validation` are two validation sets. Delete one of "
            "them; `--set data.validation=null` deletes it for one run.",
        ),
        (
            text.joint and text.target_vocabulary_size is not None,
            "`text.target_vocabulary_size` needs `text.joint: false`: a joint vocabulary has one "
            "size.",
        ),
        (
            training.lora_rank is not None and training.start_from is None,
            "`training.lora_rank` needs `training.start_from`, the run whose weights stay. "
            f"Received: lora_rank={received(training.lora_rank)}, start_from=null.",
        ),
        (
            (training.steps_per_epoch or 0) % training.accumulation_steps,
            "`training.steps_per_epoch` must be a multiple of `training.accumulation_steps`. "
            f"Received: {received(training.steps_per_epoch)} and "
            f"{received(training.accumulation_steps)}.",
        ),
        *_contradictions_of_files(recipe),
        (
            (data.noise.shares or data.glossary) and not has_one_sequence,
            "`data.noise` and `data.glossary` change sources of one sequence: no turns, no "
            "language model.",
        ),
        (
            (data.tags or (languages and languages.tokens)) and not has_one_sequence,
            "`tag` and the tokens of `languages` begin a source of one sequence: no turns, no "
            "language model.",
        ),
        (
            languages is not None and not recipe.translates_sentences,
            "`languages` need a model that translates.",
        ),
        *(
            (recipe.has(option_or_value), f"`{option_or_value}` {reason}")
            for option_or_value, reason in _NOT_OF_A_KIND.get(recipe.kind, {}).items()
        ),
        (
            data.glossary and text.whole_words,
            "`data.glossary` needs parts of words: `text.whole_words: false`.",
        ),
        (
            data.context_turns is not None and not has_turns,
            "`data.context_turns` needs `text.turn_separator`, which separates turns.",
        ),
        (
            not text.joint and recipe.model.get("tie_embeddings") == "all",
            "`model.tie_embeddings: all` shares one table between both sides, which `text.joint: "
            "false` gives a vocabulary each: set model.tie_embeddings to decoder or none.",
        ),
    ]


def _contradictions_of_files(recipe):
    """Yields rows of `_contradictions` for files that a kind of model does not learn from."""
    for part in PARTS:
        corpora = recipe.data.corpora(part)
        has_tmx = any(corpus.is_tmx for corpus in corpora)
        has_pairs = has_tmx or any(corpus.target or corpus.header is not None for corpus in corpora)
        yield (
            has_pairs and not recipe.with_sources,
            f"A language model learns from one text: `data.{part}` is {{source: FILE}}.",
        )
        yield (
            has_tmx and recipe.gives_labels,
            f"A classifier learns from labels: `data.{part}` has no *.tmx.",
        )


def sections_of_start(values, where, resumed=None, must_exist=True):
    """Adds missing sections from the run in `training.start_from`, and returns all.

    A recipe without `text` gets `text`, `model` and `decoding`. They must equal the run's,
    except dropout. Every recipe without `origin` gets it, so that the licence of a model is kept.
    """
    origin = section_of(values, "training", where).get("start_from")
    sections = {name: section_of(values, name, where) for name in ("model", "decoding")}
    has_text = "text" in values
    if not isinstance(origin, str) or (has_text and "origin" in values):
        return values
    origin = expanded_path(origin)
    run = RunFolder(resumed or origin)
    if not run.recipe_file.is_file():  # A run that was stopped early has no recipe.
        run = RunFolder(origin)
    if (has_text or not must_exist) and not run.recipe_file.is_file():
        return values
    earlier = run.sections()
    if has_text:
        return {**values, "origin": section_of(earlier, "origin", run.recipe_file)}
    for name, section in sections.items():
        defaults = without_excluded(section_of(earlier, name, run.recipe_file), section)
        sections[name] = {**defaults, **section}
    for name in ("text", "origin"):
        sections[name] = section_of(earlier, name, run.recipe_file)
    return {**values, **sections}


def _is_about(message, key):
    """Returns whether a message is about the value of `section.key`, or does not know a part."""
    parts, beginnings = key.split("."), [f"`{key}` must "]
    for count, name in enumerate(parts):
        where = f" in `{'.'.join(parts[:count])}`" if count else ""
        beginnings.append(f"unknown key `{name}`{where}.")
    return message.startswith(tuple(beginnings))


def _remove_null(sections, parts):
    """Removes a key whose value is null, so that its default holds, if null is no value of it.

    An unknown key stays, which is an error.
    """
    *path, name = parts
    schemas = options_of(Recipe, ".".join(path))
    keys = {key for kind in CONFIGURATIONS for key in model_keys(kind)}
    is_known = name in (keys if path == ["model"] else schemas)
    may_be_null = {"type": "null"} in schemas.get(name, {}).get("anyOf", ())
    for part in path:
        sections = sections.get(part) if isinstance(sections, dict) else None
    # A later override may have given it a value.
    is_null = isinstance(sections, dict) and sections.get(name, ...) is None
    if is_null and is_known and not may_be_null:
        del sections[name]
