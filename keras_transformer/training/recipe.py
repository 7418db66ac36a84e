"""The recipe: what a training run is made of, read from YAML and checked before any work."""

import dataclasses
import pathlib
import types
import typing

from keras_transformer.config import TransformerConfig
from keras_transformer.errors import InputError, did_you_mean


@dataclasses.dataclass(frozen=True)
class Files:
    """Two aligned files, or one TSV as `source` without `target`."""

    source: str = ""
    target: str | None = None


@dataclasses.dataclass(frozen=True)
class DataSection:
    """Where the text is and which pairs are kept."""

    folder: str = "."
    train: Files = Files()
    validation: Files = Files()
    max_length: int = 128
    max_length_ratio: float | None = 4.0
    drop_duplicates: bool = True


@dataclasses.dataclass(frozen=True)
class TextSection:
    """How the vocabulary is learned."""

    vocabulary_size: int = 8000
    target_vocabulary_size: int | None = None
    joint: bool = True
    byte_fallback: bool = False
    split_digits: bool = False
    character_coverage: float = 1.0
    normalization: str = "nmt_nfkc"


@dataclasses.dataclass(frozen=True)
class TrainingSection:
    """Batches, optimizer, and what is kept."""

    epochs: int = 30
    batch_tokens: int = 4096
    max_shapes: int = 8
    warmup_steps: int = 4000
    learning_rate_scale: float = 1.0
    label_smoothing: float = 0.1
    adam_beta_2: float = 0.98
    clip_norm: float | None = None
    ema_momentum: float | None = None
    early_stopping_patience: int | None = None
    keep_checkpoints: int = 2
    sample_translations: int = 3
    dtype_policy: str = "float32"
    jit_compile: bool = True
    seed: int = 1


@dataclasses.dataclass(frozen=True)
class DecodingSection:
    """What `translate`, `evaluate` and `export` do unless they are told otherwise."""

    beam_size: int = 4
    length_penalty: float = 0.6
    max_source_length: int = 512
    max_target_length: int = 256


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A checked recipe.

    Attributes:
        data: `DataSection`.
        text: `TextSection`.
        model: Dict: a `preset` and/or fields of `TransformerConfig` but the vocabulary's sizes,
            which the tokenizer decides.
        training: `TrainingSection`.
        decoding: `DecodingSection`.
    """

    data: DataSection = DataSection()
    text: TextSection = TextSection()
    model: dict = dataclasses.field(default_factory=dict)
    training: TrainingSection = TrainingSection()
    decoding: DecodingSection = DecodingSection()

    @classmethod
    def from_dict(cls, values, where="recipe"):
        """Checks names, types and ranges.

        Raises:
            InputError: Names `where`, the key, and what was expected.
        """
        recipe = _read(cls, values, where, ())
        _check_ranges(recipe, where)
        recipe.model_config(1000, where=where)
        return recipe

    @classmethod
    def load(cls, path, overrides=()):
        """Reads a YAML file, then applies overrides.

        Args:
            path: The recipe.
            overrides: Texts `section.key=value`, the value read as YAML.

        Raises:
            InputError: The file cannot be read, or what it says is not a recipe.
        """
        values = _load_yaml(path)
        for override in overrides:
            _apply(values, override)
        return cls.from_dict(values, where=str(path))

    def to_dict(self):
        """Plain values alone, every default written out."""
        return dataclasses.asdict(self)

    def model_config(self, vocabulary_size, target_vocabulary_size=None, where="recipe"):
        """The `TransformerConfig` for vocabularies of these sizes."""
        fields = {key: value for key, value in self.model.items() if key != "preset"}
        if target_vocabulary_size is not None:
            fields["target_vocabulary_size"] = target_vocabulary_size
            # Two vocabularies cannot share one table, so "all" means what they can share.
            fields.setdefault("tie_embeddings", "decoder")
        try:
            if "preset" in self.model:
                preset = self.model["preset"]
                return TransformerConfig.from_preset(preset, vocabulary_size, **fields)
            return TransformerConfig(vocabulary_size=vocabulary_size, **fields)
        except ValueError as error:
            raise InputError(f"{where}: model: {error}") from None


_MODEL_KEYS = ("preset",) + tuple(
    field.name
    for field in dataclasses.fields(TransformerConfig)
    if field.name not in ("vocabulary_size", "target_vocabulary_size")
)


def _load_yaml(path):
    import yaml

    path = pathlib.Path(path)
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot read the recipe: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: the recipe must be UTF-8 text.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "cannot be read"
        raise InputError(f"{path}{line}: not valid YAML: {problem}.") from None
    if not isinstance(values, dict):
        raise InputError(f"{path}: a recipe must have sections such as `data:` and `model:`.")
    return values


def _apply(values, override):
    import yaml

    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise InputError(f"--set must be section.key=value. Received: {override!r}.")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise InputError(f"--set {key}: the value must be YAML. Received: {text!r}.") from None
    for part in parts[:-1]:
        if not isinstance(values.setdefault(part, {}), dict):
            raise InputError(f"--set {key}: `{part}` is a value, not a section.")
        values = values[part]
    values[parts[-1]] = value


def _read(section, values, where, path):
    """A section's dataclass from a mapping; `path` is the keys that lead to it."""
    name = ".".join(path) or "the recipe"
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise InputError(f"{where}: `{name}` must be a section with keys. Received: {values!r}.")
    fields = {field.name: field for field in dataclasses.fields(section)}
    check_keys(values, fields, where, path)
    read = {}
    hints = typing.get_type_hints(section)
    for key, value in values.items():
        wanted = hints[key]
        if dataclasses.is_dataclass(wanted):
            read[key] = _read(wanted, value, where, (*path, key))
        elif wanted is dict:
            check_keys(value or {}, _MODEL_KEYS, where, (*path, key))
            read[key] = dict(value or {})
        else:
            read[key] = _checked(value, wanted, where, ".".join((*path, key)))
    return section(**read)


