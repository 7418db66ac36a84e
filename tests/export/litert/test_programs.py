import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import sentencepiece
from decoding_oracles import FullPass
from naive_search import WITHOUT_UNKNOWN, naive_greedy, penalty

from benchmarks import artifacts
from keras_transformer import Tokenizer, Translator
from keras_transformer.base.errors import InputError
from keras_transformer.export import export_litert
from keras_transformer.export.litert.export import LiteRTExporter

pytestmark = pytest.mark.tensorflow

EXPORT = Path(__file__).parents[3] / "export"
LINES = ["a man", "", "two\rdogs", "a girl runs"]

# Nothing but LiteRT and SentencePiece may be there.
ALONE = """
import runpy, sys
for name in ("tensorflow", "keras", "keras_transformer", "tensorflow_text"):
    sys.modules[name] = None
"""
# As of a vocabulary that spells unknown characters as bytes.
WITH_LINE_BREAKS = """
import sentencepiece
decode = sentencepiece.SentencePieceProcessor.decode
sentencepiece.SentencePieceProcessor.decode = lambda *ids: "\\n".join(["one", decode(*ids)])
"""
RUN = """
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


PROGRAM = EXPORT / "litert" / "translate.py"


def translated(folder, stdin, *options, script=ALONE + RUN):
    command = [sys.executable, "-P", "-c", script, PROGRAM, folder, "--batch-size", "2", *options]
    options = {"env": {**os.environ, "PYTHONUTF8": "1"}, "capture_output": True, "check": True}
    done = subprocess.run([*map(str, command)], input=stdin.encode(), **options)
    return done.stdout.decode("utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(("search", "beam_size"), [("greedy", 1), ("beam", 3)])
def test_the_example_translates_without_this_package(litert_report, engine, search, beam_size):
    # A lone "\r" ends no line, "\r\n" ends one.
    stdin = "\ufeff" + "".join(line + "\n" for line in LINES).replace("\n", "\r\n", 1)
    output = translated(litert_report.folder, stdin, "--search", search)
    live = engine.translate(LINES, beam_size, 0.8)
    assert output == "".join(translation.text + "\n" for translation in live)
    with pytest.raises(subprocess.CalledProcessError) as caught:
        translated(litert_report.folder, stdin, "--batch-size", "0")
    assert b"must be a positive integer. Received: 0." in caught.value.stderr
    with pytest.raises(subprocess.CalledProcessError) as caught:
        translated(EXPORT, stdin)
    assert caught.value.stderr.decode() == f"{EXPORT}: not a LiteRT export: no model.tflite.\n"


@pytest.mark.slow
def test_a_line_break_in_a_translation_shifts_nothing(litert_report, engine):
    script = ALONE + WITH_LINE_BREAKS + RUN
    output = translated(litert_report.folder, "\n".join(LINES), script=script)
    live = engine.translate(LINES, 1, 0.8)
    texts = [" ".join(["one", *t.text.splitlines()]) if t.text else "" for t in live]
    assert output.splitlines() == texts


def test_the_table_measures_the_translations_of_the_artifact(litert_report, engine):
    lines = ["a man", "two dogs", "a girl runs"] * 2
    figures = artifacts.in_new_process(litert_report.folder, lines, beam_size=3)
    live = engine.translate(lines, 3, 0.8)
    assert figures["texts"] == [translation.text for translation in live]
    stages = [figures[stage] for stage in ("load", "first", "second")]
    assert min(stages) > 0 and sum(stages) < figures["process"]
    tokens = sum(len(translation.ids) for translation in live)
    for way in ("one by one", "text"):
        # A round takes less than the whole process; as other programs may have had the cores, less
        # than ten times as long. There are 17 times as many tokens as texts.
        assert figures[way] > tokens / figures["process"] / 10
    assert 10 < figures["peak"] < 4000


def programs_of(text):
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return [compile(block, "README.md", "exec") for block in blocks]


def test_the_readme_says_how_unknown_words_become_one_token(litert_report):
    sentences = ["two dogs sit", "a man sits in the park"] * 9
    tokenizer = Tokenizer.train_from_texts(sentences, 14, whole_words=True)
    source = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model_bytes)
    text = LiteRTExporter().readme({**litert_report.manifest, "whole_words": True})
    *_, program = programs_of(text)
    for text in ("a gnu gnus sits dogsled", "two dogs"):
        values = {"source": source, "ids": source.encode(text)}
        exec(program, values)
        assert values["ids"] == tokenizer.tokenize(text)
        unknown = [f"▁{word}" not in source.id_to_piece(list(range(14))) for word in text.split()]
        assert [piece == "<unk>" for piece in values["pieces"]] == unknown


def test_the_program_of_the_readme_translates_where_it_lies(litert_report, engine, monkeypatch):
    (program,) = programs_of((litert_report.folder / "README.md").read_text(encoding="utf-8"))
    monkeypatch.chdir(litert_report.folder)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(program, {})
    ids = engine.source_tokenizer.tokenize(["A text."], add_eos=True)
    ((expected,),) = naive_greedy(FullPass(engine.model, ids, 18), [17], WITHOUT_UNKNOWN)
    (translation,) = engine.target_tokenizer.detokenize([[i for i in expected.ids if i > 2]])
    *words, score = printed.getvalue().split()
    assert words == translation.split() and len(words) > 0
    assert float(score) == pytest.approx(expected.score / penalty(len(expected.ids), 0.8), rel=1e-4)


@pytest.mark.slow
def test_programs_search_among_the_candidates_of_an_export(
    folder_of_lists, listed_engine, engine, monkeypatch
):
    lines = ["a man", "two dogs", "a girl runs", "the old clerk"]
    expected = [row.text for row in listed_engine.translate(lines, 1, shortlist=True)]
    assert expected != [row.text for row in engine.translate(lines, 1)]
    folder = folder_of_lists("litert")
    output = translated(folder, "".join(line + "\n" for line in lines))
    assert output.splitlines() == expected
    translator = Translator.load(folder)
    assert [row.text for row in translator.translate(lines)] == expected
    with pytest.raises(InputError, match="`shortlist` is fixed at True"):
        translator.translate(lines, shortlist=False)
    (program,) = programs_of((folder / "README.md").read_text(encoding="utf-8"))
    monkeypatch.chdir(folder)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(program, {})
    (translation,) = listed_engine.translate(["A text."], 1, shortlist=True)
    *words, score = printed.getvalue().split()
    assert words == translation.text.split()
    assert float(score) == pytest.approx(translation.score, rel=1e-4)


def test_a_list_is_exported_only_if_there_is_one(engine, tmp_path):
    with pytest.raises(InputError, match="`shortlist` needs a run with a shortlist"):
        export_litert(engine, tmp_path / "new", shortlist=True)
