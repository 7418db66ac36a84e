"""Translating with an exported CTranslate2 folder."""

import collections
import dataclasses
import math
import os
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.decoding.options import (
    DecodingOptions,
    exported_search_options,
    without_excluded,
)
from keras_transformer.engine import inputs
from keras_transformer.engine.engine import Engine, with_alternatives
from keras_transformer.engine.manifest import load_tokenizers, opened_export
from keras_transformer.engine.translation import Translation, translation_of
from keras_transformer.errors import InputError, first_line, require
from keras_transformer.ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.options import check, check_positive

BATCH_TOKENS = 512
"""Tokens of a batch where the caller gives no `batch_size`; larger batches are slower on a CPU."""

# A search of CTranslate2 normalizes probabilities again, without padding, BOS and `<unk>`. Label
# smoothing gives each token a share of 0.1 / vocabulary. With 100 tokens scores were 2% off, with
# 8,000 tokens less than 0.2%. `<unk>` may have a larger share if the source contains it.
_FEW_TOKENS = 2000
# Options that CTranslate2 applies to the logits before its log-probabilities.
_CHANGES_LOGITS = ("min_length", "banned_ids", "no_repeat_ngram_size")
# Result of a source whose limit is 0, which CTranslate2 refuses.
_EMPTY = types.SimpleNamespace(hypotheses=[[]], scores=[0.0])
_FIELDS = {
    "beam_size": int,
    "length_penalty": (int, float),
    "max_source_length": int,
    "max_target_length": int,
    "source_tokenizer": str,
    "target_tokenizer": str,
}


