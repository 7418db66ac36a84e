"""Checked pairs and reports of drawn corpora, compared with a loop over the lines."""

import itertools

import numpy as np
import pytest
from pairwise import pairwise

from keras_transformer.data.encoding import Lines, PairChecks, PairEncoder, encode_parts, in_chunks

REASONS = [
    "empty side",
    "over-long side",
    "extreme length ratio",
    "equal to a held-out pair",
    "exact duplicate",
]


class _Words:
    """A token per word, whose id is the word plus an offset."""

    def __init__(self, offset):
        self._offset = offset

    def tokenize(self, texts, add_eos=False):
        return [
            [int(word) + self._offset for word in text.split()] + [2] * add_eos for text in texts
        ]


def _drawn(rng):
    """Corpora of two parts; many pairs are equal, some empty, long or of extreme ratio."""

    def pair():
        return tuple(
            " ".join(map(str, rng.integers(0, 2, size)))
            for size in rng.choice(
                [0, 1, 2, 3, 10, 11, 12, 22], 2, p=[0.05, 0.3, 0.3, 0.05, 0.05, 0.1, 0.05, 0.1]
            )
        )

    return {
        part: {name: [pair() for _ in range(rng.integers(0, 30))] for name in names}
        for part, names in (("train", "bac"), ("validation", "xb"))
    }


def _naive(corpora, options, held_out, with_sources):
    kept, reports, seen = [], {}, set()
    for name, pairs in corpora.items():
        reports[name] = [len(pairs), 0, {}]
        for number, (source, target) in enumerate(pairs, start=1):
            sizes = (
                len(source.split()) if with_sources else len(target.split()),
                len(target.split()),
            )
            why = None
            if not min(sizes):
                why = 0
            elif max(sizes) + 1 > options.max_length:
                why = 1
            elif (
                options.max_length_ratio
                and max(sizes) > 10
                and max(sizes) / min(sizes) > options.max_length_ratio
            ):
                why = 2
            elif (source, target) in held_out:
                why = 3
            elif options.drop_duplicates and (source, target) in seen:
                why = 4
            else:
                kept.append((source, target, number))
            if why is None:
                reports[name][1] += 1
            else:
                reports[name][2].setdefault(REASONS[why], []).append(number)
            seen.add((source, target))
    return kept, reports


def _shown(report):
    return {
        name: [
            part.total,
            part.kept,
            {why: [drop.count, list(drop.first_lines)] for why, drop in part.dropped.items()},
        ]
        for name, part in report.corpora.items()
    }


@pytest.mark.parametrize("seed", range(4))
@pairwise(
    ratio=[None, 1.0, 2.0],
    max_length=[11, 12, 13],
    duplicates=[True, False],
    held_out=[None, "validation"],
    with_sources=[True, False],
    chunk=[1, 2, 100],
)
def test_pairs_and_reports_are_those_of_a_loop_over_the_lines(
    seed, ratio, max_length, duplicates, held_out, with_sources, chunk
):
    """In chunks of any size."""
    corpora = _drawn(np.random.default_rng(seed))
    if not with_sources:
        corpora = {
            part: {n: [("", t) for _, t in pairs] for n, pairs in of.items()}
            for part, of in corpora.items()
        }
    checks = PairChecks(max_length=max_length, max_length_ratio=ratio, drop_duplicates=duplicates)

    def read(parts):
        for part in parts:
            for name, pairs in corpora[part].items():
                for numbers, chosen in in_chunks(pairs, chunk):
                    yield Lines(part, name, numbers, chosen)

    encoders = {
        part: PairEncoder((_Words(3), _Words(5)), checks, with_sources, chunk_lines=chunk)
        for part in corpora
    }
    for part, (pairs, report) in encode_parts(read, encoders, held_out).items():
        unwanted = (
            {*itertools.chain(*corpora[held_out].values())} if held_out not in (None, part) else ()
        )
        names = {name: lines for name, lines in corpora[part].items() if lines}
        kept, reports = _naive(names, checks, unwanted, with_sources)
        reports = {
            n: [t, k, {w: [len(x), x[:5]] for w, x in d.items()}]
            for n, (t, k, d) in reports.items()
        }
        assert _shown(report) == reports
        assert pairs.corpora == {name: kept_count for name, (_, kept_count, _) in reports.items()}
        rows = [
            (pairs.source(i).tolist(), pairs.target(i).tolist(), int(pairs.lines[i]))
            for i in range(len(pairs))
        ]
        assert rows == [
            ([int(w) + 3 for w in s.split()] + [2], [int(w) + 5 for w in t.split()], n)
            for s, t, n in kept
        ]
