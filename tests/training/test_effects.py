"""Each option of a recipe has the effect that its formula says, from its files to a run's files.

An option without a row here is a failure. `ELSEWHERE` names the test of an option's effect where
that test is in another file.
"""

import dataclasses
import itertools
import pathlib
import re
import types

import keras
import numpy as np
import pytest
from shared_training import EagerTraining, GraphTraining, prepared_of, recipe_of
from small_corpus import PAIRS, recipe_values
from training_oracle import assign, model_of_the_end, training_of

from keras_transformer import Tokenizer, Translator
from keras_transformer.base.errors import TrainingError
from keras_transformer.base.options import options_of
from keras_transformer.engine import ModelEngine
from keras_transformer.engine.translation import Translation
from keras_transformer.models import model_of
from keras_transformer.runs.model_file import load_model, save_model
from keras_transformer.text.shortlist import Shortlist
from keras_transformer.training import Recipe, RunFolder, callbacks, loop, train
from keras_transformer.training.hosts import SINGLE_HOST
from keras_transformer.training.lora import enable_lora, merged_weights
from keras_transformer.training.recipe_sections import TrainingSection
from keras_transformer.training.recipe_texts import RecipeTexts

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("plain_graphs")]

TRAININGS = {
    "steps": dict(accumulation_steps=2, label_smoothing=0.3, ema_momentum=0.6, epochs=3)
    | dict(average_epochs=2, warmup_steps=2, learning_rate=0.05, jit_compile=False),
    "clipped": dict(clip_norm=0.4, ema_momentum=0.5, learning_rate=0.02, warmup_steps=3),
    "stopped": dict(epochs=6, early_stopping_patience=1, select_by="accuracy", learning_rate=0.2)
    | dict(steps_per_epoch=1),
    "tuned": dict(start_from="origin", lora_rank=3, learning_rate=None, epochs=1),
}
FORMULAS = {"accumulation_steps", "label_smoothing", "ema_momentum", "average_epochs"}
FORMULAS |= {"warmup_steps", "learning_rate", "clip_norm", "select_by"}
# Options whose effect `finished` shows.
FINISHED = {"select_by", "sample_translations", "shortlist"}
BACK, TWICE = ({"source": f"{name}.de", "target": f"{name}.en"} for name in ("train", "twice"))
SWAPPED = [pair[::-1] for pair in PAIRS]


def short(pair, sizes):
    return max(sizes) + 1 <= 14


def balanced(pair, sizes):
    return max(sizes) <= 10 or max(sizes) <= 1.25 * min(sizes)


# Changes of the section `data`, and the pairs of an epoch, or a rule of those that are kept.
BATCHES = {
    "data.folder": ({"folder": "other"}, PAIRS[:20]),
    "data.train": ({"train": BACK}, SWAPPED),
    "data.train.[].source": ({"train": {**BACK, "source": "train.en"}}, [(s, s) for s, _ in PAIRS]),
    "data.train.[].target": ({"train": {**BACK, "target": "train.de"}}, [(t, t) for _, t in PAIRS]),
    "data.drop_duplicates": ({"train": TWICE, "drop_duplicates": False}, SWAPPED * 2),
    "data.max_length": ({"max_length": 14}, short),
    "data.max_length_ratio": ({"max_length_ratio": 1.25}, balanced),
}


def in_title_case(text):
    return " ".join(word[:1].upper() + word[1:] for word in text.split())


def without_signs(text):
    return re.sub(r"[.,?!]( |$)", r"\1", text)