class CTranslate2Engine(Engine):
    """Translates with a folder that `export_ctranslate2` wrote; the fastest engine on a CPU.

    CTranslate2 searches without a length penalty and returns all hypotheses of the beam. This class
    ranks them as the trained model's engine does, by `length_normalization`. Unlike Marian's beam,
    CTranslate2's does not shrink. Calls from several threads are safe.

    Args:
        folder: Path of the export.
        threads: Number of batches that are decoded at once, with one thread per batch; the number
            of cores by default.
        compute_type: Arithmetic of CTranslate2: `"default"` is the file's, `"int8"` converts the
            weights while they are loaded.

    Attributes:
        manifest: Content of its `export.json`.

    Raises:
        InputError: The folder is missing, damaged or no CTranslate2 export, or CTranslate2 is not
            installed.
    """

    noun = "a CTranslate2 export"
    capabilities = frozenset({"translate", "score", "sample", "align"})
    search_options = (
        "sampling",
        "temperature",
        "top_k",
        "top_p",
        "length_normalization",
        "word_penalty",
        "min_length",
        "max_length",
        "max_length_ratio",
        "banned_ids",
        "allow_unknown",
        "no_repeat_ngram_size",
    )

    def __init__(
        self,
        folder: str | os.PathLike,
        threads: int | None = None,
        compute_type: str = "default",
    ):
        folder = Path(folder)
        noun = "a CTranslate2 model"
        with opened_export(folder, ("ctranslate2",), _FIELDS, noun) as self.manifest:
            self._tokenizers = sides = load_tokenizers(folder, self.manifest)
            self._translator = _load(folder, threads or os.cpu_count() or 1, compute_type)
        self.max_source_length = self.manifest["max_source_length"]
        self.max_target_length = self.manifest["max_target_length"]
        self.source_tokenizer, self.target_tokenizer = sides
        self._tokens = [
            tokenizer.pieces_of(range(tokenizer.vocabulary_size)) for tokenizer in sides
        ]
        self._target_ids = {token: id for id, token in enumerate(self._tokens[1])}

    def translate(
        self,
        texts: Sequence[str],
        beam_size: int | None = None,
        length_penalty: float | None = None,
        n_best: int = 1,
        batch_size: int | None = None,
        target_prefixes: Sequence[str] | None = None,
        alignment: bool = False,
        long_input: inputs.LongInput = "refuse",
        **options: Any,
    ) -> list[Translation]:
        """Translates texts; the results are in the order of `texts`.

        Args (see `ModelEngine.translate` and `DecodingOptions`):
            beam_size: Beam size; the run's by default.
            length_penalty: Exponent of the length penalty; the run's by default.
            batch_size: Maximum number of sentences per batch; by default batches have
                `BATCH_TOKENS` tokens.
            **options: `sampling`, `temperature`, `top_k`, `top_p`, `length_normalization`,
                `word_penalty`, `min_length`, `max_length`, `max_length_ratio`, `banned_ids`,
                `allow_unknown`, `no_repeat_ngram_size`. CTranslate2's random number generators
                ignore `seed`.

        Returns:
            A list of `Translation`, with tokens and without their log-probabilities.

        Raises:
            InputError: An option is out of range or CTranslate2 lacks it, or a text is too long.
        """
        decoding_options = self._options(beam_size, length_penalty, n_best, options)
        texts = inputs.checked_texts("texts", texts)
        check("alignment", alignment, "True or False", bool)
        if batch_size is not None:
            check_positive(batch_size=batch_size)
        longest = decoding_options.resolve_max_length(self.max_target_length)
        if longest > self.max_target_length:
            rule = f"`max_length` must be at most {self.max_target_length} in this export."
            raise InputError(f"{rule} Received: max_length={longest}.")
        prefixes = inputs.prefix_ids(target_prefixes, len(texts), self.target_tokenizer, longest)
        sources, parts = inputs.source_ids(
            texts, self.source_tokenizer, self.max_source_length, long_input
        )
        forced: list[Sequence[int]] = [()] * len(sources)
        for prefix, indices in zip(prefixes, parts, strict=True):
            if indices:
                forced[indices[0]] = prefix
        hypotheses = self._search(sources, forced, decoding_options, longest, batch_size)
        totals = self._log_probabilities(hypotheses, sources, forced, decoding_options, batch_size)
        ranked = [
            self._ranked(*row, decoding_options)
            for row in zip(hypotheses, totals, sources, forced, strict=True)
        ]
        if alignment:
            ranked = self._aligned(ranked, sources, batch_size)
        return [
            Translation.joined([ranked[index] for index in indices], decoding_options.sampling)
            for indices in parts
        ]

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str] | Sequence[Sequence[int]],
        length_penalty: float | None = None,
        batch_size: int | None = None,
        **options: Any,
    ) -> list[Translation]:
        """Scores given translations by teacher forcing; see `ModelEngine.score`."""
        self.check_fixed(options)
        decoding_options = self._options(None, length_penalty, 1, {})
        if batch_size is not None:
            check_positive(batch_size=batch_size)
        sources = inputs.checked_list("sources", sources)
        targets = inputs.checked_list("targets", targets)
        if len(sources) != len(targets):
            received = f"{len(sources)} sources and {len(targets)} targets"
            raise InputError(f"There must be a target for each source. Received: {received}.")
        source_ids, _ = inputs.ids_and_texts(
            "sources", sources, self.source_tokenizer, self.max_source_length
        )
        target_ids, texts = inputs.ids_and_texts(
            "targets", targets, self.target_tokenizer, self.max_target_length
        )
        scored = self._translator.score_batch(
            [self._pieces(0, ids) for ids in source_ids],
            [self._pieces(1, ids) for ids in target_ids],
            max_input_length=0,
            **_batches(batch_size),
        )
        results, ranking = [], decoding_options.ranking
        for text, scores, ids, source in zip(texts, scored, target_ids, source_ids, strict=True):
            # CTranslate2 adds EOS, which ids may lack.
            by_token = scores.log_probs[: len(ids)]
            result = translation_of(text, 0.0, by_token, ids, source, self._tokenizers)
            score = ranking.score(result.log_probability, len(ids))
            results.append(dataclasses.replace(result, score=score))
        return results

    @property
    def fixed_options(self) -> dict[str, Any]:
        """Values of the options that CTranslate2 does not take."""
        # CTranslate2 continues while an unfinished hypothesis is the most probable one.
        return {**super().fixed_options, "early_stopping": False}

    def _options(self, beam_size, length_penalty, n_best, options):
        """Returns checked `DecodingOptions`, with the export's defaults."""
        self.check_fixed(options, self.search_options)
        values = {"beam_size": beam_size, "length_penalty": length_penalty, **options}
        values = {name: value for name, value in values.items() if value is not None}
        defaults = without_excluded(exported_search_options(self.manifest), values)
        decoding_options = DecodingOptions(**{**defaults, **values, "n_best": n_best})
        decoding_options.check_ids(self.target_tokenizer.vocabulary_size)
        return decoding_options

    def _search(self, sources, prefixes, decoding_options, longest, batch_size):
        """Returns CTranslate2's result for each source."""
        limits = [
            int(min(longest, _length_limit(len(source), decoding_options) + len(prefix)))
            for source, prefix in zip(sources, prefixes, strict=True)
        ]
        pieces = [self._pieces(0, source) for source in sources]
        forced = [[self._tokens[1][id] for id in prefix] for prefix in prefixes]
        options = self._translator_options(decoding_options)
        shortest = max(decoding_options.min_length - 1, 0)  # EOS does not count there

        def search(indices, limit):
            return self._translator.translate_batch(
                [pieces[index] for index in indices],
                [forced[index] for index in indices] if any(prefixes) else None,
                min_decoding_length=min(shortest, limit),
                max_decoding_length=limit,
                asynchronous=True,
                **_batches(batch_size),
                **options,
            )

        # CTranslate2 has one limit per call. Few translations exceed the limit of their own source.
        # They are searched again with their limits, in parallel to keep all threads busy.
        results: list[Any] = [_EMPTY] * len(sources)
        searched = [index for index, limit in enumerate(limits) if limit]
        indices_by_limit = {max(limits): searched} if searched else {}
        for _ in range(2):
            searches = [
                (indices, search(indices, limit)) for limit, indices in indices_by_limit.items()
            ]
            indices_by_limit = collections.defaultdict(list)
            for indices, handles in searches:
                for index, handle in zip(indices, handles, strict=True):
                    results[index] = handle.result()
                    if max(map(len, results[index].hypotheses)) > limits[index]:
                        indices_by_limit[limits[index]].append(index)
        return results

    def _translator_options(self, decoding_options):
        suppressed_ids = (PAD_ID, BOS_ID, *decoding_options.banned_ids)
        options = {
            "beam_size": decoding_options.beam_size,
            "num_hypotheses": decoding_options.beams,
            "length_penalty": 0,
            "no_repeat_ngram_size": decoding_options.no_repeat_ngram_size,
            "disable_unk": not decoding_options.allow_unknown,
            "suppress_sequences": [[self._tokens[1][id]] for id in suppressed_ids],
            "max_input_length": 0,
            "return_scores": True,
            "return_end_token": True,
        }
        if decoding_options.sampling:
            options["beam_size"] = 1
            options["sampling_topk"] = min(decoding_options.top_k, len(self._tokens[1]))
            options["sampling_topp"] = min(decoding_options.top_p, 1.0)
            options["sampling_temperature"] = decoding_options.temperature
        return options

    def _log_probabilities(self, results, sources, prefixes, decoding_options, batch_size):
        """Returns the model's log-probabilities of each hypothesis, in all and after its prefix."""
        is_changed = decoding_options.sampling or any(
            getattr(decoding_options, name) for name in _CHANGES_LOGITS
        )
        is_changed |= len(self._tokens[1]) < _FEW_TOKENS
        # Decided for each sentence, so that other sentences in a call change no result.
        scored_again = [
            is_changed
            or len(prefix) > 0
            or (UNK_ID in source and not decoding_options.allow_unknown)
            for source, prefix in zip(sources, prefixes, strict=True)
        ]
        pairs = [
            (self._pieces(0, source), tokens, len(prefix))
            for result, source, prefix, is_scored_again in zip(
                results, sources, prefixes, scored_again, strict=True
            )
            for tokens in (result.hypotheses if is_scored_again else ())
        ]
        if not pairs:
            return [[(total, total) for total in result.scores] for result in results]
        end = self._tokens[1][EOS_ID]
        scored = self._translator.score_batch(
            [source for source, *_ in pairs],
            [[token for token in tokens if token != end] for _, tokens, _ in pairs],
            max_input_length=0,
            **_batches(batch_size),
        )
        by_token = [
            scores.log_probs[: len(tokens)]
            for scores, (_, tokens, _) in zip(scored, pairs, strict=True)
        ]
        totals = iter(
            (sum(log_probabilities), sum(log_probabilities[start:]))
            for log_probabilities, (*_, start) in zip(by_token, pairs, strict=True)
        )
        return [
            [next(totals) if is_scored_again else (total, total) for total in result.scores]
            for result, is_scored_again in zip(results, scored_again, strict=True)
        ]

    def _ranked(self, result, totals, source, prefix, decoding_options):
        """Returns the best hypothesis, with up to `n_best - 1` alternatives."""
        hypotheses, ranking = [], decoding_options.ranking
        for tokens, (total, following) in zip(result.hypotheses, totals, strict=True):
            ids = tuple(self._target_ids[token] for token in tokens)
            length = len(ids) - len(prefix)
            hypotheses.append(
                Translation(
                    self.target_tokenizer.detokenize(ids),
                    ranking.score(following, length),
                    total,
                    tokens=tuple(tokens),
                    ids=ids,
                    source_tokens=tuple(self._tokens[0][id] for id in source),
                    continuation_log_probability=following if prefix else None,
                    continuation_length=length if prefix else None,
                )
            )
        if not decoding_options.sampling:
            # Hypotheses that end come first. A hypothesis without an end has reached its limit.
            hypotheses.sort(
                key=lambda hypothesis: (
                    not ranking.ends_at_limit and hypothesis.ids[-1:] != (EOS_ID,),
                    -hypothesis.score,
                )
            )
        return with_alternatives(hypotheses[: decoding_options.n_best])

    def _aligned(self, translations, sources, batch_size):
        """Adds alignments by one more pass that forces the hypotheses.

        A beam search of CTranslate2 returns attention with a first row from another sentence.
        """
        pairs = [
            (self._pieces(0, source), hypothesis)
            for source, best in zip(sources, translations, strict=True)
            for hypothesis in (best, *best.alternatives)
        ]
        forced = self._translator.translate_batch(
            [source for source, _ in pairs],
            [list(hypothesis.tokens[:-1]) for _, hypothesis in pairs],
            beam_size=1,
            max_decoding_length=max((1, *(len(hypothesis.ids) for _, hypothesis in pairs))),
            max_input_length=0,
            return_attention=True,
            return_end_token=True,
            **_batches(batch_size),
        )
        rows = iter(zip(forced, (hypothesis for _, hypothesis in pairs), strict=True))

        def aligned():
            result, translation = next(rows)
            attention = np.asarray(result.attention[0], "float32")[: len(translation.ids)]
            # CTranslate2 leaves out the source's EOS, which has the remaining attention.
            end_weights = np.clip(1.0 - attention.sum(axis=1, keepdims=True), 0.0, 1.0)
            alignment = np.concatenate([attention, end_weights], axis=1)  # --> [target, source]
            return dataclasses.replace(translation, alignment=alignment)

        return [
            dataclasses.replace(aligned(), alternatives=tuple(aligned() for _ in best.alternatives))
            for best in translations
        ]

    def _pieces(self, side, ids):
        return [self._tokens[side][id] for id in ids if id != EOS_ID]


def _length_limit(source_length, options):
    """Returns the maximum number of tokens of a translation, EOS included.

    See `DecodingOptions.max_length_ratio`.
    """
    ratio = options.max_length_ratio
    return math.inf if ratio == math.inf else int(ratio * source_length) + options.length_margin


def _batches(batch_size):
    if batch_size is None:
        return {"max_batch_size": BATCH_TOKENS, "batch_type": "tokens"}
    return {"max_batch_size": batch_size}


def _load(folder, threads, compute_type):
    ctranslate2 = require("ctranslate2", "CTranslate2", "ctranslate2")
    try:
        # Parallel batches with one thread each decode twice as fast as one batch on all threads.
        return ctranslate2.Translator(
            os.fspath(folder), compute_type=compute_type, inter_threads=threads, intra_threads=1
        )
    except (RuntimeError, ValueError) as error:
        reason = f"{first_line(error):.300}"
        raise InputError(f"{folder}: CTranslate2 cannot load it. Received: {reason}") from error
