"""The recipe of a training run, read from YAML and checked before training."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import pydantic

from keras_transformer.base.errors import InputError, InvalidFileError
from keras_transformer.base.ids import UNK_ID
from keras_transformer.base.options import (
    check_choice,
    check_keys,
    option,
    options_class,
    options_of,
    parse_options,
    received,
)
from keras_transformer.base.reading import expanded_path
from keras_transformer.data.encoding import PairChecks
from keras_transformer.data.noise import Noise
from keras_transformer.data.pairs import InlineTags, is_memory, pair_file
from keras_transformer.decoding.search_options import without_excluded
from keras_transformer.engine.scores import BleuTokenizer
from keras_transformer.models.config import CONFIGURATIONS, ModelConfig, TransformerConfig
from keras_transformer.runs.run_files import RunFiles
from keras_transformer.runs.sections import DecodingSection, parse_yaml, read_sections, section_of
from keras_transformer.text.languages import (
    Languages,
    check_known_pair,
    language_pair,
    languages_of_directions,
)
from keras_transformer.text.sentences import TextRules
from keras_transformer.text.tags import check_new_tag
from keras_transformer.text.vocabulary import VocabularyOptions

WARMUP_STEPS = 4000
"""Steps until the paper's learning rate is highest (Vaswani et al. 2017, section 5.3)."""
GLOSSARY_SHARE = 0.3
"""Share of an epoch's pairs whose terms are annotated."""
# Highest learning rates of a training that starts from a run: docs/howto/fine_tune.md.
_RATE, _RATE_OF_LORA = 3e-5, 3e-4

# No file system allows such a name.
_NO_NULL = {"pattern": r"^[^\x00]*$"}
_Path = Annotated[str, pydantic.AfterValidator(expanded_path)]


@options_class
class Files:
    """Two aligned files, or a table or a translation memory as `source` without `target`."""

    source: _Path = option(
        "",
        "The source's lines, or both sides: two columns with a tab between them, a CSV file, "
        "*.csv, or a translation memory, *.tmx; or a language model's text.",
        **_NO_NULL,
    )
    target: _Path | None = option(None, "The target's lines.", **_NO_NULL)
    header: bool | None = option(
        None,
        "Whether the first row of a `source` without `target` has the names of the columns, and is "
        "skipped. null: such a row is an error.",
    )
    languages: str | None = option(
        None,
        "Codes of source and target: en-de, or en-GB,pt-BR. Of a memory they choose the texts, and "
        "a code without a region includes all regions. If corpora have several target languages, "
        "the target's token, such as >>de<<, precedes each source. An imported model of many "
        "languages needs them.",
    )
    inline_tags: InlineTags = option(
        "drop",
        "Formatting inside the memory's sentences. drop: removed with its code; keep: tags remain "
        "in the text, as `translate` takes it with `markup: html`.",
        strict=None,
    )

    @pydantic.model_validator(mode="after")
    def _check_files(self) -> "Files":
        is_table = self.target is None and self.source and not self.is_memory
        if self.header is not None and not is_table:
            raise InputError("`header` belongs to a table: `source` without `target`.")
        if self.is_memory:
            if self.target is not None:
                raise InputError("A translation memory, `source: *.tmx`, needs no `target`.")
            pair_file(self.source, None, self.languages)  # raises its errors
        elif self.inline_tags != "drop":
            raise InputError("`inline_tags` belongs to a translation memory: `source: *.tmx`.")
        elif self.languages is not None:
            language_pair(self.languages)  # raises its errors
        return self

    @property
    def is_memory(self) -> bool:
        """True for a translation memory."""
        return is_memory(self.source)


@options_class
class NamedFiles(Files):
    """A corpus among several."""

    name: str = option(
        "", "Name of the corpus in reports, curves and metrics.json.", pattern=r"^[\w-]*$"
    )
    tag: str | None = option(
        None,
        "Token <tag> before each source: bt for back-translated text, or a domain; or a language "
        "of an imported model, epo for >>epo<<. `translate` has an option `tag`. Directions have "
        "`languages`.",
        pattern=r"^\w[\w@.-]*$",
    )


@options_class
class WeightedFiles(NamedFiles):
    """A training corpus among several."""

    weight: float = option(
        1.0,
        "How often a pass takes each pair of the corpus; with 0.25 every fourth pass takes it.",
        gt=0,
    )


def _tag_of(value):
    return "array" if isinstance(value, (list, tuple)) else "object"