# What noise makes of each side; a side that the vocabulary cannot spell stays as it is.
NOISE = {
    "data.noise.upper_case": str.upper,
    "data.noise.title_case": in_title_case,
    "data.noise.no_punctuation": without_signs,
    "data.noise.typos": None,
    "data.noise.subwords": None,
}
DECODING = {"beam_size": 3, "length_penalty": 0.3, "length_normalization": "marian"}
DECODING |= {"word_penalty": 0.2, "max_length_ratio": 1.5, "early_stopping": False}
DECODING |= {"min_length": 2, "no_repeat_ngram_size": 3, "banned_ids": (7,), "shortlist": True}
LIMITS = {"max_source_length": 9, "max_target_length": 11}
RULES = {"split_sentences": False, "copy_symbols": True, "keep_case": True}
# File, beginning of the name of a test, and the options whose effect it shows.
ELSEWHERE = [
    ("training/unit/test_recipe_texts.py", "each_validation_corpus_has", "data.validation"),
    ("training/unit/test_recipe_texts.py", "terms_of_a_glossary_are_annotated", "data.glossary"),
    ("training/unit/test_recipe_texts.py", "lines_have_the_files_numbers", "data.hold_out_every"),
    ("training/unit/test_callbacks.py", "validation_has_the_scores_of", "data.bleu_tokenizer"),
    ("training/unit/test_recipe_texts.py", "a_table_of_a_spreadsheet", "data.train.[].header"),
    (
        "training/unit/test_recipe_texts.py",
        "the_token_of_the_target_precedes",
        "data.train.[].languages",
    ),
    ("extras/corpora/test_translation_memory.py", "formatting_inside", "data.train.[].inline_tags"),
    (
        "training/unit/test_recipe_texts.py",
        "a_report_counts_the_pairs_of_each",
        "data.train.[].name",
    ),
    ("training/unit/test_recipe_texts.py", "sources_of_several_corpora_begin", "data.train.[].tag"),
    (
        "training/unit/test_recipe_texts.py",
        "an_epoch_has_the_pairs_of_a_corpus",
        "data.train.[].weight",
    ),
    ("training/unit/test_recipe_texts.py", "a_joint_vocabulary_is_learned", "text.joint"),
    ("training/unit/test_recipe_texts.py", "a_joint_vocabulary_is_learned", "text.vocabulary_size"),
    (
        "training/unit/test_recipe_texts.py",
        "a_joint_vocabulary_is_learned",
        "text.target_vocabulary_size",
    ),
    ("text/test_tokenizer.py", "byte_fallback_brings", "text.byte_fallback"),
    ("text/test_tokenizer.py", "split_digits_gives", "text.split_digits"),
    ("text/test_tokenizer.py", "whole_words_are_the_most_frequent", "text.whole_words"),
    ("text/test_vocabulary.py", "only_full_coverage", "text.character_coverage"),
    ("text/test_tokenizer.py", "normalization_is_chosen", "text.normalization"),
    ("text/test_dialog.py", "the_separator_is_one_token", "text.turn_separator"),
    (
        "training/unit/test_recipe_texts.py",
        "training_pairs_have_the_placeholders",
        "text.placeholders",
    ),
    (
        "training/unit/test_recipe_texts.py",
        "training_pairs_have_the_placeholders",
        "text.placeholder_numbers",
    ),
    ("training/unit/test_recipe_texts.py", "a_language_models_sample", "text.sample_sentences"),
    ("training/unit/test_recipe_texts.py", "an_epoch_of_few_steps", "training.steps_per_epoch"),
    ("training/unit/test_recipe_texts.py", "an_epoch_of_few_steps", "training.batch_tokens"),
    ("training/unit/test_recipe_texts.py", "an_epoch_of_few_steps", "training.max_shapes"),
]
HERE = {"data.context_turns", "training.seed", "training.dtype_policy", *BATCHES, *NOISE}
HERE |= {f"training.{name}" for name in FINISHED.union(*TRAININGS.values())}
HERE |= {f"decoding.{name}" for name in (*DECODING, *LIMITS, *RULES)}


def test_every_option_of_a_recipe_has_a_row():
    sections = "data", "data.train.[]", "data.noise", "text", "training", "decoding"
    options = {f"{section}.{name}" for section in sections for name in options_of(Recipe, section)}
    assert options - {"data.noise"} == HERE | {option for *_, option in ELSEWHERE}
    for file, test, option in ELSEWHERE:
        source = pathlib.Path(__file__).parents[1].joinpath(file).read_text(encoding="utf-8")
        assert f"def test_{test}" in source, option


def batches_of(corpus, **data):
    """The tokenizers, and the ids of each pair of an epoch."""
    values = recipe_values(corpus)
    values["data"] |= data
    values["data"]["folder"] = str(corpus / data.get("folder", ""))
    texts = RecipeTexts(Recipe.from_dict(values))
    tokenizers = texts.tokenizers()
    batches = texts.datasets(tokenizers)[0]["train"].batches(0)
    rows = [
        rows for (sources, _), targets in batches for rows in zip(sources, targets, strict=True)
    ]
    return tokenizers[0], [[ids[ids > 0] for ids in row] for row in rows if row[0][0]]


