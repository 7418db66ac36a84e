"""Engines of models in memory: tokenize, batch by length, run, detokenize."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.decoding.options import DecodingOptions
from keras_transformer.decoding.programs import Compiled
from keras_transformer.decoding.results import NEG_INF, Hypotheses
from keras_transformer.engine import inputs
from keras_transformer.engine.engine import Engine, LabelEngine
from keras_transformer.engine.inputs import bucket, length_buckets
from keras_transformer.engine.scheduler import MAX_PROGRAMS, Job, Scheduler
from keras_transformer.engine.translation import Translation, translation_of
from keras_transformer.errors import InputError
from keras_transformer.ids import EOS_ID, UNK_ID
from keras_transformer.options import check, check_positive
from keras_transformer.text.dialog import Turns


class ModelEngine(Engine):
    """Translates with a `Transformer` and its tokenizers.

    Args:
        model: `Transformer`.
        source_tokenizer: `Tokenizer` of the source side, with the model's vocabulary.
        target_tokenizer: `Tokenizer` of the target side; the source's by default.
        max_source_length: Maximum number of tokens of a source, including EOS. The number of the
            model's learned positions is a further limit.
        max_target_length: Maximum number of tokens of a translation, likewise.
        frozen: Whether the model's weights will not change any more. The decoder's weights are then
            prepared once for decoding steps, in a second copy in memory.
        workers: Number of batches of a call that are decoded at once.
        turns: Rule that joins the turns of a source, where sources are conversations. The model
            reads as many turns as it was trained on.
        with_xla: Whether XLA compiles the searches. For a few sentences TensorFlow's ordinary
            graphs take less time; JAX always compiles.
    """

    noun = "a live model"
    capabilities = frozenset(
        {"translate", "score", "stream", "sample", "align", "warmup", "phrases"}
    )

    def __init__(
        self,
        model: keras.Model,
        source_tokenizer,
        target_tokenizer=None,
        max_source_length: int = 512,
        max_target_length: int = 256,
        frozen: bool = False,
        workers: int = 2,
        turns: Turns | None = None,
        with_xla: bool = True,
    ):
        self.turns = turns
        self._turn_id = None if turns is None else source_tokenizer.turn_id
        config, self.model = model.config, model
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer or source_tokenizer
        self._tokenizers = self.source_tokenizer, self.target_tokenizer
        inputs.check_tokenizers(config, *self._tokenizers)
        # The model has no positions for longer texts.
        longest = config.position_limit or max(max_source_length, max_target_length)
        self.max_source_length = min(max_source_length, longest)
        self.max_target_length = min(max_target_length, longest)
        self.reads_sources = config.reads_sources
        if not self.reads_sources:  # The source is the beginning of the target.
            self.max_source_length = min(self.max_source_length, self.max_target_length)
        lengths = self.max_source_length, self.max_target_length
        for name, value in zip(("max_source_length", "max_target_length"), lengths, strict=True):
            if value < 2:
                raise InputError(f"`{name}` must be at least 2. Received: {name}={value!r}.")
        # An answer or a continuation may have any length.
        is_free = not self.reads_sources or turns is not None
        self.max_length_ratio = math.inf if is_free else DecodingOptions.max_length_ratio
        limit = MAX_PROGRAMS if with_xla or keras.backend.backend() == "jax" else 0
        self._scheduler = Scheduler(model, lengths, frozen, workers, limit)

    @property
    def compilations(self) -> int:
        """Number of functions that XLA has compiled so far: at most one per shape and options."""
        return self._scheduler.compilations

    def translate(
        self,
        texts: Sequence[str],
        beam_size: int = DecodingOptions.beam_size,
        length_penalty: float = DecodingOptions.length_penalty,
        n_best: int = DecodingOptions.n_best,
        batch_size: int | None = None,
        target_prefixes: Sequence[str] | None = None,
        alignment: bool = False,
        long_input: inputs.LongInput = "refuse",
        phrases: Sequence[Sequence[str]] | None = None,
        **options,
    ) -> list[Translation]:
        """Translates texts, in batches of similar length; the results are in the order of `texts`.

        Args:
            texts: Strings. A blank text (white space, or characters without tokens, such as
                zero-width spaces) is translated as the empty string.
            beam_size: As in `DecodingOptions`, like `length_penalty` and `n_best`.
            batch_size: Maximum number of sentences in one call of the compiled search; by default
                the fastest number, see `inputs.batch_rows`.
            target_prefixes: Beginnings of the translations, in whole tokens; "" forces nothing. The
                prefix of a text that is split belongs to its first part.
            alignment: Whether each translation gets its alignment.
            long_input: Treatment of a text of more than `max_source_length` tokens. `"refuse"`
                raises an error. `"split"` splits it at sentence ends and translates each part,
                `"truncate"` truncates it, both with a warning. The limits on lengths hold for each
                part; see `Translation.joined` for `n_best`. A conversation cannot be split;
                truncation removes its oldest turns.
            phrases: For each text a list of phrases that its translation must contain. Each phrase
                begins at the beginning of a word, and occurs as often as it is listed; see
                `decoding.Constraints`. The beam size should be at least their number of tokens.
            **options: The other fields of `DecodingOptions`.

        Raises:
            InputError: An option is out of range, a text is too long, or the vocabulary cannot
                write a prefix or a phrase.
        """
        sizes = {"beam_size": beam_size, "n_best": n_best}
        search_options = self._options(length_penalty=length_penalty, **sizes, **options)
        texts = inputs.checked_texts("texts", texts)
        batch_size = self._rows(batch_size, len(texts), search_options)
        check("alignment", alignment, "True or False", bool)
        source_inputs = self._source_inputs(texts, search_options)
        sources, parts = inputs.source_ids(*source_inputs, long_input, self._turn_id)
        jobs = self._jobs(sources, parts, target_prefixes, search_options, phrases)
        results = self._scheduler.search(jobs, search_options, batch_size)
        translations = [
            best_translation(hypotheses, source, self._tokenizers)
            for hypotheses, source in zip(results, sources, strict=True)
        ]
        if alignment:
            translations = self._aligned(translations, sources, batch_size)
        return [
            Translation.joined([translations[index] for index in indices], search_options.sampling)
            for indices in parts
        ]

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str] | Sequence[Sequence[int]],
        length_penalty: float = DecodingOptions.length_penalty,
        batch_size: int = 32,
        alignment: bool = False,
        length_normalization: str = DecodingOptions.length_normalization,
        word_penalty: float = DecodingOptions.word_penalty,
    ) -> list[Translation]:
        """Scores given translations by teacher forcing: a `Translation` for each target.

        Args:
            sources: Strings. A language model scores a target as the continuation of its source;
                "" scores a whole text.
            targets: Translations of the sources: strings, or lists of ids that end with EOS.
            length_penalty: As in `DecodingOptions`, like `length_normalization` and `word_penalty`.
            batch_size: Maximum number of pairs in one call of the compiled model.
            alignment: Whether each `Translation` gets its alignment.
        """
        search_options = self._options(
            length_penalty=length_penalty,
            length_normalization=length_normalization,
            word_penalty=word_penalty,
        )
        check_positive(batch_size=batch_size)
        sources = inputs.checked_list("sources", sources)
        targets = inputs.checked_list("targets", targets)
        if len(sources) != len(targets):
            received = f"{len(sources)} sources and {len(targets)} targets"
            raise InputError(f"There must be a target for each source. Received: {received}.")
        (source, target), ids_and_texts = self._tokenizers, inputs.ids_and_texts
        ids, _ = ids_and_texts("sources", self._last_turns(sources), source, self.max_source_length)
        target_ids, targets = ids_and_texts("targets", targets, target, self.max_target_length)
        pairs = list(zip(ids, target_ids, strict=True))
        if not self.reads_sources:
            self._check_lengths_together(pairs)
        prompts = self._prompts(ids)  # Read before the target, and not scored.
        sequences = [
            (source, [*prompt, *target])
            for prompt, (source, target) in zip(prompts, pairs, strict=True)
        ]
        scored = self._scheduler.score(sequences, batch_size, alignment)
        lengths = np.array([len(ids) for ids in target_ids], "int32")
        results = []
        rows = zip(targets, pairs, prompts, scored, strict=True)
        for text, (source, target), prompt, (by_token, alignment_of_pair) in rows:
            by_token = by_token[len(prompt) :]
            translation = translation_of(text, 0.0, by_token, target, source, self._tokenizers)
            results.append(dataclasses.replace(translation, alignment=alignment_of_pair))
        totals = np.array([result.log_probability for result in results], "float32")
        scores = np.asarray(search_options.ranking.score(totals, lengths)).tolist()
        return [
            dataclasses.replace(result, score=score)
            for result, score in zip(results, scores, strict=True)
        ]

    def _check_lengths_together(self, pairs):
        for index, (source, target) in enumerate(pairs):
            if (count := len(source) - 1 + len(target)) > self.max_target_length:
                limit = self.max_target_length
                rule = f"A source and its target must have at most {limit} tokens together."
                raise InputError(f"{rule} Received: {count} tokens.", index)

    def stream(
        self, text: str, target_prefix: str = "", long_input: inputs.LongInput = "refuse", **options
    ) -> Iterator[str]:
        """Translates one text, and yields the text so far whenever it has grown.

        Args:
            text: A string.
            target_prefix: As `target_prefixes` of `translate`.
            long_input: As in `translate`; `"split"` streams one part after another.
            **options: Fields of `DecodingOptions`, for greedy search or with `sampling=True`.
        """
        search_options = self._options(**{"beam_size": 1, **options})
        if search_options.beams != 1 or search_options.n_best != 1:
            raise InputError(
                "Only one hypothesis can be streamed: greedy search or one sample. "
                f"Received: beam_size={search_options.beam_size}, n_best={search_options.n_best}."
            )
        inputs.checked_texts("text", [text])
        source_inputs = self._source_inputs([text], search_options)
        sources, parts = inputs.source_ids(*source_inputs, long_input, self._turn_id)
        jobs = self._jobs(sources, parts, [target_prefix], search_options)
        return self._stream(jobs, search_options)

    def _stream(self, jobs, options):
        earlier_parts = last = ""
        for job in jobs:
            for hypotheses in self._scheduler.stream(job, options):
                ids = np.asarray(hypotheses.ids)[0, 0].tolist()
                new_text = earlier_parts + self.target_tokenizer.detokenize([ids])[0]
                # Characters of several bytes are withheld until they are complete.
                text = new_text.rstrip("\ufffd")
                if text != last:
                    yield text
                    last = text
            if new_text != last:
                yield new_text
                last = new_text
            earlier_parts = f"{last} " if last else ""

    def warmup(
        self, lengths: Sequence[int] = (16, 32, 48, 64), batch_size: int | None = None, **options
    ) -> int:
        """Compiles the functions that `translate` with these options needs; returns their number.

        Args:
            lengths: Expected numbers of source tokens.
            batch_size: The batch size of the later calls; by default that of a call with few texts.
            **options: As for `translate`; the longest of the `target_prefixes` decides.
        """
        before = self.compilations
        # No effect on shapes: the parts of a long text have the shapes of other texts.
        long_input = options.pop("long_input", "refuse")
        inputs.source_ids((), self.source_tokenizer, 2, long_input, self._turn_id)  # Checks it.
        prefixes, alignment = options.pop("target_prefixes", None), options.pop("alignment", False)
        search_options = self._options(**options)
        batch_size = self._rows(batch_size, 1, search_options)
        check("alignment", alignment, "True or False", bool)
        count = 1 if prefixes is None else len(prefixes)
        prefix = max(self._prefixes(prefixes, count, search_options), key=len, default=())
        buckets = length_buckets(self.max_source_length)
        longest = search_options.resolve_max_length(self.max_target_length)
        targets = length_buckets(longest) if alignment else ()
        # One token is enough, because limits are not part of a compiled function.
        one_token_options = dataclasses.replace(search_options, min_length=0, max_length=1)
        for columns in sorted({bucket(length, buckets) for length in lengths}):
            source = [UNK_ID] * (columns - 1) + [EOS_ID]
            jobs = [Job(source, 0, prefix or self._prompts([source])[0])] * batch_size
            self._scheduler.search(jobs, one_token_options, batch_size)
            for target in targets:
                pairs = [(source, [UNK_ID] * target)] * (batch_size * search_options.n_best)
                self._scheduler.score(pairs, batch_size, alignment=True)
        return self.compilations - before

    def _rows(self, batch_size, count, options):
        """Returns the rows per batch, by default as many as are fastest for `count` texts."""
        if batch_size is None:
            return inputs.batch_rows(count, self.model.config.model_dim, options.beams)
        check_positive(batch_size=batch_size)
        return batch_size

    def _source_inputs(self, texts, options) -> tuple[Any, Any, int]:
        """Returns texts, tokenizer and limit for `inputs.source_ids`."""
        limit = self.max_source_length
        if not self.reads_sources:  # The limit of a language model's text includes its source.
            limit = min(limit, options.resolve_max_length(limit))
        return self._last_turns(texts), self.source_tokenizer, limit

    def _jobs(self, sources, parts, prefixes, options, phrases=None):
        """Returns the `Job`s of the parts of all texts."""
        seeds = inputs.one_for_each("seed", options.seed, len(parts))
        prefixes, prompts = self._prefixes(prefixes, len(parts), options), self._prompts(sources)
        phrases = inputs.phrase_ids(phrases, len(parts), self.target_tokenizer)
        for index, (indices, required) in enumerate(zip(parts, phrases, strict=True)):
            if required and len(indices) > 1:
                rule = "`phrases` are for texts that are not split."
                raise InputError(f"{rule} Received: a text of {len(indices)} parts.", index)
        jobs = []
        for index, indices in enumerate(parts):
            for part in indices:
                is_first = part == indices[0]
                prefix = (prefixes[index] if is_first else ()) or prompts[part]
                jobs.append(Job(sources[part], seeds[index], prefix, phrases[index]))
        return jobs

    def _prompts(self, sources):
        """Returns the ids that each target begins with: a language model's are its source."""
        if self.reads_sources:
            return [()] * len(sources)
        return [[id for id in source if id != EOS_ID] for source in sources]

    def _last_turns(self, texts):
        """Returns the sources with as many turns as the model was trained on; ids unchanged."""
        turns = self.turns
        if turns is None or turns.max_turns is None:
            return texts
        return [turns.join(turns.split(text)) if isinstance(text, str) else text for text in texts]

    def _options(self, **options):
        options = {"max_length_ratio": self.max_length_ratio, **options}
        options = DecodingOptions(**options)
        options.check_ids(self.target_tokenizer.vocabulary_size)
        longest = self.max_target_length
        if options.resolve_max_length(longest) > longest:
            rule = f"`max_length` must be at most {longest}, the engine's `max_target_length`"
            raise InputError(f"{rule}. Received: max_length={options.max_length}.")
        return options

    def _prefixes(self, prefixes, count, options):
        if prefixes is not None:
            prefixes = inputs.checked_list("target_prefixes", prefixes)
        if not self.reads_sources and any(prefixes or ()):
            raise InputError(
                "A language model's texts begin with what they continue: `target_prefixes` is not "
                f"for them. Received: {list(prefixes)!r:.60}."
            )
        limit = options.resolve_max_length(self.max_target_length)
        return inputs.prefix_ids(prefixes, count, self.target_tokenizer, limit)

    def _aligned(self, translations, sources, batch_size):
        """Adds alignments to translations, by one pass of teacher forcing."""
        pairs = [
            (source, list(hypothesis.ids))
            for source, best in zip(sources, translations, strict=True)
            for hypothesis in (best, *best.alternatives)
        ]
        scored = iter(self._scheduler.score(pairs, batch_size, alignment=True))

        def aligned(translation):
            return dataclasses.replace(translation, alignment=next(scored)[1])

        # In the order of `pairs`: each best hypothesis before its alternatives.
        return [
            dataclasses.replace(aligned(best), alternatives=tuple(map(aligned, best.alternatives)))
            for best in translations
        ]