_OneFile = Annotated[Files, pydantic.Tag("object")]
_Training = Annotated[tuple[WeightedFiles, ...], pydantic.Tag("array")]
_Validation = Annotated[tuple[NamedFiles, ...], pydantic.Tag("array")]
_BY_TAG = pydantic.Discriminator(_tag_of)


@options_class
class DataSection(PairChecks):
    """Files, and the pairs that are kept."""

    folder: _Path = option(
        ".",
        "Folder of the files below; relative to the working directory. In each path of a recipe, ~ "
        "and $HOME (or another variable) are replaced.",
        **_NO_NULL,
    )
    train: _OneFile | _Training = pydantic.Field(
        Files(),
        discriminator=_BY_TAG,
        description="Two aligned files, one sentence per line, UTF-8, plain or compressed (.gz, "
        ".xz, .bz2, .zst). Or a table with two columns, TSV or CSV: {source: pairs.tsv}; a "
        "classifier's has the label first. Or a translation memory: {source: memory.tmx, "
        "languages: en-de}. Or several corpora: [{name: A, source: a.en, target: a.de, weight: 2, "
        "tag: bt}, …]. Or several directions: [{source: a.en, target: a.de, languages: en-de}, "
        "{source: a.de, target: a.en, languages: de-en}]. Both parts are required, except with "
        "`hold_out_every`.",
    )
    validation: _OneFile | _Validation = pydantic.Field(Files(), discriminator=_BY_TAG)
    noise: Noise = pydantic.Field(
        Noise(), description="Noise on training pairs, different in each epoch."
    )
    glossary: _Path | None = option(
        None,
        "File of lines with a term, a tab and its translation. In 30 % of an epoch's pairs, up to "
        "three terms that the pair has are annotated with their translations. Then `translate` and "
        "any export can use a glossary. The command `glossary` learns such a file. null: none.",
        **_NO_NULL,
    )
    hold_out_every: int | None = option(
        None,
        "Hold out every Nth pair of `train` as the validation set, if `validation` names no files. "
        "Equal pairs are removed from training. null: none.",
        ge=2,
    )
    bleu_tokenizer: BleuTokenizer | None = option(
        None,
        "sacreBLEU's tokenizer for BLEU on the validation set; null: depends on the script of the "
        "targets: zh for Chinese, char for other scripts without spaces between words, else 13a.",
        strict=None,
    )
    context_turns: int | None = option(
        None,
        "Number of last turns to keep of a source that `text.turn_separator` divides; null: all.",
        ge=1,
    )

    @pydantic.model_validator(mode="after")
    def _check_validation(self) -> "DataSection":
        for part in ("train", "validation"):
            names = [corpus.name for corpus in self.corpora(part)]
            if getattr(self, part) == () or len(names) > 1 and len({*names, ""}) <= len(names):
                rule = f"Each corpus of `data.{part}` must have a `name` of its own."
                raise InputError(f"{rule} Received: {', '.join(names) or 'an empty list'}.")
        most = 1 - GLOSSARY_SHARE if self.glossary else 1
        if (total := sum(self.noise.shares.values())) > most + 1e-9:
            rule = f"The shares of `data.noise` must be at most {most} in all"
            reason = f", because `data.glossary` has {GLOSSARY_SHARE}" if self.glossary else ""
            raise InputError(f"{rule}{reason}. Received: {total:.4g}.")
        if self.hold_out_every and self.validation != Files():
            raise InputError(
                "`data.hold_out_every` and `data.validation` are two validation sets. Delete one "
                "of them; `--set data.validation=null` deletes it for one run."
            )
        return self

    def corpora(self, part: str) -> tuple[NamedFiles, ...]:
        """Returns the corpora of `"train"` or `"validation"`; a single corpus needs no name."""
        files = self.train if part == "train" or self.hold_out_every else self.validation
        if not isinstance(files, tuple):
            return (WeightedFiles(**dataclasses.asdict(files)),)
        if len(files) < 2:
            return files
        # A direction is the name of a corpus without another name.
        return tuple(
            dataclasses.replace(corpus, name="-".join(language_pair(corpus.languages)))
            if corpus.languages and not corpus.name
            else corpus
            for corpus in files
        )

    @property
    def languages(self) -> Languages | None:
        """Languages of the corpora, None if no corpus names its languages.

        Raises:
            InputError: There are several target languages, and a corpus does not name its
                languages; or validation has a direction that training lacks.
        """
        directions = {
            part: [
                language_pair(corpus.languages) if corpus.languages else None for corpus in corpora
            ]
            for part in ("train", "validation")
            for corpora in [self.corpora(part)]
        }
        languages = languages_of_directions(pair for pair in directions["train"] if pair)
        if languages is not None and languages.tokens:
            for part, pairs in directions.items():
                missing = [pair for pair in pairs if pair is None or not languages.has(*pair)]
                if missing:
                    received = "none" if None in pairs else "-".join(min(filter(None, missing)))
                    rule = "Each corpus must name its `languages`, a direction of `data.train`"
                    raise InputError(f"{rule}. Received: {received} in `data.{part}`.")
        return languages

    def check_codes(self, where: str = "") -> None:
        """Raises `InputError` for a code of no language.

        A recipe is read without this check, because an imported model has codes of its own. A
        memory without texts of a code is another error.

        Args:
            where: Beginning of the message, such as the path of the recipe.
        """
        for part in ("train", "validation"):
            for corpus in self.corpora(part):
                if corpus.languages and not corpus.is_memory:
                    check_known_pair(corpus.languages, f"data.{part}.languages", where)

    @property
    def tags(self) -> list[str]:
        """Tags of all corpora, sorted."""
        corpora = (*self.corpora("train"), *self.corpora("validation"))
        return sorted({corpus.tag for corpus in corpora if corpus.tag is not None})


