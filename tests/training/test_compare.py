import json
import re
import subprocess
import sys

import pytest
import sacrebleu
from small_corpus import PAIRS

from keras_transformer import Translation, Translator, cli
from keras_transformer.engine import Engine
from keras_transformer.training.compare import compare

REFERENCES = [target for _, target in PAIRS]
A = [text.replace("Ein", "Der") for text in REFERENCES]
B = [text.replace("im", "auf dem").replace("ein", "das") for text in REFERENCES]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Files of the sources, the references and two systems' translations."""
    texts = {"en": [source for source, _ in PAIRS], "de": REFERENCES, "A": A, "B": B}
    for name, lines in texts.items():
        (tmp_path / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def evaluate(capsys, *arguments):
    code = cli.run(["evaluate", *arguments])
    captured = capsys.readouterr()
    return code, json.loads(captured.out) if captured.out else captured.err


@pytest.mark.parametrize(("test", "p_value"), [("bs", "p_bootstrap"), ("ar", "p_randomization")])
def test_scores_intervals_and_p_values_are_those_of_sacrebleus_command(
    files, capsys, test, p_value
):
    command = [sys.executable, "-m", "sacrebleu", "de", "-i", "A", "B", f"--paired-{test}"]
    command += ["-m", "bleu", "chrf", "ter", "--chrf-word-order", "2", "--format", "latex"]
    told = subprocess.run([*command, "-w", "4"], capture_output=True, text=True, check=True).stdout
    rows = [line.split("&")[1:] for line in told.splitlines() if line.count("&") == 3][1:]
    code, found = evaluate(capsys, "--compare", "A", "B", "--reference", "de")
    assert code == 0 and found["baseline"] == "A"
    for name, row in zip("AB", rows, strict=True):
        keys = ["score"] + ["mean", "interval"] * (test == "bs") + [p_value] * (name == "B")
        for metric, cell in zip(("bleu", "chrf++", "ter"), row, strict=True):
            ours, theirs = found["systems"][name][metric], re.findall(r"[\d.]+", cell)
            assert (p_value in ours) == (name == "B")
            for key, value in zip(keys, theirs, strict=True):
                assert ours[key] == pytest.approx(float(value), abs=0.0051)


def test_groups_by_length_hold_every_sentence_once_and_are_scored_by_themselves():
    references = [" ".join("abcdefghij" * count) for count in (1, 1, 2, 3, 5, 6)]
    references += ["one " * 11 + "two"]
    systems = {"same": references, "other": [text.replace("a", "x") for text in references]}
    groups = compare(systems, references)["by_length"]
    assert [(each["reference_words"], each["sentences"]) for each in groups] == [
        ("1-10", 2),
        ("11-20", 2),
        ("21-30", 1),
        ("41 and more", 2),
    ]
    chosen = [references[4], references[5]]
    for metric, score in (("bleu", sacrebleu.BLEU()), ("chrf++", sacrebleu.CHRF(word_order=2))):
        expected = score.corpus_score([systems["other"][4], systems["other"][5]], [chosen]).score
        assert groups[-1][metric] == {"same": 100.0, "other": pytest.approx(expected, abs=0.0051)}


def test_the_largest_differences_are_listed_with_their_lines():
    references = ["Two dogs play.", "A man sleeps.", "It rains.", "Nobody knows."]
    first = ["Two dogs play.", "man", "It rains.", "x"]
    second = ["Two dog plays.", "A man sleeps.", "It rains.", "Nobody"]
    found = compare({"1": first, "2": second}, references, sources=list("abcd"), listed=1)
    (better,), (worse,) = found["differences"]["2"]["better"], found["differences"]["2"]["worse"]
    gain = 100 - sacrebleu.sentence_chrf("man", [references[1]], word_order=2).score
    assert better == {
        "line": 2,
        "chrf++": pytest.approx(gain, abs=0.0051),
        "source": "b",
        "reference": references[1],
        "1": "man",
        "2": "A man sleeps.",
    }
    assert (worse["line"], worse["2"]) == (1, "Two dog plays.") and worse["chrf++"] < 0


def test_a_model_is_compared_with_a_file_of_translations(files, capsys, monkeypatch):
    known = dict(zip((source for source, _ in PAIRS), B, strict=True))

    class Model(Engine):
        def translate(self, texts, **options):
            assert options == {"beam_size": 3}
            return [Translation(known[text], 0.0) for text in texts]

    monkeypatch.setattr(Translator, "load", lambda path: Translator(Model()))
    pair = ["--source", "en", "--reference", "de"]
    _, expected = evaluate(capsys, "--compare", "A", "B", *pair)
    code, found = evaluate(capsys, "--compare", "A", "run", *pair, "--beam-size", "3")
    assert code == 0
    assert found["systems"]["run"] == expected["systems"]["B"]
    assert found["differences"]["run"]["worse"][0]["source"] in known


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["A"], "A comparison needs two or more different paths. Received: ['A']."),
        (["A", "A"], "A comparison needs two or more different paths"),
        (["A", "run"], "A comparison of models needs a `source`"),
        (["A", "none.txt", "--source", "en"], "none.txt: no such run or export folder."),
        (["A", "short"], "Received: short with 1 lines, 32 references."),
        (["A", "B", "--save", "out"], "--save does not go with --compare."),
    ],
)
def test_what_cannot_be_compared_is_one_line(files, capsys, arguments, says):
    (files / "short").write_text("one\n")
    code, said = evaluate(capsys, "--reference", "de", "--compare", *arguments)
    assert code == 2 and says in said and len(said.splitlines()) == 1
