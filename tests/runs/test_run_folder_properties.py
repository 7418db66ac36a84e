"""What is read of a run is what was written, over drawn files, values and paths."""

import itertools
import json
import os

import pytest

from keras_transformer.base.errors import InputError
from keras_transformer.runs.model_card import training_summary
from keras_transformer.runs.run_folder import RunFolder
from keras_transformer.text.shortlist import Shortlist


def test_a_recipe_is_read_as_it_is_now_however_often_it_was_replaced(tmp_path):
    run, other = RunFolder(tmp_path), RunFolder(tmp_path)
    for length, name in itertools.product([7, 9, 7], ["a", "b", "a"]):
        other.write_sections({"data": {"max_length": length, "train": {"source": name}}})
        assert run.sections()["data"] == {"max_length": length, "train": {"source": name}}
        run.sections()["data"].clear()  # A caller's changes stay its own.
        assert run.longest_trained() == length
        assert training_summary(run)["training_texts"] == [name]


# BLEU of the best epoch, `average` of the metrics, and the BLEU of the card.
CARDS = [(12.345, "missing", 12.345), (12.345, None, 12.345), (12.345, {}, 12.345), (0.0, {}, 0.0)]
CARDS += [(None, "missing", None), (None, {"val_bleu": 33.333}, 33.333)]
CARDS += [(12.345, {"val_bleu": 33.333}, 33.333), (12.345, {"val_bleu": 0.0}, 0.0)]


@pytest.mark.parametrize(("bleu", "average", "chosen"), CARDS)
def test_a_card_has_the_bleu_of_the_model_that_was_chosen(bleu, average, chosen, tmp_path):
    run, metrics = RunFolder(tmp_path), {"validation_signatures": {"bleu": "s"}}
    run.write_sections({"data": {}})
    metrics |= {} if bleu is None else {"best_validation_bleu": bleu}
    metrics |= {} if average == "missing" else {"average": average}
    run.metrics_file.write_text(json.dumps(metrics))
    expected = {"validation_bleu": round(chosen or 0.0, 2), "bleu_signature": "s"}
    expected = {} if chosen is None else expected
    assert training_summary(run) == {"training_texts": [], **expected}


def test_a_card_names_the_files_of_every_kind_of_corpus(tmp_path):
    run = RunFolder(tmp_path)
    corpora = [
        ({"source": "a.en", "target": "a.de"}, ["f/a.en", "f/a.de"]),
        ({"source": "a.tsv", "target": None}, ["f/a.tsv"]),
        ({"source": "m.tmx", "languages": "en-de"}, ["f/m.tmx"]),
        ({"source": "/x/y/b.en", "target": "sub/b.de"}, ["b.en", "b.de"]),
    ]
    for chosen in (*([corpus] for corpus in corpora), *itertools.permutations(corpora, 2)):
        train = [files for files, _ in chosen]
        for value in (train, train[0]) if len(train) == 1 else (train,):
            run.write_sections({"data": {"folder": "/home/user/f", "train": value}})
            assert training_summary(run)["training_texts"] == [
                n for _, names in chosen for n in names
            ]


class _Side:
    def __init__(self, size):
        self.vocabulary_size = size


def test_a_shortlist_fits_up_to_the_last_ids_of_both_sides(tmp_path):
    run = RunFolder(tmp_path)
    for sources, largest in itertools.product([0, 1, 9], [3, 4, 12]):
        Shortlist([largest], [[5]] * sources if largest > 4 else [[1]] * sources).save(
            run.shortlist_file
        )
        for source_size, target_size in itertools.product(
            [sources - 1, sources, sources + 1], [largest, largest + 1, largest + 2]
        ):
            sides = [_Side(source_size), _Side(target_size)]
            if sources <= source_size and largest < target_size:
                assert run.shortlist(sides.copy).largest_id == largest
            else:
                with pytest.raises(InputError, match="the shortlist must be of the run's"):
                    run.shortlist(sides.copy)


def test_a_run_is_not_replaced_with_an_input_in_it_however_its_path_is_written(
    tmp_path, monkeypatch
):
    folder = tmp_path / "place" / "run"
    folder.mkdir(parents=True)
    (folder / "tokenizer.model").touch()
    (folder / "recipe.yaml").touch()
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "file").symlink_to(folder / "recipe.yaml")
    (tmp_path / "outside.yaml").touch()
    monkeypatch.chdir(tmp_path / "place")
    inside = ["run/recipe.yaml", "../link/recipe.yaml", "../file", "./run/../run/recipe.yaml"]
    inside.append(folder / "recipe.yaml")
    outside = ["../outside.yaml", "run/../other.yaml", "running.yaml", None, ""]
    outside.append(tmp_path / "outside.yaml")
    for path in (folder, "run", "../link", os.path.relpath(folder)):
        for file in inside:
            with pytest.raises(InputError, match="because the recipe is in it"):
                RunFolder(path).check_replaceable(True, {"nothing": None, "the recipe": file})
        for file in outside:
            RunFolder(path).check_replaceable(True, {"the recipe": file})


def test_each_file_that_a_run_writes_is_a_runs_and_no_other(tmp_path):
    run = RunFolder(tmp_path)
    files = [value for value in vars(run).values() if hasattr(value, "relative_to")]
    files = [file for file in files if file not in (run.path, run.checkpoints, run.tensorboard)]
    for epoch in (1, 9999, 10_000):
        files += [run.candidate_file(epoch)]
        for suffix in (".keras", ".npz"):
            run.checkpoint_suffix = suffix
            files += [run.checkpoint_file(epoch)]
    files += [tmp_path / f"{name}tokenizer.model" for name in ("", "source_", "target_")]
    files += [
        run.tensorboard / part / "events.out.tfevents.1.host" for part in ("train", "validation")
    ]
    (tmp_path / "tokenizer.model").touch()
    owned = run.owned()
    for file in files:
        name = file.relative_to(tmp_path).as_posix()
        assert owned.is_mine(name), name
        assert not owned.is_mine(f"my-{name}") and not owned.is_mine(
            f"{name}.txt" if "tfevents" not in name else f"x/{name}"
        )