def texts_of(tokenizer, rows):
    return [tuple(tokenizer.detokenize(ids) for ids in row) for row in rows]


@pytest.mark.parametrize("name", BATCHES)
def test_an_epoch_has_the_pairs_that_the_options_of_data_say(name, corpus):
    changes, expected = BATCHES[name]
    tokenizer, rows = batches_of(corpus, **changes)
    if callable(expected):
        sizes = [[len(tokenizer.tokenize(text)) for text in pair] for pair in PAIRS]
        pairs = zip(PAIRS, sizes, strict=True)
        expected = [pair for pair, lengths in pairs if expected(pair, lengths)]
        assert 3 < len(expected) < len(PAIRS) - 3
    assert sorted(texts_of(tokenizer, rows)) == sorted(expected)


@pytest.mark.parametrize("name", NOISE)
def test_noise_changes_its_share_of_an_epochs_pairs(name, corpus):
    kind = name.rpartition(".")[2]
    tokenizer, rows = batches_of(corpus, noise={kind: 0.5})
    texts = texts_of(tokenizer, rows)
    if kind == "subwords":  # Other tokens of the same text.
        assert sorted(texts) == sorted(PAIRS)
        usual = [tokenizer.tokenize(source, add_eos=True) for source, _ in texts]
        changed = sum(map(list.__ne__, usual, [source.tolist() for source, _ in rows]))
    elif kind == "typos":  # A target is found again, its source is not.
        assert sorted(target for _, target in texts) == sorted(target for _, target in PAIRS)
        changed = len(set(texts) - set(PAIRS))
    else:
        change = NOISE[name]
        sides = [[(s, change(s)) for s in pair] for pair in PAIRS]
        allowed = set(itertools.chain(*(itertools.product(*both) for both in sides)))
        assert len(texts) == len(PAIRS) and allowed.issuperset(texts)
        assert len({tuple(map(change, pair)) for pair in PAIRS}.intersection(texts)) > 8
        changed = len(set(texts) - set(PAIRS))
    assert 10 < changed < 22


@pytest.mark.parametrize("count", [None, 2])
def test_a_source_keeps_its_last_turns(count, corpus):
    (corpus / "dialog.tsv").write_text("A. | B. | C.\tD.\n", "utf-8")
    values = recipe_values(corpus)
    values["data"] |= {"train": {"source": "dialog.tsv"}, "context_turns": count}
    values["text"]["turn_separator"] = "|"
    (lines,) = RecipeTexts(Recipe.from_dict(values)).lines(["train"])
    assert lines.pairs == [("A. | B. | C." if count is None else "B. | C.", "D.")]


@pytest.fixture
def keeping(monkeypatch):
    """Each dropout multiplies by what it keeps on average."""

    def call(self, inputs, training=False):
        return inputs * (1.0 - self.rate) if training else inputs

    monkeypatch.setattr(keras.layers.Dropout, "call", call)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, EagerTraining) for name in TRAININGS),
        pytest.param("steps", GraphTraining, marks=pytest.mark.slow),
    ],
)
def test_a_training_is_what_its_options_say(name, kind, corpus, origin, tmp_path, keeping):
    """By the oracle, which with one of these options at its default gives something else."""
    options = {**TRAININGS[name]}
    if "start_from" in options:
        options["start_from"] = str(origin.path)
    folder = train(recipe_of(corpus, **options), tmp_path / "run", training_class=kind)
    run, training = EagerTraining.last, EagerTraining.last.recipe.training
    assert run.jit_compile is training.jit_compile
    datasets, _ = RecipeTexts(run.recipe).datasets(folder.tokenizers())
    model = model_of(run.model.config)
    if training.lora_rank:
        assert training.learning_rate == 3e-4
        model.set_weights(origin.model().get_weights())
        enable_lora(model, training.lora_rank)
    epochs = [*training_of(model, run.start, datasets, training)]
    rows = folder.history()
    for row, epoch in zip(rows, epochs, strict=True):
        assert {key: row[key] for key in epoch.row} == pytest.approx(epoch.row, rel=1e-4)
    if training.lora_rank is None:
        checkpoint = load_model(folder.checkpoint_file(len(rows)), compile=False)
        check_weights(checkpoint.trainable_variables, epochs[-1].weights)
    assign(model, model_of_the_end(epochs, training))
    check_weights(folder.model().weights, merged_weights(model))
    if training.early_stopping_patience:
        assert len(rows) < training.epochs
    for field in options.keys() & FORMULAS:
        other = dataclasses.replace(training, **{field: getattr(TrainingSection(), field)})
        assert differs(model, run.start, datasets, other, epochs, training), field