class ClassifierEngine(LabelEngine):
    """Labels texts with a `Classifier`, its tokenizer and `Labels`; see `ModelEngine`."""

    max_target_length = 2  # a label and EOS

    def __init__(
        self,
        model: keras.Model,
        source_tokenizer,
        target_tokenizer,
        max_source_length: int = 512,
        max_target_length: int = 2,
        frozen: bool = False,
    ):
        inputs.check_tokenizers(model.config, source_tokenizer, target_tokenizer)
        self.model = model
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer
        self.labels: list[str] = target_tokenizer.names
        longest = model.config.position_limit or max_source_length
        self.max_source_length = min(max_source_length, longest)
        self._run = Compiled(model, lambda ids: label_probabilities(model, ids))

    @property
    def compilations(self) -> int:
        """Number of functions that XLA has compiled so far: one for each of the few shapes."""
        return self._run.compilations

    def probabilities(self, texts, batch_size=32, long_input="refuse"):
        texts, limit = inputs.checked_texts("texts", texts), self.max_source_length
        results = np.zeros((len(texts), len(self.labels)), "float32")
        ids, parts = inputs.source_ids(texts, self.source_tokenizer, limit, long_input)
        rows, buckets = inputs.row_count(min(len(ids), batch_size)), length_buckets(limit)

        def call(indices):
            columns = bucket(len(ids[indices[0]]), buckets)
            probabilities = self._run(inputs.pad([ids[index] for index in indices], rows, columns))
            return np.asarray(probabilities)[: len(indices)]

        probabilities = inputs.in_batches(list(map(len, ids)), batch_size, [call])
        # A text has one part, a blank text none.
        owners = [index for index, part in enumerate(parts) for _ in part]
        for owner, row in zip(owners, probabilities, strict=True):
            results[owner] = row
        return results


