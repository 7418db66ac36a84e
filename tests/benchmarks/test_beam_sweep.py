import sys

import pytest
import sacrebleu

from benchmarks import beam_sweep
from keras_transformer import Translation, Translator

REFERENCES = ["zwei Hunde spielen im Schnee .", "ein Mann fährt auf einem Fahrrad ."]


class Repeats:
    """Gives the references without their last word; with more than one beam all of them, and with
    a penalty of 2 twice over."""

    def __init__(self):
        self.asked = []

    def translate(self, texts, beam_size, length_penalty):
        self.asked.append((beam_size, length_penalty))
        assert texts == ["two dogs play in the snow .", "a man rides a bicycle ."]
        return [Translation(text, -1.0) for text in self.found(beam_size, length_penalty)]

    @staticmethod
    def found(beam_size, length_penalty):
        if beam_size == 1:
            return [text.rpartition(" ")[0] for text in REFERENCES]
        return [" ".join([text] * (2 if length_penalty == 2 else 1)) for text in REFERENCES]


@pytest.fixture
def translator(monkeypatch):
    translator = Repeats()
    monkeypatch.setattr(Translator, "load", lambda run: translator)
    return translator


@pytest.fixture
def run(translator, tmp_path, monkeypatch):
    """`run(*arguments)`: the program on two pairs, beams 1 and 3, penalties 0 and 2."""
    (tmp_path / "en").write_text("two dogs play in the snow .\na man rides a bicycle .\n")
    (tmp_path / "de").write_text("".join(text + "\n" for text in REFERENCES), encoding="utf-8")
    files = ["--source", str(tmp_path / "en"), "--reference", str(tmp_path / "de")]
    sizes = ["--beam-sizes", "1", "3", "--penalties", "0", "2"]

    def run(*arguments):
        command = ["beam_sweep.py", "--model", "run", *files, *sizes, *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", command)
        beam_sweep.main()

    return run


def bleu(*setting):
    return sacrebleu.corpus_bleu(Repeats.found(*setting), [REFERENCES]).score


def test_every_beam_has_every_penalty_and_greedy_search_one(run, translator, capsys):
    run()
    assert translator.asked == [(1, 0.0), (3, 0.0), (3, 2.0)]
    scores, ratios, longest = capsys.readouterr().out.strip().split("\n\n")
    head = ["| beam | 0 | 2 |", "|---|---|---|"]
    greedy, twice = f"{bleu(1, 0.0):.2f}", f"{bleu(3, 2.0):.2f}"
    assert float(twice) < float(greedy) < 100
    rows = [f"| 1 | {greedy} | {greedy} |", f"| 3 | 100.00 | {twice} |"]
    assert scores.splitlines() == [*head, *rows]
    # 6 and 7 words; one less each is 11 of 13.
    assert ratios.splitlines() == [*head, "| 1 | 0.846 | 0.846 |", "| 3 | 1.000 | 2.000 |"]
    assert longest.splitlines() == [*head, "| 1 | 6 | 6 |", "| 3 | 7 | 14 |"]
