"""Engines of models in memory: tokenize, batch by length, run, detokenize."""

import dataclasses
import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import keras
import numpy as np

from keras_transformer.base.errors import InputError
from keras_transformer.base.ids import EOS_ID, UNK_ID
from keras_transformer.base.memory import is_large
from keras_transformer.decoding.results import Hypotheses
from keras_transformer.decoding.search import result_capacity
from keras_transformer.decoding.search_options import RANKING_OPTIONS, DecodingOptions
from keras_transformer.engine import inputs
from keras_transformer.engine.device import (
    CPU,
    LARGE_MODEL_ON_CPU,
    DevicePlan,
    device_plan,
    search_bytes,
)
from keras_transformer.engine.engine import sum_of
from keras_transformer.engine.ids_engine import IdsEngine
from keras_transformer.engine.inputs import Job, bucket, length_buckets
from keras_transformer.engine.request import OptionRules
from keras_transformer.engine.scheduler import MAX_PROGRAMS, Scheduler
from keras_transformer.engine.translation import Translation
from keras_transformer.models.config import ModelConfig
from keras_transformer.text.dialog import Turns
from keras_transformer.text.languages import Direction, Languages, languages_of_tags
from keras_transformer.text.sentences import TextRules
from keras_transformer.text.shortlist import LIST_SIZES, Shortlist

if TYPE_CHECKING:
    from keras_transformer.engine.classifier_engine import ClassifierEngine

_SCORED_ROWS = 32  # of pairs: each has its logits at all positions


