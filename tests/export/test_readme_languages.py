"""READMEs of exports of several languages: their programs translate as printed."""

import contextlib
import io
import itertools
import re

import pytest
from device_plans import ONE_GRAPH

from keras_transformer import Tokenizer
from keras_transformer.engine import ModelEngine
from keras_transformer.export import exporter_of
from keras_transformer.export.readme_languages import language_section
from keras_transformer.text.languages import Languages

pytestmark = pytest.mark.tensorflow

TAG, SMALL100 = {"source_prefix": "target", "is_optional": True}, {"source_prefix": "target"}
M2M = {"source_prefix": "source", "target_prefix": "target"}
SEED = 7  # its texts in two languages differ


@pytest.fixture
def trained(make_engine, texts):
    """`trained(places)`: an engine of three languages, whose first direction is de-en."""

    def trained(places):
        tokens = {code: f">>{code}<<" for code in ("de", "en", "fr")}
        # As many ids as the model has.
        symbols = {"languages": tokens.values()}
        tokenizer = Tokenizer.train_from_texts(texts, vocabulary_size=53, **symbols)
        limits = {"max_source_length": 13, "max_target_length": 17}
        languages = Languages(tokens, **places)
        model = make_engine(seed=SEED, normalize_first=True).model
        return ModelEngine(model, tokenizer, **limits, **ONE_GRAPH, languages=languages)

    return trained


def printed_by(program):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, "README.md", "exec"), {})
    return printed.getvalue().strip()


def program_of(folder):
    readme = (folder / "README.md").read_text("utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    return program


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("places", [TAG, M2M, SMALL100])
def test_the_program_of_ctranslate2_writes_the_language_of_its_example(
    trained, tmp_path, monkeypatch, unverified, places
):
    pytest.importorskip("ctranslate2", reason="comes with the extra [ctranslate2]")
    engine = trained(places)
    exporter_of("ctranslate2").export(engine, tmp_path / "export", beam_size=1)
    monkeypatch.chdir(tmp_path / "export")
    # It takes several texts.
    program = re.sub(r'encode\(\[(".*?")\]', r"encode([\1, \1]", program_of(tmp_path / "export"))
    named = {"source_language": "de", "target_language": "en"}
    (expected,) = engine.translate(["A text."], beam_size=1, **named)
    assert printed_by(program) == str([expected.text] * 2)
    sources = {"source_language": ["en", "de"]} if "source" in places.values() else {}
    named = {"target_language": ["de", "fr"], **sources}
    others = engine.translate(["A text."] * 2, beam_size=1, **named)
    assert expected.text not in {other.text for other in others}


@pytest.mark.slow
def test_the_program_of_litert_writes_the_language_of_its_example(
    engine_of_languages, folder_of_languages, monkeypatch
):
    monkeypatch.chdir(folder_of_languages("litert"))
    named = {"source_language": "de", "target_language": "en"}
    (expected,) = engine_of_languages("litert").translate(["A text."], beam_size=1, **named)
    text, _, _ = printed_by(program_of(folder_of_languages("litert"))).rpartition(" ")
    assert text == expected.text.strip()


def test_a_readme_has_the_tokens_and_directions_of_the_model(trained, tmp_path, unverified):
    pytest.importorskip("ctranslate2", reason="comes with the extra [ctranslate2]")
    exporter_of("ctranslate2").export(trained(M2M), tmp_path / "export")
    readme = (tmp_path / "export" / "README.md").read_text("utf-8")
    assert "begins with the token of its own language. A translation is forced to begin" in readme
    assert "Directions: de-en, de-fr, en-de, en-fr, fr-de, fr-en." in readme
    assert "| language | code | token |\n|---|---|---|\n| German | `de` | `>>de<<` |\n" in readme
    assert "pip install ctranslate2 sentencepiece" in readme and "beam_size=4," in readme
    assert "The weights are float32." in readme and "disable_unk=True" in readme
    assert re.search(r"Made with keras_transformer \S+, ctranslate2 \S+; opens with", readme)


@pytest.mark.parametrize(("codes", "num_listed"), [("abcd", 12), ("abcde", 11)])
def test_a_readme_lists_at_most_twelve_directions_or_counts_the_rest(codes, num_listed):
    directions = [f"{source}-{target}" for source, target in itertools.permutations(codes, 2)]
    languages = Languages({code: f">>{code}<<" for code in codes}, **M2M)
    section = language_section({"language_tokens": languages.to_dict()})
    listed = re.search(r"Directions: (.*)\.\n", section)[1].split(", ")
    num_others = len(directions) - num_listed
    others = [f"{num_others} more"] if num_others else []
    assert listed == [*directions[:num_listed], *others]


def test_a_readme_of_one_direction_has_no_tokens(engine, tmp_path, unverified):
    pytest.importorskip("ctranslate2", reason="comes with the extra [ctranslate2]")
    for languages in (None, "en-de"):
        exporter_of("ctranslate2").export(
            engine, tmp_path / "export", overwrite=True, languages=languages
        )
        readme = (tmp_path / "export" / "README.md").read_text("utf-8")
        assert "## Languages" not in readme and 'source.encode(["A text."]' in readme
