import contextlib
import io
import re

import pytest
from decoding_oracles import FullPass
from naive_search import naive_greedy, penalty

from keras_transformer.export.litert_readme import readme

pytestmark = pytest.mark.tensorflow

MANIFEST = {
    "quantize": "int8",
    "searches": ["greedy", "beam"],
    "beam_size": 5,
    "n_best": 3,
    "length_penalty": 0.7,
    "source_lengths": [11, 23],
    "max_source_length": 23,
    "max_target_length": 37,
    "source_tokenizer": "source_tokenizer.model",
    "target_tokenizer": "target_tokenizer.model",
    "files": {
        "model_ids.tflite": {"bytes": 1234567, "custom_operations": []},
        "model.tflite": {"bytes": 89, "custom_operations": ["TFText>One", "TFText>Other"]},
    },
    "versions": {"keras_transformer": "1.2.3", "ai-edge-litert": "4.5.6"},
}


def program_of(text):
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return program


@pytest.mark.parametrize(
    "line",
    [
        "| `model_ids.tflite` | 1,234,567 | none |",
        "| `model.tflite` | 89 | TFText>One, TFText>Other |",
        "| weights | int8 |",
        "| beam size, hypotheses returned | 5, 3 |",
        "| length penalty | 0.7 |",
        "| most tokens of a source | 23, its end included; a longer text is cut there |",
        "| most tokens of a translation | 37 |",
        "-inf. L is one of 11, 23: take the smallest that the longest source fits in.",
        "Searches in these files: `greedy` and `beam`.",
    ],
)
def test_it_says_what_the_manifest_says(line):
    assert line in readme(MANIFEST).splitlines()


def test_it_says_what_the_files_were_made_with():
    assert "Made with keras_transformer 1.2.3, ai-edge-litert 4.5.6." in readme(MANIFEST)


def test_every_signature_has_a_row():
    names = re.findall(r"^\| `(\w+)` \((\w+)\) \|", readme(MANIFEST), re.MULTILINE)
    assert names == [("greedy_L", "ids"), ("beam_L", "ids"), ("greedy", "text"), ("beam", "text")]


def test_without_a_beam_it_names_one_search():
    text = readme({**MANIFEST, "searches": ["greedy"]})
    assert "Searches in these files: `greedy`." in text.splitlines()


def test_its_program_is_python_with_these_files_names():
    program = program_of(readme(MANIFEST))
    compile(program, "README.md", "exec")
    for name in ("source_tokenizer.model", "target_tokenizer.model", "model_ids.tflite"):
        assert f'"{name}"' in program
    assert '"greedy_23"' in program and "np.zeros((1, 23)" in program


def test_its_program_translates_where_it_lies(litert_report, engine, monkeypatch):
    text = (litert_report.folder / "README.md").read_text(encoding="utf-8")
    assert text == readme(litert_report.manifest)
    monkeypatch.chdir(litert_report.folder)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program_of(text), "README.md", "exec"), {})
    ids = engine.source_tokenizer.tokenize(["A text."], add_eos=True)
    ((found,),) = naive_greedy(FullPass(engine.model, ids, 18), [17])
    (translation,) = engine.target_tokenizer.detokenize([[i for i in found.ids if i > 2]])
    *words, score = printed.getvalue().split()
    assert words == translation.split() and len(words) > 0
    assert float(score) == pytest.approx(found.score / penalty(len(found.ids), 0.8), rel=1e-4)
