import dataclasses
import functools
import os

import keras
import pytest
from fakes import FakeEngine, FakeTokenizer

from keras_transformer import Translator
from keras_transformer.base.errors import InputError
from keras_transformer.base.files import FORMAT_VERSION
from keras_transformer.engine.steps import text_steps
from keras_transformer.engine.steps.glossary import glossary_of
from keras_transformer.engine.steps.step import TextStep
from keras_transformer.text.languages import Languages


def test_the_runs_options_hold_until_others_are_given():
    engine = FakeEngine()
    translator = Translator(engine, {"beam_size": 5, "length_penalty": 0.7})
    assert [translation.text for translation in translator.translate(["a", "b"])] == ["A", "B"]
    assert engine.options == {"beam_size": 5, "length_penalty": 0.7}
    translator.translate(["a"], beam_size=2, n_best=1)
    assert engine.options == {"beam_size": 2, "length_penalty": 0.7, "n_best": 1}
    translator.translate(["a"], beam_size=None)
    assert engine.options == {"beam_size": 5, "length_penalty": 0.7}


def test_a_glossarys_option_without_a_glossary_is_an_error():
    with pytest.raises(InputError, match="`glossary_by` needs a `glossary`.*'constraints'"):
        Translator(FakeEngine()).translate(["a"], glossary_by="constraints")


def test_a_folder_that_is_neither_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such run or export folder"):
        Translator.load(tmp_path / "nowhere")
    for name, run in (("A/opus-en@refs/pr/1", "opus-en"), ("firefox:en-de/tiny", "en-de")):
        command = f"keras-transformer import {name} --output runs/{run}$"
        with pytest.raises(InputError, match=command):
            Translator.load(name)
    with pytest.raises(InputError, match="neither a run folder"):
        Translator.load(tmp_path)


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        ("decoding: 5", "`decoding` must be a section with keys. Received: 5"),
        ("decoding: {1: 2}", "unknown key `1`"),
        ("decoding: {beam: 2}", "unknown key `beam`. Did you mean `beam_size`"),
        ("text: x", "`text` must be a section"),
        ("data: [1]\ntext: {turn_separator: </s>}", "`data` must be a section"),
    ],
)
def test_a_mistake_in_a_runs_recipe_is_one_line_with_the_file(tmp_path, recipe, says):
    (tmp_path / "recipe.yaml").write_text(f"format_version: {FORMAT_VERSION}\n{recipe}")
    with pytest.raises(InputError, match=f"{tmp_path}/recipe.yaml: {says}"):
        Translator.load(tmp_path)


@pytest.mark.parametrize("set_already", [0, 1])
def test_threads_are_given_before_tensorflow_begins(tmp_path, monkeypatch, set_already):
    import tensorflow as tf

    with pytest.raises(InputError, match="`threads` must be a positive integer"):
        Translator.load(tmp_path, threads=0)
    told = {}
    threading = tf.config.threading
    with monkeypatch.context() as replaced:
        replaced.setattr(threading, "get_inter_op_parallelism_threads", lambda: set_already)
        for kind in ("intra", "inter"):
            name, tell = f"set_{kind}_op_parallelism_threads", lambda n, k=kind: told.update({k: n})
            replaced.setattr(threading, name, tell)
        with pytest.raises(InputError, match="neither a run folder"):
            Translator.load(tmp_path, threads=3)
    assert told == {"intra": 3, "inter": set_already or 3}
    keras.ops.zeros(())
    with pytest.raises(
        InputError, match="before TensorFlow's first operation. Received: threads=61"
    ):
        Translator.load(tmp_path, threads=61)


class Shout(TextStep):
    def before(self, text, language=None, target_language=None):
        return [(text, len(text))]

    def after(self, translation, memory, text_read):
        return dataclasses.replace(translation, text=translation.text + "!" * memory)


def test_a_step_is_a_function_and_a_row(monkeypatch):
    row = ("shout",), lambda engine, shout: Shout()
    monkeypatch.setattr(text_steps, "_STEPS", (*text_steps._STEPS, row))
    translator = Translator(FakeEngine())
    assert [t.text for t in translator.translate(["a", "to"], shout=True)] == ["A!", "TO!!"]
    assert translator.translate(["a"], shout=None)[0].text == "A"
    assert translator.engine.options == {}
    translator.check_options(shout=True)


def test_the_length_of_a_text_that_is_divided_is_that_of_its_longest_part():
    translator, text = Translator(FakeEngine()), "No. Two dogs play. Yes."
    length = translator.source_length("Two dogs play.")
    assert translator.source_length(text, split_sentences=True) == length
    assert translator.source_length(text) > length


def test_a_glossary_of_a_relative_path_is_the_one_in_the_working_directory(tmp_path, monkeypatch):
    for translation in ("Hund", "Dogo"):
        (tmp_path / translation).mkdir()
        monkeypatch.chdir(tmp_path / translation)
        (tmp_path / translation / "terms.tsv").write_text(f"dog\t{translation}\n")
        os.utime("terms.tsv", ns=(0, 0))  # as a copy has the times of its origin
        assert glossary_of("terms.tsv").matches("a dog")[0].translation == translation


class PhrasesEngine(FakeEngine):
    capabilities = frozenset({"translate", "phrases"})


