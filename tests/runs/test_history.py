"""Runs rolled back to an epoch, and their best epochs, over drawn histories."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pairwise import pairwise

from keras_transformer.runs.history import best_row
from keras_transformer.runs.run_folder import RunFolder
from keras_transformer.training.checkpoints import roll_back
from keras_transformer.training.recipe_sections import TrainingSection

_COLUMNS = {"loss": "val_loss", "accuracy": "val_token_accuracy", "bleu": "val_bleu"}


def _rows(rng, count):
    """Lines of a history; many epochs have equal values."""
    return [
        {"epoch": epoch, **{column: float(rng.integers(1, 4)) / 2 for column in _COLUMNS.values()}}
        for epoch in range(1, count + 1)
    ]


def _best_epochs(rows, select_by):
    """Epochs, the best first: of equal values the one of lower loss, then the first."""
    sign = 1 if select_by == "loss" else -1
    keys = {
        row["epoch"]: (sign * row[_COLUMNS[select_by]], row["val_loss"], row["epoch"])
        for row in rows
    }
    return sorted(keys, key=keys.get)


@pairwise(
    seed=range(3),
    select_by=list(_COLUMNS),
    average=[None, 2, 3, 9],
    epoch=[0, 2, 5, 6],
)
def test_a_folder_rolled_back_is_as_after_that_epoch(seed, select_by, average, epoch, tmp_path):
    rng = np.random.default_rng(seed)
    training = TrainingSection(select_by=select_by, average_epochs=average)
    folder, rows = RunFolder(tmp_path), _rows(rng, 6)
    folder.checkpoints.mkdir()
    folder.write_history(rows)
    blocks = ["before\n", *(f"epoch {n}\nA sentence of epoch {n} {n}\n" for n in range(1, 7))]
    folder.samples_file.write_text("".join(blocks), encoding="utf-8")
    folder.bad_batch_file.write_text("{}")
    folder.model_file.write_text("earlier")
    for number in range(1, 7):
        folder.candidate_file(number).write_text(f"model {number}")
        folder.checkpoint_file(number).write_text("checkpoint")
    for _ in range(2):  # The second call changes nothing.
        roll_back(folder, epoch, training)
        assert folder.history() == rows[:epoch]
        assert folder.samples() == "".join(blocks[: epoch + 1])
        assert not folder.bad_batch_file.exists()
        best = _best_epochs(rows[:epoch], select_by)
        assert folder.model_file.read_text() == (f"model {best[0]}" if best else "earlier")
        averaged = [] if average is None else list(range(1, epoch + 1))[-average:]
        candidates = {*averaged, *best[:1]} if averaged else set()
        assert {file.name for file in folder.checkpoints.glob("best-*")} == {
            folder.candidate_file(n).name for n in candidates
        }
        assert folder.checkpoint_epochs() == [
            *range(max(1, epoch - 1), epoch + 1),
            *range(epoch + 1, 7),
        ]


@given(st.data())
def test_best_epochs_of_drawn_histories_are_those_of_a_sort(data):
    halves = st.sampled_from([0.5, 1.0, 1.5])  # Many epochs have equal values.
    epochs = st.lists(st.fixed_dictionaries(dict.fromkeys(_COLUMNS.values(), halves)), min_size=1)
    rows = [{"epoch": epoch, **row} for epoch, row in enumerate(data.draw(epochs), start=1)]
    for select_by in _COLUMNS:
        assert best_row(rows, select_by)["epoch"] == _best_epochs(rows, select_by)[0]


def test_a_history_may_have_a_measure_that_its_first_epochs_lack(tmp_path):
    rows = [{"epoch": 1, "val_loss": 0.25}, {"epoch": 2, "val_loss": 0.125, "val_chrf": 50.5}]
    RunFolder(tmp_path).write_history(rows)
    assert RunFolder(tmp_path).history() == rows
