"""Each kind of model goes the same way: train, translate, evaluate, score, export."""

import concurrent.futures
import contextlib
import functools
import io
import json
import math
import pathlib
import sys

import numpy as np
import pytest
from device_plans import one_graph
from fakes import FakeEngine
from small_corpus import PAIRS, recipe_values, repeat_pairs, write_corpus, write_recipe
from translations import check_same

from keras_transformer import Translator
from keras_transformer.base.errors import InputError
from keras_transformer.cli.main import run
from keras_transformer.engine.scheduler import Scheduler
from keras_transformer.export.saved_model.export import SavedModelExporter
from keras_transformer.export.saved_model.export_options import SavedModelOptions
from keras_transformer.export.signature import SIGNATURES
from keras_transformer.models import model_of
from keras_transformer.training import Recipe, RunFolder

SOURCES = [source for source, _ in PAIRS]
TARGETS = [target for _, target in PAIRS]


@pytest.fixture(scope="module", autouse=True)
def loaded_once():
    """The first command loads a run or an export and compiles, the others take its translator."""
    with one_graph(rows=(32,), can_shrink=True), pytest.MonkeyPatch.context() as patch:
        load = functools.cache(Translator.load)
        patch.setattr(Translator, "load", lambda path, *rest, **options: load(str(path), *rest))
        yield


def values_of(corpus, model, **training):
    # Without XLA: each program that it compiles stays in memory to the end of the process.
    options = dict(epochs=2, warmup_steps=50, learning_rate=0.0053, label_smoothing=0.0)
    values = recipe_values(corpus, **{**options, "jit_compile": False, **training})
    values["model"] = {"kind": "recurrent", "model_dim": 64, "dropout": 0.0, **model}
    return values


@pytest.fixture(scope="module")
def attending(tmp_path_factory):
    """A run of Luong's model that has seen a few sentences often, through the command line."""
    base = tmp_path_factory.mktemp("kinds")
    corpus = write_corpus(base / "corpus")
    values = values_of(corpus, {"attention": "luong", "input_feeding": True})
    repeat_pairs(corpus, values, 36)
    recipe = write_recipe(base / "recipe.yaml", values)
    assert run(["train", str(recipe), "--output", str(base / "run")]) == 0
    return base


def check_exported(export, texts, expected):
    """Texts and scores; the default signature of a SavedModel gives no log-probability."""
    received = Translator.load(export).translate(texts)
    assert [t.text for t in received] == [t.text for t in expected]
    assert [t.score for t in received] == pytest.approx([t.score for t in expected], 1e-4, 1e-4)


@pytest.mark.slow
def test_a_recurrent_run_is_evaluated_and_exported_as_a_transformers(
    attending, capsys, tmp_path, unverified
):
    folder = attending / "run"
    history = RunFolder(folder).history()
    assert history[-1]["val_loss"] < 0.3 * history[0]["val_loss"]
    translator = Translator.load(folder)
    translations = translator.translate(SOURCES, beam_size=2, alignment=True)
    correct = sum(t.text == target for t, target in zip(translations, TARGETS, strict=True))
    assert correct >= len(SOURCES) // 2
    # More sentences than a batch has places for.
    many = translator.translate(SOURCES * 3, batch_size=32, beam_size=2)
    assert [t.text for t in many] == [t.text for t in translations] * 3
    for aligned in translations[:3]:
        assert aligned.alignment.shape == (len(aligned.tokens), len(aligned.source_tokens))
    scored = translator.score(SOURCES[:4], [t.text for t in translations[:4]])
    for before, after in zip(translations, scored, strict=False):
        assert after.log_probability == pytest.approx(before.log_probability, abs=1e-3)
    source, target = (attending / "corpus" / f"train.{side}" for side in ("en", "de"))
    command = ["evaluate", "--model", str(folder), "--source", str(source)]
    assert run([*command, "--reference", str(target)]) == 0
    assert json.loads(capsys.readouterr().out)["bleu"] > 20
    command = ["export", "--model", str(folder), "--format", "saved_model", "--output"]
    assert run([*command, str(tmp_path / "export"), "--signatures", "greedy"]) == 0
    check_exported(tmp_path / "export", SOURCES, many[: len(SOURCES)])