def check_weights(weights, expected):
    """Not the bias of keys: it has no gradient except rounding, which Adam divides by itself."""
    for weight, other in zip(weights, expected, strict=True):
        if not weight.path.endswith("key/bias"):
            message = weight.path
            np.testing.assert_allclose(weight, other, atol=2e-4, rtol=0, err_msg=message)


def differs(model, start, datasets, other, epochs, training):
    """Whether other options choose another model of these epochs, or give other epochs."""
    ends = [model_of_the_end(epochs, options) for options in (training, other)]
    if any(np.abs(one - another).max() > 1e-3 for one, another in zip(*ends, strict=True)):
        return True
    others = training_of(model, start, datasets, other)
    rows = ((epoch.row, next(others, None)) for epoch in epochs)
    if any(changed is None or changed.row != pytest.approx(row, rel=1e-3) for row, changed in rows):
        return True
    return next(others, None) is not None  # It continues.


def test_the_best_translations_choose_the_model_and_samples_are_written(finished):
    first, second = finished.history()
    assert first["val_loss"] > second["val_loss"]
    assert first["val_bleu"] == pytest.approx(100) and second["val_bleu"] < 50
    assert finished.metrics()["best_epoch"] == 1
    best = load_model(finished.checkpoint_file(1), compile=False)
    check_weights(finished.model().weights, best.weights)
    assert [finished.samples().count(source) for source, _ in PAIRS[:3]] == [3, 3, 0]
    assert finished.shortlist_file.exists()


def test_the_seed_decides_weights_and_batches_and_the_policy_rounds(corpus, origin):
    def begun(**training):
        prepared = prepared_of(recipe_of(corpus, **training), origin.tokenizers())
        model, _ = EagerTraining(prepared, origin, SINGLE_HOST).model_and_start()
        datasets, _ = RecipeTexts(prepared.recipe).datasets(prepared.tokenizers)
        (ids,), _ = next(datasets["train"].batches(0))
        return model, ids

    model, ids = begun(seed=3)
    same, same_ids = begun(seed=3, dtype_policy="mixed_bfloat16")
    other, other_ids = begun(seed=5, dtype_policy="mixed_float16")
    np.testing.assert_array_equal(ids, same_ids)
    assert ids.shape == other_ids.shape and (ids != other_ids).any()
    for weight, equal, changed in zip(model.weights, same.weights, other.weights, strict=True):
        np.testing.assert_array_equal(weight, equal)
        is_constant = "bias" in weight.path or "norm" in weight.path
        assert (np.array(weight) != np.array(changed)).any() != is_constant, weight.path
    rounding = np.abs(np.array(model(ids)) - np.array(same(ids)).astype("float32")).max()
    assert 1e-3 < rounding < 0.1
    assert (same.compute_dtype, other.compute_dtype) == ("bfloat16", "float16")
    assert isinstance(other.optimizer, keras.optimizers.LossScaleOptimizer)

    def states(seed, epoch):
        """States of the model's dropouts in an epoch."""
        train = types.SimpleNamespace(epoch=None)
        run = types.SimpleNamespace(recipe=recipe_of(corpus, seed=seed), datasets={"train": train})
        callback = callbacks.EpochSeed(run)
        callback.set_model(model)
        callback.on_epoch_begin(epoch)
        return str([np.array(state).tolist() for state in callbacks.seed_states(model)])

    assert len({states(seed, epoch) for seed in (3, 5) for epoch in (0, 1)}) == 4


