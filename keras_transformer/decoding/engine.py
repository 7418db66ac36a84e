"""Text to text with a model in memory: tokenize, batch by length, search, detokenize."""

import dataclasses

import numpy as np

from keras_transformer.config import EOS_ID, PAD_ID
from keras_transformer.decoding.hypotheses import length_penalty as penalty_of
from keras_transformer.decoding.inputs import (
    LONG_INPUT,
    check_bool,
    check_long_input,
    check_positive,
    check_texts,
    ids_and_texts,
    one_for_each,
    prefix_ids,
    source_ids,
)
from keras_transformer.decoding.jobs import Job, batches
from keras_transformer.decoding.options import DecodingOptions
from keras_transformer.decoding.programs import Programs
from keras_transformer.decoding.results import Results
from keras_transformer.decoding.shapes import bucket, length_buckets
from keras_transformer.decoding.translation import Translation
from keras_transformer.errors import InputError


class ModelEngine:
    """Translates with a `Transformer` and its tokenizers.

    Args:
        model: `Transformer`.
        source_tokenizer: `Tokenizer` of the source side.
        target_tokenizer: `Tokenizer` of the target side; the source's by default.
        max_source_length: Most tokens of a source, its end included; see `long_input` of
            `translate`. No more than the model has learned positions for, where it has such.
        max_target_length: Most tokens of a translation, likewise.
        frozen: Whether the model's weights will not change any more. Those of the decoder are
            then laid out once, and kept a second time for it.
        workers: Batches that are decoded at once, where a call has several.

    Raises:
        InputError: A tokenizer does not have the model's vocabulary.
    """

    def __init__(
        self,
        model,
        source_tokenizer,
        target_tokenizer=None,
        max_source_length=512,
        max_target_length=256,
        frozen=False,
        workers=2,
    ):
        target_tokenizer = target_tokenizer or source_tokenizer
        for name, value in (
            ("max_source_length", max_source_length),
            ("max_target_length", max_target_length),
        ):
            if value < 2:
                raise InputError(f"`{name}` must be at least 2. Received: {name}={value!r}.")
        for side, tokenizer, size in (
            ("source", source_tokenizer, model.config.vocabulary_size),
            ("target", target_tokenizer, model.config.output_vocabulary_size),
        ):
            if tokenizer.vocabulary_size != size:
                raise InputError(
                    f"The {side} tokenizer has {tokenizer.vocabulary_size} ids, the model {size}: "
                    "they must come from the same run."
                )
        self.model = model
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self.max_source_length = max_source_length
        self.max_target_length = max_target_length
        if model.config.positions == "learned":
            # Not a length that the model has no position for.
            self.max_source_length = min(max_source_length, model.config.max_length)
            self.max_target_length = min(max_target_length, model.config.max_length)
        longest = self.max_source_length, self.max_target_length
        self._programs = Programs(model, *longest, frozen, workers)
        self._results = Results(source_tokenizer, self.target_tokenizer)

    @property
    def compilations(self):
        """Programs that XLA has compiled so far: at most one for each of the few shapes."""
        return self._programs.compilations

    def translate(
        self,
        texts,
        beam_size=4,
        length_penalty=0.6,
        n_best=1,
        batch_size=32,
        target_prefixes=None,
        alignment=False,
        long_input="refuse",
        **options,
    ):
        """Translates texts, in batches of similar length.

        Args:
            texts: A list of strings. A blank one is translated as the empty string: one of white
                space alone, or of what the tokenizer takes no token from, as zero-width spaces.
            beam_size: Hypotheses that stay alive; 1 is greedy search.
            length_penalty: Exponent of the GNMT length penalty.
            n_best: Hypotheses for each sentence, at most `beam_size`; or samples.
            batch_size: Most sentences in one call of the compiled search.
            target_prefixes: A list of strings, what each translation must begin with, in whole
                tokens; "" forces nothing. Of a text that is split, its first part's.
            alignment: Whether each translation gets its alignment.
            long_input: What happens to a text of more than `max_source_length` tokens: it is
                refused (`"refuse"`), split at sentence ends and its parts translated one by one
                (`"split"`, with a warning), or cut (`"truncate"`, with a warning). The limits
                on lengths hold for each part; see `Translation.joined` for `n_best`.
            **options: The other fields of `DecodingOptions`.

        Returns:
            A list of `Translation`, in the order of `texts`.

        Raises:
            InputError: An option is out of range, a text is too long, or a prefix has a character
                that the vocabulary lacks.
        """
        options = self._options(
            beam_size=beam_size, length_penalty=length_penalty, n_best=n_best, **options
        )
        check_texts("texts", texts)
        check_positive("batch_size", batch_size)
        check_bool("alignment", alignment)
        seeds = one_for_each("seed", options.seed, len(texts))
        options = dataclasses.replace(options, seed=0)
        prefixes = self._prefixes(target_prefixes, len(texts), options)
        sources, parts = self._sources(texts, long_input)
        jobs = [
            Job(part, sources[part], seeds[place], prefixes[place] if part == places[0] else ())
            for place, places in enumerate(parts)
            for part in places
        ]
        found = dict(self._search(jobs, options, batch_size))
        translations = {
            key: self._results.best(hypotheses, sources[key]) for key, hypotheses in found.items()
        }
        if alignment:
            translations = self._aligned(translations, sources, options, batch_size)
        results = []
        for places in parts:
            each = [translations[place] for place in places]
            if not each:
                results.append(Translation("", 0.0))
            else:
                whole = len(each) == 1
                results.append(each[0] if whole else Translation.joined(each, options.sampling))
        return results

    def score(
        self,
        sources,
        targets,
        length_penalty=0.6,
        batch_size=32,
        alignment=False,
        attention_layer=-1,
        attention_heads=None,
    ):
        """How probable the model holds given translations.

        Args:
            sources: A list of strings.
            targets: A list of as many strings, their translations; or of lists of ids, the end
                of the sentence included.
            length_penalty: Exponent of the length penalty of `score`.
            batch_size: Most pairs in one call of the compiled model.
            alignment: Whether each gets its alignment.
            attention_layer: As in `DecodingOptions`.
            attention_heads: As in `DecodingOptions`.

        Returns:
            A list of `Translation` whose texts are the targets.

        Raises:
            InputError: There are not as many targets as sources, or one is too long.
        """
        options = self._options(
            length_penalty=length_penalty,
            attention_layer=attention_layer,
            attention_heads=attention_heads,
        )
        check_positive("batch_size", batch_size)
        if len(sources) != len(targets):
            raise InputError(
                "There must be a target for each source. "
                f"Received: {len(sources)} sources and {len(targets)} targets."
            )
        ids, _ = ids_and_texts("sources", sources, self.source_tokenizer, self.max_source_length)
        target_ids, targets = ids_and_texts(
            "targets", targets, self.target_tokenizer, self.max_target_length
        )
        pairs = list(zip(ids, target_ids, strict=True))
        scored = self._programs.forced_targets(options, alignment).run(pairs, batch_size)
        lengths = np.array([len(target) for _, target in pairs], "int32")
        penalties = np.asarray(penalty_of(lengths, length_penalty))
        results = []
        for text, (source, target), (by_token, attention), penalty in zip(
            targets, pairs, scored, penalties, strict=True
        ):
            score = float(np.sum(np.array(by_token, "float32")) / penalty)
            each = self._results.one(text, score, by_token, target, source)
            results.append(dataclasses.replace(each, alignment=attention))
        return results

    def stream(self, text, target_prefix="", long_input="refuse", **options):
        """Translates one text and gives it as it grows.

        Args:
            text: A string.
            target_prefix: What the translation must begin with; of a text that is split, its
                first part's.
            long_input: As in `translate`; `"split"` streams part after part.
            **options: Fields of `DecodingOptions`: greedy search, or `sampling=True`.

        Yields:
            The text so far, each time that it has grown.

        Raises:
            InputError: An option is out of range, or the text is too long.
        """
        options = self._options(**{"beam_size": 1, **options})
        if options.beams != 1 or options.n_best != 1:
            raise InputError(
                "Only one hypothesis can be streamed: greedy search or one sample. "
                f"Received: beam_size={options.beam_size}, n_best={options.n_best}."
            )
        check_texts("text", [text])
        seeds = one_for_each("seed", options.seed, 1)
        prefixes = self._prefixes([target_prefix], 1, options)
        sources, parts = self._sources([text], long_input)
        return self._stream([sources[part] for part in parts[0]], seeds, prefixes, options)

    def _stream(self, sources, seeds, prefixes, options):
        given = last = ""
        for place, source in enumerate(sources):
            job = Job(0, source, seeds[0], () if place else prefixes[0])
            (batch,) = self._batches([job], options, 1)
            for found in self._programs.stages(options).stream(batch):
                ids = np.asarray(found.ids)[0, 0].tolist()
                whole = given + self.target_tokenizer.detokenize([ids])[0]
                # A character of several bytes is held back until it is whole.
                text = whole.rstrip("\ufffd")
                if text != last:
                    yield text
                    last = text
            if whole != last:
                yield whole
                last = whole
            given = f"{last} " if last else ""

    def warmup(self, lengths=(16, 32, 48, 64), batch_size=32, **options):
        """Compiles ahead what `translate` with the same options will need.

        Args:
            lengths: Tokens of the sources to come.
            batch_size: As `translate` will be called with; also 1, for a sentence by itself.
            **options: As for `translate`; of any number of `target_prefixes` the longest counts.

        Returns:
            The number of programs that were compiled.
        """
        before = self.compilations
        # The parts of a long text have the shapes of other texts.
        check_long_input(options.pop("long_input", LONG_INPUT[0]))
        prefixes, alignment = options.pop("target_prefixes", None), options.pop("alignment", False)
        options = self._options(**options)
        check_positive("batch_size", batch_size)
        check_bool("alignment", alignment)
        count = 1 if prefixes is None else len(prefixes)
        prefix = max(self._prefixes(prefixes, count, options), key=len, default=())
        if options.sampling and isinstance(options.seed, tuple):
            options = dataclasses.replace(options, seed=0)
        # A word that goes on to the limit: no end is allowed before it.
        endless = dataclasses.replace(options, min_length=self.max_target_length, seed=0)
        buckets = length_buckets(self.max_source_length)
        for columns in sorted({bucket(length, buckets) for length in lengths}):
            source = [PAD_ID + 3] * (columns - 1) + [EOS_ID]
            jobs = [Job(i, source, 0, prefix) for i in range(batch_size)]
            for _ in self._search(jobs, endless, batch_size):
                pass
            for target in length_buckets(self._longest(options)) if alignment else ():
                pairs = [(source, [PAD_ID + 3] * target)] * (batch_size * options.n_best)
                self._programs.forced_targets(options, True).run(pairs, batch_size)
        return self.compilations - before

    def _options(self, **options):
        options = DecodingOptions.of(**options)
        config = self.model.config
        options.check_ids(config.output_vocabulary_size)
        options.check_attention(config.num_decoder_layers, config.num_heads)
        if options.max_length is not None and options.max_length > self.max_target_length:
            raise InputError(
                f"`max_length` must be at most {self.max_target_length}, the engine's "
                f"`max_target_length`. Received: max_length={options.max_length}."
            )
        return options

    def _sources(self, texts, long_input):
        return source_ids(texts, self.source_tokenizer, self.max_source_length, long_input)

    def _prefixes(self, prefixes, count, options):
        return prefix_ids(prefixes, count, self.target_tokenizer, self._longest(options))

    def _longest(self, options):
        return self.max_target_length if options.max_length is None else options.max_length

    def _search(self, jobs, options, batch_size):
        if jobs:
            yield from self._programs.stages(options).run(self._batches(jobs, options, batch_size))

    def _batches(self, jobs, options, batch_size):
        return batches(
            jobs,
            options,
            batch_size,
            self.max_source_length,
            self._longest(options),
            self.model.config.output_vocabulary_size,
        )

    def _aligned(self, translations, sources, options, batch_size):
        """The same with alignments: one more pass, in which the targets are given."""
        each = [
            (key, place, hypothesis)
            for key, best in translations.items()
            for place, hypothesis in enumerate((best, *best.alternatives))
        ]
        pairs = [(sources[key], list(hypothesis.ids)) for key, _, hypothesis in each]
        scored = self._programs.forced_targets(options, True).run(pairs, batch_size)
        aligned = {key: [] for key in translations}
        for (key, _, hypothesis), (_, attention) in zip(each, scored, strict=True):
            aligned[key].append(dataclasses.replace(hypothesis, alignment=attention))
        return {
            key: dataclasses.replace(best, alternatives=tuple(others))
            for key, (best, *others) in aligned.items()
        }
