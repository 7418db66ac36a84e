import contextlib
import json
import math
import types

import keras
import numpy as np
import pytest
from fakes import FakeEngine
from shared_training import prepared_of

from keras_transformer.base.errors import TrainingError
from keras_transformer.base.files import write_whole
from keras_transformer.data import EncodedPairs, ParallelDataset
from keras_transformer.engine.translation import Translation
from keras_transformer.models.config import TransformerConfig
from keras_transformer.runs.history import averaged_epochs
from keras_transformer.training import RunFolder, callbacks, evaluate
from keras_transformer.training.hosts import SINGLE_HOST
from keras_transformer.training.loop import callbacks_of
from keras_transformer.training.recipe import Recipe
from keras_transformer.training.training import Training


class FakeModel:
    """A model whose weights are a text; it is its only variable itself."""

    optimizer, path = types.SimpleNamespace(use_ema=False), "text"

    def __init__(self, content="new"):
        self.content = content

    @classmethod
    def from_config(cls, config):
        return cls()

    def get_config(self):
        return {}

    @property
    def weights(self):
        return [self]

    def assign(self, model):
        self.content = model.content


@pytest.fixture(autouse=True)
def texts_as_models(monkeypatch):
    """A `FakeModel` is saved as its text."""
    save = lambda model, path: write_whole(path, model.content)  # noqa: E731
    monkeypatch.setattr("keras_transformer.training.checkpoints.save_model", save)


@pytest.fixture
def make_run(tmp_path):
    """`make_run(epochs=7)`: a run with a folder, whose recipe's `training` has these options."""

    def make_run(bleu_tokenizer=None, validation_names=(), **training):
        files = {"source": "s", "target": "t"}
        data = {"train": files, "validation": files, "bleu_tokenizer": bleu_tokenizer}
        recipe = Recipe.from_dict({"data": data, "training": training})
        prepared = prepared_of(recipe, validation_names=validation_names)
        run = Training(prepared, RunFolder(tmp_path / "run"), SINGLE_HOST)
        run.folder.checkpoints.mkdir(parents=True, exist_ok=True)
        return run

    return make_run


def attach(callback, model):
    callback.set_model(model)
    return callback


def commit(run, rows):
    """Ends an epoch for each row; yields the best model and whether the training stops."""
    for epoch, row in enumerate(rows):
        model = FakeModel(f"epoch {epoch + 1}")
        attach(callbacks.CommitEpoch(run), model).on_epoch_end(epoch, row)
        yield run.folder.model_file.read_text(), model.stop_training


def test_bleu_and_samples_are_translations_of_the_averaged_model(make_run):
    references = ["a man walks the big dog", "two cats sleep here all day long"]
    asked, answers = [], [references, ["q", "r"], references]

    class Engine:
        def translate(self, texts, **options):
            asked.append((texts, options, model.get_weights()[0].tolist()))
            return [Translation(text, 0.0) for text in answers.pop()]

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(0.0, use_ema=True, ema_momentum=0.5), "mse")
    model.optimizer.build(model.trainable_variables)
    model.set_weights([np.full((1, 1), 3.0)])  # its average is still the first value
    run = make_run(select_by="bleu")
    run.engine, run.validation = Engine(), list(zip(["x", "y"], references, strict=True))
    callback = attach(callbacks.TranslationMetrics(run), model)
    for expected in (100.0, 0.0):
        logs = {}
        callback.on_epoch_end(0, logs)
        assert logs["val_bleu"] == pytest.approx(expected)
    assert asked[0][0] == ["x", "y"] and asked[0][1]["beam_size"] == 1
    attach(callbacks.SampleTranslations(run), model).on_epoch_end(0)
    assert len(asked) == 3 and all(weights != [[3.0]] for *_, weights in asked)
    assert model.get_weights()[0] == 3.0


ZH = ["一个男人骑着自行车。", "两只狗在雪地里玩耍。"]


def text_scores(run, translations):
    """What is added to the logs of an epoch with these translations of `ZH`."""
    answers = [Translation(text, 0.0) for text in translations]
    run.engine = FakeEngine(translate=lambda texts, **options: answers)
    run.validation = list(zip(["x", "y"], ZH, strict=True))
    logs = {}
    attach(callbacks.TranslationMetrics(run), FakeModel()).on_epoch_end(0, logs)
    return logs


@pytest.mark.parametrize("tokenizer", [None, "char", "13a"])
def test_validation_has_the_scores_of_evaluate_with_the_recipes_tokenizer(make_run, tokenizer):
    run = make_run(select_by="chrf", bleu_tokenizer=tokenizer)
    translations = ["一个女人骑着自行车。", "两只狗在雪地里。"]
    # To 13a each sentence is one word.
    says_nothing = pytest.warns(UserWarning, match="BLEU says nothing about texts of fewer")
    with says_nothing if tokenizer == "13a" else contextlib.nullcontext():
        expected = evaluate(translations, ZH, tokenizer)
    logs = text_scores(run, translations)
    assert set(logs) == {"val_bleu", "val_chrf"}
    for name in ("bleu", "chrf"):
        assert logs[f"val_{name}"] == pytest.approx(expected[name], abs=0.0051)
    assert (expected["bleu"] > 30) == (tokenizer != "13a")