def label_probabilities(model: keras.Model, source_ids: keras.KerasTensor) -> keras.KerasTensor:
    """Computes probabilities, float32 `(batch, labels)`, of int32 ids `(batch, source)`."""
    logits = ops.cast(model(source_ids)[:, 0], "float32")
    return ops.softmax(logits)


def engine_of(model: keras.Model, *arguments, **options) -> ModelEngine | ClassifierEngine:
    """Makes the engine of a model of any kind; the arguments are those of `ModelEngine`."""
    engine_class = ModelEngine if model.config.writes_text else ClassifierEngine
    return engine_class(model, *arguments, **options)


def best_translation(hypotheses: Hypotheses, source: Sequence[int], tokenizers) -> Translation:
    """Converts one sentence's `Hypotheses`, arrays without the batch's axis, to a `Translation`."""
    # Without the padding at the end.
    ids = [row[: np.max(np.flatnonzero(row), initial=-1) + 1].tolist() for row in hypotheses.ids]
    texts = tokenizers[1].detokenize(ids)
    translations = []
    hypotheses_of_beam = map(Hypotheses._make, zip(*hypotheses, strict=True))
    for text, row, hypothesis in zip(texts, ids, hypotheses_of_beam, strict=True):
        by_token, score = hypothesis.token_log_probabilities[: len(row)], float(hypothesis.scores)
        translation = translation_of(text, score, by_token.tolist(), row, source, tokenizers)
        if hypothesis.continuation_lengths < np.count_nonzero(row):  # It has a target prefix.
            translation = dataclasses.replace(
                translation,
                continuation_log_probability=float(hypothesis.continuation_log_probabilities),
                continuation_length=int(hypothesis.continuation_lengths),
            )
        translations.append(translation)
    best, *alternatives = translations
    # Where fewer hypotheses exist than `n_best`, the last places are empty.
    alternatives = [alternative for alternative in alternatives if alternative.score > NEG_INF / 2]
    return dataclasses.replace(best, alternatives=tuple(alternatives))
