"""Sections of a recipe: their options, and the checks of one section."""

import dataclasses
import functools
from typing import Annotated, Literal

import pydantic

from keras_transformer.base.errors import InputError
from keras_transformer.base.options import option, options_class
from keras_transformer.base.reading import expanded_path
from keras_transformer.data.encoding import PairChecks
from keras_transformer.data.noise import Noise
from keras_transformer.data.pairs import InlineTags, is_tmx, pair_file
from keras_transformer.engine.scores import BleuTokenizer
from keras_transformer.text.languages import (
    Languages,
    check_known_pair,
    language_pair,
    languages_of_directions,
)
from keras_transformer.text.vocabulary import VocabularyOptions

PARTS = ("train", "validation")
"""Parts of the data."""
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
        is_table = self.target is None and self.source and not self.is_tmx
        if self.header is not None and not is_table:
            raise InputError("`header` belongs to a table: `source` without `target`.")
        if self.is_tmx:
            if self.target is not None:
                raise InputError("A translation memory, `source: *.tmx`, needs no `target`.")
            pair_file(self.source, None, self.languages)  # raises its errors
        elif self.inline_tags != "drop":
            raise InputError("`inline_tags` belongs to a translation memory: `source: *.tmx`.")
        elif self.languages is not None:
            language_pair(self.languages)  # raises its errors
        return self

    @property
    def is_tmx(self) -> bool:
        """True for a translation memory."""
        return is_tmx(self.source)


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
    def _check_names_and_shares(self) -> "DataSection":
        for part in PARTS:
            names = [corpus.name for corpus in self.corpora(part)]
            if getattr(self, part) == () or len(names) > 1 and len({*names, ""}) <= len(names):
                rule = f"Each corpus of `data.{part}` must have a `name` of its own."
                raise InputError(f"{rule} Received: {', '.join(names) or 'an empty list'}.")
        limit = 1 - GLOSSARY_SHARE if self.glossary else 1
        if (total := sum(self.noise.shares.values())) > limit + 1e-9:
            rule = f"The shares of `data.noise` must be at most {limit} in all"
            reason = f", because `data.glossary` has {GLOSSARY_SHARE}" if self.glossary else ""
            raise InputError(f"{rule}{reason}. Received: {total:.4g}.")
        return self

    def corpora(self, part: str) -> tuple[NamedFiles, ...]:
        """Returns the corpora of `"train"` or `"validation"`; a single corpus needs no name."""
        return self._corpora["train" if self.hold_out_every else part]

    @functools.cached_property
    def _corpora(self):
        return {part: _named(getattr(self, part)) for part in PARTS}

    @functools.cached_property
    def languages(self) -> Languages | None:
        """Languages of the corpora, None if no corpus names its languages.

        Raises:
            InputError: There are several target languages, and a corpus does not name its
                languages; or validation has a direction that training lacks.
        """
        directions = {
            part: [
                language_pair(corpus.languages) if corpus.languages else None
                for corpus in self.corpora(part)
            ]
            for part in PARTS
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
        for part in PARTS:
            for corpus in self.corpora(part):
                if corpus.languages and not corpus.is_tmx:
                    check_known_pair(corpus.languages, f"data.{part}.languages", where)

    @property
    def tags(self) -> list[str]:
        """Tags of all corpora, sorted."""
        corpora = (*self.corpora("train"), *self.corpora("validation"))
        return sorted({corpus.tag for corpus in corpora if corpus.tag is not None})


def _named(files):
    """Returns the corpora of a part, of which each has a name if they are several."""
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
