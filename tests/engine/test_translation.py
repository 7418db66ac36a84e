"""Translations of the parts of a split text, put together."""

import dataclasses

import pytest

from keras_transformer import Translation
from keras_transformer.data import read_pairs
from keras_transformer.engine.translation import pair_lines


def test_hypotheses_of_a_split_text_are_joined_one_by_one_and_the_last_stands_for_missing_ones():
    rows = (("a", -9), ("b", -11), ("c", -7)), (("d", -1),), (("e", -2), ("f", -3))
    parts = []
    for row in rows:
        best, *others = (Translation(text, score) for text, score in row)
        parts.append(dataclasses.replace(best, alternatives=tuple(others)))
    whole = Translation.joined(parts)
    hypotheses = [(t.text, t.score) for t in (whole, *whole.alternatives)]
    assert hypotheses == [("a d e", -12), ("b d f", -15), ("c d f", -11)]
    assert [part.text for part in whole.parts] == ["a", "d", "e"]


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
