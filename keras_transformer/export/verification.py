"""One verification for every export: its engine's answers beside the live model's."""

import concurrent.futures
import dataclasses
import itertools
import math
import statistics
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.config import EOS_ID
from keras_transformer.engine import Engine
from keras_transformer.errors import VerificationError
from keras_transformer.export.exporter import log_duration
from keras_transformer.translation import CONTINUATION, Translation


@dataclasses.dataclass(frozen=True)
class Bound:
    """Limits of the difference between an export's answers and the live model's.

    Scores are log-probabilities over the length penalty, in nats. A limit of nats is the field's
    share of the live model's score (for the worst ones that of the text, if it is more than the
    mean, elsewhere the mean) and `floor`.

    Attributes:
        score: Mean difference between the score that the export reports of a text and the live
            model's score of it.
        worst_score: Largest difference of these two scores.
        regret: Mean amount by which the live model scores its own text higher than the export's.
        worst_regret: Largest such amount.
        others: Share of the texts that may differ from the live model's.
        samples: Share of the samples that may differ: where rounding decides a draw, all that
            follows is another text.
        floor: Nats that are allowed to each limit.
    """

    score: float = 1e-3
    worst_score: float = 1e-3
    regret: float = 5e-4
    worst_regret: float = 0.05
    others: float = 0.02
    samples: float = 0.02
    floor: float = 1e-3


FLOAT32 = Bound()
# GPUs choose another algorithm in another process, which rounds otherwise.
SIXTEEN_BIT = Bound(
    score=5e-2,
    worst_score=5e-2,
    regret=5e-2,
    worst_regret=0.5,
    others=0.1,
    samples=0.3,
    floor=5e-2,
)

# LiteRT in int8 with Multi30k's run after 7 epochs, beam 4, on 240 of its sentences: `score` 0.002,
# regret -0.005 on average and 0.10 at most; of other sentences' translations 1.9 and 3.8. The
# bounds lie between, far above the former: texts of random tokens and untrained models differ by
# more.
_ANY = {"worst_score": 1e6, "others": 1.0, "floor": 0.02}
BOUNDS = {
    "none": FLOAT32,
    "float16": Bound(score=0.005, regret=0.02, worst_regret=1.0, **_ANY),
    "int8": Bound(score=0.08, regret=0.15, worst_regret=2.0, **_ANY),
}
# Bounds of probabilities, which are the scores of labels.
LABEL_BOUNDS = {
    name: Bound(score=0, worst_score=0, regret=0, worst_regret=0, others=1.0, floor=most)
    for name, most in (("none", 1e-3), ("float16", 0.02), ("int8", 0.2))
}


class Search(NamedTuple):
    """A request that an export and the live model both get.

    Attributes:
        batches: Texts, batch by batch.
        options: Options of `translate`.
        targets: Texts that `score` takes beside each batch's; None for `translate`.
    """

    batches: Sequence[Sequence[str]]
    options: Mapping[str, Any] = {}
    targets: Sequence[Sequence[str]] | None = None

    @property
    def is_sampled(self) -> bool:
        """True where samples are drawn: each text of a batch then gets a seed."""
        return bool(self.options.get("sampling"))

    def options_of(self, texts: Sequence[str]) -> dict[str, Any]:
        """Returns the options for a batch."""
        seeds = {"seed": [7919 * i for i in range(len(texts))]} if self.is_sampled else {}
        return {**self.options, **seeds}

    def companions(self) -> list[Sequence]:
        """Returns for each batch what an answer depends on beside the texts: targets or seeds."""
        if self.targets is not None:
            return list(self.targets)
        return [self.options_of(each).get("seed", [0] * len(each)) for each in self.batches]


