"""Figures of `quality`, `texts` and `artifacts`, of translators whose answers are known."""

import json
import pathlib

import pytest

from benchmarks import artifacts, quality, texts
from keras_transformer import Translation, Translator
from keras_transformer.decoding.search_options import DecodingOptions
from keras_transformer.engine.steps.glossary import Glossary
from keras_transformer.engine.steps.sentences import SentencesStep
from keras_transformer.text.sentences import TextRules


@pytest.fixture
def call(monkeypatch, tmp_path, capsys):
    """`call(program, translators, sources, references, *words)`: a command's figures and table."""

    def call(program, translators, sources, references, *words):
        load = lambda path, **options: translators[path]  # noqa: E731
        monkeypatch.setattr(Translator, "load", load)
        for name, lines in (("source", sources), ("reference", references)):
            (tmp_path / name).write_text("".join(line + "\n" for line in lines), "utf-8")
            words += (f"--{name}", tmp_path / name) if lines else ()
        program.main([*map(str, words)])
        captured = capsys.readouterr()
        return json.loads(captured.out), captured.err

    return call


def translator(answer):
    """A translator with `answer(text, **options)`."""

    class Fake:
        max_target_length = 99

        def __init__(self):
            self.calls, self.engine = [], self

        def translate(self, texts, **options):
            self.calls.append(([*texts], options))
            translations = (answer(text, **options) for text in texts)
            return [
                Translation(one, -1.0, ids=tuple(range(7))) if isinstance(one, str) else one
                for one in translations
            ]

    return Fake()


REFERENCES = ["zwei Hunde spielen im Schnee .", "ein Mann fährt auf einem Fahrrad ."]


def test_every_beam_size_has_every_penalty_and_greedy_search_one(call, tmp_path):
    pytest.importorskip("matplotlib", reason="comes with the extra [plots]")

    def answer(text, beam_size, length_penalty):
        if beam_size == 1:
            return REFERENCES["ab".index(text)].rpartition(" ")[0]
        return " ".join([REFERENCES["ab".index(text)]] * max(1, int(length_penalty)))

    command = ["beam", "--model", "run", "--beam-sizes", 1, 3, "--penalties", 0, 2]
    command += ["--plot", tmp_path / "sweep.png"]
    rows, table = call(quality, {"run": translator(answer)}, "ab", REFERENCES, *command)
    searches = [(row["beam_size"], row["length_penalty"]) for row in rows]
    assert searches == [(1, 0.0), (3, 0.0), (3, 2.0)]
    # 6 and 7 words; one less in both is 11 of 13.
    assert [row["length_ratio"] for row in rows] == [0.846, 1.0, 2.0]
    assert rows[0]["bleu"] < 100 == rows[1]["bleu"] and "| 2.0 | 14 |" in table
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")


SOURCES = ["a b", "a b c", "a b c d", "a b c d e f g"]
TARGETS = ["eins zwei drei vier fünf", "sechs sieben acht neun", "x y z u v", "p q r s t"]


def test_a_group_of_lengths_has_its_own_bleu_and_an_export_no_training(call, tmp_path, clock):
    def up_to(words):
        """References of longer sources come backwards."""

        def answer(text):
            target = TARGETS[SOURCES.index(text)]
            return target if len(text.split()) <= words else " ".join(target.split()[::-1])

        return translator(answer)

    clock(quality)  # A round takes a second.
    (tmp_path / "export.json").write_text("{}")
    models = {str(tmp_path): up_to(9), f"{tmp_path}/.": up_to(3)}
    names = [f"good={tmp_path}", f"short={tmp_path}/."]
    command = ["compare", *names, "--edges", 3, "--rounds", 1]
    rows, table = call(quality, models, SOURCES, TARGETS, *command)
    assert rows["good"]["by_length"] == {"≤ 3": 100, "> 3": 100}
    assert rows["short"]["by_length"]["≤ 3"] == 100 > 40 > rows["short"]["by_length"]["> 3"]
    assert rows["good"]["bleu"] == 100
    assert rows["good"]["words/s"] == sum(len(target.split()) for target in TARGETS)
    assert "| good | – | – | – | – |" in table


