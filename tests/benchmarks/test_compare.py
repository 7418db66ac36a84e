import json

import pytest

from benchmarks import compare
from keras_transformer import Translation, Translator
from keras_transformer.errors import InputError

SOURCES = ["a b", "a b c", "a b c d", "a b c d e f g"]
REFERENCES = ["eins zwei drei vier fünf", "sechs sieben acht neun", "x y z u v", "p q r s t"]


class Says:
    """Gives the references; those of sources with more than `most` words backwards."""

    def __init__(self, most):
        self.most = most

    def translate(self, texts):
        assert texts == SOURCES
        pairs = zip(texts, REFERENCES, strict=True)
        return [
            Translation(
                right if len(text.split()) <= self.most else " ".join(right.split()[::-1]), 0
            )
            for text, right in pairs
        ]


@pytest.fixture
def program(monkeypatch):
    monkeypatch.setattr(Translator, "load", lambda run: Says(int(run)))
    of_training = {"parameters": 1234, "epochs": 5, "minutes": 6.0}
    monkeypatch.setattr(
        compare, "of_training", lambda run: {**of_training, "training_tokens_per_second": 789.4}
    )
    return compare


def test_groups_are_told_apart_at_their_edges(program):
    assert program.groups_of(SOURCES, (2, 4)) == {"≤ 2": [0], "3–4": [1, 2], "> 4": [3]}
    assert program.groups_of(SOURCES[:2], (2, 4)) == {"≤ 2": [0], "3–4": [1]}


def test_each_run_gets_the_bleu_of_each_length(program, tmp_path, capsys):
    (tmp_path / "en").write_text("\n".join(SOURCES), encoding="utf-8")
    (tmp_path / "de").write_text("\n".join(REFERENCES), encoding="utf-8")
    files = ["--source", str(tmp_path / "en"), "--reference", str(tmp_path / "de")]
    runs = ["--run", "good=9", "--run", "short=3", "--edges", "3", "--rounds", "1"]
    program.main([*runs, *files, "--json", str(tmp_path / "rows.json")])
    header, _, *rows = capsys.readouterr().out.splitlines()
    assert [cell.strip() for cell in header.strip("|").split("|")][-2:] == [
        "≤ 3 words",
        "> 3 words",
    ]
    cells = {row.split("|")[1].strip(): [c.strip() for c in row.split("|")[2:-1]] for row in rows}
    assert cells["good"][:4] == ["1,234", "5", "6.0", "789"]
    assert cells["good"][-2:] == ["100.00", "100.00"]
    assert cells["short"][-2] == "100.00" and float(cells["short"][-1]) < 40
    found = json.loads((tmp_path / "rows.json").read_text())
    assert found["good"]["bleu"] == pytest.approx(100) and found["good"]["words_per_second"] > 0


def test_an_export_has_no_training_to_tell_of(tmp_path):
    (tmp_path / "export.json").write_text("{}")
    rows = {"export": {**compare.of_training(tmp_path), "bleu": 40.0, "chrf": 60.0}}
    assert "| export | – | – | – | – | – | 40.00 |" in compare.table(
        {name: {**row, "by_length": {}} for name, row in rows.items()}
    )


def test_what_is_not_there_is_no_export(tmp_path):
    with pytest.raises(InputError, match="nowhere"):
        compare.of_training(tmp_path / "nowhere")