def test_each_validation_corpus_has_the_scores_of_its_pairs(make_run):
    run = make_run(select_by="bleu", validation_names=["one", "two"])
    logs = text_scores(run, [ZH[0], "no"])
    assert (logs["val_bleu/one"], logs["val_bleu/two"]) == (pytest.approx(100), 0.0)
    # Without translations only a validation set of several corpora, some empty, has more measures.
    for corpora in ([], ["validation/one"]):
        run = make_run(select_by="loss")
        run.datasets = dict.fromkeys(["train", "validation", *corpora])
        kinds = set(map(type, callbacks_of(run)))
        assert (callbacks.TranslationMetrics in kinds) == bool(corpora)


def test_a_bleu_that_says_nothing_is_doubted_once_a_run(make_run, capsys):
    run = make_run(select_by="bleu", bleu_tokenizer="13a")
    text_scores(run, ["xx", "yy"])  # Rubbish, with a chrF of 0.
    assert capsys.readouterr().err == ""
    for _ in range(3):
        text_scores(run, [text.rstrip("。") for text in ZH])
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and "BLEU is 0.0, but chrF is" in said
    assert "tok:13a" in said and "`data.bleu_tokenizer`" in said


@pytest.mark.parametrize("measure", ["loss", "bleu", "chrf", "accuracy"])
def test_the_validation_loss_decides_between_equal_values(make_run, measure):
    run = make_run(select_by=measure, early_stopping_patience=2)
    column = "val_token_accuracy" if measure == "accuracy" else f"val_{measure}"
    rows = [{column: 0.0, "val_loss": loss} for loss in (5.0, 3.0, 2.0, 2.5, 2.0)]
    best, stops = zip(*commit(run, rows), strict=True)
    assert best == ("epoch 1", "epoch 2", "epoch 3", "epoch 3", "epoch 3")
    assert stops == (False, False, False, False, True)


def test_the_models_to_be_averaged_stay_and_so_does_the_best(make_run):
    run = make_run(select_by="bleu", average_epochs=2)
    rows = [{"val_bleu": bleu, "val_loss": 1.0} for bleu in (3.0, 9.0, 7.0, 2.0, 8.0)]
    *_, (best, _) = commit(run, rows)
    assert best == run.folder.candidate_file(2).read_text() == "epoch 2"
    there = [epoch for epoch in range(1, 6) if run.folder.candidate_file(epoch).exists()]
    assert there == [2, 4, 5]
    assert averaged_epochs(run.history, run.recipe.training) == [4, 5]


@pytest.mark.parametrize(
    ("select_by", "has_average", "expected"),
    [
        ("loss", False, "epoch 2 of 3: val_loss 3.8761"),
        ("bleu", False, "epoch 3 of 3: val_bleu 23.46"),
        ("accuracy", False, "epoch 1 of 3: val_token_accuracy 0.7500"),
        ("loss", True, "the average of epochs 2, 3 of 3: val_loss 3.1250"),
    ],
)
def test_the_end_of_a_training_names_the_epoch_that_was_kept(
    make_run, capsys, select_by, has_average, expected
):
    run = make_run(select_by=select_by)
    rows = [(5.0, 12.5, 0.75), (3.87612, 20.125, 0.5), (4.0, 23.456, 0.25)]
    names = "val_loss", "val_bleu", "val_token_accuracy"
    run.history = [
        {"epoch": epoch, "val_chrf": 1.0, "val_perplexity": 1.0, "seconds": 1.0}
        | dict(zip(names, row, strict=True))
        for epoch, row in enumerate(rows, start=1)
    ]
    if has_average:
        run.metrics["average"] = {"epochs": [2, 3], "val_loss": 3.125}
    train = types.SimpleNamespace(steps_per_epoch=1, shapes=[], real_token_share=1.0)
    run.datasets, run.validation = {"train": train}, [("two dogs", "zwei Hunde")]
    run.finish()
    assert capsys.readouterr().err.splitlines()[-1] == f"kept {expected}"


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_ends_training_with_the_lines_of_its_batch(loss, make_run):
    rows = [[5], [6] * 4, [7], [8] * 4, [9] * 4]
    pairs = EncodedPairs.from_lists([[*row, 2] for row in rows], rows)
    pairs.lines = np.array([2, 3, 5, 7, 11])  # lines 1, 4, … were dropped
    run = make_run()
    run.datasets = {"train": ParallelDataset(pairs, shapes=[(2, 2), (2, 5)], shuffle=False)}
    callback, file = callbacks.FiniteLoss(run), run.folder.bad_batch_file
    callback.on_epoch_begin(3)
    with pytest.raises(TrainingError, match=f"loss is {loss} in epoch 4, step 2, .* in {file}"):
        callback.on_train_batch_end(1, {"loss": loss})
    report = json.loads(file.read_text())
    assert report == {"epoch": 4, "step": 2, "lines": [3, 7], "lines_of_the_step_before": [2, 5]}
    callback.on_train_batch_end(2, {"loss": 1.0})
    callback.on_epoch_end(3, {"loss": 1.0, "val_loss": 1.0})
    with pytest.raises(TrainingError, match=f"loss is {loss} in epoch 4, validation"):
        callback.on_epoch_end(3, {"loss": 1.0, "val_loss": loss})


