"""Translations of the parts of a split text, put together."""

import dataclasses
import itertools
import random

import pytest

from keras_transformer import Translation
from keras_transformer.data import read_pairs
from keras_transformer.translation import pair_lines


@pytest.mark.parametrize("seed", range(20))
def test_the_best_of_many_parts_are_the_best_of_all_combinations(seed):
    rng = random.Random(seed)
    parts = []
    for number in range(5):
        hypotheses = [Translation(f"{number}{rank}", rng.random()) for rank in range(4)]
        hypotheses = hypotheses[: rng.randint(1, 4)]
        parts.append(dataclasses.replace(hypotheses[0], alternatives=tuple(hypotheses[1:])))
    whole = Translation.joined(parts)
    combinations = itertools.product(*((part, *part.alternatives) for part in parts))
    expected = [
        (sum(part.score for part in parts), " ".join(part.text for part in parts))
        for parts in combinations
    ]
    hypotheses = [(t.score, t.text) for t in (whole, *whole.alternatives)]
    assert hypotheses == sorted(expected, reverse=True)[: len(hypotheses)]
    assert [part.text for part in whole.parts] == whole.text.split()
    assert len(hypotheses) == max(1 + len(part.alternatives) for part in parts)


def test_samples_of_a_split_text_are_joined_one_by_one():
    first = dataclasses.replace(Translation("a", -9), alternatives=(Translation("b", -1),))
    second = dataclasses.replace(Translation("c", -9), alternatives=(Translation("d", -1),))
    whole = Translation.joined([first, second], sampling=True)
    assert [t.text for t in (whole, *whole.alternatives)] == ["a c", "b d"]


def test_what_follows_a_forced_beginning_continues_through_all_parts():
    forced = Translation("a b", -1, -5, ids=(7, 8), continuation_log_probability=-2.0)
    forced = dataclasses.replace(forced, continuation_length=1)
    whole = Translation.joined([forced, Translation("c", -1, -3, ids=(9, 9, 2))])
    assert (whole.log_probability, whole.continuation_log_probability) == (-8, -5)
    assert whole.continuation_length == 4
    assert Translation.joined([Translation("c", -1)] * 2).continuation_length is None


@pytest.mark.parametrize("is_back", [False, True])
def test_lines_of_pairs_are_read_as_their_pairs(tmp_path, is_back):
    pairs = [('"Yes," he said.', '"Ja", sagte er.'), ('"No"', "Nein"), ('5" "', '"'), ("a", "b")]
    pairs += [pair[::-1] for pair in pairs]
    lines = [pair_lines(text, Translation(other, 0.0), is_back)[0] for text, other in pairs]
    text = "".join(line.replace(",0.0000", "") for line in lines)
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    expected = zip(*(pair[::-1] if is_back else pair for pair in pairs), strict=True)
    assert read_pairs(tmp_path / "a.csv") == tuple(map(list, expected))
