"""A training by its files: what it writes, replaces, refuses and continues."""

import dataclasses
import errno
import os
import re
import shutil
from unittest import mock

import numpy as np
import pytest
from shared_training import EagerTraining, recipe_of
from small_corpus import PAIRS, recipe_values, write_corpus

from keras_transformer.base import files
from keras_transformer.base.errors import InputError
from keras_transformer.base.files import locked_folder
from keras_transformer.base.reading import file_digests
from keras_transformer.engine.device import DevicePlan, device_plan
from keras_transformer.engine.opening import engine_of_run
from keras_transformer.runs.model_card import described_origin, training_summary
from keras_transformer.text.sentences import TextRules
from keras_transformer.training import Recipe, RunFolder, preparing, train
from keras_transformer.training.hosts import SINGLE_HOST
from keras_transformer.training.training import Training

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("plain_graphs")]


def test_a_run_folder_holds_the_files_of_the_readme(finished):
    names = "recipe.yaml tokenizer.model data.json model.keras checkpoints history.csv metrics.json"
    names += " samples.tsv samples.txt shortlist.npy tensorboard"
    assert {file.name for file in finished.path.iterdir()} == set(names.split())
    assert finished.checkpoint_epochs() == [1, 2] and len(finished.history()) == 2
    assert Recipe.load(finished.recipe_file) == Recipe.of_run(finished)
    # Its sources are single words and sentences with letters, none of them in capitals.
    assert finished.decoding().text_rules == TextRules(True, True, True)
    assert finished.sample_pairs() == PAIRS[:5]
    epochs = [line for line in finished.samples().splitlines() if line.startswith("epoch")]
    assert epochs == ["epoch 1", "epoch 2"]


def test_tensorboard_reads_the_history_as_curves_with_each_epoch_once(resumed):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="needs TensorFlow's TensorBoard",
    )
    curves = {}
    for part, prefix in (("train", ""), ("validation", "val_")):
        events = accumulator.EventAccumulator(str(resumed.tensorboard / part))
        events.Reload()
        for name in events.Tags()["tensors"]:
            points = events.Tensors(name)
            curves[prefix + name] = [(p.step, p.tensor_proto.float_val[0]) for p in points]
    rows = resumed.history()
    names = "learning_rate gradient_norm tokens_per_second loss val_loss val_token_accuracy".split()
    assert set(names) <= curves.keys() == rows[0].keys() - {"epoch"}
    for name, points in curves.items():
        assert points == [(row["epoch"], np.float32(row[name])) for row in rows]


def test_a_run_is_not_replaced_unasked_nor_by_a_run_made_from_its_files(finished, tmp_path):
    before = file_digests(finished.path)
    with pytest.raises(InputError, match="exists already. Give --resume to continue it"):
        train(Recipe.of_run(finished), finished.path)
    with pytest.raises(InputError, match="the recipe is in it"):
        train(
            Recipe.of_run(finished), finished.path, overwrite=True, recipe_file=finished.recipe_file
        )
    (tmp_path / "link").symlink_to(finished.path)
    for section, key, value, name in (
        ("data", "validation", {"source": str(finished.path / "samples.tsv")}, "validation.source"),
        ("training", "start_from", str(finished.path), "training.start_from"),
        ("data", "glossary", str(finished.path / "samples.tsv"), "data.glossary"),
    ):
        values = Recipe.of_run(finished).to_dict()
        values[section][key] = value
        for output in (finished.path, tmp_path / "link"):
            with pytest.raises(InputError, match=f"not overwritten, because `.*{name}` is in it"):
                train(Recipe.from_dict(values), output, overwrite=True)
    assert file_digests(finished.path) == before


def test_a_run_that_was_finished_meanwhile_is_not_deleted(finished, tmp_path, monkeypatch):
    output, prepare = tmp_path / "run", preparing.prepare

    def prepare_slowly(*arguments):
        prepared = prepare(*arguments)
        shutil.copytree(finished.path, output)  # by a program that asks for no lock
        return prepared

    monkeypatch.setattr(preparing, "prepare", prepare_slowly)
    with pytest.raises(InputError, match="exists already"):
        train(Recipe.of_run(finished), output)
    assert file_digests(output) == file_digests(finished.path)


