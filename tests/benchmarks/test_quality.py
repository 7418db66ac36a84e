"""The figures of `benchmarks.quality`, of translators whose answers are known."""

import json

import pytest
import sacrebleu

from benchmarks import quality
from keras_transformer import Translation, Translator
from keras_transformer.steps.glossary import Glossary

pytestmark = pytest.mark.tensorflow

REFERENCES = ["zwei Hunde spielen im Schnee .", "ein Mann fährt auf einem Fahrrad ."]


@pytest.fixture
def call(monkeypatch, tmp_path, capsys):
    """`call(translators, sources, references, *words)`: the figures and the table of a command."""

    def call(translators, sources, references, *words):
        monkeypatch.setattr(Translator, "load", lambda path, **options: translators[path])
        for name, lines in (("source", sources), ("reference", references)):
            (tmp_path / name).write_text("".join(line + "\n" for line in lines), "utf-8")
        files = ["--source", str(tmp_path / "source"), "--reference", str(tmp_path / "reference")]
        quality.main([*map(str, words), *files])
        captured = capsys.readouterr()
        return json.loads(captured.out), captured.err

    return call


class Repeats:
    """Gives the references without their last word; with more than one beam all of them, and with
    a penalty of 2 twice over."""

    def translate(self, texts, beam_size, length_penalty):
        if beam_size == 1:
            return [Translation(text.rpartition(" ")[0], -1.0) for text in REFERENCES]
        return [Translation(" ".join([t] * max(1, int(length_penalty))), -1.0) for t in REFERENCES]


def test_every_beam_size_has_every_penalty_and_greedy_search_one(call, tmp_path):
    pytest.importorskip("matplotlib", reason="comes with the extra [plots]")
    picture = tmp_path / "sweep.png"
    command = ["beam", "--model", "run", "--beam-sizes", 1, 3, "--penalties", 0, 2]
    rows, table = call({"run": Repeats()}, "ab", REFERENCES, *command, "--plot", picture)
    searches = [(row["beam_size"], row["length_penalty"]) for row in rows]
    assert searches == [(1, 0.0), (3, 0.0), (3, 2.0)]
    twice = [f"{text} {text}" for text in REFERENCES]
    bleu = round(sacrebleu.corpus_bleu(twice, [REFERENCES]).score, 2)
    # 6 and 7 words; one less in both is 11 of 13.
    assert [row["length_ratio"] for row in rows] == [0.846, 1.0, 2.0]
    assert rows[0]["bleu"] < 100 == rows[1]["bleu"] and f"| 3 | 2.0 | {bleu} | 2.0 | 14 |" in table
    assert picture.read_bytes().startswith(b"\x89PNG")


SOURCES = ["a b", "a b c", "a b c d", "a b c d e f g"]
TARGETS = ["eins zwei drei vier fünf", "sechs sieben acht neun", "x y z u v", "p q r s t"]


class UpTo:
    """Gives the references; references of sources with more than `words` words backwards."""

    def __init__(self, words):
        self.words = words

    def translate(self, texts):
        for text, target in zip(texts, TARGETS, strict=True):
            is_short = len(text.split()) <= self.words
            yield Translation(target if is_short else " ".join(target.split()[::-1]), 0.0)


def test_a_group_of_lengths_has_its_own_bleu_and_an_export_no_training(call, tmp_path):
    (tmp_path / "export.json").write_text("{}")
    models = {str(tmp_path): UpTo(9), f"{tmp_path}/.": UpTo(3)}
    names = [f"good={tmp_path}", f"short={tmp_path}/."]
    command = ["compare", *names, "--edges", 3, "--rounds", 1]
    rows, table = call(models, SOURCES, TARGETS, *command)
    assert rows["good"]["by_length"] == {"≤ 3": 100, "> 3": 100}
    assert rows["short"]["by_length"]["≤ 3"] == 100 > 40 > rows["short"]["by_length"]["> 3"]
    assert rows["good"]["bleu"] == 100 and rows["good"]["words/s"] > 0
    assert "| good | – | – | – | – |" in table


def test_curves_of_two_runs_and_their_best_epochs(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="comes with the extra [plots]")
    for name, header, rows in (
        ("a", "epoch,val_loss,val_bleu", ("1,3.0,7.0", "2,2.5,9.0", "3,2.7,8.0")),
        ("b", "epoch,val_loss", ("1,2.0", "2,1.5")),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "history.csv").write_text("\n".join([header, *rows, ""]))
    picture = tmp_path / "curves.png"
    quality.main(["curves", str(tmp_path / "a"), str(tmp_path / "b"), "--plot", str(picture)])
    assert json.loads(capsys.readouterr().out) == {
        "a": {"epochs": 3, "best": 2, "val_loss": 2.5, "val_bleu": 9.0},
        "b": {"epochs": 2, "best": 2, "val_loss": 1.5},
    }
    assert picture.read_bytes().startswith(b"\x89PNG")


class Copies:
    """Gives each text back, and remembers the texts and the limits."""

    max_target_length = 99

    def __init__(self):
        self.texts, self.limits, self.engine = [], [], self

    def translate(self, texts, max_length):
        self.texts.append(texts)
        self.limits.append(max_length)
        return [Translation(text, 0.0, ids=tuple(range(7))) for text in texts]


def test_each_kind_of_noise_is_scored_against_what_it_makes_of_the_reference(call):
    lines = ["Two dogs, both of them small, play there.", "A man sleeps behind the green house."]
    models = {"one": Copies(), "other": Copies()}
    scores, _ = call(models, lines, lines, "noise", *models)
    # A copy is right, but for typos, which the reference is without.
    typos = scores.pop("typos")
    assert typos["one"] == typos["other"] < 80
    names = ["as it is", "in capitals", "Title Case", "no punctuation"]
    assert scores == dict.fromkeys(names, {"one": 100, "other": 100})
    assert models["one"].texts == models["other"].texts
    assert models["one"].texts[:2] == [lines, [line.upper() for line in lines]]
    # Twice the longest translation of the text as it is, and ten more.
    assert models["one"].limits == [None, 24, 24, 24, 24]


@pytest.mark.parametrize("by", ["constraints", "annotations"])
def test_terms_of_a_glossary_are_constraints_or_annotations(by):
    class Writes:
        """Says one word, and the phrases or the annotated term of the text after it."""

        def translate(self, texts, beam_size, phrases=None):
            shown = [[text.partition("<term_as> ")[2].partition("<")[0]] for text in texts]
            answers = [" ".join(["Hunde", *terms]) for terms in phrases or shown]
            return [Translation(answer, -1.0) for answer in answers]

    terms = Glossary([("dog", "Köter"), ("cat", "Katze")])
    texts = ["a dog", "a cat"], ["ein Hund", "zwei Katzen"]
    with pytest.warns(UserWarning, match="BLEU says nothing about texts of fewer than four"):
        _, row, *_ = quality.glossary_rows(Writes(), *texts, 2, terms, by)
    assert list(row.values())[1:4] == [0.0, 1.0, 1.0]