def check_keys(values, known, where, path):
    """Raises `InputError` for a key that is not known, naming the nearest that is."""
    name = ".".join(path)
    if not isinstance(values, dict):
        raise InputError(f"{where}: `{name}` must be a section with keys. Received: {values!r}.")
    for key in values:
        if key not in known:
            place = f" in `{name}`" if name else ""
            hint = did_you_mean(key, known, cutoff=0.0)
            raise InputError(f"{where}: unknown key `{key}`{place}.{hint}")


def _checked(value, wanted, where, name):
    allowed = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
    if value is None and type(None) in allowed:
        return None
    if float in allowed and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    for kind in (str, bool, int):
        # A bool is an int to Python, and not to who writes a recipe.
        if (
            kind in allowed
            and isinstance(value, kind)
            and (kind is bool) == isinstance(value, bool)
        ):
            return value
    words = {str: "text", bool: "true or false", int: "an integer", float: "a number"}
    expected = " or ".join(words.get(kind, "null") for kind in allowed)
    raise InputError(f"{where}: `{name}` must be {expected}. Received: {value!r}.")


# (section, key, smallest, largest), ends included.
_RANGES = (
    ("data", "max_length", 2, None),
    ("data", "max_length_ratio", 1, None),
    ("text", "vocabulary_size", 5, None),
    ("text", "target_vocabulary_size", 5, None),
    ("text", "character_coverage", 0.5, 1),
    ("training", "epochs", 1, None),
    ("training", "batch_tokens", 1, None),
    ("training", "max_shapes", 1, 8),
    ("training", "warmup_steps", 1, None),
    ("training", "learning_rate_scale", 1e-9, None),
    ("training", "label_smoothing", 0, 0.999),
    ("training", "adam_beta_2", 0, 0.999999),
    ("training", "clip_norm", 1e-9, None),
    ("training", "ema_momentum", 0, 0.999999),
    ("training", "early_stopping_patience", 1, None),
    ("training", "keep_checkpoints", 1, None),
    ("training", "sample_translations", 0, None),
    ("training", "seed", 0, None),
    ("decoding", "beam_size", 1, None),
    ("decoding", "length_penalty", 0, None),
    ("decoding", "max_source_length", 2, None),
    ("decoding", "max_target_length", 2, None),
)
_POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")


def _check_ranges(recipe, where):
    for section, key, smallest, largest in _RANGES:
        value = getattr(getattr(recipe, section), key)
        if value is None:
            continue
        if value < smallest or (largest is not None and value > largest):
            limits = f"at least {smallest}" + (f" and at most {largest}" if largest else "")
            raise InputError(f"{where}: `{section}.{key}` must be {limits}. Received: {value}.")
    if recipe.training.dtype_policy not in _POLICIES:
        raise InputError(
            f"{where}: `training.dtype_policy` must be one of {', '.join(_POLICIES)}. "
            f"Received: {recipe.training.dtype_policy!r}."
        )
    if recipe.text.joint and recipe.text.target_vocabulary_size is not None:
        raise InputError(
            f"{where}: `text.target_vocabulary_size` needs `text.joint: false`: "
            "a joint vocabulary has one size."
        )
    for part in ("train", "validation"):
        if not getattr(recipe.data, part).source:
            raise InputError(
                f"{where}: `data.{part}` must name its files: {{source: FILE, target: FILE}}."
            )
