"""The programs that a LiteRT export's README shows."""

import contextlib
import io
import re

import pytest
import sentencepiece
from decoding_oracles import FullPass
from naive_search import WITHOUT_UNKNOWN, naive_greedy, penalty

from keras_transformer import Tokenizer
from keras_transformer.export.litert.export import LiteRTExporter

pytestmark = pytest.mark.tensorflow


def programs_of(text):
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return [compile(block, "README.md", "exec") for block in blocks]


def test_it_says_how_unknown_words_become_one_token(litert_report):
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


def test_its_program_translates_where_it_lies(litert_report, engine, monkeypatch):
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
