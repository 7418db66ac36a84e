"""The README's Python blocks run as they stand."""

import pathlib
import re

import keras
import numpy as np
import pytest
from small_corpus import write_corpus

from keras_transformer import config

README = (pathlib.Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def block_with(text):
    (found,) = [block for block in BLOCKS if text in block]
    return found


def test_layers_make_a_functional_classifier():
    names = {}
    exec(block_with("classifier = keras.Model"), names)
    ids = np.array([[5, 7, 11, 0, 0]])
    assert names["classifier"](ids).shape == (1, 2)


@pytest.mark.slow
def test_five_lines_of_plain_keras_train_on_arrays_and_then_on_text(tmp_path, monkeypatch):
    # The preset's layers are all alike; each costs seconds of compilation.
    layers = dict(num_encoder_layers=1, num_decoder_layers=1)
    tiny = {**config._PRESETS["transformer_tiny"], **layers}
    monkeypatch.setitem(config._PRESETS, "transformer_tiny", tiny)
    rng = np.random.default_rng(1)
    ids = rng.integers(4, 90, (16, 8)).astype("int32")
    names = {"source_ids": ids, "target_ids": np.pad(ids, ((0, 0), (1, 0)), constant_values=1)}
    plain = block_with("model.compile(").replace("vocabulary_size=8000", "vocabulary_size=90")
    exec(plain.replace("warmup_steps=1000", "warmup_steps=10"), names)
    losses = names["model"].history.history["loss"]
    assert len(losses) == 10 and losses[-1] < losses[0]
    if keras.backend.backend() != "tensorflow":
        return
    write_corpus(tmp_path)
    monkeypatch.chdir(tmp_path)
    from_text = block_with("ParallelDataset(").replace("8000", "90")
    exec(from_text.replace("epochs=10", "epochs=1"), names)
    assert len(names["model"].history.history["loss"]) == 1
    assert "32 of 32 pairs kept" in str(names["report"])