@options_class
class TextSection(VocabularyOptions):
    """Vocabulary and turns."""

    joint: bool = option(
        True,
        "One vocabulary for both languages, so that all embeddings can be tied; false: one per "
        "side.",
    )
    target_vocabulary_size: int | None = option(
        None,
        "Size of the target's vocabulary with `joint: false`; null: the source's size.",
        ge=5,
    )

    @pydantic.model_validator(mode="after")
    def _check_sizes(self) -> "TextSection":
        if self.joint and self.target_vocabulary_size is not None:
            raise InputError(
                "`text.target_vocabulary_size` needs `text.joint: false`: a joint vocabulary has "
                "one size."
            )
        return self

    @property
    def sizes(self) -> tuple[int, int | None]:
        """Sizes of both vocabularies; the target's is None if they are one."""
        if self.joint:
            return self.vocabulary_size, None
        return self.vocabulary_size, self.target_vocabulary_size or self.vocabulary_size


@options_class
class TrainingSection:
    """Batches, optimizer, and saved models."""

    start_from: _Path | None = option(
        None,
        "Run folder to start from: training continues with its best model, vocabularies, `text` "
        "and `model`, except dropout. Without `text` in the recipe, `decoding` is the run's too. "
        "null: a new model.",
    )
    lora_rank: int | None = option(
        None,
        "Rank of the two matrices per projection of attention and feed-forward that LoRA trains. "
        "The weights of `start_from` are frozen, and the saved model has both merged. null: all "
        "weights are trained.",
        ge=1,
    )
    epochs: int = option(30, "Number of epochs; see steps_per_epoch.", ge=1)
    steps_per_epoch: int | None = option(
        None,
        "Number of batches per epoch, after which the model is validated and saved. The next epoch "
        "continues in the pass over the training pairs. null: a pass.",
        ge=1,
    )
    batch_tokens: int | None = option(
        4096,
        "Maximum number of positions of a batch on each side, padding included. null: the "
        "device's, 4,096 on a CPU and 25,000 on others.",
        ge=1,
    )
    accumulation_steps: int = option(
        1,
        "Number of batches per optimizer step; equal to one batch with all their tokens.",
        ge=1,
    )
    max_shapes: int | None = option(
        None,
        "Maximum number of batch shapes, each of which is compiled. null: 8 on a CPU, 2 on other "
        "devices and where an epoch has fewer than 50 batches. A run keeps the number that it "
        "began with.",
        ge=1,
        le=8,
    )
    warmup_steps: int | None = option(
        None,
        "Number of optimizer steps until the learning rate is highest. null: a tenth of all steps, "
        "and at most 4,000.",
        ge=1,
    )
    learning_rate: float | None = option(
        None,
        "Highest learning rate. It grows for warmup_steps, and then falls with the square root of "
        "the step. null: the paper's, (4000 · model_dim)^-0.5, such as 0.0014 for 128; with "
        "`start_from` 0.00003, and 0.0003 with `lora_rank`.",
        gt=0,
    )
    label_smoothing: float = option(
        0.1, "Probability spread evenly over the vocabulary.", ge=0, lt=1
    )
    clip_norm: float | None = option(
        None, "Maximum norm of gradients, which are scaled down to it; null: no limit.", gt=0
    )
    ema_momentum: float | None = option(
        None,
        "Momentum of the exponential moving average of the weights, which is validated and saved "
        "as the best model; null: no average.",
        ge=0,
        lt=1,
    )
    select_by: Literal["loss", "accuracy", "bleu", "chrf"] = option(
        "loss",
        "Measure of the best model on the validation set: lowest loss, highest share of correctly "
        "predicted tokens (or labels), or highest BLEU or chrF. BLEU and chrF score greedy "
        "translations of its first 2,000 sentences. The loss decides between equal values.",
        strict=None,
    )
    early_stopping_patience: int | None = option(
        None, "Number of epochs without a better model until training stops; null: never.", ge=1
    )
    average_epochs: int | None = option(
        None,
        "Number of last epochs whose models are averaged at the end; the average is the model. "
        "null: none.",
        ge=2,
    )
    sample_translations: int = option(
        3, "Number of validation sentences that are translated after each epoch.", ge=0
    )
    dtype_policy: Literal["float32", "mixed_bfloat16", "mixed_float16"] = option(
        "float32",
        "Precision of the arithmetic. mixed_bfloat16 with `jit_compile: false` is faster for "
        "widths of at least 256 on a processor with AMX.",
        strict=None,
    )
    jit_compile: bool = option(
        True, "Compile the training step with XLA, which is up to twice as fast on a CPU."
    )
    shortlist: bool = option(
        False,
        "Make a shortlist from the training pairs before the first epoch: the target tokens that "
        "each source token is likely to become, for fast translations.",
    )
    seed: int = option(
        1, "Seed of weights, dropout and the order of the batches.", ge=0, le=2**32 - 1
    )

    @property
    def selects_by_translations(self) -> bool:
        """True where the validation set is translated after each epoch."""
        return self.select_by in ("bleu", "chrf")

    @pydantic.model_validator(mode="after")
    def _check(self):
        if self.lora_rank is not None and self.start_from is None:
            rule = "`training.lora_rank` needs `training.start_from`, the run whose weights stay."
            raise InputError(
                f"{rule} Received: lora_rank={received(self.lora_rank)}, start_from=null."
            )
        if (self.steps_per_epoch or 0) % self.accumulation_steps:
            rule = "`training.steps_per_epoch` must be a multiple of `training.accumulation_steps`"
            values = map(received, (self.steps_per_epoch, self.accumulation_steps))
            raise InputError(f"{rule}. Received: {' and '.join(values)}.")
        return self

    def with_schedule(self, steps: int) -> "TrainingSection":
        """Returns the options with a warm-up and a learning rate, where they have null.

        Args:
            steps: Number of optimizer steps in all.
        """
        warmup_steps = self.warmup_steps or min(max(steps // 10, 1), WARMUP_STEPS)
        rate = self.learning_rate
        if rate is None and self.start_from is not None:
            rate = _RATE if self.lora_rank is None else _RATE_OF_LORA
        return dataclasses.replace(self, warmup_steps=warmup_steps, learning_rate=rate)


_PARTS = "train", "validation"
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
            values = _with_origin(values, where, must_exist=False)
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
            overrides: Texts `section.key=value`, with values in YAML. `null` removes the key, so
                that its default holds.
            resumed: Run folder that the recipe resumes. If it has a recipe, the run of
                `training.start_from` is not read.

        Raises:
            InputError: The file cannot be read, or is not a recipe.
        """
        values = read_sections(path)
        removed_keys = [_override(values, override) for override in overrides]
        values = _with_origin(values, path, resumed)
        for parts in filter(None, removed_keys):
            _remove_null(values, parts)
        try:
            return cls.from_dict(values, where=str(path))
        except InvalidFileError as error:
            message = str(error).removeprefix(f"{path}: ")
            for key in (override.partition("=")[0].strip() for override in overrides):
                if _is_about(message, key):
                    raise InvalidFileError(f"--set {key}: {message}") from None
            raise

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
    def _check_model(self) -> "Recipe":
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
        return self

    @pydantic.model_validator(mode="after")
    def _check_corpora(self) -> "Recipe":
        """Raises `InputError` for files that the kind of model does not learn from."""
        for part in _PARTS:
            corpora = self.data.corpora(part)
            has_memory = any(corpus.is_memory for corpus in corpora)
            has_pairs = has_memory or any(
                corpus.target or corpus.header is not None for corpus in corpora
            )
            if has_pairs and not self.with_sources:
                rule = "A language model learns from one text"
                raise InputError(f"{rule}: `data.{part}` is {{source: FILE}}.")
            if has_memory and self.gives_labels:
                raise InputError(f"A classifier learns from labels: `data.{part}` has no *.tmx.")
        return self

    @pydantic.model_validator(mode="after")
    def _check_sources(self) -> "Recipe":
        """Raises `InputError` for options of sources of one sequence, if a model has others."""
        has_turns = self.text.turn_separator is not None
        changes = self.data.noise.shares or self.data.glossary
        if changes and (has_turns or not self.with_sources):
            rule = "`data.noise` and `data.glossary` change sources of one sequence"
            raise InputError(f"{rule}: no turns, no language model.")
        languages = self.data.languages
        has_tokens = bool(self.data.tags or (languages and languages.tokens))
        if has_tokens and (has_turns or not self.with_sources):
            raise InputError(
                "`tag` and the tokens of `languages` begin a source of one sequence: no "
                "turns, no language model."
            )
        if languages is not None and (has_turns or self.gives_labels or not self.with_sources):
            raise InputError("`languages` need a model that translates.")
        for tag in self.data.tags if self.training.start_from is None else ():
            check_new_tag(tag)
        return self

    @pydantic.model_validator(mode="after")
    def _check_kind(self) -> "Recipe":
        """Raises `InputError` for options that the kind of model does not have."""
        for option_or_value, reason in _NOT_OF_A_KIND.get(self.kind, {}).items():
            if self._has(option_or_value):
                raise InputError(f"`{option_or_value}` {reason}")
        return self

    def _has(self, option_or_value):
        """Returns whether the recipe sets `section.option`, or has `section.option: value`."""
        path, _, value = option_or_value.partition(": ")
        section, name = path.split(".")
        received_value = getattr(getattr(self, section), name)
        if value:
            return str(received_value).lower() == value
        return received_value not in (None, 0)  # 0 and false are as good as null.

    @pydantic.model_validator(mode="after")
    def _check_sections(self) -> "Recipe":
        """Raises `InputError` for sections that contradict each other."""
        data, text = self.data, self.text
        if self.has_data:
            self.check_files()
        if data.glossary and text.whole_words:
            raise InputError("`data.glossary` needs parts of words: `text.whole_words: false`.")
        if data.context_turns is not None and text.turn_separator is None:
            rule = "`data.context_turns` needs `text.turn_separator`, which separates turns."
            raise InputError(rule)
        if not text.joint and self.model.get("tie_embeddings") == "all":
            raise InputError(
                "`model.tie_embeddings: all` shares one table between both sides, which "
                "`text.joint: false` gives a vocabulary each: set model.tie_embeddings to decoder "
                "or none."
            )
        return self

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
        for part in _PARTS:
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


def _with_origin(values, where, resumed=None, must_exist=True):
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
    run = RunFiles(resumed or origin)
    if not run.recipe_file.is_file():  # A run that was stopped early has no recipe.
        run = RunFiles(origin)
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


def _override(values, override):
    """Sets the value of `section.key=value` in the sections.

    Returns the parts of a key that `null` removes, otherwise None.
    """
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
    is_known = parts[-1] in values or parts[-1] in options_of(Recipe, ".".join(parts[:-1]))
    values[parts[-1]] = value
    return parts if is_known and text.strip() == "null" else None  # `~` may mean a folder.


def _is_about(message, key):
    """Returns whether a message is about the value of `section.key`, or does not know a part."""
    parts, beginnings = key.split("."), [f"`{key}` must "]
    for count, name in enumerate(parts):
        where = f" in `{'.'.join(parts[:count])}`" if count else ""
        beginnings.append(f"unknown key `{name}`{where}.")
    return message.startswith(tuple(beginnings))


def _remove_null(sections, parts):
    """Removes a key from the sections unless a later override has given it a value."""
    *path, key = parts
    for name in path:
        sections = sections.get(name) if isinstance(sections, dict) else None
    if isinstance(sections, dict) and sections.get(key, ...) is None:
        del sections[key]
