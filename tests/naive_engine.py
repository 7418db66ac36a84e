"""An engine that searches in plain Python, every prefix scored from scratch by the whole model."""

import collections

import numpy as np
from decoding_oracles import FullPass, as_graph
from naive_search import BOS, FORBIDDEN, UNK, Rules, log_softmax, marian_beam, naive_beam

from keras_transformer import Translation
from keras_transformer.decoding.search_options import RANKING_OPTIONS
from keras_transformer.engine import IdsEngine
from keras_transformer.engine.inputs import pad
from keras_transformer.engine.request import OptionRules
from keras_transformer.engine.translation import CONTINUATION


def among(candidates, scorer):
    """A scorer whose probabilities are of the candidates of each sentence alone."""

    def score(rows, prefixes):
        table = scorer(rows, prefixes)
        seen = [np.isin(np.arange(table.shape[1]), [*candidates[row]]) for row in rows]
        return log_softmax(np.where(seen, table, -np.inf))

    return score


class NaiveEngine(IdsEngine):
    """Finds, scores and aligns what an engine of the same model must, without cache or batches."""

    noun = "a naive engine"
    capabilities = frozenset({"translate", "score", "align", "phrases"})
    option_rules = OptionRules(score=(*RANKING_OPTIONS, "alignment"))

    def __init__(self, engine):
        for name in ("model", "source_tokenizer", "target_tokenizer", "shortlist", "languages"):
            setattr(self, name, getattr(engine, name))
        self.max_source_length = engine.max_source_length
        self.max_target_length = engine.max_target_length
        self._capacity = engine.max_target_length + 2  # BOS and a language
        # One shape and one graph for all calls.
        self.call_with_attention = as_graph(self.model.call_with_attention)

    def search(self, jobs, request):
        results, indices_of = {}, collections.defaultdict(list)
        for index, job in enumerate(jobs):  # Each has a beam that holds its own phrases.
            indices_of[request.options.with_phrases(sum(map(len, job.phrases)))].append(index)
        for options, indices in indices_of.items():
            results |= zip(indices, self._search([jobs[i] for i in indices], options), strict=True)
        return [results[index] for index in range(len(jobs))]

    def _search(self, jobs, options):
        scorer, rules = self._scorer([job.source for job in jobs]), self._rules(jobs, options)
        if rules.candidates:
            scorer = among(rules.candidates, scorer)
        limits = [self._limit(job, options) for job in jobs]
        size, exponent, n_best = options.beam_size, options.length_penalty, options.n_best
        if options.length_normalization == "marian":
            ranking = size, exponent, options.word_penalty, rules
            beams = (marian_beam(scorer, *row, *ranking) for row in enumerate(limits))
            found = [hypotheses[:n_best] for hypotheses in beams]
        else:
            found = naive_beam(scorer, limits, size, exponent, n_best, rules, options.stops_early)
        return [
            [self._translation_of(scorer, row, job, one) for one in hypotheses]
            for row, (job, hypotheses) in enumerate(zip(jobs, found, strict=True))
        ]

    def score_pairs(self, pairs, request):
        scorer = self._scorer([source for source, _ in pairs])
        return [
            Translation(
                "",
                0.0,
                token_log_probabilities=self._by_token(scorer, row, target),
                alignment=self.align([(source, target)], request)[0] if request.alignment else None,
            )
            for row, (source, target) in enumerate(pairs)
        ]

    def align(self, pairs, request):
        """The mean over the heads of the last layer's attention to the source."""
        alignments = []
        for source, target in pairs:
            ids = pad([source], 1, self.max_source_length)
            read = pad([[BOS, *target[:-1]]], 1, self._capacity)
            heads = np.asarray(self.call_with_attention(ids, read)[1][-1])[0]
            alignments.append(heads.mean(axis=0)[: len(target), : len(source)])
        return alignments

    def _scorer(self, sources):
        return FullPass(self, pad(sources, len(sources), self.max_source_length), self._capacity)

    def _limit(self, job, options):
        tokens = int(options.max_length_ratio * len(job.source)) + options.length_margin
        longest = options.resolve_max_length(self.max_target_length)
        tokens += len(job.prefix) + sum(map(len, job.phrases))
        return min(tokens, longest) + len(job.direction.target_prefix)

    def _rules(self, jobs, options):
        any_phrases = any(job.phrases for job in jobs)
        bias = dict(options.logit_bias) | dict.fromkeys(options.banned_ids, -np.inf)
        candidates = [
            {*self.shortlist.candidates_of(job.source), *job.prefix} if options.shortlist else ()
            for job in jobs
        ]
        return Rules(
            min_lengths=[
                max(options.min_length, int(options.min_length_ratio * len(job.source)))
                + len(job.direction.target_prefix)
                for job in jobs
            ],
            prefixes=[job.start for job in jobs],
            bias=[bias.get(id, 0.0) for id in range(self.target_tokenizer.vocabulary_size)],
            ngram_size=options.no_repeat_ngram_size,
            phrases=[[*map(tuple, job.phrases)] for job in jobs] if any_phrases else (),
            forbidden=FORBIDDEN if options.allow_unknown else (*FORBIDDEN, UNK),
            candidates=candidates if options.shortlist else (),
        )

    def _by_token(self, scorer, row, ids):
        if not ids:
            return ()
        rows = scorer([row] * len(ids), [tuple(ids[:end]) for end in range(len(ids))])
        return tuple(float(values[id]) for values, id in zip(rows, ids, strict=True))

    def _translation_of(self, scorer, row, job, hypothesis):
        by_token = job.direction.of_target(self._by_token(scorer, row, hypothesis.ids))
        ids = job.direction.of_target(hypothesis.ids)
        following = by_token[len(job.prefix) :]
        continuation = (sum(following), len(following)) if job.prefix else (None, None)
        return Translation(
            "",
            hypothesis.score,
            sum(by_token),
            ids=ids,
            token_log_probabilities=by_token,
            **dict(zip(CONTINUATION, continuation, strict=True)),
        )