@pytest.mark.parametrize("moment", ["begin", "end"])
def test_nan_is_noticed_before_anything_is_saved(moment, corpus, tmp_path, monkeypatch):
    """In the loss of a step, or in its gradient, which only the next loss shows."""
    usual = loop.callbacks_of

    class Diverging(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.is_second = epoch == 1

        def spoil(self, batch, logs=None):
            if self.is_second:
                weight = self.model.trainable_variables[0]
                weight.assign(np.full(weight.shape, np.nan))

    setattr(Diverging, f"on_train_batch_{moment}", Diverging.spoil)
    monkeypatch.setattr(loop, "callbacks_of", lambda run: [*usual(run), Diverging()])
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(TrainingError, match="the loss is nan in epoch 2"):
        train(recipe_of(corpus, steps_per_epoch=1), folder.path, training_class=EagerTraining)
    assert len(folder.history()) == 1 and folder.checkpoint_epochs() == [1]
    assert not list(folder.path.rglob("*0002*")) and not folder.metrics_file.exists()
    assert all(np.isfinite(weight).all() for weight in folder.model().get_weights())


def test_a_resumed_training_is_the_uninterrupted_one(finished, resumed):
    """With dropout and an average."""
    times = {"seconds", "tokens_per_second"}
    for row, expected in zip(resumed.history(), finished.history(), strict=True):
        assert {key: row[key] for key in row.keys() - times} == {
            key: expected[key] for key in expected.keys() - times
        }
    assert resumed.samples() == finished.samples()
    names = {path.relative_to(resumed.path) for path in resumed.path.rglob("*[!0-9]")}
    assert names == {path.relative_to(finished.path) for path in finished.path.rglob("*[!0-9]")}
    files = [run.checkpoint_file(2) for run in (resumed, finished)]
    for weight, expected in zip(
        *(load_model(f, compile=False).weights for f in files), strict=True
    ):
        np.testing.assert_array_equal(weight, expected)


def test_options_of_the_vocabulary_reach_its_training(corpus, monkeypatch):
    received = []
    monkeypatch.setattr(
        Tokenizer, "train_from_texts", lambda texts, **options: received.append(options)
    )
    values = recipe_values(corpus)
    values["text"] = {"vocabulary_size": 90, "byte_fallback": True, "split_digits": True}
    values["text"] |= {"character_coverage": 0.99, "normalization": "nfkc", "placeholders": 3}
    values["text"] |= {"placeholder_numbers": True, "sample_sentences": 101, "whole_words": False}
    values["text"]["turn_separator"] = "|"
    RecipeTexts(Recipe.from_dict(values)).tokenizers()
    assert received[0].items() >= values["text"].items()


def test_defaults_of_decoding_hold_for_the_translations_of_a_run(corpus, tmp_path, monkeypatch):
    asked = []

    def translate(self, texts, **options):
        asked.append((list(texts), options))
        return [Translation(text, 0.0) for text in texts]

    monkeypatch.setattr(ModelEngine, "translate", translate)
    values = recipe_of(corpus, has_sources=True).to_dict()
    tokenizers = RecipeTexts(Recipe.from_dict(values)).tokenizers()
    size = tokenizers[0].vocabulary_size
    texts = ["TWO DOGS RUN. ONE CAT SLEEPS.", "12:30"]
    for number, rules in enumerate((RULES, {name: not value for name, value in RULES.items()})):
        values["decoding"] = {**DECODING, **LIMITS, **rules}
        recipe, folder = Recipe.from_dict(values), RunFolder(tmp_path / str(number))
        folder.create(recipe.to_dict(), tokenizers, {})
        save_model(model_of(recipe.model_config(size)), folder.model_file)
        Shortlist([], [np.array([4, 5])] * (size - 4)).save(folder.shortlist_file)
        translator = Translator.load(folder.path)
        assert {name: getattr(translator.engine, name) for name in LIMITS} == LIMITS
        translator.translate(texts)
        assert asked[number][1].items() >= DECODING.items()
    (whole, copied), divided = asked[0][0], asked[1][0]
    assert not whole.isupper() and whole.upper() == texts[0] and not copied
    assert divided == ["TWO DOGS RUN.", "ONE CAT SLEEPS.", "12:30"]
