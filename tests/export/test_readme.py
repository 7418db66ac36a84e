import contextlib
import io
import re

import pytest
import sentencepiece
from decoding_oracles import FullPass
from naive_search import WITHOUT_UNKNOWN, naive_greedy, penalty

from keras_transformer import Tokenizer
from keras_transformer.export.litert.export import LiteRTExporter
from keras_transformer.export.saved_model.export import SIGNATURES, SavedModelExporter

pytestmark = pytest.mark.tensorflow


def test_every_signature_has_a_row_and_ids_are_explained_where_they_are(report):
    text = SavedModelExporter().readme(report.manifest)
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| (.+?) \|$", text, re.M)
    assert [name for name, *_ in rows] == list(SIGNATURES)
    assert len({meaning for *_, meaning in rows}) == len(SIGNATURES)
    assert "`ids/` is the signature `serving_ids`" in text
    found = dict(report.manifest["signatures"])
    del found["serving_ids"]
    without = SavedModelExporter().readme({**report.manifest, "signatures": found})
    assert "serving_ids" not in without and "`ids/`" not in without


def test_a_litert_readme_says_what_the_manifest_says(litert_report):
    manifest = {**litert_report.manifest, "n_best": 2}
    text = LiteRTExporter().readme(manifest)
    for words in (
        f"`model.tflite` has {manifest['files']['model.tflite']['bytes']:,} bytes",
        "| beam size, hypotheses returned | 3, 2 |",
        "L is one of 7, 13:",
        "Searches in this file: `greedy` and `beam`.",
    ):
        assert words in text
    alone = LiteRTExporter().readme({**manifest, "searches": ["greedy"]})
    assert "Searches in this file: `greedy`.\n" in alone


def test_a_readme_says_how_unknown_words_become_one_token(litert_report):
    sentences = ["two dogs sit", "a man sits in the park"] * 9
    tokenizer = Tokenizer.train_from_texts(sentences, 14, whole_words=True)
    source = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model_bytes)
    assert "whole words" not in LiteRTExporter().readme(litert_report.manifest)
    text = LiteRTExporter().readme({**litert_report.manifest, "whole_words": True})
    program = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[-1]
    for text in ("a gnu gnus sits dogsled", "two dogs"):
        values = {"source": source, "ids": source.encode(text)}
        exec(compile(program, "README.md", "exec"), values)
        assert values["ids"] == tokenizer.tokenize(text)
        unknown = [f"▁{word}" not in source.id_to_piece(list(range(14))) for word in text.split()]
        assert [piece == "<unk>" for piece in values["pieces"]] == unknown


def program_of(text):
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return program


def test_a_litert_readmes_program_translates_where_it_lies(litert_report, engine, monkeypatch):
    text = (litert_report.folder / "README.md").read_text(encoding="utf-8")
    assert text == LiteRTExporter().readme(litert_report.manifest)
    monkeypatch.chdir(litert_report.folder)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program_of(text), "README.md", "exec"), {})
    ids = engine.source_tokenizer.tokenize(["A text."], add_eos=True)
    ((found,),) = naive_greedy(FullPass(engine.model, ids, 18), [17], WITHOUT_UNKNOWN)
    (translation,) = engine.target_tokenizer.detokenize([[i for i in found.ids if i > 2]])
    *words, score = printed.getvalue().split()
    assert words == translation.split() and len(words) > 0
    assert float(score) == pytest.approx(found.score / penalty(len(found.ids), 0.8), rel=1e-4)
