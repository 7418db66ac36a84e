"""The recipe: what a training run is made of, read from YAML and checked before any work."""

import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import pydantic

from keras_transformer.engine.run_folder import DecodingSection, parse_yaml, read_sections
from keras_transformer.errors import InputError
from keras_transformer.models.config import CONFIGURATIONS, ModelConfig, TransformerConfig
from keras_transformer.options import check_choice, check_keys, checked, declared, received
from keras_transformer.text.dialog import Turns
from keras_transformer.training.sections import (
    DataSection,
    TextSection,
    TrainingSection,
)

_PARTS = "train", "validation"
# Options that some kinds of model do not have, and the reasons.
_NEEDS_TWO_TEXTS = "needs a source and a target, which a language model has none of."
_NOT_OF_A_KIND = {
    "language_model": {
        "text.placeholders": _NEEDS_TWO_TEXTS,
        "text.joint: false": _NEEDS_TWO_TEXTS,
        "text.turn_separator": _NEEDS_TWO_TEXTS,
        "training.attention_images": _NEEDS_TWO_TEXTS,
        "data.bleu_tokenizer": _NEEDS_TWO_TEXTS,
        "training.select_by: bleu": _NEEDS_TWO_TEXTS,
        "training.select_by: chrf": _NEEDS_TWO_TEXTS,
    },
    "classifier": {
        "text.placeholders": "needs a model that writes text.",
        "data.glossary": "needs a model that writes text.",
        "text.turn_separator": "needs a model that answers, which a classifier does not.",
        "training.attention_images": "needs attention to a source, which a classifier has not.",
        "data.bleu_tokenizer": "needs a model that writes text.",
        "training.select_by: bleu": "needs a model that writes text: set loss or accuracy.",
        "training.select_by: chrf": "needs a model that writes text: set loss or accuracy.",
    },
}


