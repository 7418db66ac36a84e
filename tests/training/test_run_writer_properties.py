"""Runs rolled back to an epoch, and their best epochs and checkpoints, over drawn histories."""

import json

import numpy as np
import pytest
from pairwise import pairwise
from small_corpus import recipe_values

from keras_transformer.errors import InputError
from keras_transformer.training.recipe import Recipe, TrainingSection
from keras_transformer.training.run_writer import (
    RunFolder,
    averaged_epochs,
    best_row,
    check_resumable,
    last_checkpoint,
)

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


@pytest.mark.parametrize("seed", range(3))
@pairwise(
    select_by=list(_COLUMNS),
    average=[None, 2, 3, 9],
    of=["last", "best"],
    kept=[1, 2, 9],
    epoch=[0, 2, 5, 6],
)
def test_a_folder_rolled_back_is_as_after_that_epoch(
    seed, select_by, average, of, kept, epoch, tmp_path
):
    rng = np.random.default_rng(seed)
    training = TrainingSection(
        select_by=select_by, average_epochs=average, average_of=of, keep_checkpoints=kept
    )
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
        for file in (folder.step_file(number, 7), folder.step_file(number, 12)):
            file.write_text("step")
            file.with_suffix(".json").write_text("{}")
    for _ in range(2):  # The second call changes nothing.
        folder.roll_back_to(epoch, training)
        assert folder.history() == rows[:epoch]
        assert folder.samples() == "".join(blocks[: epoch + 1])
        assert not folder.bad_batch_file.exists()
        best = _best_epochs(rows[:epoch], select_by)
        assert folder.model_file.read_text() == (f"model {best[0]}" if best else "earlier")
        averaged = (
            []
            if average is None
            else best[:average]
            if of == "best"
            else list(range(1, epoch + 1))[-average:]
        )
        candidates = {*averaged, *best[:1]} if averaged else set()
        assert {file.name for file in folder.checkpoints.glob("best-*")} == {
            folder.candidate_file(n).name for n in candidates
        }
        assert folder.checkpoint_epochs() == [
            *range(max(1, epoch - kept + 1), epoch + 1),
            *range(epoch + 1, 7),
        ]
        steps = [folder.step_file(epoch, step) for step in (7, 12)] if epoch else []
        assert folder.step_files() == steps
        assert sorted(folder.checkpoints.glob("step-*.json")) == [
            file.with_suffix(".json") for file in steps
        ]


@pytest.mark.parametrize("seed", range(5))
def test_best_epochs_of_drawn_histories_are_those_of_a_sort(seed):
    rows = _rows(np.random.default_rng(seed), 12)
    for select_by in _COLUMNS:
        best = _best_epochs(rows, select_by)
        assert best_row(rows, select_by)["epoch"] == best[0]
        for count in range(2, 13):
            options = {"select_by": select_by, "average_epochs": count}
            assert averaged_epochs(rows, TrainingSection(**options, average_of="best")) == sorted(
                best[:count]
            )


def test_checkpoints_are_tried_from_the_newest_on_whatever_their_numbers(tmp_path, capsys):
    """All are damaged, so that each is tried."""
    folder = RunFolder(tmp_path)
    folder.checkpoints.mkdir()
    files = {}
    for epoch, step in [
        (1, 0),
        (2, 0),
        (2, 99_999_999),
        (2, 100_000_000),
        (9, 5),
        (10, 0),
        (998, 4),
        (9999, 0),
        (9999, 2),
        (10_000, 0),
        (10_000, 1),
        (123_456, 0),
    ]:
        file = folder.step_file(epoch, step) if step else folder.checkpoint_file(epoch)
        file.write_text("damaged")
        file.with_suffix(".json").write_text(json.dumps({"epoch": epoch, "step": step}))
        files[epoch, step] = file
    with pytest.raises(InputError, match="no whole checkpoint"):
        last_checkpoint(folder, None)
    tried = [line.partition(": ")[0] for line in capsys.readouterr().err.splitlines()]
    assert tried == [str(files[key]) for key in sorted(files, reverse=True)]
    assert folder.checkpoint_epochs() == [epoch for epoch, step in sorted(files) if not step]
    assert folder.step_files() == [files[key] for key in sorted(files) if key[1]]
    keep = [files[2, 99_999_999], files[9999, 2]]
    folder.remove_step_files(keep)
    assert folder.step_files() == keep and all(file.with_suffix(".json").exists() for file in keep)
    assert len(list(folder.checkpoints.glob("step-*"))) == 4


