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

from keras_transformer.base.errors import InputError, first_line, require
from keras_transformer.base.ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.decoding.search_options import StoppingSearchOptions
from keras_transformer.engine.ids_engine import IdsEngine
from keras_transformer.engine.request import CALL_OPTIONS, OptionRules
from keras_transformer.engine.translation import Translation
from keras_transformer.export.manifest import (
    load_tokenizers,
    opened_export,
    read_languages,
    read_shortlist,
)

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
# A power of the length that changes no score. With 0 CTranslate2 has another stop rule: it waits
# until the most probable hypothesis of a step has ended.
_NO_PENALTY = 1e-9
_LOGIT_ROWS = 16  # pairs at once whose logits of all tokens are in memory
_FIELDS = {
    "beam_size": int,
    "length_penalty": (int, float),
    "max_source_length": int,
    "max_target_length": int,
    "source_tokenizer": str,
    "target_tokenizer": str,
}


class CTranslate2Engine(IdsEngine):
    """Translates with a folder that `export_ctranslate2` wrote; the fastest engine on a CPU.

    CTranslate2 searches without a length penalty and returns all hypotheses of the beam. This class
    ranks them as the trained model's engine does, by `length_normalization`. Without
    `early_stopping` CTranslate2 has no exact stop rule: it continues until as many hypotheses as
    the beam size have ended and the most probable one is among them. Unlike Marian's beam,
    CTranslate2's does not shrink. Calls from several threads are safe.

    With a shortlist CTranslate2 searches among the candidates of all sentences of a batch. So each
    sentence is a batch by default. A `batch_size` takes less time, and then other sentences may
    change a translation and its score. Sentences with a target prefix, and searches with banned
    ids, have the whole vocabulary.

    Args:
        folder: Path of the export.
        threads: Number of batches that are decoded at once, with one thread per batch; the number
            of cores by default.
        compute_type: Arithmetic of CTranslate2: `"default"` is the file's, `"int8"` converts the
            weights while they are loaded.

    Raises:
        InputError: The folder is missing, damaged or no CTranslate2 export, or CTranslate2 is not
            installed.
    """

    noun = "a CTranslate2 export"
    capabilities = frozenset({"translate", "score", "sample", "align"})
    option_rules = OptionRules(
        translate=(
            *CALL_OPTIONS,
            *StoppingSearchOptions.__dataclass_fields__,
            "n_best",
            "target_prefixes",
            "sampling",
            "temperature",
            "top_k",
            "top_p",
            "min_length",
            "max_length",
            "banned_ids",
            "allow_unknown",
            "no_repeat_ngram_size",
        ),
        score=("length_penalty",),
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
            sides = load_tokenizers(folder, self.manifest)
            self.shortlist = read_shortlist(folder, self.manifest)
            if self.shortlist is not None:
                taken = (*(self.option_rules.translate or ()), "shortlist")
                self.option_rules = dataclasses.replace(self.option_rules, translate=taken)
            self._translator = _load(folder, threads or os.cpu_count() or 1, compute_type)
        self.max_source_length = self.manifest["max_source_length"]
        self.max_target_length = self.manifest["max_target_length"]
        self.source_tokenizer, self.target_tokenizer = sides
        self.languages = read_languages(self.manifest, self.source_tokenizer)
        self._tokens = [
            tokenizer.pieces_of(range(tokenizer.vocabulary_size)) for tokenizer in sides
        ]
        self._target_ids = {token: id for id, token in enumerate(self._tokens[1])}

    def search(self, jobs, request):
        options = request.options
        if not options.shortlist:
            return self._search(jobs, request)
        # CTranslate2 4.8 keeps the places of tokens in earlier lists. It would force and ban other
        # tokens, except for the special ones, which every list begins with.
        whole = dataclasses.replace(options, shortlist=False)
        is_whole = [bool(options.banned_ids or job.start) for job in jobs]
        results: dict[int, list[Translation]] = {}
        for group_options, in_group in ((options, False), (whole, True)):
            indices = [index for index, value in enumerate(is_whole) if value is in_group]
            group_request = dataclasses.replace(request, options=group_options)
            hypotheses = self._search([jobs[index] for index in indices], group_request)
            results |= zip(indices, hypotheses, strict=True)
        return [results[index] for index in range(len(jobs))]

    def _search(self, jobs, request):
        """Searches, and scores again the candidates whose sums are not the model's."""
        options = request.options
        candidates_of_jobs = [
            [
                self._candidate(job, tokens, total)
                for tokens, total in zip(result.hypotheses, result.scores, strict=True)
            ]
            for job, result in zip(jobs, self._results(jobs, request), strict=True)
        ]
        # Decided for each sentence, so that other sentences in a call change no result.
        in_doubt = [
            candidate
            for job, candidates in zip(jobs, candidates_of_jobs, strict=True)
            if self._has_other_sums(job, options)
            for candidate in candidates
        ]
        if in_doubt:
            self._score_again(in_doubt, request)
        return [
            _ranked([_hypothesis(candidate, options) for candidate in candidates], options)
            for candidates in candidates_of_jobs
        ]

    def _candidate(self, job, tokens, total):
        ids = tuple(self._target_ids[token] for token in job.direction.of_target(tokens))
        return _Candidate(job, ids, (total,))

    def _score_again(self, candidates, request):
        """Sets the log-probabilities of candidates to those that the model gives their tokens."""
        pairs = [
            (candidate.job.source, candidate.job.direction.target(candidate.ids))
            for candidate in candidates
        ]
        has_shortlist = request.options.shortlist
        score = self._score_among_candidates if has_shortlist else self.score_pairs
        for candidate, scored in zip(candidates, score(pairs, request), strict=True):
            direction = candidate.job.direction
            candidate.log_probabilities = direction.of_target(scored.token_log_probabilities)

    def score_pairs(self, pairs, request):
        sides = zip(*pairs, strict=True)
        tokens = [[self._pieces(side, ids) for ids in rows] for side, rows in enumerate(sides)]
        scored = self._translator.score_batch(*tokens, max_input_length=0, **_batches(request))
        # CTranslate2 adds EOS, which ids may lack.
        return [
            Translation("", 0.0, token_log_probabilities=tuple(scores.log_probs[: len(target)]))
            for scores, (_, target) in zip(scored, pairs, strict=True)
        ]

    def _score_among_candidates(self, pairs, request):
        """Scores pairs as `score_pairs` does, but over the candidates of each source."""
        translations = []
        for start in range(0, len(pairs), _LOGIT_ROWS):
            chunk = pairs[start : start + _LOGIT_ROWS]
            logits = {"return_logits_vocab": True, "min_decoding_length": 0}
            for result, pair in zip(
                self._forced_pass(chunk, request, **logits), chunk, strict=True
            ):
                candidates = self.shortlist.candidates_of(*pair)
                indices = np.searchsorted(candidates, pair[1])
                # The row of a token: [1, vocabulary] --> [candidates]
                rows = (np.ravel(row)[candidates] for row in result.logits[0])
                log_probabilities = tuple(
                    float(row[index] - np.logaddexp.reduce(row))
                    for row, index in zip(rows, indices, strict=False)
                )
                translations.append(Translation("", 0.0, token_log_probabilities=log_probabilities))
        return translations

    def align(self, pairs, request):
        # A beam search of CTranslate2 returns attention with a first row from another sentence.
        forced = self._forced_pass(pairs, request, return_attention=True)
        alignments = []
        for result, (_, target) in zip(forced, pairs, strict=True):
            attention = np.asarray(result.attention[0], "float32")[: len(target)]
            # CTranslate2 leaves out the source's EOS, which has the remaining attention.
            end_weights = np.clip(1.0 - attention.sum(axis=1, keepdims=True), 0.0, 1.0)
            alignments.append(np.concatenate([attention, end_weights], axis=1))
        return alignments

    def _forced_pass(self, pairs, request, **options):
        """Returns CTranslate2's result of one more pass that forces the hypotheses."""
        return self._translator.translate_batch(
            [self._pieces(0, source) for source, _ in pairs],
            [[self._tokens[1][id] for id in target[:-1]] for _, target in pairs],
            beam_size=1,
            max_decoding_length=max(1, *(len(target) for _, target in pairs)),
            max_input_length=0,
            return_end_token=True,
            **_batches(request),
            **options,
        )

    def _results(self, jobs, request):
        """Returns CTranslate2's result for each source.

        CTranslate2 has one length limit per call. The first pass has the largest limit for all
        sources. Few translations exceed the limit of their own source: the second pass searches
        them again, with their limits.
        """
        longest = request.options.resolve_max_length(self.max_target_length)
        limits = [_length_limit(job, request.options, longest) for job in jobs]
        first_limits = {index: max(limits) for index, limit in enumerate(limits) if limit}
        results = self._results_within(first_limits, jobs, request)
        own_limits = {
            index: limits[index]
            for index, result in results.items()
            if max(map(len, result.hypotheses)) > limits[index]
        }
        results |= self._results_within(own_limits, jobs, request)
        return [results.get(index, _EMPTY) for index in range(len(jobs))]

    def _results_within(self, limits, jobs, request):
        """Returns CTranslate2's results of some jobs; `limits` has their length limits by index."""
        options, batches = request.options, _batches(request)
        if options.shortlist and request.batch_size is None:
            batches = {"max_batch_size": 1}
        has_prefixes = any(job.start for job in jobs)
        indices_of_calls = collections.defaultdict(list)
        for index, limit in limits.items():
            least_length = min(_least_length(jobs[index], options), limit)
            indices_of_calls[limit, least_length, self._top_k(jobs[index], options)].append(index)
        handles = {}
        for (limit, least_length, top_k), indices in indices_of_calls.items():
            starts = [[self._tokens[1][id] for id in jobs[index].start] for index in indices]
            handles_of_call = self._translator.translate_batch(
                [self._pieces(0, jobs[index].source) for index in indices],
                starts if has_prefixes else None,
                min_decoding_length=least_length,
                max_decoding_length=limit,
                sampling_topk=top_k,
                asynchronous=True,  # All calls together keep all threads busy.
                **batches,
                **self._translator_options(options),
            )
            handles |= zip(indices, handles_of_call, strict=True)
        return {index: handle.result() for index, handle in handles.items()}

    def _translator_options(self, decoding_options):
        suppressed_ids = (PAD_ID, BOS_ID, *decoding_options.banned_ids)
        options = {
            "beam_size": decoding_options.beam_size,
            "num_hypotheses": decoding_options.beams,
            "length_penalty": _NO_PENALTY if decoding_options.stops_early else 0,
            "no_repeat_ngram_size": decoding_options.no_repeat_ngram_size,
            "disable_unk": not decoding_options.allow_unknown,
            "suppress_sequences": [[self._tokens[1][id]] for id in suppressed_ids],
            "max_input_length": 0,
            "use_vmap": decoding_options.shortlist,
            "return_scores": True,
            "return_end_token": True,
        }
        if decoding_options.sampling:
            options["beam_size"] = 1
            options["sampling_topp"] = decoding_options.top_p
            options["sampling_temperature"] = decoding_options.temperature
        return options

    def _top_k(self, job, options):
        """Returns the number of tokens to sample among, at most all."""
        if not options.sampling:
            return 1
        tokens = self.shortlist.candidates_of(job.source) if options.shortlist else self._tokens[1]
        return min(options.top_k, len(tokens))

    def _has_other_sums(self, job, options):
        """Returns whether CTranslate2's sums are not the model's log-probabilities."""
        return (
            options.sampling
            or any(getattr(options, name) for name in _CHANGES_LOGITS)
            or len(self._tokens[1]) < _FEW_TOKENS
            or len(job.start) > 0
            or (UNK_ID in job.source and not options.allow_unknown)
        )

    def _pieces(self, side, ids):
        return [self._tokens[side][id] for id in ids if id != EOS_ID]


@dataclasses.dataclass
class _Candidate:
    """A hypothesis of CTranslate2.

    Attributes:
        job: The job with its source.
        ids: Its token ids, without the tokens of the direction.
        log_probabilities: Log-probabilities of its tokens; only their sum if it is enough.
    """

    job: Any
    ids: tuple[int, ...]
    log_probabilities: Sequence[float]


def _hypothesis(candidate, options):
    """Makes a translation without its text from a candidate."""
    ids, log_probabilities = candidate.ids, candidate.log_probabilities
    prefix = candidate.job.prefix
    following, length = sum(log_probabilities[len(prefix) :]), len(ids) - len(prefix)
    return Translation(
        "",
        options.ranking.score(following, length),
        sum(log_probabilities),
        ids=ids,
        continuation_log_probability=following if prefix else None,
        continuation_length=length if prefix else None,
    )


def _ranked(hypotheses, options):
    """Returns the best `n_best` hypotheses, or the samples in order."""
    if not options.sampling:
        # Hypotheses that end come first. A hypothesis without an end has reached its limit.
        ends_at_limit = options.ranking.ends_at_limit
        hypotheses.sort(
            key=lambda row: (not ends_at_limit and row.ids[-1:] != (EOS_ID,), -row.score)
        )
    return hypotheses[: options.n_best]


def _length_limit(job, options, longest):
    """Returns the maximum number of tokens of a translation, EOS included."""
    limit, ratio = longest, options.max_length_ratio
    if ratio != math.inf:
        tokens = int(ratio * len(job.source)) + options.length_margin + len(job.prefix)
        limit = min(limit, tokens)
    return limit and limit + len(job.direction.target_prefix)


def _least_length(job, options):
    """Returns the minimum number of tokens, which counts forced ids there, and not EOS."""
    least = max(options.min_length - 1, 0)
    return least and least + len(job.direction.target_prefix)


def _batches(request):
    if request.batch_size is None:
        return {"max_batch_size": BATCH_TOKENS, "batch_type": "tokens"}
    return {"max_batch_size": request.batch_size}


def _load(folder, threads, compute_type):
    ctranslate2 = require("ctranslate2", "CTranslate2", "ctranslate2")
    try:
        # Parallel batches with one thread each decode twice as fast as one batch on all threads.
        return ctranslate2.Translator(
            os.fspath(folder), compute_type=compute_type, inter_threads=threads, intra_threads=1
        )
    except (RuntimeError, ValueError, LookupError) as error:  # LookupError: a missing variable
        reason = f"{first_line(error):.300}"
        raise InputError(f"{folder}: CTranslate2 cannot load it. Received: {reason}") from error