@declared
class Recipe:
    """A checked recipe.

    Attributes:
        model: Dict: `kind`, a key of `CONFIGURATIONS`, `transformer` by default; fields of its
            configuration but the vocabulary's sizes, which the tokenizer decides; and for a
            Transformer a `preset`.
    """

    data: DataSection = DataSection()
    text: TextSection = TextSection()
    model: dict = pydantic.Field(default_factory=dict)
    training: TrainingSection = TrainingSection()
    decoding: DecodingSection = DecodingSection()

    @classmethod
    def from_dict(cls, values: dict, where: str = "recipe") -> "Recipe":
        """Checks names, types and ranges, and whether sections contradict each other.

        Args:
            values: Dict of sections; None for a section leaves its defaults.
            where: The beginning of an error.

        Raises:
            InputError: Names `where`, the key, and what was expected.
        """
        if isinstance(values, dict):
            values = {key: {} if value is None else value for key, value in values.items()}
        with checked(cls, f"{where}: "):
            recipe = pydantic.TypeAdapter(cls).validate_python(values)
        turn_id = None if recipe.text.turn_separator is None else 4
        config = recipe.model_config(1000, None if recipe.text.joint else 1000, turn_id, where)
        if config.position_limit is None:
            return recipe
        return recipe._limited(config.position_limit, values.get("decoding", {}), where)

    @classmethod
    def load(cls, path: str | os.PathLike, overrides: Sequence[str] = ()) -> "Recipe":
        """Reads a YAML file, then applies overrides.

        Args:
            path: The recipe.
            overrides: Texts `section.key=value`, the value read as YAML.

        Raises:
            InputError: The file cannot be read, or is no recipe.
        """
        values = read_sections(path)
        for override in overrides:
            _override(values, override)
        origin = (values.get("training") or {}).get("start_from")
        if isinstance(origin, str) and not {"text", "model"} & set(values):
            # Both have to be those of the run that training starts from.
            earlier = read_sections(pathlib.Path(origin) / "recipe.yaml")
            values |= {name: earlier[name] for name in ("text", "model") if name in earlier}
        return cls.from_dict(values, where=str(path))

    @pydantic.model_validator(mode="after")
    def _check_model(self) -> "Recipe":
        check_choice("model.kind", self.kind, tuple(CONFIGURATIONS))
        known = model_keys(self.kind)
        # The nearest name would be another option, no correction, for a key of another kind.
        others = {key for each in CONFIGURATIONS for key in model_keys(each)}.difference(known)
        for key, value in self.model.items():
            if key in others:
                problem = f"a {self.kind} model has no `{key}`"
                raise InputError(f"{problem}. Received: model.{key}={received(value)}.")
        check_keys(self.model, known, "model")
        return self

    @pydantic.model_validator(mode="after")
    def _check_kind(self) -> "Recipe":
        """Raises `InputError` for options that the kind of model does not have."""
        for part in () if self.with_sources else ("train", "validation"):
            if any(each.target is not None for each in self.data.corpora(part)):
                rule = "A language model learns from one text"
                raise InputError(f"{rule}: `data.{part}` is {{source: FILE}}.")
        changes = self.data.noise.shares or self.data.glossary
        if changes and (self.turns or not self.with_sources):
            rule = "`data.noise` and `data.glossary` change sources of one sequence"
            raise InputError(f"{rule}: no turns, no language model.")
        if self.data.tags and (self.turns or not self.with_sources):
            raise InputError(
                "`tag` stands before a source of one sequence: no turns, no language model."
            )
        given = {
            "data.glossary": self.data.glossary is not None,
            "text.joint: false": not self.text.joint,
            "text.turn_separator": self.text.turn_separator is not None,
            "text.placeholders": self.text.placeholders > 0,
            "training.attention_images": self.training.attention_images is not None,
            "data.bleu_tokenizer": self.data.bleu_tokenizer is not None,
            "training.select_by: bleu": self.training.select_by == "bleu",
            "training.select_by: chrf": self.training.select_by == "chrf",
        }
        for name, reason in _NOT_OF_A_KIND.get(self.kind, {}).items():
            if given[name]:
                raise InputError(f"`{name}` {reason}")
        return self

    @pydantic.model_validator(mode="after")
    def _check_sections(self) -> "Recipe":
        """Raises `InputError` for sections that contradict each other."""
        data, text = self.data, self.text
        if self.has_data:
            self.check_files()
        if data.glossary and text.whole_words:
            raise InputError("`data.glossary` needs parts of words: `text.whole_words: false`.")
        if data.context_turns is not None and text.turn_separator is None:
            rule = "`data.context_turns` needs `text.turn_separator`, which tells turns apart."
            raise InputError(rule)
        if not text.joint and self.model.get("tie_embeddings") == "all":
            raise InputError(
                "`model.tie_embeddings: all` shares one table between both sides, which "
                "`text.joint: false` gives a vocabulary each: set model.tie_embeddings to decoder "
                "or none."
            )
        return self

    def _limited(self, positions, decoding, where):
        """The recipe with no text longer than a learned table of so many positions."""
        limits = {}
        for key in ("data.max_length", "decoding.max_source_length", "decoding.max_target_length"):
            section, name = key.split(".")
            limit = getattr(getattr(self, section), name)
            if limit > positions and (section == "data" or name in decoding):
                raise InputError(
                    f"{where}: learned positions end at `model.max_length`, which must be at least "
                    f"`{key}`. Received: model.max_length={positions}, {key}={limit}."
                )
            if section == "decoding":
                limits[name] = min(limit, positions)
        return dataclasses.replace(self, decoding=dataclasses.replace(self.decoding, **limits))

    @property
    def has_data(self) -> bool:
        """False for the recipe of a model that was imported, which names no files."""
        return self.data != DataSection()

    def check_files(self) -> None:
        """Raises `InputError` unless both parts of the data name their files."""
        for part in _PARTS:
            if not all(each.source for each in self.data.corpora(part)):
                rule = "must name its files: {source: FILE, target: FILE}."
                raise InputError(f"`data.{part}` {rule}")

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
        """True for a model that reads sources; a language model reads targets alone."""
        return self.config_class.reads_sources

    @property
    def gives_labels(self) -> bool:
        """True for a classifier, whose targets are labels."""
        return not self.config_class.writes_text

    @property
    def turns(self) -> Turns | None:
        """Joins the turns of a source, where sources are conversations."""
        separator = self.text.turn_separator
        return None if separator is None else Turns(separator, self.data.context_turns)

    @property
    def search(self) -> dict[str, Any]:
        """The run's own defaults of a search."""
        return self.decoding.search

    @property
    def engine_options(self) -> dict[str, Any]:
        """Arguments of the model's engine, limits of lengths and how turns are joined."""
        return self.decoding.engine_options(self.turns)

    def to_dict(self) -> dict:
        """Plain values alone, every default written out."""
        return dataclasses.asdict(self)

    def model_config(
        self,
        vocabulary_size: int,
        target_vocabulary_size: int | None = None,
        turn_id: int | None = None,
        where: str = "recipe",
    ) -> ModelConfig:
        """The model's configuration for vocabularies of these sizes."""
        fields = {key: value for key, value in self.model.items() if key not in ("kind", "preset")}
        if target_vocabulary_size is not None:
            fields["target_vocabulary_size"] = target_vocabulary_size
            # Two vocabularies cannot share one table, so "all" means what they can share.
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
    """Names of the options of `model` for a kind of model."""
    names = [field.name for field in dataclasses.fields(CONFIGURATIONS[kind])]
    own = ("kind", "preset") if kind == "transformer" else ("kind",)
    known = (each for each in names if "vocabulary_size" not in each and each != "turn_id")
    return (*own, *known)


def _override(values, override):
    """Puts the value of `section.key=value` into the sections."""
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise InputError(f"--set must be section.key=value. Received: {override!r}.")
    value = parse_yaml(text, f"--set {key}={received(text)}")
    for part in parts[:-1]:
        if values.get(part) is None:
            values[part] = {}
        values = values[part]
        if not isinstance(values, dict):
            raise InputError(f"--set {key}: `{part}` is a value, not a section.")
    values[parts[-1]] = value