def test_a_model_without_attention_has_no_alignment(tmp_path):
    recipe = Recipe.from_dict(values_of(tmp_path, {"attention": "none"}))
    config = recipe.model_config(150)
    assert (config.heads_of("cross"), config.score) == ((), None)
    scheduler = Scheduler(model_of(config), (16, 16))
    with pytest.raises(InputError, match="`alignment` needs attention, which the model lacks"):
        scheduler.scorer(alignment=True)
    engine = FakeEngine(model=model_of(config))
    resolve = functools.partial(SavedModelExporter().resolve_export_options, engine)
    assert resolve(SavedModelOptions())["signatures"] == [n for n in SIGNATURES if n != "align"]
    with pytest.raises(InputError, match="`align` needs attention"):
        resolve(SavedModelOptions(signatures=["align"]))
    with pytest.raises(InputError, match="`attention` must be one of none, bahdanau, luong"):
        Recipe.from_dict(values_of(tmp_path, {"attention": "self"}))


def test_the_recipes_to_compare_have_equally_many_parameters():
    recipes = pathlib.Path(__file__).parents[1] / "training" / "recipes"

    def parameters(name, *override):
        config = Recipe.load(recipes / f"multi30k_{name}.yaml", override).model_config(8000)
        return model_of(config).count_params()

    expected = pytest.approx(parameters("en_de"), rel=0.05)
    without = "model.attention=none", "model.model_dim=216"
    for overrides in ((), without, ("model.attention=luong", "model.input_feeding=true")):
        assert parameters("recurrent", *overrides) == expected


@pytest.fixture(scope="module")
def labelling(tmp_path_factory):
    """A run of a classifier that tells dogs from people, through the command line, resumed once."""
    base = tmp_path_factory.mktemp("labelling")
    lines = [f"{'dog' if 'dog' in text else 'other'}\t{text}\n" for text in SOURCES]
    for name, times in (("texts", 1), ("many", 10)):
        (base / f"{name}.tsv").write_text("".join(lines * times), encoding="utf-8")
    options = dict(epochs=2, warmup_steps=20, learning_rate=0.0079, select_by="accuracy")
    options |= dict(batch_tokens=128, sample_translations=1, jit_compile=False)
    values = recipe_values(base, **options)
    values["data"] |= {"train": {"source": "many.tsv"}, "validation": {"source": "texts.tsv"}}
    values["data"]["drop_duplicates"] = False
    values["model"] = {"kind": "classifier", "model_dim": 32, "dropout": 0.0, "pooling": "max"}
    values["text"]["vocabulary_size"] = 100
    recipe = write_recipe(base / "recipe.yaml", values)
    command = ["train", str(recipe), "--output", str(base / "run")]
    assert run([*command, "--set", "training.epochs=1"]) == 0
    assert run([*command, "--resume"]) == 0
    return base


def evaluated(model, base, capsys):
    capsys.readouterr()
    assert run(["evaluate", "--model", str(model), "--source", str(base / "texts.tsv")]) == 0
    return json.loads(capsys.readouterr().out)


def check_threads(engine):
    """Several threads get the probabilities that one gets."""
    texts = [[text] * count for text in SOURCES for count in (1, 3)]
    expected = [engine.probabilities(batch) for batch in texts]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for one, other in zip(expected * 9, pool.map(engine.probabilities, texts * 9), strict=True):
            np.testing.assert_allclose(other, one, atol=1e-6)


@pytest.fixture(scope="module")
def labelling_export(labelling):
    """The classifier's SavedModel, verified."""
    command = ["export", "--model", str(labelling / "run"), "--format", "saved_model"]
    assert run([*command, "--output", str(labelling / "saved_model")]) == 0
    report = json.loads((labelling / "saved_model" / "verification.json").read_text())
    assert report["equal"] == report["texts"] > 0
    return labelling / "saved_model"


def test_a_classifier_gives_each_label_its_probability(labelling):
    translator = Translator.load(labelling / "run")
    assert translator.labels == ["dog", "other"]
    labels = translator.translate([*SOURCES, " "], n_best=2)
    assert labels[-1].text == "" and labels[-1].score == 0
    for label in labels[:-1]:
        (other,) = label.alternatives
        assert label.score > 0.5 and label.score + other.score == pytest.approx(1)


def test_a_classifier_is_exported(labelling, labelling_export):
    translator, exported = Translator.load(labelling / "run"), Translator.load(labelling_export)
    texts = [*SOURCES, " "]
    check_same(translator.translate(texts, n_best=2), exported.translate(texts, n_best=2))
    # The tokenizer in the graph, by which a tag leaves a text without tokens blank.
    assert exported.engine.source_tokenizer == translator.engine.source_tokenizer
    for model in (translator, exported):
        check_threads(model.engine)


def test_a_classifier_and_its_export_are_evaluated(labelling, labelling_export, capsys):
    scores = evaluated(labelling / "run", labelling, capsys)
    assert scores["accuracy"] == 1.0 and scores["labels"]["dog"]["texts"] == 2
    assert evaluated(labelling_export, labelling, capsys) == scores