def test_phrases_and_the_terms_of_a_glossary_are_both_written():
    translator = Translator(PhrasesEngine())
    phrases = [["ein", "Hund"], [], ["Hund", "Hund"]]
    texts = ["a dog", "cat and dog", "a dog"]
    options = {"glossary": {"dog": "Hund", "cat": "Katze"}, "glossary_by": "constraints"}
    translator.translate(texts, phrases=phrases, **options)
    joined = [["ein", "Hund"], ["Katze", "Hund"], ["Hund", "Hund"]]
    assert translator.engine.options == {"phrases": joined}
    translator.translate(texts, **options)
    assert translator.engine.options == {"phrases": [["Hund"], ["Katze", "Hund"], ["Hund"]]}
    for wrong, message in ([["a"]], "1 lists and 3 texts"), (["a", [], []], "Received: one string"):
        with pytest.raises(InputError, match=message):
            translator.translate(texts, phrases=wrong, **options)


class FakeRun(FakeEngine):
    compilations = 7

    def score(self, sources, targets, **options):
        return sources, targets, options

    def stream(self, text, **options):
        self.options = options
        return iter([text])

    def warmup(self, **options):
        return options


def test_the_rest_of_the_engine_is_reached_with_the_defaults_that_it_takes():
    translator = Translator(FakeRun(), {"beam_size": 5, "length_penalty": 0.7})
    assert translator.score(["a"], ["b"]) == (["a"], ["b"], {"length_penalty": 0.7})
    assert list(translator.stream("a", seed=3)) == ["a"]
    greedy = {"beam_size": 1, "target_prefix": ""}
    assert translator.engine.options == {**greedy, "length_penalty": 0.7, "seed": 3}
    expected = {"beam_size": 5, "length_penalty": 0.7, "batch_size": 2}
    assert translator.warmup(batch_size=2, n_best=None) == expected
    assert translator.compilations == 7


def test_a_ranking_that_is_given_drops_the_defaults_that_it_excludes():
    marian = {"length_normalization": "marian", "word_penalty": 0.2, "min_length": 3}
    translator, gnmt = Translator(FakeRun(), marian), {"length_normalization": "gnmt"}
    assert translator.warmup(**gnmt) == {**gnmt, "min_length": 3}
    assert translator.score(["a"], ["b"], **gnmt)[2] == gnmt
    assert list(translator.stream("a", **gnmt)) == ["a"]
    greedy = {"beam_size": 1, "target_prefix": ""}
    assert translator.engine.options == {**greedy, **gnmt, "min_length": 3}
    for options in ({}, {"length_normalization": "marian"}, {"length_normalization": None}):
        assert translator.warmup(**options) == marian
    assert translator.warmup(**gnmt, word_penalty=0.3)["word_penalty"] == 0.3  # An error there.


@pytest.mark.parametrize("name", ["score", "stream", "warmup"])
def test_a_missing_capability_is_one_line_that_names_those_there(name):
    rule = f"`{name}` needs a run folder: this export can translate"
    method = getattr(Translator(FakeEngine()), name)
    with pytest.raises(InputError, match=rule):
        method(*["a"] * {"score": 2, "stream": 1}.get(name, 0))


class TaggedEngine(FakeRun):
    manifest = {"tags": ["2de", "bt"]}


def test_a_tag_stands_in_front_of_every_text_but_a_blank_one():
    translator = Translator(TaggedEngine())
    translations = translator.translate(["a", " "], tag="2de")
    assert [translation.text for translation in translations] == ["<2DE> A", " "]
    assert translator.score(["a"], ["b"], tag="bt")[0] == ["<bt> a"]
    assert next(translator.stream("a", tag="bt")) == "<bt> a"
    with pytest.raises(InputError, match="`tag` must be one of 2de, bt. Received: tag='2fr'"):
        translator.translate(["a"], tag="2fr")
    with pytest.raises(InputError, match="needs a model trained with tags"):
        Translator(FakeRun()).translate(["a"], tag="2fr")
    tokenize = functools.partial(map, lambda text: text.strip("\u200b"))
    tokens = {"tag_tokens": {"2de": "<2de>"}, "tokenize": tokenize}
    translator.engine.source_tokenizer = FakeTokenizer(**tokens)
    assert translator.score(["a", "\u200b"], [], tag="2de")[0] == ["<2de> a", "\u200b"]


def test_a_tag_follows_the_language_that_a_text_begins_with(monkeypatch):
    languages = Languages({"de": ">>de<<", "en": ">>en<<"}, source_prefix="target")
    monkeypatch.setattr(TaggedEngine, "languages", languages)
    translator, texts = Translator(TaggedEngine()), [">>de<<  a", "a", ">>it<< a", ">>de<< "]
    (tagged, *_) = translator.score(texts, [], tag="bt")
    assert tagged == [">>de<< <bt> a", "<bt> a", "<bt> >>it<< a", ">>de<< "]


def test_a_language_of_an_exported_model_is_written_as_marian_does(monkeypatch):
    monkeypatch.setattr(TaggedEngine, "manifest", {"tags": ["epo"], "language_tags": True})
    (translation,) = Translator(TaggedEngine()).translate(["a"], tag="epo")
    assert translation.text == ">>EPO<< A"


class LabellingEngine(FakeRun):
    labels = ["no", "yes"]


@pytest.mark.parametrize("options", [{"markup": "html"}, {"glossary": {"a": "b"}}])
def test_a_classifier_names_the_option_that_it_does_not_take(options):
    (name,) = options
    with pytest.raises(InputError, match=f"`{name}` needs a model that writes text"):
        Translator(LabellingEngine()).translate(["a"], **options)