_MEMORY = {"tmx": "a.tmx", "languages": "en-de", "inline_tags": "keep"}
_TERMS = {"glossary": "terms.tsv", "glossary_share": 0.2}
_PLACES = [({"train": _MEMORY}, {"train": {**_MEMORY, "tmx": "elsewhere/b.tmx"}})]
_PLACES += [
    ({"train": [{**_MEMORY, "name": "m"}]}, {"train": [{**_MEMORY, "name": "m", "tmx": "b"}]})
]
_PLACES += [({"validation": _MEMORY}, {"validation": {**_MEMORY, "tmx": "b.tmx"}})]
_PLACES += [(_TERMS, {**_TERMS, "glossary": "elsewhere/terms.tsv"})]
_CHANGED = [({"train": _MEMORY}, {"train": {**_MEMORY, "languages": "en-fr"}}, "train")]
_CHANGED += [({"train": _MEMORY}, {"train": {**_MEMORY, "inline_tags": "drop"}}, "train")]
_CHANGED += [(_TERMS, {**_TERMS, "glossary_share": 0.3}, "glossary_share")]
_CHANGED += [(_TERMS, {"glossary_share": 0.2}, "glossary"), ({}, {"glossary": "a"}, "glossary")]


@pytest.mark.parametrize(
    "before, after, refused", [*((*places, None) for places in _PLACES), *_CHANGED]
)
def test_a_run_is_resumed_with_moved_memories_and_terms_and_no_others(
    before, after, refused, tmp_path
):
    def recipe(data):
        values = recipe_values(tmp_path)
        values["data"] |= data
        return Recipe.from_dict(values)

    folder = RunFolder(tmp_path)
    folder.write_recipe(recipe(before))
    if refused is None:
        check_resumable(folder, recipe(after))
        return
    with pytest.raises(InputError, match=f"another `data.{refused}`"):
        check_resumable(folder, recipe(after))


_CORPUS = {"name": "a", "source": "a.en", "target": "a.de", "weight": 2.0, "tag": "bt"}
_MOVED = {"source": "b.en", "target": "c.de"}
_OTHERS = {"name": "z", "weight": 1.0, "tag": "news"}


@pytest.mark.parametrize("index", [0, 1])
def test_a_run_is_resumed_with_moved_files_and_no_other_corpora(index, tmp_path):
    corpora = [_CORPUS, {**_CORPUS, "name": "b"}]

    def recipe(*corpora, **training):
        values = recipe_values(tmp_path, **training)
        values["data"] |= {"train": list(corpora)}
        return Recipe.from_dict(values)

    folder = RunFolder(tmp_path)
    folder.write_recipe(recipe(*corpora))
    for key, value in (*_MOVED.items(), *_OTHERS.items()):
        changed = [
            {**corpus, key: value} if i == index else corpus for i, corpus in enumerate(corpora)
        ]
        if key in _MOVED:
            check_resumable(folder, recipe(*changed))
            continue
        with pytest.raises(InputError, match="another `data.train`"):
            check_resumable(folder, recipe(*changed))
    check_resumable(folder, recipe(*corpora, epochs=9))
    for refused in (corpora[::-1], corpora[:1]):
        with pytest.raises(InputError, match="another `data.train`"):
            check_resumable(folder, recipe(*refused))