@pytest.mark.parametrize(
    ("warmup_steps", "batches", "epoch", "count"),
    [(100, 1, None, 1), (100, 3, 60, 1), (1, 1, None, 0)],
)
def test_a_too_long_warmup_is_told(
    corpus, tmp_path, monkeypatch, capsys, warmup_steps, batches, epoch, count
):
    monkeypatch.setattr(Training, "begin", lambda run: 1 / 0)  # Nothing is trained.
    options = {"warmup_steps": warmup_steps, "accumulation_steps": batches, "epochs": 4}
    with pytest.raises(ZeroDivisionError):
        train(recipe_of(corpus, steps_per_epoch=epoch, **options), tmp_path / "run")
    output = capsys.readouterr().err
    batches_per_epoch = int(re.search(r"(\d+) steps per epoch", output)[1])
    assert epoch in (None, batches_per_epoch)
    lines = [line for line in output.splitlines() if "warmup" in line]
    assert len(lines) == count
    for line in lines:
        steps = batches_per_epoch // batches * 4
        assert f"only {steps} optimizer steps in all, but training.warmup_steps=100" in line
        assert " Values that fit: training.epochs=" in line and "or training.warmup_" in line


def test_samples_of_a_language_model_continue_three_words(corpus, tmp_path):
    recipe, folder = recipe_of(corpus), RunFolder(tmp_path / "run")
    prepared = preparing.prepare(recipe, folder, SINGLE_HOST, DevicePlan())
    texts = [text for text, _ in PAIRS[:5]]
    assert [text for _, text in prepared.validation] == texts
    for (prompt, _), text in zip(prepared.validation, texts, strict=True):
        assert text.startswith(f"{prompt} ") and prompt.count(" ") == 2


def test_two_trainings_in_one_folder_are_kept_apart(corpus, tmp_path):
    output, expected = tmp_path / "run", "run: another process writes to this folder"
    with locked_folder(output):
        for options in ({}, {"overwrite": True}, {"resume": True}):
            with pytest.raises(InputError, match=expected):
                train(recipe_of(corpus), output, **options)
    assert [*tmp_path.iterdir()] == []


def test_a_folder_with_anything_but_a_run_is_left_as_it_is(tmp_path, corpus):
    # `recipe.yaml` may be anybody's; the corpus, too, may lie there.
    output = tmp_path / "output"
    output.mkdir()
    for name in ("chapter.txt", "recipe.yaml", "train.de", "tokenizer.model"):
        (output / name).write_text("years of work")
        with pytest.raises(InputError):
            train(recipe_of(corpus), output, resume=True)
        if name != "tokenizer.model":  # which marks a run
            with pytest.raises(InputError, match=f"did not make: {name}"):
                train(recipe_of(corpus), output, overwrite=True)
        assert (output / name).read_text() == "years of work"
        (output / name).unlink()
    with pytest.raises(InputError, match="must be a folder"):
        train(recipe_of(corpus), corpus / "train.de", overwrite=True)


def test_a_resumed_run_has_its_texts(finished, tmp_path):
    before = finished.recipe_file.read_bytes()
    for name, pairs in (("train", PAIRS), ("few", PAIRS[:5])):
        for side, change in (("en", str), ("de", str.upper)):
            text = "".join(change(pair[side == "de"]) + "\n" for pair in pairs)
            (tmp_path / f"{name}.{side}").write_text(text, "utf-8")
    validation = {"source": "few.en", "target": str(tmp_path / "few.de")}
    for key, value, side in (
        ("folder", str(tmp_path), "target side of `data.train`, .*train.de"),
        ("validation", validation, "target side of `data.validation`, .*few.de"),
    ):
        values = Recipe.of_run(finished).to_dict()
        values["data"][key] = value
        with pytest.raises(InputError, match=f"another {side}"):
            train(Recipe.from_dict(values), finished.path, resume=True)
        assert finished.recipe_file.read_bytes() == before


OTHER = r"text\.vocabulary_size=9000 instead of 150\. Delete `text` .*: a vocabulary cannot change"
UNFIT = [("training", {"start_from": "nowhere"}, "no such run folder")]
UNFIT += [("text", {"split_digits": True}, r"Received: text\.split_digits=True instead of False\.")]
UNFIT += [("text", {"vocabulary_size": 9000}, OTHER)]
UNFIT += [("model", {"num_heads": 1}, r"must have its options\. Received: model\.num_heads=1 inst")]
UNFIT += [("model", {"kind": "classifier"}, "model.kind='classifier' instead of 'transformer'")]