@pytest.mark.parametrize(("has_bar", "is_compiled"), [(False, True), (True, True), (False, False)])
def test_each_compilation_is_announced_once_by_its_bucket(make_run, capsys, has_bar, is_compiled):
    """Five steps in two shapes, the second one in the third step."""
    shapes, run = [(3, 2), (2, 5)], make_run()
    steps = [shapes[step == 2] for step in range(5)]
    dataset = types.SimpleNamespace(shapes=shapes, step_shapes=lambda epoch: steps)
    run.datasets = {"train": dataset, "validation": dataset}
    model = types.SimpleNamespace(jit_compile=is_compiled)
    callback = attach(callbacks.Compilation(run, has_bar=has_bar), model)
    told = []
    for epoch in (0, 1):
        callback.on_epoch_begin(epoch)
        for batch in range(5):
            callback.on_train_batch_begin(batch)
        callback.on_test_begin()
        callback.on_test_batch_begin(0)
        callback.on_test_batch_begin(2)
        told.append(capsys.readouterr().err)
    lines = ["compiling bucket 1 of 2: 3 sentences of up to 2 tokens"]
    lines += ["compiling bucket 2 of 2: 2 sentences of up to 5 tokens"]
    lines += ["compiling validation bucket 1 of 2: 3 sentences of up to 2 tokens"]
    lines += ["compiling validation bucket 2 of 2: 2 sentences of up to 5 tokens"]
    # Only the first line is above the progress bar; the others begin below it.
    text = ("\n\n" if has_bar else "\n").join(lines) + "\n"
    assert told == ([text, ""] if is_compiled else ["", ""])


@pytest.mark.parametrize("rate, conditions", [(0.1, " with dropout"), (0.0, "")])
def test_the_line_of_an_epoch_tells_both_accuracies(make_run, capsys, rate, conditions):
    config = TransformerConfig(9, 8, 2, 8, num_encoder_layers=1, num_decoder_layers=1, dropout=rate)
    callback = attach(callbacks.EpochLine(make_run()), types.SimpleNamespace(config=config))
    callback.set_params({"epochs": 7})
    logs = {"loss": 2.5, "val_loss": 1.25, "token_accuracy": 0.125, "val_token_accuracy": 0.75}
    callback.on_epoch_end(1, {**logs, "tokens_per_second": 1234.6, "seconds": 5.06})
    assert capsys.readouterr().err == (
        f"epoch 2/7: loss 2.5000, val_loss 1.2500, accuracy 0.1250 in training{conditions}, "
        "0.7500 in validation, 1,235 tokens/s, 5.1 s\n"
    )


def test_a_training_from_a_run_tells_first_how_good_that_is(make_run):
    for options, epoch, expected in (
        ({"start_from": "run"}, 0, True),
        ({"start_from": "run"}, 1, False),  # resumed
        ({}, 0, False),
    ):
        run = make_run(**options)
        run.model, run.start_epoch = types.SimpleNamespace(jit_compile=False), epoch
        kinds = [type(callback) for callback in callbacks_of(run)]
        assert (callbacks.StartLine in kinds) is expected


def test_tokens_per_second_counts_training_alone(monkeypatch, make_run):
    # Ten seconds of training, then five of validation.
    clock = iter([100.0, 110.0, 115.0])
    monkeypatch.setattr(callbacks.time, "perf_counter", lambda: next(clock))
    optimizer = types.SimpleNamespace(learning_rate=0.25, gradient_norm=0.5)
    run = make_run()
    run.datasets = {"train": types.SimpleNamespace(real_tokens=5000)}
    callback = attach(callbacks.Throughput(run), types.SimpleNamespace(optimizer=optimizer))
    logs = {}
    callback.on_epoch_begin(0)
    callback.on_test_begin()
    callback.on_epoch_end(0, logs)
    rate = {"learning_rate": 0.25, "gradient_norm": 0.5}
    assert logs == {**rate, "seconds": 15.0, "tokens_per_second": 500.0}
