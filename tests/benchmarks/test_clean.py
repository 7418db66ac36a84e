"""The program that damages pairs and counts the pairs that cleaning removes."""

import collections
import json

import pytest
from small_corpus import PAIRS

from benchmarks import clean

for package in ("ftfy", "py3langid"):
    pytest.importorskip(package, reason="comes with the extra [clean]")

SPANISH = ["Dos perros juegan en la nieve cerca de la casa.", "Un hombre pinta la pared de blanco."]
UNFAIR = ("A dog sleeps in the house since 1969.", "Ein Hund schläft schon lange im Haus.")


@pytest.fixture(scope="module")
def damaged_pairs():
    """Each pair before and after the damage, and its kind, None of a pair that is left."""
    pairs = [(f"{en} {number}", f"{de} {number}") for number in range(60) for en, de in PAIRS]
    rows = zip(pairs, clean.damage(pairs, PAIRS, SPANISH), strict=True)
    return [(pair, damaged, kind) for pair, (damaged, kind) in rows]


def test_half_of_the_pairs_are_damaged_in_eleven_ways_and_the_others_are_left(damaged_pairs):
    assert all((damaged == pair) is (kind is None) for pair, damaged, kind in damaged_pairs)
    counts = collections.Counter(kind for _, _, kind in damaged_pairs)
    assert 900 < counts.pop(None) < 1020
    assert len(counts) == 11 and all(60 < count < 120 for count in counts.values())


def test_damage_is_of_its_kind(damaged_pairs):
    for _, damaged, kind in damaged_pairs:
        source, target = damaged
        assert (source == target) is (kind == "copy of the source")
        assert (target in SPANISH) is (kind == "target in another language")
        assert (damaged in PAIRS) is (kind == "sentence of the test set")
        assert ("www." in source) is (kind == "URL on one side") and "www." not in target
        assert ("SchÃ¶n" in target) is (kind == "UTF-8 read as Latin-1")
        assert source.isupper() is (kind == "near-duplicate")


def test_good_pairs_that_are_removed_are_counted_by_their_rule(tmp_path, monkeypatch, capsys):
    def damage(pairs, test_pairs, others):
        assert pairs == [*PAIRS[:10], UNFAIR] and test_pairs == PAIRS[30:] and others == SPANISH
        for index, (source, target) in enumerate(pairs):
            if index % 2:
                yield (source, source if index < 6 else target), "copy"
            else:
                yield (source, target), None

    monkeypatch.setattr(clean, "damage", damage)
    near = (PAIRS[3][0].upper(), PAIRS[3][1])
    corpus = zip(*[*PAIRS[:10], near, PAIRS[31], UNFAIR], strict=True)
    contents = *corpus, *zip(*PAIRS[30:], strict=True), [*SPANISH, "No."]
    for name, lines in zip(("en", "de", "test.en", "test.de", "es"), contents, strict=True):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    files = {name: str(tmp_path / name) for name in ("en", "de", "test.en", "test.de", "es")}
    command = ["--source", files["en"], "--target", files["de"], "--other", files["es"]]
    command += ["--test", files["test.en"], files["test.de"], "--languages", "en", "de"]
    clean.main([*command, "--processes", "1"])
    captured = capsys.readouterr()
    expected = {"good_pairs": 6, "removed_good_pairs": 1, "damaged_pairs": 5}
    expected |= {"removed_good_pairs_by_rule": {"numbers": 1}, "removed_damaged_pairs": 3}
    expected |= {"recall": 0.6, "precision": 0.75, "removed_by_damage": {"copy": 0.6}}
    expected["examples_of_removed_good_pairs"] = {"numbers": [list(UNFAIR)]}
    assert json.loads(captured.out) == expected
    assert "| copy | 60.0% |" in captured.err