class LiveAnswers:
    """The live engine's answers, each computed once; a text's batch-mates do not matter."""

    def __init__(self, engine: Engine, length_penalty: float):
        self.engine, self.length_penalty = engine, length_penalty
        self._found: dict[tuple, dict[tuple, Translation]] = {}
        self._ids: dict[tuple[str, str], tuple[int, ...]] = {}
        self._scores: dict[tuple[str, str], float] = {}

    def answers(self, search: Search) -> list[list[Translation]]:
        """Returns the translations or scores of each batch.

        New texts of all batches are searched in one call, whose few shapes XLA compiles. The ones
        that are cut are apart: each text of a batch costs as much as its longest.
        """
        options = dict(search.options)
        if options.get("beam_size", 1) > 1:
            options["n_best"] = options["beam_size"]  # Another number would be another program.
        found = self._found.setdefault((search.targets is None, *sorted(options.items())), {})
        pairs = zip(search.batches, search.companions(), strict=True)
        keys = [list(zip(*each, strict=True)) for each in pairs]
        new = [key for key in dict.fromkeys(itertools.chain(*keys)) if key not in found]
        lengths = map(len, self.engine.source_tokenizer.tokenize([text for text, _ in new]))
        cut = [length >= self.engine.max_source_length for length in lengths]
        for chosen in (cut, [not each for each in cut]):
            if group := list(itertools.compress(new, chosen)):
                answers = self._compute(search, options, *zip(*group, strict=True))
                found.update(zip(group, answers, strict=True))
        return [[found[key] for key in each] for each in keys]

    def _compute(self, search, options, texts, companions):
        """Answers to texts with the target or the seed of each."""
        if search.targets is not None:
            scored = teacher_forced(self.engine, texts, companions, self.length_penalty)
            # The text as it was given: what is too long is cut.
            return [
                dataclasses.replace(each, text=text)
                for each, text in zip(scored, companions, strict=True)
            ]
        options = dict(options)
        if options.pop("alignment", False):
            return self._aligned(search._replace(batches=[texts], options=options))
        seeds = {"seed": list(companions)} if search.is_sampled else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # A text that is too long is cut as exports cut it.
            results = self.engine.translate(list(texts), long_input="truncate", **options, **seeds)
        for text, best in () if search.is_sampled else zip(texts, results, strict=True):
            for each in hypotheses(best):
                self._scores[text, each.text] = each.score
        return results

    def _aligned(self, search):
        """The best translations of a search with their alignments, by one pass over them."""
        ((texts,), (best,)) = search.batches, self.answers(search)
        pairs = [(text, each.ids) for text, each in zip(texts, best, strict=True) if each.ids]
        sources, targets = zip(*pairs, strict=True) if pairs else ((), ())
        forced = teacher_forced(self.engine, sources, targets, self.length_penalty, alignment=True)
        alignments = iter([each.alignment for each in forced])
        return [
            dataclasses.replace(each, alignment=next(alignments) if each.ids else None)
            for each in best
        ]

    def remember(self, search: Search, batches: Sequence[Sequence[Translation]]) -> None:
        """Keeps the ids of an export's answers: another search may give their texts alone."""
        if search.is_sampled or search.targets is not None:
            return
        for texts, answers in zip(search.batches, batches, strict=True):
            for source, best in zip(texts, answers, strict=False):
                for each in hypotheses(best):
                    if each.ids:
                        self._ids.setdefault((source, each.text), each.ids)

    def scores(self, pairs: Sequence[tuple[str, Translation]]) -> list[float]:
        """Returns the live model's scores of an export's texts, found in a search of each source.

        A text without ids that is a hypothesis of the live model has its score, and one that
        another search of an export gave has its ids: a search finds other tokens than the text's
        usual ones, and none of EOS where it is cut.
        """
        if self.engine.labels is not None:  # All labels were found.
            return [self._scores.get((source, found.text), math.nan) for source, found in pairs]
        known = [
            None if found.ids else self._scores.get((source, found.text)) for source, found in pairs
        ]
        unknown = [pair for pair, score in zip(pairs, known, strict=True) if score is None]
        targets = [
            found.ids or self._ids.get((source, found.text)) or found.text
            for source, found in unknown
        ]
        sources = [source for source, _ in unknown]
        forced = teacher_forced(self.engine, sources, targets, self.length_penalty, found=True)
        scores = iter([each.score for each in forced])
        return [next(scores) if score is None else score for score in known]