def test_curves_of_two_runs_and_their_best_epochs(call, tmp_path):
    for name, rows in (
        ("a", "epoch,val_loss,val_bleu\n1,3.0,7.0\n2,2.5,9.0\n3,2.7,8.0\n"),
        ("b", "epoch,val_loss\n1,2.0\n2,1.5\n"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "history.csv").write_text(rows)
    figures, _ = call(quality, {}, "", "", "curves", tmp_path / "a", tmp_path / "b")
    assert figures == {
        "a": {"epochs": 3, "best": 2, "val_loss": 2.5, "val_bleu": 9.0},
        "b": {"epochs": 2, "best": 2, "val_loss": 1.5},
    }


def test_each_kind_of_noise_is_scored_against_what_it_makes_of_the_reference(call):
    lines = ["Two dogs, both of them small, play there.", "A man sleeps behind the green house."]
    models = {name: translator(lambda text, max_length: text) for name in ("one", "other")}
    scores, _ = call(quality, models, lines, lines, "noise", *models)
    # A copy is right, but for typos, which the reference is without.
    typos = scores.pop("typos")
    assert typos["one"] == typos["other"] < 80
    names = ["as it is", "in capitals", "Title Case", "no punctuation"]
    assert scores == dict.fromkeys(names, {"one": 100, "other": 100})
    assert models["one"].calls == models["other"].calls
    # Twice the longest translation of the text as it is, and ten more.
    limits = [options["max_length"] for _, options in models["one"].calls]
    assert limits == [None, 24, 24, 24, 24]


@pytest.mark.parametrize("by", ["constraints", "annotations"])
def test_terms_of_a_glossary_are_constraints_or_annotations(by):
    class Writes:
        """Says one word, and the phrases or the annotated term of the text after it."""

        def translate(self, texts, beam_size, phrases=None):
            shown = [[text.partition("<term_as> ")[2].partition("<")[0]] for text in texts]
            answers = [" ".join(["Hunde", *terms]) for terms in phrases or shown]
            return [Translation(answer, -1.0) for answer in answers]

    terms = Glossary([("dog", "Köter"), ("cat", "Katze")])
    lines = ["a dog", "a cat"], ["ein Hund", "zwei Katzen"]
    with pytest.warns(UserWarning, match="BLEU says nothing about texts of fewer than four"):
        _, row, *_ = quality.glossary_rows(Writes(), *lines, 2, terms, by)
    assert list(row.values())[1:4] == [0.0, 1.0, 1.0]


LINES = [f"{number} dogs play outside." for number in ("One", "Two", "Three", "Four", "Five")]
LINES[1] = "Two dogs play outside"


def shout(text, split_sentences, keep_case=False, copy_symbols=True, **options):
    """Changes the second letter of each sentence, and copies capitals."""
    step, parts = SentencesStep(TextRules(split_sentences, copy_symbols, keep_case)), []
    for sentence, memory in step.before(text):
        said = sentence if sentence.isupper() else f"{sentence[:1]}X{sentence[2:]}"
        parts.append(step.after(Translation(said, -1.0), memory, sentence))
    return Translation.joined(parts, separator="")


def test_paragraphs_are_compared_with_the_translations_of_their_lines(call):
    rows, _ = call(texts, {"run": translator(shout)}, LINES, [], "paragraphs", "--model", "run")
    ways = ["lines, joined", "sentence by sentence", "one segment"]
    assert [row["texts"] for row in rows] == ways
    # The second has no mark, so it and the line after it are one sentence.
    assert [row["equal lines"] for row in rows] == ["", "60.0%", "0.0%"]
    assert float(rows[0]["BLEU"]) == 100 > float(rows[1]["BLEU"])


def test_capitals_are_compared_with_the_lines_as_they_are(call):
    model = translator(shout)
    (off, on), _ = call(texts, {"run": model}, LINES, [], "capitals", "--model", "run")
    assert (off["keep_case"], on["keep_case"], on["chrF"]) == ("false", "true", "100.00")
    assert float(off["chrF"]) < 100
    assert model.calls[-1][0] == [line.upper() for line in LINES]


def test_lines_a_text_of_them_and_a_page_take_turns(call, monkeypatch, short_turns):
    pages, model = [], translator(shout)
    monkeypatch.setattr(texts, "Bergamot", lambda *_, **options: pages.append)
    command = "speed --model run --rounds 1 --page-kilobytes 1 --bergamot python3 --student student"
    rows, _ = call(texts, {"run": model}, LINES, [], *command.split())
    assert rows[0]["in the time of the lines"] == 1.0 and len(rows) == 5
    (lines, _), _, (joined, _), (page, options) = model.calls[:4]
    assert lines == [LINES[0], f"{LINES[1]}.", *LINES[2:]] and joined == [" ".join(lines)]
    assert len(page) == 1 and 1_000 <= len(page[0].encode()) < 1_200
    assert options.pop("markup") == "html"
    assert "<p>One dogs play outside. <b>Two</b> dogs play outside. Three" in page[0]
    assert {text for (text,) in pages} == {*page}


def test_terms_are_counted_and_the_rest_is_compared_with_translations_without_them(call):
    terms = Glossary([("dog", "cachorro"), ("cat", "gato")])

    def answer(line, beam_size, glossary=None):
        (term,) = (match.translation for match in terms.matches(line))
        beam_size = DecodingOptions(beam_size=beam_size).with_phrases(1).beam_size
        forced = f"{term} {line}" if beam_size == 1 else line.replace("dog", term)
        return line if glossary is None else forced

    lines = [f"The dog plays number {number}." for number in range(9)] + ["A dog, a cat.", "None."]
    rows, _ = call(texts, {"run": translator(answer)}, lines, [], "terms", "--model", "run")
    assert [row["with the term"] for row in rows] == [0, 4, 4, 4, 4, 4]  # at most 4 with a term
    assert [row["begin with it"] for row in rows] == [0, 4, 0, 0, 0, 0]
    assert float(rows[0]["chrF"]) == 100 > float(rows[2]["chrF"])


def test_an_export_is_made_once_and_a_start_is_a_median_of_processes(call, tmp_path, monkeypatch):
    exports, seconds = [], iter([9.0, 1.0, 3.0, 2.0] * 2)

    def export(*words, module="keras_transformer"):
        if words[0] == "export":
            exports.append(folder := pathlib.Path(words[words.index("--output") + 1]))
            folder.mkdir(parents=True)
            (folder / "model.tflite").write_bytes(bytes(300_000))
            (folder / "tokenizer.json").write_bytes(bytes(10**6))  # for the browser

    def in_new_process(path, texts, beam_size):
        assert beam_size == 2 and texts == REFERENCES[: len(texts)]
        stages = dict.fromkeys(("process", "load", "first", "second"), next(seconds))
        return {**stages, "one by one": 1234.4, "text": 5678.6, "peak": 99.7, "texts": REFERENCES}

    monkeypatch.setattr(artifacts, "call", export)
    monkeypatch.setattr(artifacts, "in_new_process", in_new_process)
    command = ["--model", "run", "--work", tmp_path / "work", "--beam-size", 2]
    command += ["--formats", "LiteRT int8"]
    for is_new in (True, False):
        (row,), table = call(artifacts, {}, REFERENCES, REFERENCES, *command)
        assert (row["export s"] is not None) is is_new and len(exports) == 1
        assert row["MB"] == 0.3 and row["BLEU"] == 100
        assert "| 1234 | 5679 | 100 | 2.0 | 2.0 | 2.0 | 2.0 |" in table
