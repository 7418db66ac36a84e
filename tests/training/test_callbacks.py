import json
import math
import types

import keras
import numpy as np
import pytest

from keras_transformer.data import EncodedPairs, ParallelDataset
from keras_transformer.decoding import Translation
from keras_transformer.errors import TrainingError
from keras_transformer.training import RunFolder, callbacks
from keras_transformer.training.recipe import TrainingSection
from keras_transformer.training.run_folder import averaged_epochs


class FakeModel:
    """A model whose weights are a text."""

    optimizer = types.SimpleNamespace(use_ema=False)

    def __init__(self, content="new"):
        self.content = content

    @classmethod
    def from_config(cls, config):
        return cls()

    def get_config(self):
        return {}

    def get_weights(self):
        return self.content

    def set_weights(self, content):
        self.content = content

    def save(self, path):
        path.write_text(self.content)


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.checkpoints.mkdir(parents=True)
    return folder


def attach(callback, model):
    callback.set_model(model)
    return callback


def test_an_epochs_generators_depend_on_its_number_and_the_seed_alone():
    model = keras.Sequential([keras.layers.Dropout(0.5), keras.layers.Dropout(0.5)])
    model.build((2, 3))
    dataset = types.SimpleNamespace(epoch=None)

    def states(seed, epoch):
        attach(callbacks.EpochSeed(dataset, seed), model).on_epoch_begin(epoch)
        assert dataset.epoch == epoch
        return [tuple(np.asarray(v).tolist()) for v in model.variables]

    first = states(1, 4)
    model(np.ones((2, 3)), training=True)  # the generators move on
    assert states(1, 5) != first
    assert states(1, 4) == first
    assert states(2, 4) != first
    assert len(set(first)) == 2  # two layers do not drop the same units


def test_the_last_checkpoints_are_kept(folder):
    callback = attach(callbacks.Checkpoints(folder, TrainingSection()), FakeModel())
    for epoch in range(4):
        callback.on_epoch_end(epoch)
    assert folder.checkpoint_epochs() == [3, 4]


def test_bleu_is_that_of_the_averaged_models_translations():
    references = ["a man walks the big dog", "two cats sleep here all day long"]
    asked, answers = [], [["q", "r"], references]

    class Engine:
        def translate(self, texts, **options):
            asked.append((texts, options, model.get_weights()[0].tolist()))
            return [Translation(text, 0.0) for text in answers.pop()]

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(0.0, use_ema=True, ema_momentum=0.5), "mse")
    model.optimizer.build(model.trainable_variables)
    model.set_weights([np.full((1, 1), 3.0)])  # its average is still that of the beginning
    callback = callbacks.ValidationBleu(Engine(), ["x", "y"], references)
    callback.set_model(model)
    for expected in (100.0, 0.0):
        logs = {}
        callback.on_epoch_end(0, logs)
        assert logs["val_bleu"] == pytest.approx(expected)
    assert asked[0][0] == ["x", "y"] and asked[0][1]["beam_size"] == 1
    assert asked[0][2] != [[3.0]] and model.get_weights()[0] == 3.0


def test_only_a_better_model_is_a_candidate_for_the_best(folder):
    history = attach(callbacks.History(folder), FakeModel())
    best = attach(callbacks.BestModel(folder, history.rows, TrainingSection()), FakeModel())
    for epoch, loss in enumerate((3.0, 2.0, 2.5, 2.0, 1.0)):
        for callback in (history, best):
            callback.on_epoch_end(epoch, {"val_loss": loss})
    assert [folder.candidate_file(epoch).exists() for epoch in range(1, 6)] == [1, 1, 0, 0, 1]