def verify(
    artifacts: Mapping[str, Mapping[str, tuple[Engine, Search]]], live: LiveAnswers, bound: Bound
) -> dict[str, Any]:
    """Puts searches to engines and to the live model, and compares what they give.

    A text is right if it is the live model's with its score, or if the live model's teacher-forced
    score of it is the score that the engine says, and the regret is under the bound.

    Args:
        artifacts: By an artifact's name its searches, each with the engine that runs it. Artifacts
            run side by side, each on a thread of its own, and beside the live model.

    Returns:
        A dict fit for JSON: for each artifact and search the figures that the bound limits.

    Raises:
        VerificationError: A figure is not under the bound, or an answer is no answer.
    """
    report: dict[str, Any] = {"bound": dataclasses.asdict(bound)}
    pool = concurrent.futures.ThreadPoolExecutor(len(artifacts))
    try:
        asked = {name: pool.submit(_answers, each) for name, each in artifacts.items()}
        with log_duration("the live model's answers, while fresh processes give the export's"):
            # The largest first: its programs do for the others' texts.
            every = [search for each in artifacts.values() for _, search in each.values()]
            for search in sorted(every, key=lambda search: -sum(map(len, search.batches))):
                live.answers(search)
        found = {}
        for name, searches in artifacts.items():
            with log_duration(f"waited for {name}"):
                found[name] = asked[name].result()
            for key, (_, search) in searches.items():
                live.remember(search, found[name][key][0])
        for name, searches in artifacts.items():
            report[name] = {
                key: _compare(f"{name}, {key}", search, live, found[name][key], bound)
                for key, (_, search) in searches.items()
            }
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return report


def _answers(searches):
    """The translations of each batch by the name of the search, and the seconds that it took."""
    found = {}
    for name, (engine, search) in searches.items():
        start = time.perf_counter()
        if search.targets is not None:
            pairs = zip(search.batches, search.targets, strict=True)
            scored = [engine.score(*pair) for pair in pairs]
            batches = [[dataclasses.replace(each, ids=()) for each in one] for one in scored]
        else:
            batches = [
                engine.translate(texts, long_input="truncate", **search.options_of(texts))
                for texts in search.batches
            ]
        found[name] = batches, round(time.perf_counter() - start, 3)
    return found


def _compare(name, search, live, answers, bound):
    batches, seconds = answers
    comparison = _Comparison(name, live, bound, search.is_sampled)
    most = search.options.get("n_best", 1)
    for texts, *pair in zip(search.batches, live.answers(search), batches, strict=True):
        comparison.add(texts, *pair, most)
    sizes = [len(texts) for texts in search.batches]
    return {"batch_sizes": sizes, **comparison.figures(), "seconds": seconds}


