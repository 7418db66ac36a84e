"""Each trainer trains, and what is counted is the non-padding tokens of its batches."""

import numpy as np
import pytest
from small_corpus import PAIRS, write_corpus

from benchmarks import measure
from benchmarks.train import train
from benchmarks.trainers import TRAINERS
from keras_transformer import Transformer, TransformerConfig
from keras_transformer.data import EncodedPairs, ParallelDataset

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("short_turns")]

SIZES = dict(model_dim=24, num_heads=3, intermediate_dim=40)
CONFIG = TransformerConfig(
    31, **SIZES, num_encoder_layers=1, num_decoder_layers=1, dropout=0.0, normalize_first=True
)


@pytest.fixture
def dataset():
    rows = [[4 + (3 * row + column) % 27 for column in range(2 + row % 5)] for row in range(40)]
    pairs = EncodedPairs.from_lists([[*row, 2] for row in rows], rows)
    return ParallelDataset(pairs, batch_tokens=64, max_shapes=1, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bare", "keras_hub", "torch"])
def test_repeated_batches_have_a_lower_loss(name, dataset):
    pytest.importorskip(TRAINERS[name].package, reason="comes with the extra [peers]")
    trainer = TRAINERS[name](CONFIG)
    setting = {"jit_compile": False} if "jit_compile" in trainer.settings()[0] else {}
    train = trainer.steps(dataset, 3, **setting)
    losses = [train() for _ in range(8)]
    assert all(np.isfinite(losses)) and losses[-1] < losses[0]
    if name == "torch":  # a net of its own
        assert trainer.parameters == Transformer(CONFIG).count_params()


class Fake:
    """A trainer that takes no time."""

    package = "keras"
    note = "made up"
    precision = "float32"
    max_shapes = 1

    def __init__(self, config):
        self.config = config

    def settings(self):
        return [{}]

    def steps(self, dataset, count):
        assert len(dataset.shapes) <= self.max_shapes
        return lambda: 1.5


def test_rates_count_the_real_tokens_of_each_trainers_own_batches(tmp_path, monkeypatch):
    monkeypatch.setitem(TRAINERS, "ours", Fake)
    monkeypatch.setitem(TRAINERS, "torch", type("Bucketed", (Fake,), {"max_shapes": 3}))
    seconds = {"ours": [2.0, 4.0, 8.0], "torch": [1.0, 1.0, 1.0]}
    monkeypatch.setattr(measure, "in_turns", lambda calls, rounds: seconds)
    corpus = write_corpus(tmp_path / "corpus")
    files = dict(source=corpus / "train.en", target=corpus / "train.de", vocabulary_size=150)
    options = dict(layers=1, model_dim=24, num_heads=3, intermediate_dim=40, steps=10**6)
    report, table = train(**files, **options, batch_tokens=80, trainers=["ours", "torch"])
    ours, other = report["trainers"]["ours"], report["trainers"]["torch"]
    # All batches of an epoch hold all pairs, whatever their shapes.
    assert ours["real_tokens"] == other["real_tokens"] > 2 * len({*PAIRS})
    assert ours["real_token_share"] < other["real_token_share"] <= 1
    assert ours["rate"] == pytest.approx(ours["real_tokens"] / 4.0, abs=0.1)
    assert other["ratio"] == 0.25  # of 1/2, 1/4 and 1/8
    assert "| torch | " in table and "1+1 layers of 24/40" in table and "- ours: made up." in table