def test_a_label_is_written_as_a_translation_is(labelling, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"A dog catches a red ball.\n")))
    assert run(["translate", "--model", str(labelling / "run"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["translation"] == "dog" and 0.5 < answer["score"] <= 1


def test_what_a_classifier_cannot_do_is_one_line(labelling, capsys, tmp_path):
    model, output = ["--model", str(labelling / "run")], ["--output", str(tmp_path / "export")]
    for command, message in (
        (["translate", *model, "--beam-size", "4"], "`--beam-size` is fixed at 1 in a classifier"),
        (["translate", *model, "--n-best", "3"], "must be at most 2, the number of labels"),
        (["translate", *model, "--set", "long_input=split"], "long_input` must be one of refuse"),
        (["translate", *model, "--stream"], "`--stream` needs a model that writes text"),
        (["export", *model, *output, "--format", "ctranslate2"], "needs a Transformer"),
        (["export", *model, *output, "--format", "litert"], "A LiteRT model needs a Transformer"),
        (["export", *model, *output, "--format", "saved_model", "--beam-size", "2"], "beam"),
        (["inspect", *model, *output, "--text", "A dog."], "`inspect` needs a Transformer"),
    ):
        assert run(command) == 2
        assert message in capsys.readouterr().err.strip().splitlines()[-1]
        assert not (tmp_path / "export").exists()


@pytest.fixture
def converse(monkeypatch, capsys):
    """`converse(model, text, …)`: the replies of `chat`."""

    def converse(model, text, *arguments):
        stdin = io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8")
        monkeypatch.setattr(sys, "stdin", stdin)
        capsys.readouterr()
        assert run(["chat", "--model", str(model), *arguments]) == 0
        return capsys.readouterr().out.splitlines()

    return converse


def test_a_conversation_goes_from_recipe_to_export_with_an_encoder_over_turns(
    tmp_path, converse, unverified, without_xla
):
    values = recipe_values(tmp_path, epochs=1, jit_compile=False)
    turns = zip(SOURCES, SOURCES[1:], strict=False)
    lines = [f"{one} </s> {two}\t{one} {two[:9]}\n" for one, two in turns]
    (tmp_path / "dialog.tsv").write_text("".join(lines), encoding="utf-8")
    for part in ("train", "validation"):
        values["data"][part] = {"source": "dialog.tsv"}
    values["data"]["context_turns"] = 2
    values["text"] |= {"turn_separator": "</s>", "vocabulary_size": 120}
    values["model"] |= {"turn_layers": 1}
    values["decoding"] = {"beam_size": 1, "max_source_length": 32, "max_target_length": 8}
    folder, exported = tmp_path / "run", tmp_path / "export"
    recipe = write_recipe(tmp_path / "recipe.yaml", values)
    assert run(["train", str(recipe), "--output", str(folder)]) == 0
    tokenizer = RunFolder(folder).tokenizers()[0]
    assert RunFolder(folder).model().config.turn_id == tokenizer.turn_id == 4
    command = ["export", "--model", str(folder), "--format", "saved_model", "--output"]
    assert run([*command, str(exported), "--signatures", "sample"]) == 0
    replies = converse(folder, "A dog.\n", "--seed", "3")
    assert len(replies) == 1 and converse(exported, "A dog.\n", "--seed", "3") == replies
    assert converse(folder, "A dog.\n", "--seed", "4") != replies
    # More turns than it was trained on are not read, nor those that it has no room for. By samples
    # of one row, which the conversations have compiled.
    short = ["A cat. </s> A dog. </s> The snow.", "A dog. </s> The snow."]
    long = [f"{' '.join(SOURCES[:4])} </s> The snow.", "The snow."]
    options = {"sampling": True, "seed": 3, "batch_size": 1, "long_input": "truncate"}
    for model in (folder, exported):
        for texts in (short, long):
            is_told = model == folder and texts == long
            with pytest.warns(match="oldest turns") if is_told else contextlib.nullcontext():
                far, near = Translator.load(str(model)).translate(texts, **options)
            assert far.text == near.text and far.score == pytest.approx(near.score, abs=1e-5)


@pytest.fixture(scope="module")
def continuing(tmp_path_factory):
    """A run of a language model, through the command line, in a folder with its text."""
    base = tmp_path_factory.mktemp("continuing")
    text = (write_corpus(base) / "train.en").read_text(encoding="utf-8")
    (base / "many.en").write_text(text * 36, encoding="utf-8")
    values = values_of(base, {})
    values["data"] |= {"train": {"source": "many.en"}, "validation": {"source": "train.en"}}
    values["data"]["drop_duplicates"] = False
    values["text"]["vocabulary_size"] = 120
    values["model"] = {"kind": "language_model", "num_decoder_layers": 1, "model_dim": 64}
    values["model"] |= {"num_heads": 2, "intermediate_dim": 128, "dropout": 0.0}
    values["decoding"]["beam_size"] = 1
    recipe = write_recipe(base / "recipe.yaml", values)
    assert run(["train", str(recipe), "--output", str(base / "run")]) == 0
    return base


PROMPTS = ["A musician", "The market is"]


def test_a_language_model_continues_a_line_with_the_scores_that_it_gives_to_lines(continuing):
    translator = Translator.load(continuing / "run")
    outputs = translator.translate(PROMPTS)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert output.text.startswith(prompt) and len(output.text) > len(prompt)
    targets = [output.text.removeprefix(p) for output, p in zip(outputs, PROMPTS, strict=True)]
    scored = translator.score([""] * 2, [output.text for output in outputs])
    continued = translator.score(PROMPTS, targets)
    for output, whole, part in zip(outputs, scored, continued, strict=True):
        assert whole.log_probability == pytest.approx(output.log_probability, abs=1e-3)
        expected = output.continuation_log_probability
        assert part.log_probability == pytest.approx(expected, abs=1e-3)
    *_, streamed = translator.stream(PROMPTS[0])
    assert streamed == outputs[0].text


@pytest.fixture(scope="module")
def continuing_export(continuing):
    """The run's SavedModel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SavedModelExporter, "verify", lambda *_: {"equal": 1, "texts": 1})
        command = ["export", "--model", str(continuing / "run"), "--format", "saved_model"]
        command += ["--output", str(continuing / "export"), "--signatures", "score"]
        assert run(command) == 0
    return continuing / "export"


def test_a_language_model_is_exported(continuing, continuing_export):
    translator = Translator.load(continuing / "run")
    check_exported(continuing_export, PROMPTS, translator.translate(PROMPTS))
    targets = [" is playing.", "full of people."]
    exported = Translator.load(continuing_export)
    check_same(translator.score(PROMPTS, targets), exported.score(PROMPTS, targets))


def test_a_language_model_and_its_export_are_evaluated(continuing, continuing_export, capsys):
    results = []
    for model in (continuing / "run", continuing_export):
        command = ["evaluate", "--model", str(model), "--reference", str(continuing / "train.en")]
        assert run(command) == 0
        results.append(json.loads(capsys.readouterr().out))
    lines = (continuing / "train.en").read_text("utf-8").splitlines()
    scored = Translator.load(continuing / "run").score([""] * len(lines), lines)
    nats = sum(line.log_probability for line in scored)
    words = sum(len(line.split()) + 1 for line in lines)  # The end is a word.
    tokens = sum(len(line.token_log_probabilities) for line in scored)
    assert results[0]["perplexity_per_token"] == pytest.approx(math.exp(-nats / tokens), rel=0.01)
    for result in results:
        assert result["perplexity_per_word"] == pytest.approx(math.exp(-nats / words), rel=0.01)


def test_what_a_language_model_cannot_do_is_one_line(continuing, capsys):
    text = str(continuing / "train.en")
    command = ["evaluate", "--model", str(continuing / "run"), "--reference", text]
    assert run([*command, "--source", text]) == 2
    assert "a language model needs only a `--reference`" in capsys.readouterr().err
    translator = Translator.load(continuing / "run")
    with pytest.raises(InputError, match="`target_prefixes` is not for them"):
        translator.translate(["A"], target_prefixes=["A man"])
    with pytest.raises(InputError, match="`alignment` needs attention"):
        translator.translate(["A"], alignment=True)


def test_what_needs_two_sides_is_refused_of_a_language_model(tmp_path):
    values = values_of(tmp_path, {})
    values["model"] = {"kind": "language_model"}
    with pytest.raises(InputError, match=r"`data.train` is {source: FILE}"):
        Recipe.from_dict(values)
    for part in ("train", "validation"):
        values["data"][part] = {"source": "text.txt"}
    changes = [("text", "joint", False), ("training", "select_by", "bleu")]
    changes += [("training", "shortlist", True)]
    for section, key, value in [*changes, ("data", "bleu_tokenizer", "zh")]:
        wrong = {**values, section: {**values[section], key: value}}
        with pytest.raises(InputError, match=f"`{section}.{key}.*` needs a source and a target"):
            Recipe.from_dict(wrong)
    with pytest.raises(InputError, match="`data.context_turns` needs `text.turn_separator`"):
        Recipe.from_dict({"data": {**values["data"], "context_turns": 1}})