@dataclasses.dataclass(eq=False, repr=False)
class ModelEngine(IdsEngine):
    """Translates with a `Transformer` and its tokenizers.

    Args:
        model: The trained `Transformer`.
        source_tokenizer: `Tokenizer` of the source side, with the model's vocabulary.
        target_tokenizer: `Tokenizer` of the target side; the source's by default.
        max_source_length: Maximum number of tokens of a source, including EOS. The number of the
            model's learned positions is a further limit.
        max_target_length: Maximum number of tokens of a translation, with EOS.
        frozen: Whether the model's weights will not change any more. The decoder's weights are then
            prepared once for decoding steps, in a second copy in memory.
        workers: Number of batches of a call that are decoded at once; by default the device's, two
            on a CPU.
        turns: Rule that joins the turns of a source, where sources are conversations. The model
            reads as many turns as it was trained on.
        shortlist: Candidates of each source token, for the option of this name.
        languages: `Languages`; by default an imported model's, whose tags are languages.
        with_xla: Whether XLA compiles the searches. For a few sentences TensorFlow's ordinary
            graphs take less time; JAX always compiles.
        text_rules: Rules of texts that are more, or less, than a sentence; by default all are off.
        plan: What suits the device; by default the plan of the device in use.
    """

    model: keras.Model
    source_tokenizer: Any
    target_tokenizer: Any = None
    max_source_length: int = 512
    max_target_length: int = 256
    frozen: bool = False
    workers: int | None = None
    turns: Turns | None = None
    with_xla: bool = True
    shortlist: Shortlist | None = None
    languages: Languages | None = None
    text_rules: TextRules = TextRules()
    plan: DevicePlan | None = None

    noun = "a trained model"
    capabilities = frozenset(
        {"translate", "score", "stream", "sample", "align", "warmup", "phrases"}
    )
    option_rules = OptionRules(score=(*RANKING_OPTIONS, "alignment"))

    def __post_init__(self) -> None:
        if self.plan is None:
            self.plan = device_plan()
            if self.plan == CPU and is_large(self.model):
                self.plan = LARGE_MODEL_ON_CPU
        config = self.model.config
        self.target_tokenizer = self.target_tokenizer or self.source_tokenizer
        inputs.check_tokenizers(config, self.source_tokenizer, self.target_tokenizer)
        self.languages = self.languages or languages_of_tags(self.source_tokenizer.tag_tokens)
        if self.turns is not None:
            self.long_inputs = inputs.LONG_INPUT_FOR_DIALOG
        self.reads_sources = config.reads_sources
        lengths = self.max_source_length, self.max_target_length = limits_of(
            config, self.max_source_length, self.max_target_length, self.has_target_prefix
        )
        # An answer or a continuation may have any length.
        is_free = not self.reads_sources or self.turns is not None
        self.max_length_ratio = math.inf if is_free else DecodingOptions.max_length_ratio
        is_compiled = self.with_xla or keras.backend.backend() == "jax"
        self._scheduler = Scheduler(
            self.model,
            lengths,
            self.frozen,
            self.workers or self.plan.workers,
            MAX_PROGRAMS if is_compiled else 0,
            self.shortlist,
            plan=self.plan,
        )

    def with_(self, **options: Any) -> "ModelEngine":
        """Returns an engine of the same model, with other values of the class's arguments."""
        return dataclasses.replace(self, **options)

    @property
    def compilations(self) -> int:
        """Number of functions that XLA has compiled so far: at most one per shape and options."""
        return self._scheduler.compilations

    @property
    def lines_at_once(self):
        return self.plan.lines_at_once

    @property
    def defaults(self) -> dict[str, Any]:
        """Options that differ from the defaults of `DecodingOptions`."""
        return {"max_length_ratio": self.max_length_ratio}

    def request(self, **options):
        request = super().request(**options)
        if request.options.shortlist and self.shortlist is None:
            raise InputError(
                "`shortlist` needs a run with a shortlist. Received: a run without one. "
                "`keras-transformer shortlist` makes it of parallel texts."
            )
        return request

    def search(self, jobs, request):
        jobs = self._with_prompts(jobs)
        # A sentence is searched with the same beam, whatever phrases the others have.
        sizes = [sum(map(len, job.phrases)) for job in jobs]
        options_by_size = {size: request.options.with_phrases(size) for size in {*sizes}}
        results: dict[int, list[Translation]] = {}
        for options in sorted({*options_by_size.values()}, key=lambda options: options.beams):
            indices = [i for i, size in enumerate(sizes) if options_by_size[size] == options]
            if options != request.options:
                beams = f"{options.beam_size} instead of {request.options.beam_size}"
                line = f"Texts with phrases are searched with `beam_size` {beams}."
                warnings.warn(line, stacklevel=4)
            longest = max(len(jobs[i].source) for i in indices)
            rows = self._rows(dataclasses.replace(request, options=options), len(indices), longest)
            found = self._scheduler.search([jobs[i] for i in indices], options, rows)
            results |= zip(indices, map(translations_of, found), strict=True)
        return [results[index] for index in range(len(jobs))]

    def _with_prompts(self, jobs):
        if self.reads_sources:
            return jobs
        return [job._replace(prefix=prompt_of(job.source)) for job in jobs]

    def score_pairs(self, pairs, request):
        # A language model reads its source before the target.
        prompts = [() if self.reads_sources else prompt_of(source) for source, _ in pairs]
        sequences = []
        for index, ((source, target), prompt) in enumerate(zip(pairs, prompts, strict=True)):
            if not self.reads_sources and len(prompt) + len(target) > self.max_target_length:
                limit, count = self.max_target_length, len(prompt) + len(target)
                rule = f"A source and its target must have at most {limit} tokens together."
                raise InputError(f"{rule} Received: {count} tokens.", index)
            sequences.append((source, [*prompt, *target]))
        rows = request.batch_size or _SCORED_ROWS
        scored = self._scheduler.score(sequences, rows, request.alignment)
        return [
            Translation(
                "", 0.0, token_log_probabilities=tuple(row[len(prompt) :]), alignment=weights
            )
            for (row, weights), prompt in zip(scored, prompts, strict=True)
        ]

    def align(self, pairs, request):
        pairs = [(source, list(target)) for source, target in pairs]
        count = min(len(pairs), _SCORED_ROWS) if self.plan.rows else len(pairs)
        rows = self._rows(request, count)
        scored = self._scheduler.score(pairs, rows, alignment=True)
        return [alignment for _, alignment in scored]

    def stream_ids(self, job, request):
        if not self.reads_sources:
            job = job._replace(prefix=prompt_of(job.source))
        for hypotheses in self._scheduler.stream(job, request.options):
            yield np.asarray(hypotheses.ids)[0, 0].tolist()

    def warmup(self, lengths: Sequence[int] = (16, 32, 48, 64), **options: Any) -> int:
        """Compiles the functions that `translate` with these options needs; returns their number.

        Args:
            lengths: Expected numbers of source tokens.
            **options: As for `translate`; the longest of the `target_prefixes` decides. The default
                of `batch_size` suits a call with few texts.
        """
        before, request = self.compilations, self.request(**options)
        search_options, batch_size = request.options, self._rows(request, 1)
        prefixes = options.get("target_prefixes")
        prefixes = self._prefix_ids(prefixes, len(prefixes or ()), request)
        longest_prefix = max(prefixes, key=len, default=())
        buckets = length_buckets(self.max_source_length)
        longest = search_options.resolve_max_length(self.max_target_length)
        targets = length_buckets(longest) if request.alignment else ()
        direction = Direction()
        if self.languages is not None:  # Any direction has the same shapes.
            direction = self.directions.between(*self.languages.directions[0])
        # One token is enough, because limits are not part of a compiled function.
        one_token_options = dataclasses.replace(search_options, min_length=0, max_length=1)
        for columns in sorted({bucket(length, buckets) for length in lengths}):
            source = [UNK_ID] * (columns - 1) + [EOS_ID]
            prefix = longest_prefix if self.reads_sources else prompt_of(source)
            jobs = [Job(source, 0, prefix, direction=direction)] * batch_size
            for size in LIST_SIZES if search_options.shortlist else (0,):
                self._scheduler.search(jobs, one_token_options, batch_size, size)
            for target in targets:
                pairs = [(source, [UNK_ID] * target)] * (batch_size * search_options.n_best)
                self._scheduler.score(pairs, batch_size, alignment=True)
        return self.compilations - before

    def _rows(self, request, count, longest=0):
        """Returns the rows per batch, by default as many as are fastest for `count` sentences.

        The longest source has `longest` tokens.
        """
        if request.batch_size is not None:
            return request.batch_size
        config, beams = self.model.config, request.options.beams
        if self.plan.hypotheses is not None:
            return max(1, self.plan.hypotheses // beams)
        if not self.plan.rows:
            leave = self.model.can_shrink
            return inputs.batch_rows(count, config.model_dim, beams, leave)
        ratio = request.options.max_length_ratio
        capacity = result_capacity(longest, ratio, self.max_target_length)
        is_half = self.model.compute_dtype != "float32"
        return self.plan.rows_for(count, search_bytes(config, beams, longest, capacity, is_half))


TrainedEngine: TypeAlias = "ModelEngine | ClassifierEngine"
"""Engine of a model in memory."""


def engine_of(model: keras.Model, *arguments, **options) -> TrainedEngine:
    """Makes the engine of a model of any kind; `ModelEngine` explains the arguments."""
    if model.config.writes_text:
        return ModelEngine(model, *arguments, **options)
    from keras_transformer.engine.classifier_engine import ClassifierEngine

    return ClassifierEngine(model, *arguments, **options)


def limits_of(
    config: ModelConfig, max_source_length: int, max_target_length: int, has_target_prefix: bool
) -> tuple[int, int]:
    """Returns the maximum numbers of tokens of a source and of a target that a model can have.

    Args:
        config: Configuration of the model, which has no positions for longer texts.
        max_source_length: Requested limit of the source, EOS included.
        max_target_length: Requested limit of the target.
        has_target_prefix: Whether the decoder reads a forced token first, which has a position too.

    Raises:
        InputError: A limit is below two tokens.
    """
    if (positions := config.position_limit) is not None:
        max_source_length = min(max_source_length, positions)
        max_target_length = min(max_target_length, positions - has_target_prefix)
    if not config.reads_sources:  # The source is the beginning of the target.
        max_source_length = min(max_source_length, max_target_length)
    limits = {"max_source_length": max_source_length, "max_target_length": max_target_length}
    for name, limit in limits.items():
        if limit < 2:
            raise InputError(f"`{name}` must be at least 2. Received: {name}={limit!r}.")
    return max_source_length, max_target_length


def prompt_of(source: Sequence[int]) -> list[int]:
    """Returns the ids that a language model continues: its source without EOS."""
    return [id for id in source if id != EOS_ID]


def translations_of(hypotheses: Hypotheses) -> list[Translation]:
    """Converts one sentence's `Hypotheses`, arrays without the batch's axis, to `Translation`s."""
    translations = []
    for row in map(Hypotheses._make, zip(*hypotheses, strict=True)):
        # Without the padding at the end.
        ids = row.ids[: np.max(np.flatnonzero(row.ids), initial=-1) + 1].tolist()
        by_token = tuple(row.token_log_probabilities[: len(ids)].tolist())
        translation = Translation(
            "",
            float(row.scores),
            sum_of(by_token),
            ids=tuple(ids),
            token_log_probabilities=by_token,
        )
        if row.continuation_lengths < np.count_nonzero(row.ids):  # It has a target prefix.
            translation = dataclasses.replace(
                translation,
                continuation_log_probability=float(row.continuation_log_probabilities),
                continuation_length=int(row.continuation_lengths),
            )
        translations.append(translation)
    return translations