class _Comparison:
    """Answers of an engine in one search, beside the live model's."""

    def __init__(self, name, live, bound, is_sampled):
        self.name, self.live, self.bound, self.is_sampled = name, live, bound, is_sampled
        self.count = self.missing = 0
        self.same, self.others = [], []  # (live score, score), (source, live, found)

    def add(self, texts, expected, received, most):
        if len(received) != len(texts):
            raise self._error("a translation for each text", f"{len(received)} for {len(texts)}")
        for text, ours, theirs in zip(texts, expected, received, strict=True):
            ours, theirs = hypotheses(ours)[:most], hypotheses(theirs)
            self.count += len(ours)
            self.missing += abs(len(ours) - len(theirs))
            for pair in zip(ours, theirs, strict=False):
                self._add(text, *pair)

    def _add(self, source, ours, theirs):
        live, tokenizer = self.live, self.live.engine.target_tokenizer
        is_blank = ours.score == 0 and not ours.text
        if is_blank != (theirs.score == 0 and not theirs.text):
            raise self._error(f"{ours.text!r:.120}", f"{theirs.text!r:.120} for {source!r:.120}")
        if theirs.ids and live.engine.labels is None:
            (text,) = tokenizer.detokenize([list(theirs.ids)])
            if text != theirs.text:
                raise self._error("the text of the ids", f"{theirs.text!r:.120}, not {text!r:.120}")
        if ours.text != theirs.text or (theirs.ids and ours.ids and theirs.ids != ours.ids):
            self.others.append((source, ours, theirs))
            return
        self.same.append((ours.score, theirs.score))
        self._check_fields(ours, theirs)

    def _check_fields(self, ours, theirs):
        """Compares what stands beside the text and the score."""
        limit = self.bound.worst_score
        for name in ("log_probability", *CONTINUATION, "alignment"):
            one, other = getattr(ours, name), getattr(theirs, name)
            if other is None or name == "log_probability" and math.isnan(other):
                continue
            one = 0 if one is None else one  # A blank text has no continuation.
            if np.shape(one) != np.shape(other) or not np.allclose(
                other, one, rtol=limit, atol=limit + self.bound.floor
            ):
                raise self._error(f"`{name}` {one!r:.200}", f"{other!r:.200}, {ours.text!r:.60}")
        for name in ("tokens", "source_tokens"):
            one, other = getattr(ours, name), getattr(theirs, name)
            if other and other != one:
                raise self._error(f"`{name}` {one!r:.200}", f"{other!r:.200}")

    def figures(self):
        """Returns the figures, each checked."""
        bound = self.bound
        self._check_share()
        scored = [] if self.is_sampled else self.others
        forced = self.live.scores([(source, theirs) for source, _, theirs in scored])
        pairs = [
            *self.same,
            *((score, found.score) for score, (*_, found) in zip(forced, scored, strict=True)),
        ]
        size = _mean(abs(score) for score, _ in pairs)
        differences = [abs(one - other) for one, other in pairs]
        regrets = [0.0] * len(self.same)
        regrets += [ours.score - score for score, (_, ours, _) in zip(forced, scored, strict=True)]
        rule = "scores that are the live model's of the texts"
        for (score, _), difference in zip(pairs, differences, strict=True):
            self._check(f"{rule}, each", difference, bound.worst_score, max(abs(score), size))
        self._check(f"{rule}, on average", _mean(differences), bound.score, size)
        rule = "texts that the live model scores as high as its own"
        self._check(f"{rule}, on average", _mean(regrets), bound.regret, size)
        for (score, _), regret in zip(pairs, regrets, strict=True):
            # Where the live model itself is unsure, one wrong word costs more.
            self._check(f"{rule}, each", regret, bound.worst_regret, max(abs(score + regret), size))
        figures = {
            "mean_live_score": -size,
            "mean_score_difference": _mean(differences),
            "largest_score_difference": max(differences, default=0.0),
            "mean_regret": _mean(regrets),
            "largest_regret": max(regrets, default=0.0),
        }
        counts = {"texts": self.count, "others": len(self.others) + self.missing}
        return {**counts, **{name: round(value, 7) for name, value in figures.items()}}

    def _check_share(self):
        share = self.bound.samples if self.is_sampled else self.bound.others
        if (count := len(self.others) + self.missing) > max(1, share * self.count):
            *_, ours, theirs = (self.others or [("", "", "")])[0]
            raise self._error(
                f"at most {share:.0%} other texts",
                f"{count} of {self.count}, first {getattr(theirs, 'text', '')!r:.120} instead of "
                f"{getattr(ours, 'text', '')!r:.120}",
            )

    def _check(self, rule, value, share, size):
        limit = share * size + self.bound.floor
        if not value <= limit:
            received = f"a difference of {value:.6f} on {self.count} texts"
            raise self._error(f"{rule}, up to {limit:.6f}", received)

    def _error(self, expected, received):
        return VerificationError(f"{self.name}: expected {expected}. Received: {received}.")


def hypotheses(best: Translation) -> tuple[Translation, ...]:
    """Returns a translation and its alternatives, best first."""
    return (best, *best.alternatives)


def _mean(values):
    return statistics.fmean([*values] or [0.0])


def teacher_forced(
    engine: Engine,
    sources: Sequence[str],
    targets: Sequence,
    length_penalty: float,
    found: bool = False,
    **options: Any,
) -> list[Translation]:
    """Scores targets, texts or lists of ids, with the live model, cut as exports cut them.

    Targets that were `found` by a language model's search begin with their sources.
    """
    source_ids = engine.source_tokenizer.tokenize(list(sources), add_eos=True)
    target_ids = [
        engine.target_tokenizer.tokenize(each, add_eos=True)
        if isinstance(each, str)
        else list(each)
        for each in targets
    ]
    source_ids = [cut(each, engine.max_source_length) for each in source_ids]
    starts = [len(each) - 1 if engine.continues_source else 0 for each in source_ids]
    if found:
        target_ids = [ids[start:] for ids, start in zip(target_ids, starts, strict=True)]
    most = engine.max_target_length
    target_ids = [cut(ids, most - start) for ids, start in zip(target_ids, starts, strict=True)]
    return engine.score(source_ids, target_ids, length_penalty=length_penalty, **options)


def cut(ids: list[int], limit: int) -> list[int]:
    """Returns at most `limit` ids, EOS last."""
    return [*ids[: limit - 1], EOS_ID] if len(ids) > limit else ids
