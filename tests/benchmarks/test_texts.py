"""The figures of `benchmarks.texts`, of translators whose answers are known."""

import json

import pytest

from benchmarks import texts
from keras_transformer import Translation, Translator
from keras_transformer.decoding.search_options import DecodingOptions
from keras_transformer.steps.glossary import Glossary
from keras_transformer.steps.sentences import SentencesStep
from keras_transformer.text.sentences import TextRules

LINES = [f"{number} dogs play outside." for number in ("One", "Two", "Three", "Four", "Five")]
LINES[1] = "Two dogs play outside"


class Shouts:
    """Writes upper case after the first letter of a sentence, and copies capitals."""

    def __init__(self):
        self.calls = []

    def translate(self, texts, split_sentences, keep_case=False, copy_symbols=True, **options):
        self.calls.append((list(texts), split_sentences, keep_case, options))
        step = SentencesStep(TextRules(split_sentences, copy_symbols, keep_case))
        return [self.translation(step, text) for text in texts]

    @staticmethod
    def translation(step, text):
        parts = []
        for sentence, memory in step.before(text):
            said = sentence if sentence.isupper() else f"{sentence[:1]}X{sentence[2:]}"
            parts.append(step.after(Translation(said, -1.0), memory, sentence))
        return Translation.joined(parts, separator="")


@pytest.fixture
def call(monkeypatch, tmp_path, capsys):
    translator = Shouts()
    monkeypatch.setattr(Translator, "load", lambda path, threads=None: translator)
    (tmp_path / "source").write_text("".join(line + "\n" for line in LINES), "utf-8")

    def call(*words):
        texts.main([*words, "--model", "run", "--source", str(tmp_path / "source")])
        return json.loads(capsys.readouterr().out), translator.calls

    return call


def test_paragraphs_are_compared_with_the_translations_of_their_lines(call):
    rows, _ = call("paragraphs")
    assert [row["texts"] for row in rows] == [
        "lines, joined",
        "sentence by sentence",
        "one segment",
    ]
    # The second has no mark, so it and the line after it are one sentence.
    assert [row["equal lines"] for row in rows] == ["", "60.0%", "0.0%"]
    assert float(rows[0]["BLEU"]) == 100 > float(rows[1]["BLEU"])


def test_capitals_are_compared_with_the_lines_as_they_are(call):
    (off, on), calls = call("capitals")
    assert (off["keep_case"], on["keep_case"], on["chrF"]) == ("false", "true", "100.00")
    assert float(off["chrF"]) < 100
    assert calls[-1][0] == [line.upper() for line in LINES]


def test_lines_a_text_of_them_and_a_page_take_turns(call, monkeypatch):
    pages = []

    def make(python, student, with_shortlist, words, html):
        assert (python, str(student), with_shortlist, html) == ("python3", "student", True, True)
        return pages.append

    monkeypatch.setattr(texts, "Bergamot", make)
    beside = ["--bergamot", "python3", "--student", "student"]
    rows, calls = call("speed", "--rounds", "1", "--page-kilobytes", "1", *beside)
    assert rows[0]["in the time of the lines"] == 1.0 and len(rows) == 5
    lines, _, joined, page = (sources for sources, *_ in calls[:4])
    assert lines == [LINES[0], f"{LINES[1]}.", *LINES[2:]] and joined == [" ".join(lines)]
    assert len(page) == 1 and 1_000 <= len(page[0].encode()) < 1_200
    assert (
        calls[3][3] == {"markup": "html"}
        and "<p>One dogs play outside. <b>Two</b> dogs play outside. Three" in page[0]
    )
    assert {text for (text,) in pages} == {*page}


def test_terms_are_counted_and_the_rest_is_compared_with_translations_without_them(
    monkeypatch, tmp_path, capsys
):
    terms = Glossary([("dog", "cachorro"), ("cat", "gato")])

    class Forces:
        def translate(self, lines, beam_size, glossary=None):
            rows = [(line, [match.translation for match in terms.matches(line)]) for line in lines]
            size = DecodingOptions(beam_size=beam_size).with_phrases(1).beam_size
            return [
                Translation(line if glossary is None else self.forced(line, term, size), 0.0)
                for line, (term,) in rows
            ]

        @staticmethod
        def forced(line, term, beam_size):
            return f"{term} {line}" if beam_size == 1 else line.replace("dog", term)

    monkeypatch.setattr(Translator, "load", lambda path: Forces())
    lines = [f"The dog plays number {number}." for number in range(9)] + ["A dog, a cat.", "None."]
    (tmp_path / "source").write_text("".join(line + "\n" for line in lines), "utf-8")
    texts.main(["terms", "--model", "run", "--source", str(tmp_path / "source")])
    rows = json.loads(capsys.readouterr().out)
    assert [row["with the term"] for row in rows] == [0, 4, 4, 4, 4, 4]  # at most 4 with a term
    assert [row["begin with it"] for row in rows] == [0, 4, 0, 0, 0, 0]
    assert float(rows[0]["chrF"]) == 100 > float(rows[2]["chrF"])
