"""Packages for Argos Translate: their files, their search, and models that have no package."""

import dataclasses
import json
import zipfile

import numpy as np
import pytest
from device_plans import ONE_GRAPH

from keras_transformer import Tokenizer
from keras_transformer.base.errors import InputError
from keras_transformer.engine import ModelEngine
from keras_transformer.export import _lacking_options, exporter_of
from keras_transformer.extras.argos.export_options import ArgosOptions
from keras_transformer.extras.argos.reader import SEARCH
from keras_transformer.extras.importing.importing import import_model
from keras_transformer.formats import FORMATS
from keras_transformer.runs.sections import DecodingSection

pytestmark = pytest.mark.tensorflow

SEARCH_OF_RUN = {name: value for name, value in SEARCH.items() if name != "beam_size"}
ROOT = "translate-en-GB_de-1_10"


def test_a_package_has_the_files_that_argos_reads(argos_report, tokenizer):
    with zipfile.ZipFile(argos_report.folder / f"{ROOT}.argosmodel") as package:
        contents = {
            name.removeprefix(f"{ROOT}/"): package.read(name) for name in package.namelist()
        }
    model = {f"model/{name}" for name in ("config.json", "model.bin", "shared_vocabulary.json")}
    splitter = {"stanza/resources.json", "stanza/de/model.pt"}
    assert (
        contents.keys() == {"metadata.json", "README.md", "sentencepiece.model"} | model | splitter
    )
    assert contents["sentencepiece.model"] == tokenizer.model_bytes
    metadata = {"package_version": "1.10", "argos_version": "1.10", "from_code": "en-GB"}
    metadata |= {"from_name": "British English", "to_code": "de", "to_name": "German"}
    assert json.loads(contents["metadata.json"]) == metadata
    assert contents["README.md"].decode().startswith("# British English - German\n")
    assert argos_report.manifest["languages"] == ("en-GB", "de")
    assert argos_report.manifest["sentence_splitter"] == "stanza"
    command = f"Next: keras-transformer import {argos_report.folder}/{ROOT}.argosmodel --output RUN"
    assert command in argos_report.summary()


def test_an_import_of_a_package_has_the_models_weights_and_texts(
    argos_report, engine_of_one_vocabulary, texts
):
    engine = engine_of_one_vocabulary
    model, source, target, decoding = import_model(argos_report.folder / f"{ROOT}.argosmodel")
    weights = [weight for weight in model.weights if weight is not model.output_bias]
    for expected, received in zip(engine.model.weights, weights, strict=True):
        np.testing.assert_array_equal(np.asarray(received), np.asarray(expected))
    bias = np.zeros(engine.target_tokenizer.vocabulary_size, "float32")
    bias[[0, 1, 3]] = -100  # padding, BOS and the unknown token, not EOS
    np.testing.assert_array_equal(np.asarray(model.output_bias), bias)
    limits = {"max_source_length": 13, "max_target_length": 17}
    again = ModelEngine(model, source, target, **limits, **ONE_GRAPH)
    options = {**decoding, "long_input": "truncate"}
    expected, received = (one.translate(texts[:20], **options) for one in (engine, again))
    assert [row.text for row in received] == [row.text for row in expected]


def test_a_run_of_a_package_lacks_no_search_option_in_a_package():
    exporter, names = exporter_of("argos"), {"languages", "quantize"}
    of_package = DecodingSection(**SEARCH).search_options
    assert _lacking_options(exporter, of_package, names) == {}
    other = DecodingSection(beam_size=5, word_penalty=0.5, **SEARCH_OF_RUN).search_options
    expected = {"beam_size": 5, "word_penalty": 0.5}
    assert _lacking_options(exporter, other, names) == expected
    assert _lacking_options(exporter, other, {*names, "beam_size"}) == {"word_penalty": 0.5}


LANGUAGES = {"languages": "en-de"}


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("joint", {}, "names its languages: give `languages`, such as --languages en-de."),
        ("two", LANGUAGES, "has one vocabulary for both sides. Received: two."),
        ("words", LANGUAGES, "has subword tokens. Received: a vocabulary of whole words."),
        ("tags", LANGUAGES, "has no tags before texts. Received: 2de."),
        (
            "joint",
            {**LANGUAGES, "sentence_splitter": "a"},
            "named minisbd, stanza, spacy, with fil",
        ),
        ("joint", {**LANGUAGES, "sentence_splitter": "spacy"}, "with files. Received: spacy."),
    ],
)
def test_a_model_without_a_package_is_one_line(kind, options, message, make_engine, request):
    pytest.importorskip("ctranslate2", reason="comes with the extra [ctranslate2]")
    texts = ["two dogs sit", "a man sits in the park"] * 9
    if kind in ("two", "joint"):
        name = {"two": "engine", "joint": "engine_of_one_vocabulary"}[kind]
        engine = request.getfixturevalue(name)
    else:
        other = {"words": {"whole_words": True}, "tags": {"tags": ["2de"]}}[kind]
        engine = make_engine()
        engine.source_tokenizer = engine.target_tokenizer = Tokenizer.train_from_texts(
            texts, vocabulary_size=14 if kind == "words" else 23, **other
        )
    with pytest.raises(InputError, match=message):
        exporter_of("argos").resolve_export_options(engine, ArgosOptions(**options))


@pytest.mark.parametrize("version", ["", "v1", "1.", "1.0/a"])
def test_a_version_is_numbers_with_dots(version):
    with pytest.raises(InputError, match="`package_version` must be numbers with dots between"):
        ArgosOptions(package_version=version)


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_takes_two_languages(format):
    options_class = FORMATS[format].options()
    for languages in ("EN_gb,de", ["en-GB", "DE"]):
        assert options_class(languages=languages).languages == ("en-GB", "de")
    assert "languages" in {field.name for field in dataclasses.fields(options_class)}
    for languages in ("en", "en-de-fr", ["en"], "e,de", 5):
        with pytest.raises(InputError, match="`languages` must be two codes"):
            options_class(languages=languages)