@pytest.mark.parametrize(("section", "changes", "message"), UNFIT)
def test_a_start_from_an_unfit_run_is_refused(finished, tmp_path, section, changes, message):
    values = Recipe.of_run(finished).to_dict()
    values["training"] |= {"start_from": str(finished.path)}
    values["training"] |= {"shortlist": False, "select_by": "loss"}
    values[section] = changes if "kind" in changes else {**values[section], **changes}
    with pytest.raises(InputError, match=message):
        train(Recipe.from_dict(values), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_keeps_the_origin_and_the_rates_of_its_start_when_it_is_resumed(
    finished, tmp_path, capsys
):
    start = RunFolder(shutil.copytree(finished.path, tmp_path / "imported"))
    values, origin = Recipe.of_run(finished).to_dict(), {"name": "a/b", "licence": "cc-by-nc-4.0"}
    start.write_sections({**values, "origin": origin})
    shortlist = start.shortlist_file.read_bytes()
    few = {"sample_translations": 0, "shortlist": False, "epochs": 1, "select_by": "loss"}
    few |= dict.fromkeys(("warmup_steps", "learning_rate"))
    values["training"] |= {"start_from": str(start.path), **few}
    del values["origin"]  # A recipe of a run has it, without a name; a recipe of a person has not.

    def trained(**options):
        recipe = Recipe.from_dict(values)
        return train(recipe, tmp_path / "run", training_class=EagerTraining, **options)

    run = trained()
    assert described_origin(run) == "a/b, licence cc-by-nc-4.0"
    assert training_summary(run)["licence"] == "cc-by-nc-4.0"
    best = finished.history()[0]
    loss, accuracy = (f"{best[f'val_{name}']:.4f}" for name in ("loss", "token_accuracy"))
    first_line = f"\nbefore training: val_loss {loss}, accuracy {accuracy} in validation\n"
    assert capsys.readouterr().err.count(first_line) == 1
    assert run.shortlist_file.read_bytes() == shortlist  # Both runs have one vocabulary.
    run.shortlist_file.unlink()
    shutil.rmtree(start.path)
    training = Recipe.of_run(run).training
    assert (training.warmup_steps, training.learning_rate) == (1, 3e-5)  # below 20 steps
    values["training"]["epochs"] = 2
    trained(resume=True)
    assert Recipe.of_run(run).training == dataclasses.replace(training, epochs=2)
    assert [row["epoch"] for row in run.history()] == [1, 2]
    assert described_origin(run) == "a/b, licence cc-by-nc-4.0"
    assert "before training" not in capsys.readouterr().err
    # A run that began without a shortlist gets one later only if its recipe asks for it.
    assert not run.shortlist_file.exists()
    values["training"]["shortlist"] = True
    trained(resume=True)
    assert run.shortlist_file.exists()


@pytest.mark.parametrize(("error", "saved"), [(KeyboardInterrupt(), 0), (SystemExit(143), 2)])
def test_a_training_that_is_stopped_says_how_to_resume(
    corpus, tmp_path, capsys, monkeypatch, error, saved
):
    def stop(run):
        run.folder.checkpoints.mkdir(parents=True)
        if saved:
            run.folder.checkpoint_file(saved).touch()
        raise error

    monkeypatch.setattr(Training, "begin", lambda run: None)
    monkeypatch.setattr("keras_transformer.training.loop.fit", stop)
    with pytest.raises(type(error)):
        train(recipe_of(corpus, epochs=5), tmp_path / "run")
    line = f"{tmp_path / 'run'}: stopped; {saved} of 5 epochs are saved. To continue, give the same"
    assert f"\n{line} command with --resume.\n" in capsys.readouterr().err


def test_a_run_that_is_done_stays_as_it_is_also_when_its_texts_have_moved(
    finished, corpus, tmp_path, capsys
):
    run = RunFolder(shutil.copytree(finished.path, tmp_path / "run"))
    before = file_digests(run.path)
    shutil.copytree(corpus, tmp_path / "moved")
    for epochs in (2, 1):
        values = Recipe.of_run(finished).to_dict()
        values["data"]["folder"] = str(tmp_path / "moved")
        values["training"]["epochs"] = epochs
        train(Recipe.from_dict(values), run.path, resume=True, training_class=EagerTraining)
        told = f"{run.path}: nothing was left to train: 2 of {epochs} epochs are trained"
        assert told in capsys.readouterr().err
    after = file_digests(run.path)
    assert {name for name in after if after[name] != before.get(name)} <= {
        "recipe.yaml",  # its folder and epochs
        "metrics.json",
    }


def test_nothing_to_resume_is_said(tmp_path, corpus, finished):
    damaged = RunFolder(shutil.copytree(finished.path, tmp_path / "damaged"))
    for epoch in (1, 2):
        damaged.checkpoint_file(epoch).write_bytes(b"damaged")
    with pytest.raises(InputError, match="no whole checkpoint"):
        train(Recipe.of_run(finished), damaged.path, resume=True)
    with pytest.raises(InputError, match="no such run folder. Leave `resume` out to begin."):
        train(recipe_of(corpus), tmp_path / "nowhere", resume=True)
    shutil.copytree(finished.path, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(InputError, match="no checkpoint to resume from"):
        train(Recipe.of_run(finished), tmp_path / "run", resume=True)


@pytest.mark.slow
def test_a_conversation_is_answered_in_training_as_by_the_run_in_half_precision(
    tmp_path, one_graph
):
    """The targets are much longer than twice the sources, and only the last turn is read."""
    lines = [f"{target} </s> {source}\t{target} {target}\n" for source, target in PAIRS]
    (tmp_path / "dialog.tsv").write_text("".join(lines), encoding="utf-8")
    options = dict(epochs=1, sample_translations=1, dtype_policy="mixed_bfloat16", select_by="bleu")
    values = recipe_values(tmp_path, jit_compile=False, **options)
    values["data"] |= {part: {"source": "dialog.tsv"} for part in ("train", "validation")}
    values["data"] |= {"context_turns": 1, "max_length_ratio": None}
    values["text"] = {"vocabulary_size": 120, "target_vocabulary_size": 90, "joint": False}
    values["text"]["turn_separator"] = "</s>"
    values["decoding"]["max_target_length"] = 64
    folder = train(Recipe.from_dict(values), tmp_path / "run")
    source, target = folder.tokenizers()
    assert (source.vocabulary_size, target.vocabulary_size) == (120, 90)
    engine = engine_of_run(folder)
    assert engine.model.compute_dtype == "bfloat16"
    (translation,) = engine.translate([PAIRS[0][0]], beam_size=1)
    assert len(translation.ids) > 2 * len(translation.source_tokens) + 10
    assert f"  translation: {translation.text}\n" in folder.samples()
    names = [line.partition(":")[0].strip() for line in folder.samples().splitlines()]
    assert names == ["epoch 1", "source", "reference", "translation"]
    metrics = folder.metrics()
    assert metrics["best_validation_bleu"] == folder.history()[0]["val_bleu"]
    assert set(metrics["validation_signatures"]) == {"bleu", "chrf"}


@pytest.mark.parametrize(
    ("begun", "resumed"),
    [
        (DevicePlan(training_shapes=1, batch_tokens=200), DevicePlan()),
        (DevicePlan(), DevicePlan(training_shapes=2, batch_tokens=400)),
    ],
)
def test_a_resumed_run_has_the_batches_of_the_device_that_it_began_on(tmp_path, begun, resumed):
    values = recipe_values(write_corpus(tmp_path / "corpus"), max_shapes=None, batch_tokens=None)
    where = Recipe.from_dict(values), RunFolder(tmp_path / "run"), SINGLE_HOST
    prepared = preparing.prepare(*where, begun)
    where[1].create(prepared.recipe.to_dict(), prepared.tokenizers, prepared.digests)
    again = preparing.resume(*where, resumed)
    training = again.recipe.training
    # At most two shapes, as an epoch has fewer than 50 steps.
    shapes = min(2, begun.training_shapes)
    assert (training.max_shapes, training.batch_tokens) == (shapes, begun.batch_tokens)
    earlier, later = prepared.datasets["train"], again.datasets["train"]
    steps = range(earlier.steps_per_epoch)
    assert later.step_shapes(0) == earlier.step_shapes(0)
    assert [later.lines(0, step) for step in steps] == [earlier.lines(0, step) for step in steps]


def test_the_engine_of_a_training_chooses_by_the_size_of_the_model_unless_a_plan_is_given():
    """A large model in training would otherwise be searched with twice its weights."""
    run, received = Training.__new__(Training), []
    run.folder = mock.Mock(**{"engine_options.return_value": {}})
    run.host = mock.Mock(engine=lambda *_, plan: received.append(plan))
    run.model, run.tokenizers = None, ()
    for run.plan in (device_plan(), DevicePlan(workers=7)):
        run.make_engine()
    assert received == [None, DevicePlan(workers=7)]


@pytest.mark.parametrize("space", [0, 2])  # There is room for so many files.
def test_a_full_disk_costs_no_earlier_run(train_finished, finished, tmp_path, space):
    write, run = files.sync, tmp_path / "run"
    for overwrite in (False, True):
        left = iter(range(space))

        def sync(path, left=left):
            if path.is_file() and next(left, None) is None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            write(path)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files, "sync", sync)
            with pytest.raises((InputError, OSError), match="No space left"):
                train_finished(run, overwrite=overwrite)
        if overwrite:
            assert file_digests(run) == file_digests(finished.path)
        else:
            assert not os.listdir(tmp_path)
            shutil.copytree(finished.path, run)