def test_a_candidate_is_the_best_model_once_its_epoch_has_a_checkpoint(folder):
    one = TrainingSection(keep_checkpoints=1)
    folder.write_history([{"epoch": 1, "val_loss": 2.0}])
    folder.model_file.write_text("of epoch 1")
    folder.candidate_file(2).write_text("of epoch 2")
    attach(callbacks.Checkpoints(folder, one), FakeModel()).on_epoch_end(0)
    assert folder.model_file.read_text() == "of epoch 1"
    folder.write_history([{"epoch": 1, "val_loss": 2.0}, {"epoch": 2, "val_loss": 1.0}])
    folder.candidate_file(2).write_text("of epoch 2")
    attach(callbacks.Checkpoints(folder, one), FakeModel()).on_epoch_end(1)
    assert folder.model_file.read_text() == "of epoch 2"
    assert [file.name for file in folder.checkpoints.iterdir()] == ["epoch-0002.keras"]


@pytest.mark.parametrize("of, averaged", [("last", [4, 5]), ("best", [2, 5])])
def test_the_models_to_be_averaged_stay_and_so_does_the_best(folder, of, averaged):
    training = TrainingSection(select_by="bleu", average_epochs=2, average_of=of)
    history = attach(callbacks.History(folder), FakeModel())
    best = callbacks.BestModel(folder, history.rows, training)
    rest = best, callbacks.Checkpoints(folder, training)
    for epoch, bleu in enumerate((3.0, 9.0, 7.0, 2.0, 8.0)):
        for callback in (history, *(attach(each, FakeModel(f"epoch {epoch}")) for each in rest)):
            callback.on_epoch_end(epoch, {"val_bleu": bleu})
    assert folder.model_file.read_bytes() == folder.candidate_file(2).read_bytes()
    there = [epoch for epoch in range(1, 6) if folder.candidate_file(epoch).exists()]
    assert there == sorted({2, *averaged})
    assert averaged_epochs(history.rows, training) == averaged


def test_training_stops_when_patience_is_over_and_counts_what_was_before(folder):
    def training(patience):
        return TrainingSection(early_stopping_patience=patience)

    def stopped(losses, patience=2):
        rows = [{"epoch": i + 1, "val_loss": loss} for i, loss in enumerate(losses)]
        return callbacks.EarlyStopping(rows, training(patience)).has_stopped()

    # An equal loss is no better one.
    assert [stopped([3, 2, 2, 2, 1][:end]) for end in range(6)] == [0, 0, 0, 0, 1, 0]
    assert not stopped([1, 2, 3, 4, 5], patience=None)
    model = FakeModel()
    rows = [{"epoch": 4, "val_loss": 1.0}]
    attach(callbacks.EarlyStopping(rows, training(1)), model).on_epoch_end(3)
    assert not model.stop_training


def test_history_goes_on_where_it_was(folder):
    attach(callbacks.History(folder), FakeModel()).on_epoch_end(0, {"loss": 0.1 + 0.2})
    again = attach(callbacks.History(folder, folder.history()), FakeModel())
    again.on_epoch_end(1, {"loss": 2.0})
    assert folder.history() == [{"epoch": 1, "loss": 0.1 + 0.2}, {"epoch": 2, "loss": 2.0}]
    assert folder.history_file.read_text() == f"epoch,loss\n1,{0.1 + 0.2}\n2,2.0\n"


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_ends_training_with_epoch_and_step(loss, folder):
    dataset = types.SimpleNamespace(lines=lambda epoch, step: [])
    callback = callbacks.FiniteLoss(folder, dataset)
    callback.on_epoch_begin(2)
    callback.on_train_batch_end(15, {"loss": 1.0})
    with pytest.raises(TrainingError, match=f"loss is {loss} in epoch 3, step 17"):
        callback.on_train_batch_end(16, {"loss": loss})
    callback.on_epoch_end(2, {"loss": 1.0, "val_loss": 1.0})
    with pytest.raises(TrainingError, match=f"loss is {loss} in epoch 3, validation"):
        callback.on_epoch_end(2, {"loss": 1.0, "val_loss": loss})


