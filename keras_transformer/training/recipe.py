"""The recipe: what a training run is made of, read from YAML and checked before any work."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, Literal

import pydantic

from keras_transformer.config import (
    CONFIGURATIONS,
    ModelConfig,
    TransformerConfig,
    check_choice,
)
from keras_transformer.declaration import STRICT, check_keys, checked, option, received
from keras_transformer.dialog import Turns
from keras_transformer.errors import InputError
from keras_transformer.text.tokenizer import Normalization
from keras_transformer.training.contradictions import contradiction, with_positions
from keras_transformer.training.recipe_file import apply, load_yaml

# No file system takes such a name.
_NO_NULL = {"pattern": r"^[^\x00]*$"}
_section = pydantic.dataclasses.dataclass(frozen=True, config=STRICT)


@_section
class Files:
    """Two aligned files, or one TSV as `source` without `target`."""

    source: str = option(
        "",
        "The source's lines, or both sides with a tab between them; of a language model its text.",
        **_NO_NULL,
    )
    target: str | None = option(None, "The target's lines.", **_NO_NULL)


@_section
class DataSection:
    """Where the text is and which pairs are kept."""

    folder: str = option(
        ".", "Folder of the files below; relative to where the command is run.", **_NO_NULL
    )
    train: Files = pydantic.Field(
        Files(),
        description="Two aligned files, a sentence a line, UTF-8, plain or .gz; or one TSV with "
        "two columns: {source: pairs.tsv}; a classifier's has the label first. Both parts are "
        "required, but with `hold_out_every`.",
    )
    validation: Files = Files()
    hold_out_every: int | None = option(
        None,
        "Every so many-th pair of `train` is the validation set, where `validation` names no "
        "files; neither it nor an equal pair is trained on. null: none.",
        ge=2,
    )
    max_length: int = option(
        128,
        "Pairs with a longer side are dropped; in tokens, the end of the sentence included.",
        ge=2,
    )
    max_length_ratio: float | None = option(
        4.0,
        "Pairs whose sides differ more than this in length are dropped, once the longer one has "
        "more than 10 tokens; null keeps them all.",
        ge=1,
    )
    context_turns: int | None = option(
        None,
        "Of a source that `text.turn_separator` divides so many turns are kept, the last ones; "
        "null keeps all.",
        ge=1,
    )
    drop_duplicates: bool = option(True, "Of equal training pairs only the first is kept.")
    cache: str | None = option(
        None,
        "Folder in which ids are kept for later runs with these texts and this vocabulary, and "
        "read from as they are needed: for millions of pairs. null holds them in memory.",
        **_NO_NULL,
    )


@_section
class TextSection:
    """How the vocabulary is learned."""

    vocabulary_size: int = option(
        8000, "Ids of the vocabulary, the four special ones included.", ge=5
    )
    joint: bool = option(
        True,
        "One vocabulary for both languages, which lets all embeddings be tied; false learns one a "
        "side.",
    )
    target_vocabulary_size: int | None = option(
        None,
        "Ids of the target's own vocabulary with `joint: false`; null: as many as the source's.",
        ge=5,
    )
    byte_fallback: bool = option(
        False, "Characters that the vocabulary lacks are spelled in bytes, not unknown."
    )
    split_digits: bool = option(False, "Every digit is a token of its own.")
    whole_words: bool = option(
        False,
        "Tokens are the most frequent words, not pieces of words; any other is one <unk>.",
    )
    character_coverage: float = option(
        1.0, "Share of all characters that the vocabulary must cover.", ge=0.98, le=1
    )
    sample_sentences: int | None = option(
        None,
        "Sentences that a vocabulary is learned from, drawn from all alike; null takes all, which "
        "must then fit in memory.",
        ge=1,
    )
    normalization: Normalization = option(
        "nmt_nfkc", "SentencePiece's normalization; those with `cf` fold case.", strict=None
    )
    turn_separator: str | None = option(
        None,
        "Word between the turns of a conversation, which is the source, such as </s>: a token of "
        "its own, which no target may have.",
        pattern=r"^[^\s\x00,]+$",
    )


@_section
class TrainingSection:
    """Batches, optimizer, and what is kept."""

    start_from: str | None = option(
        None,
        "Run folder whose vocabularies and best model are begun with, to train them further on "
        "other texts; `text` and `model` are those of that run, but for dropout.",
    )
    epochs: int = option(30, "Passes over the training pairs.", ge=1)
    batch_tokens: int = option(4096, "Positions of a batch on each side, padding included.", ge=1)
    accumulation_steps: int = option(
        1,
        "Batches whose gradients make one step of the optimizer: that of one batch with all their "
        "tokens.",
        ge=1,
    )
    max_shapes: int = option(
        8, "Most batch shapes, each of which is compiled once (a few seconds).", ge=1, le=8
    )
    short_targets: bool = option(
        False,
        "Batches have targets of similar length, too, which are padded by themselves: for those "
        "that are much shorter than their sources. There are up to three times as many shapes.",
    )
    warmup_steps: int = option(
        4000,
        "The learning rate is learning_rate_scale · model_dim^-0.5 · min(step^-0.5, step · "
        "warmup_steps^-1.5).",
        ge=1,
    )
    learning_rate_scale: float = option(1.0, "Factor on the whole learning rate.", gt=0)
    label_smoothing: float = option(
        0.1, "Probability spread evenly over the vocabulary.", ge=0, lt=1
    )
    r_drop: float | None = option(
        None,
        "Each batch passes twice, under two dropouts, and this times the symmetric divergence of "
        "the two distributions is added to the loss (R-Drop); null: once. A step takes twice as "
        "long.",
        gt=0,
    )
    adam_beta_2: float = option(0.98, "Adam's second momentum; the first is 0.9.", ge=0, lt=1)
    clip_norm: float | None = option(
        None, "Gradients are scaled down to this norm; null leaves them.", gt=0
    )
    ema_momentum: float | None = option(
        None,
        "Exponential moving average of the weights: what is validated and saved as the best model "
        "is the average; null switches it off.",
        ge=0,
        lt=1,
    )
    select_by: Literal["loss", "accuracy", "bleu"] = option(
        "loss",
        "The best model is that of the lowest validation loss, of the highest share of tokens (or "
        "labels) predicted right, or of the highest BLEU of greedy translations of the validation "
        "set (its first 2,000 sentences), made after each epoch.",
        strict=None,
    )
    early_stopping_patience: int | None = option(
        None, "Stop after so many epochs without a better model; null never does.", ge=1
    )
    average_epochs: int | None = option(
        None,
        "At the end, the models of so many epochs are averaged; the average becomes the best model "
        "if it is better. null: none.",
        ge=2,
    )
    average_of: Literal["last", "best"] = option(
        "last", "Which epochs `average_epochs` takes.", strict=None
    )
    checkpoint_every_minutes: float | None = option(
        None,
        "So often a checkpoint is also made within an epoch; null: at the end of each epoch alone.",
        gt=0,
    )
    keep_checkpoints: int = option(
        2, "Checkpoints (weights and optimizer) of the last epochs that are kept.", ge=1
    )
    sample_translations: int = option(
        3, "Validation sentences that are translated after each epoch.", ge=0
    )
    attention_images: int | None = option(
        None,
        "Epochs from one picture of the first validation pair's attention in TensorBoard to the "
        "next, with the extra `plots`; null makes none.",
        ge=1,
    )
    weight_histograms: bool = option(
        False, "TensorBoard also gets a histogram of each weight after each epoch."
    )
    dtype_policy: Literal["float32", "mixed_bfloat16", "mixed_float16", "auto"] = option(
        "float32",
        "What the arithmetic is done in. auto: float32 or mixed_bfloat16, what a trial of ten "
        "seconds at the start finds faster on this machine.",
        strict=None,
    )
    jit_compile: pydantic.StrictBool | Literal["auto"] = option(
        True,
        "Compile the training step with XLA: twice as fast on a CPU. auto: as the trial finds.",
        strict=None,
    )
    seed: int = option(
        1, "Decides weights, dropout and the order of the batches.", ge=0, le=2**32 - 1
    )


@_section
class DecodingSection:
    """What `translate`, `evaluate` and `export` do unless they are told otherwise."""

    beam_size: int = option(4, "Hypotheses that stay alive; 1 is greedy search.", ge=1)
    length_penalty: float = option(
        0.6, "Exponent of the length penalty ((5 + length) / 6)^x.", ge=0
    )
    max_source_length: int = option(
        512,
        "Most tokens of a source; longer ones are refused, or split or cut where asked for.",
        ge=2,
    )
    max_target_length: int = option(
        256,
        "Most tokens of a translation; it may also have at most twice its source's and 10 more.",
        ge=2,
    )


@_section
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
    def from_dict(cls, values: dict, where: str = "recipe", trained: bool = False) -> "Recipe":
        """Checks names, types and ranges, and whether sections contradict each other.

        Args:
            values: Dict of sections; None for a section leaves its defaults.
            where: What an error begins with.
            trained: Whether it is the recipe of a run: one that an earlier version trained with
                contradicting sections is read all the same.

        Raises:
            InputError: Names `where`, the key, and what was expected.
        """
        if isinstance(values, dict):
            values = {key: {} if value is None else value for key, value in values.items()}
        with checked(cls, f"{where}: "):
            recipe = pydantic.TypeAdapter(cls).validate_python(values)
        check_choice("model.kind", recipe.kind, tuple(CONFIGURATIONS))
        _check_model_keys(recipe.model, recipe.kind, f"{where}: ")
        problem = contradiction(recipe, trained)
        if problem:
            raise InputError(f"{where}: {problem}")
        turn_id = None if recipe.text.turn_separator is None else 4
        config = recipe.model_config(1000, None if recipe.text.joint else 1000, turn_id, where)
        if config.position_limit is not None and not trained:
            recipe = with_positions(recipe, config.position_limit, values, where)
        return recipe

    @classmethod
    def load(
        cls, path: str | os.PathLike, overrides: Sequence[str] = (), trained: bool = False
    ) -> "Recipe":
        """Reads a YAML file, then applies overrides.

        Args:
            path: The recipe.
            overrides: Texts `section.key=value`, the value read as YAML.
            trained: As for `from_dict`.

        Raises:
            InputError: The file cannot be read, or what it says is not a recipe.
        """
        values = load_yaml(path)
        for override in overrides:
            apply(values, override)
        return cls.from_dict(values, where=str(path), trained=trained)

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
        return not self.config_class.continues_source

    @property
    def gives_labels(self) -> bool:
        """True for a classifier, whose targets are labels."""
        return not self.config_class.writes_text

    @property
    def turns(self) -> Turns | None:
        """How the turns of a source are joined, where sources are conversations."""
        separator = self.text.turn_separator
        return None if separator is None else Turns(separator, self.data.context_turns)

    @property
    def engine_options(self) -> dict[str, Any]:
        """Arguments of the model's engine: limits on lengths, and how turns are joined."""
        names = "max_source_length", "max_target_length"
        limits = {name: getattr(self.decoding, name) for name in names}
        return limits if self.turns is None else {**limits, "turns": self.turns}

    def to_dict(self) -> dict:
        """Plain values alone, every default written out."""
        return pydantic.TypeAdapter(type(self)).dump_python(self)

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


def _check_model_keys(model, kind, where):
    known = _model_keys(kind)
    # The nearest name would be another option, not a correction, where the key is one elsewhere.
    elsewhere = {key for each in CONFIGURATIONS for key in _model_keys(each)}.difference(known)
    for key, value in model.items():
        if key in elsewhere:
            problem = f"a {kind} model has no `{key}`"
            raise InputError(f"{where}{problem}. Received: model.{key}={received(value)}.")
    check_keys(model, known, where, "model")


def _model_keys(kind):
    names = [field.name for field in dataclasses.fields(CONFIGURATIONS[kind])]
    own = ("kind", "preset") if kind == "transformer" else ("kind",)
    known = (each for each in names if "vocabulary_size" not in each and each != "turn_id")
    return (*own, *known)
