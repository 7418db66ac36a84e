"""`auto` takes the candidate that trains fastest on this machine, and a run keeps to it."""

import json
import types

import numpy as np
import pytest
from small_corpus import recipe_values, write_corpus

from keras_transformer.data import EncodedPairs, LabelledDataset, ParallelDataset
from keras_transformer.errors import InputError
from keras_transformer.training import Recipe, autotune, train
from keras_transformer.training.hosts import Host

AUTO = dict(dtype_policy="auto", jit_compile="auto")


def recipe(tmp_path, **training):
    return Recipe.from_dict(recipe_values(write_corpus(tmp_path / "corpus"), **training))


ROWS = [[5]] * 6 + [[5] * 6] * 2
SHAPES = [(3, 2), (2, 7)]


@pytest.fixture
def dataset():
    """Two batches of 3 rows of 2 tokens a side, and one longer one."""
    pairs = EncodedPairs.from_lists([[*row, 2] for row in ROWS], ROWS)
    return ParallelDataset(pairs, shapes=SHAPES)


@pytest.fixture
def clock(monkeypatch):
    """A clock that the models move on."""
    clock = types.SimpleNamespace(now=0.0)
    monkeypatch.setattr(autotune.time, "perf_counter", lambda: clock.now)
    return clock


class FakeModel:
    """Takes some seconds a step after a first one of 100."""

    def __init__(self, clock, seconds, loss=1.0):
        self.clock, self.seconds, self.loss, self.shapes = clock, seconds, loss, []

    def train_on_batch(self, inputs, labels, return_dict):
        self.clock.now += self.seconds if self.shapes else 100.0
        self.shapes.append(labels.shape)
        return {"loss": self.loss}


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ([4.0, 3.0, 1.0, 2.0], "mixed_bfloat16 with XLA"),
        ([1.0, 3.0, 2.0, 2.0], "float32 with XLA"),
        ([1.0, 0.97, 2.0, 2.0], "float32 with XLA"),  # not worth it
        ([4.0, 3.0, None, 5.0], "float32 without XLA"),
    ],
)
def test_the_fastest_with_a_finite_loss_is_chosen(tmp_path, dataset, clock, seconds, chosen):
    made = []

    def make_model(recipe):
        wanted = seconds[len(made)]
        made.append((recipe.training.dtype_policy, recipe.training.jit_compile))
        return FakeModel(clock, wanted or 1.0, np.nan if wanted is None else 1.0)

    found, report = autotune.autotune(recipe(tmp_path, **AUTO), make_model, dataset)
    policies = ("float32", True), ("float32", False), ("mixed_bfloat16", True)
    assert made == [*policies, ("mixed_bfloat16", False)]
    assert report["chosen"] == chosen
    policy, with_xla = chosen.split(" ", 1)
    assert found.training.dtype_policy == policy
    assert found.training.jit_compile == (with_xla == "with XLA")
    # A batch of the commonest shape has 3 rows of 2 tokens a side.
    expected = [None if each is None else round(12 / each, 1) for each in seconds]
    assert list(report["tokens_per_second"].values()) == expected


@pytest.mark.parametrize(
    ("kind", "options", "tokens"),
    [
        (ParallelDataset, {"copies": 2}, 12),  # as without R-Drop
        (LabelledDataset, {}, 6),
        (ParallelDataset, {"with_sources": False}, 6),
    ],
)
def test_a_rate_is_of_the_tokens_that_the_history_counts(tmp_path, clock, kind, options, tokens):
    targets = [[5]] * len(ROWS) if kind is LabelledDataset else ROWS
    pairs = EncodedPairs.from_lists([[*row, 2] for row in ROWS], targets)
    dataset = kind(pairs, shapes=SHAPES, shuffle=False, **options)
    asked = recipe(tmp_path, **AUTO)
    _, report = autotune.autotune(asked, lambda _: FakeModel(clock, 0.5), dataset)
    assert set(report["tokens_per_second"].values()) == {tokens / 0.5}
    # The longer pairs have 7 tokens a side.
    assert dataset.real_tokens == 2 * tokens + 14 * tokens // 6


def test_all_candidates_together_take_ten_seconds_after_they_are_compiled(tmp_path, dataset, clock):
    models = []

    def make_model(recipe):
        models.append(FakeModel(clock, 0.5))
        return models[-1]

    autotune.autotune(recipe(tmp_path, **AUTO), make_model, dataset)
    assert 4 * 100 + 8 <= clock.now <= 4 * 100 + 10
    assert {shape for model in models for shape in model.shapes} == {(3, 2)}


def test_a_recipe_without_auto_is_its_only_candidate(tmp_path):
    plain = recipe(tmp_path, dtype_policy="mixed_bfloat16")
    assert autotune.autotune(plain, None, None) == (plain, {})


def test_several_hosts_try_nothing(tmp_path):
    with pytest.raises(InputError, match="auto` are for one host"):
        autotune.autotune(recipe(tmp_path, **AUTO), None, None, Host(0, 2))


@pytest.mark.tensorflow
def test_a_run_keeps_the_candidate_of_its_autotuning(tmp_path, monkeypatch, capsys):
    seconds = iter([4.0, 2.0])
    monkeypatch.setattr(autotune, "_seconds_a_step", lambda *_: next(seconds))
    asked = recipe(tmp_path, epochs=1, dtype_policy="auto", jit_compile=False)
    folder = train(asked, tmp_path / "run")
    report = json.loads(folder.metrics_file.read_text())["autotune"]
    assert list(report["tokens_per_second"]) == [
        "float32 without XLA",
        "mixed_bfloat16 without XLA",
    ]
    assert report["chosen"] == "mixed_bfloat16 without XLA"
    assert f"trains in {report['chosen']}: {report['why']}" in capsys.readouterr().err
    assert folder.recipe().training.dtype_policy == "mixed_bfloat16"
    assert folder.model().dtype_policy.name == "mixed_bfloat16"
    assert autotune.resolve_auto(asked, folder.recipe()) == folder.recipe()
    train(asked, folder.path, resume=True)  # There is nothing left to do, and nothing is tried.
    assert json.loads(folder.metrics_file.read_text())["autotune"] == report