@pytest.mark.parametrize("scaled", [False, True])
def test_averages_take_the_place_of_weights_and_give_it_back_bit_for_bit(scaled):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, use_bias=False)])
    optimizer = keras.optimizers.SGD(use_ema=True)
    model.compile(keras.optimizers.LossScaleOptimizer(optimizer) if scaled else optimizer)
    model.optimizer.build(model.trainable_variables)
    # The sum of both rounds one of them away, whichever is added and subtracted again.
    weights, averages = np.full((3, 2), 0.1, "float32"), np.full((3, 2), 3e8, "float32")
    model.set_weights([weights])
    optimizer._model_variables_moving_average[0].assign(averages)
    with callbacks.averaged_weights(model):
        np.testing.assert_array_equal(model.get_weights()[0], averages)
    np.testing.assert_array_equal(model.get_weights()[0], weights)
    np.testing.assert_array_equal(optimizer._model_variables_moving_average[0], averages)
    validation = attach(callbacks.AveragedValidation(), model)
    validation.on_test_begin()
    np.testing.assert_array_equal(model.get_weights()[0], averages)
    validation.on_test_end()
    np.testing.assert_array_equal(model.get_weights()[0], weights)


def test_tokens_per_second_counts_training_alone(monkeypatch):
    # Ten seconds of training, then five of validation.
    clock = iter([100.0, 110.0, 115.0])
    monkeypatch.setattr(callbacks.time, "perf_counter", lambda: next(clock))
    optimizer = types.SimpleNamespace(learning_rate=0.25)
    callback = attach(callbacks.Throughput(5000), types.SimpleNamespace(optimizer=optimizer))
    logs = {}
    callback.on_epoch_begin(0)
    callback.on_test_begin()
    callback.on_epoch_end(0, logs)
    assert logs == {"learning_rate": 0.25, "seconds": 15.0, "tokens_per_second": 500.0}


def test_samples_show_source_reference_and_translation(folder, capsys):
    engine = types.SimpleNamespace(
        translate=lambda texts, beam_size, long_input: [
            Translation(text.upper(), 0.0) for text in texts
        ]
    )
    callback = attach(
        callbacks.SampleTranslations(folder, engine, ["a dog"], ["ein Hund"]), FakeModel()
    )
    callback.on_epoch_end(6)
    text = (folder.path / "samples.txt").read_text(encoding="utf-8")
    assert text.split() == ("epoch 7 source: a dog reference: ein Hund translation: A DOG".split())
    assert text in capsys.readouterr().err


def test_the_lines_of_a_batch_without_a_finite_loss_are_written_down(folder):
    rows = [[5], [6] * 4, [7], [8] * 4, [9] * 4]
    pairs = EncodedPairs.from_lists([[*row, 2] for row in rows], rows)
    pairs.lines = np.array([2, 3, 5, 7, 11])  # lines 1, 4, … were dropped
    dataset = ParallelDataset(pairs, shapes=[(2, 2), (2, 5)], shuffle=False)
    place = types.SimpleNamespace(epoch=3, step=1)
    callback = callbacks.FiniteLoss(folder, dataset, place)
    callback.on_epoch_begin(3)
    with pytest.raises(TrainingError, match=f"epoch 4, step 2, .* in {folder.bad_batch_file}"):
        callback.on_train_batch_end(0, {"loss": math.nan})  # the first of this part of the epoch
    found = json.loads(folder.bad_batch_file.read_text())
    assert found == {"epoch": 4, "step": 2, "lines": [3, 7], "lines_of_the_step_before": [2, 5]}


@pytest.mark.parametrize("accumulation_steps", [None, 2])
def test_the_norm_is_that_of_the_gradient_before_it_is_clipped(accumulation_steps):
    weights = [keras.Variable([1.0, 2.0]), keras.Variable([[0.0]])]
    options = {"global_clipnorm": 0.1, "gradient_accumulation_steps": accumulation_steps}
    optimizer = callbacks.MeasuredAdam(**options)
    optimizer.build(weights)
    for gradients in ([[3.0, 0.0], [[4.0]]], [[1.0, 0.0], [[8.0]]]):
        optimizer.apply([keras.ops.convert_to_tensor(each) for each in gradients], weights)
    # sqrt(1 + 64), or of the mean (2, 0, 6).
    expected = 65 if accumulation_steps is None else 40
    assert float(optimizer.gradient_norm) == pytest.approx(expected**0.5)
