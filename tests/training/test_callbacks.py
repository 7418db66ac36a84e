import types

import keras
import numpy as np
import pytest

from keras_transformer.decoding import Translation
from keras_transformer.training import RunFolder, callbacks


class FakeModel:
    """A model whose weights are a text."""

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
    callback = attach(callbacks.Checkpoints(folder, keep=2), FakeModel())
    for epoch in range(4):
        callback.on_epoch_end(epoch)
    assert folder.checkpoint_epochs() == [3, 4]


def test_only_a_better_model_replaces_the_best(folder):
    model = FakeModel()
    callback = attach(callbacks.BestModel(folder), model)
    for loss, content in ((3.0, "first"), (2.0, "better"), (2.5, "worse"), (float("nan"), "nan")):
        model.content = content
        callback.on_epoch_end(0, {"val_loss": loss})
    assert folder.model_file.read_text() == "better"


def test_a_resumed_run_knows_the_best_loss_before(folder):
    callback = attach(callbacks.BestModel(folder, best=1.0), FakeModel())
    callback.on_epoch_end(0, {"val_loss": 1.5})
    assert not folder.model_file.exists()


def test_history_goes_on_where_it_was(folder):
    attach(callbacks.History(folder), FakeModel()).on_epoch_end(0, {"loss": 3.0})
    again = attach(callbacks.History(folder, folder.history()), FakeModel())
    again.on_epoch_end(1, {"loss": 2.0})
    assert folder.history() == [{"epoch": 1.0, "loss": 3.0}, {"epoch": 2.0, "loss": 2.0}]


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
