import dataclasses
import math
import re
import shutil
from unittest import mock

import numpy as np
import pytest
from shared_training import SharedModel, prepared_of
from small_corpus import PAIRS, recipe_values, write_corpus

from keras_transformer.engine.device import DevicePlan, device_plan
from keras_transformer.engine.opening import engine_of_run
from keras_transformer.errors import InputError
from keras_transformer.files import locked_folder
from keras_transformer.reading import file_digests
from keras_transformer.runs.model_file import load_model
from keras_transformer.runs.run_files import RunFiles
from keras_transformer.text.sentences import TextRules
from keras_transformer.training import Recipe, RunFolder, compile_model, preparing, train
from keras_transformer.training.corpus import Corpus
from keras_transformer.training.hosts import SINGLE_HOST
from keras_transformer.training.run import Run

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("plain_graphs")]


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path / "corpus")


def recipe(corpus, **training):
    values = recipe_values(corpus, **training)
    values["model"]["dropout"] = 0.2  # so that generators matter
    return Recipe.from_dict(values)


@pytest.fixture(scope="module")
def shared():
    return SharedModel()


@pytest.fixture(scope="module")
def finished(tmp_path_factory, shared):
    base = tmp_path_factory.mktemp("finished")
    corpus = write_corpus(base / "corpus")
    options = dict(epochs=3, ema_momentum=0.9, sample_translations=2)
    options |= {"jit_compile": False, "shortlist": True}
    return train(recipe(corpus, **options), base / "run", run_class=shared.run_class())


def test_a_run_folder_holds_the_files_of_the_readme(finished):
    names = "recipe.yaml tokenizer.model data.json model.keras checkpoints history.csv metrics.json"
    names += " samples.tsv samples.txt shortlist.npy tensorboard"
    assert {file.name for file in finished.path.iterdir()} == set(names.split())
    assert finished.checkpoint_epochs() == [2, 3] and len(finished.history()) == 3
    assert Recipe.load(finished.recipe_file) == finished.recipe()
    # Its sources are single words and sentences with letters, none of them in capitals.
    assert finished.decoding().text_rules == TextRules(True, True, True)
    assert finished.sample_pairs() == PAIRS
    text = finished.samples()
    epochs = [line for line in text.splitlines() if line.startswith("epoch")]
    assert epochs == ["epoch 1", "epoch 2", "epoch 3"]
    assert text.count(PAIRS[0][0]) == 3 and text.count(PAIRS[1][1]) == 3


def test_the_average_of_the_last_epochs_is_the_model(corpus, tmp_path, shared):
    options = dict(epochs=3, ema_momentum=0.9, average_epochs=2, jit_compile=False)
    folder = train(recipe(corpus, **options), tmp_path / "run", run_class=shared.run_class())
    average = folder.metrics()["average"]
    assert average["epochs"] == [2, 3] and average["val_loss"] > 0
    models = [load_model(folder.candidate_file(epoch), False).get_weights() for epoch in (2, 3)]
    for weight, *candidates in zip(folder.model().get_weights(), *models, strict=True):
        np.testing.assert_allclose(weight, np.mean(candidates, axis=0), rtol=1e-6, atol=1e-7)


def test_history_has_the_curves_and_the_throughput(finished):
    row = finished.history()[0]
    wanted = {"loss", "token_accuracy", "perplexity", "learning_rate", "tokens_per_second"}
    assert wanted | {"val_loss", "val_token_accuracy", "val_perplexity", "epoch"} <= set(row)
    assert row["tokens_per_second"] > 0
    # The smoothed loss is above the plain cross-entropy, whose exponential perplexity is.
    assert math.isclose(row["val_perplexity"], math.exp(row["val_loss"]), rel_tol=0.5)
    # Seven steps have passed; the schedule's value for the eighth, counted from 1.
    assert "validation_signatures" not in finished.metrics()  # Nothing was translated.
    steps = finished.metrics()["steps_per_epoch"]
    expected = 64**-0.5 * (steps + 1) * 100**-1.5
    assert math.isclose(row["learning_rate"], expected, rel_tol=1e-4)


def test_the_saved_model_is_the_epoch_with_the_lowest_validation_loss(finished):
    best = min(finished.history(), key=lambda row: row["val_loss"])
    assert finished.metrics()["best_epoch"] == best["epoch"]
    model = finished.model()
    compile_model(model, finished.recipe().training)
    datasets, _ = Corpus(finished.recipe()).datasets(finished.tokenizers())
    logs = model.evaluate(datasets["validation"].to_tf_dataset(), verbose=0, return_dict=True)
    assert math.isclose(logs["loss"], best["val_loss"], rel_tol=1e-4)


def test_tensorboard_reads_the_history_as_curves(finished):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="needs TensorFlow's TensorBoard",
    )
    curves = {}
    for part, prefix in (("train", ""), ("validation", "val_")):
        events = accumulator.EventAccumulator(str(finished.tensorboard / part))
        events.Reload()
        for name in events.Tags()["tensors"]:
            points = events.Tensors(name)
            curves[prefix + name] = [(p.step, p.tensor_proto.float_val[0]) for p in points]
    rows = finished.history()
    names = "learning_rate gradient_norm tokens_per_second loss val_loss val_token_accuracy".split()
    assert set(names) <= curves.keys() == rows[0].keys() - {"epoch"}
    for name, points in curves.items():
        assert points == [(row["epoch"], np.float32(row[name])) for row in rows]


def test_the_seed_decides_the_weights_of_a_new_model(finished, tmp_path):
    def weights(seed):
        recipe = Recipe.from_dict(recipe_values(tmp_path, seed=seed))
        prepared = prepared_of(recipe, finished.tokenizers())
        model, _ = Run(prepared, RunFolder(tmp_path / "run"), SINGLE_HOST).model_and_start()
        return np.concatenate([weight.ravel() for weight in model.get_weights()])

    first = weights(3)
    np.testing.assert_array_equal(weights(3), first)
    assert np.mean(weights(5) != first) > 0.5  # Biases begin with zeros.


def test_a_run_is_not_replaced_unasked_nor_by_a_run_made_from_its_files(finished, tmp_path):
    before = sorted((path, path.stat().st_mtime_ns) for path in finished.path.rglob("*"))
    with pytest.raises(InputError, match="exists already. Give --resume to continue it"):
        train(finished.recipe(), finished.path)
    with pytest.raises(InputError, match="the recipe is in it"):
        train(finished.recipe(), finished.path, overwrite=True, recipe_file=finished.recipe_file)
    (tmp_path / "link").symlink_to(finished.path)
    of_samples, of_run = finished.recipe().to_dict(), finished.recipe().to_dict()
    of_samples["data"]["validation"]["target"] = str(finished.path / "samples.txt")
    of_run["training"]["start_from"] = str(finished.path)
    cases = [(of_samples, "data.validation.target"), (of_run, "training.start_from")]
    cases.append((finished.recipe().to_dict(), "data.glossary"))
    cases[-1][0]["data"]["glossary"] = str(finished.path / "samples.tsv")
    for values, name in cases:
        for output in (finished.path, tmp_path / "link"):
            with pytest.raises(InputError, match=f"not overwritten, because `{name}` is in it"):
                train(Recipe.from_dict(values), output, overwrite=True)
    after = sorted((path, path.stat().st_mtime_ns) for path in finished.path.rglob("*"))
    assert after == before


def test_a_run_that_was_finished_meanwhile_is_not_deleted(finished, tmp_path, monkeypatch):
    output, prepare = tmp_path / "run", preparing.prepare

    def prepare_slowly(*arguments):
        prepared = prepare(*arguments)
        shutil.copytree(finished.path, output)  # by a program that asks for no lock
        return prepared

    monkeypatch.setattr(preparing, "prepare", prepare_slowly)
    with pytest.raises(InputError, match="exists already"):
        train(finished.recipe(), output)
    assert file_digests(output) == file_digests(finished.path)


@pytest.mark.parametrize(
    ("warmup_steps", "batches", "epoch", "count"),
    [(100, 1, None, 1), (100, 3, None, 1), (100, 3, 60, 1), (1, 1, None, 0)],
)
def test_a_too_long_warmup_is_told(
    corpus, tmp_path, monkeypatch, capsys, warmup_steps, batches, epoch, count
):
    monkeypatch.setattr(Run, "begin", lambda run: 1 / 0)  # Nothing is trained.
    options = {"warmup_steps": warmup_steps, "accumulation_steps": batches, "epochs": 4}
    options["steps_per_epoch"] = epoch
    with pytest.raises(ZeroDivisionError):
        train(recipe(corpus, **options), tmp_path / "run")
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
    values = recipe_values(corpus)
    values["data"] |= {part: {"source": "train.en"} for part in ("train", "validation")}
    values["model"] = {"kind": "language_model", "model_dim": 16, "num_heads": 2}
    folder = RunFolder(tmp_path / "run")
    prepared = preparing.prepare(Recipe.from_dict(values), folder, SINGLE_HOST, DevicePlan())
    texts = [text for text, _ in PAIRS]
    assert [text for _, text in prepared.validation] == texts
    for (prompt, _), text in zip(prepared.validation, texts, strict=True):
        assert text.startswith(f"{prompt} ") and prompt.count(" ") == 2


def test_two_trainings_in_one_folder_are_kept_apart(corpus, tmp_path):
    output, expected = tmp_path / "run", "run: another process writes to this folder"
    with locked_folder(output):
        for options in ({}, {"overwrite": True}, {"resume": True}):
            with pytest.raises(InputError, match=expected):
                train(recipe(corpus), output, **options)
    assert sorted(tmp_path.iterdir()) == [corpus]


def test_a_folder_with_anything_but_a_run_is_left_as_it_is(tmp_path, corpus):
    # `recipe.yaml` may be anybody's; the corpus, too, may lie there.
    output = tmp_path / "output"
    output.mkdir()
    for name in ("chapter.txt", "recipe.yaml", "train.de", "tokenizer.model"):
        (output / name).write_text("years of work")
        with pytest.raises(InputError):
            train(recipe(corpus), output, resume=True)
        if name != "tokenizer.model":  # which marks a run
            with pytest.raises(InputError, match=f"did not make: {name}"):
                train(recipe(corpus), output, overwrite=True)
        assert (output / name).read_text() == "years of work"
        (output / name).unlink()
    with pytest.raises(InputError, match="must be a folder"):
        train(recipe(corpus), corpus / "train.de", overwrite=True)


def test_a_resumed_run_keeps_its_recipe_and_its_texts(finished, tmp_path):
    before = finished.recipe_file.read_bytes()
    corpus = write_corpus(tmp_path / "elsewhere")
    upper = "".join(pair[1].upper() + "\n" for pair in PAIRS)
    (corpus / "train.de").write_text(upper, encoding="utf-8")
    validation = {"source": "train.en", "target": str(corpus / "train.de")}
    for section, key, value, message in (
        ("model", "model_dim", 32, "another `model.model_dim`. Received"),
        ("text", "vocabulary_size", 140, "another `text.vocabulary_size`. Received"),
        ("training", "ema_momentum", 0.8, "another `training.ema_momentum`. Received"),
        ("data", "drop_duplicates", False, "another `data.drop_duplicates`. Received"),
        ("data", "folder", str(corpus), "another target side of `data.train`, .*train.de"),
        ("data", "validation", validation, "another target side of `data.validation`, .*train.de"),
    ):
        values = finished.recipe().to_dict()
        values[section][key] = value
        with pytest.raises(InputError, match=message):
            train(Recipe.from_dict(values), finished.path, resume=True)
        assert finished.recipe_file.read_bytes() == before


UNFIT = [("training", {"start_from": "nowhere"}, "no such run folder")]
UNFIT += [("text", {"split_digits": True}, r"Received: text\.split_digits=True instead of False\.")]
OTHER = r"text\.vocabulary_size=9000 instead of 150\. Delete `text` .*: a vocabulary cannot change"
UNFIT += [("text", {"vocabulary_size": 9000}, OTHER)]
UNFIT += [("model", {"num_heads": 1}, r"must have its options\. Received: model\.num_heads=1 inst")]
UNFIT += [("model", {"kind": "classifier"}, "model.kind='classifier' instead of 'transformer'")]


@pytest.mark.parametrize(("section", "changes", "message"), UNFIT)
def test_a_start_from_an_unfit_run_is_refused(finished, tmp_path, section, changes, message):
    values = finished.recipe().to_dict()
    values["training"] |= {"start_from": str(finished.path)}
    values["training"]["shortlist"] = False
    values[section] = changes if "kind" in changes else {**values[section], **changes}
    with pytest.raises(InputError, match=message):
        train(Recipe.from_dict(values), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("has_section", [False, True])
def test_a_run_has_the_origin_of_the_model_that_it_starts_from(
    finished, shared, tmp_path, has_section, capsys
):
    few = {"sample_translations": 0, "shortlist": False, "epochs": 1}
    options = {"run_class": shared.run_class()}
    start = shutil.copytree(finished.path, tmp_path / "imported")
    values, origin = finished.recipe().to_dict(), {"name": "a/b", "licence": "cc-by-nc-4.0"}
    RunFiles(start).write_sections({**values, "origin": origin})
    rates = dict.fromkeys(("warmup_steps", "learning_rate"))
    values["training"] |= {"start_from": str(start), **few, **rates}
    if not has_section:  # A recipe of a run has it, without a name; a recipe of a person has not.
        del values["origin"]
    assert "text" in values
    run = train(Recipe.from_dict(values), tmp_path / "run", **options)
    assert run.described_origin() == "a/b, licence cc-by-nc-4.0"
    best = min(finished.history(), key=lambda row: row["val_loss"])
    loss, accuracy = (f"{best[f'val_{name}']:.4f}" for name in ("loss", "token_accuracy"))
    first_line = f"\nbefore training: val_loss {loss}, accuracy {accuracy} in validation\n"
    assert capsys.readouterr().err.count(first_line) == 1
    shutil.rmtree(start)
    training = run.recipe().training
    assert (training.warmup_steps, training.learning_rate) == (1, 3e-5)  # below 20 steps
    values["training"]["epochs"] = 2
    train(Recipe.from_dict(values), tmp_path / "run", resume=True, **options)
    assert run.recipe().training == dataclasses.replace(training, epochs=2)
    assert [row["epoch"] for row in run.history()] == [1, 2]
    assert run.described_origin() == "a/b, licence cc-by-nc-4.0"
    assert "before training" not in capsys.readouterr().err


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit(143)])
def test_a_training_that_is_stopped_says_how_to_resume(
    corpus, tmp_path, shared, capsys, monkeypatch, error
):
    def stop(run):
        if isinstance(error, SystemExit):
            run.folder.checkpoint_file(2).touch()
        raise error

    monkeypatch.setattr("keras_transformer.training.loop.fit", stop)
    with pytest.raises(type(error) if isinstance(error, SystemExit) else error):
        few = recipe(corpus, epochs=5, ema_momentum=0.9, jit_compile=False)
        train(few, tmp_path / "run", run_class=shared.run_class())
    saved = 2 if isinstance(error, SystemExit) else 0
    line = (
        f"{tmp_path / 'run'}: stopped; {saved} of 5 epochs are saved. To continue, give the same "
    )
    assert f"\n{line}command with --resume.\n" in capsys.readouterr().err


def test_nothing_to_resume_is_said(tmp_path, corpus, finished):
    with pytest.raises(InputError, match="no such run folder. Leave `resume` out to begin."):
        train(recipe(corpus), tmp_path / "nowhere", resume=True)
    shutil.copytree(finished.path, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(InputError, match="no checkpoint to resume from"):
        train(finished.recipe(), tmp_path / "run", resume=True)


@pytest.mark.slow
def test_a_conversation_is_answered_in_training_as_by_the_run_in_half_precision(
    corpus, tmp_path, one_graph
):
    """The targets are much longer than twice the sources, and only the last turn is read."""
    lines = [f"{target} </s> {source}\t{target} {target}\n" for source, target in PAIRS]
    (corpus / "dialog.tsv").write_text("".join(lines), encoding="utf-8")
    options = dict(epochs=1, sample_translations=1, dtype_policy="mixed_bfloat16", select_by="bleu")
    values = recipe_values(corpus, jit_compile=False, **options)
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


def test_a_resumed_run_keeps_its_origin_and_the_learning_rate_of_its_first_number_of_epochs(
    finished, tmp_path
):
    values, origin = finished.recipe().to_dict(), {"name": "a/b", "licence": "cc-by-nc-4.0"}
    start = shutil.copytree(finished.path, tmp_path / "imported")
    RunFiles(start).write_sections({**values, "origin": origin})
    rates = dict.fromkeys(("warmup_steps", "learning_rate"))
    values["training"] |= {"start_from": str(start), **rates}
    values["training"]["shortlist"] = False
    where = Recipe.from_dict(values), RunFolder(tmp_path / "run"), SINGLE_HOST
    run = Run(preparing.prepare(*where, DevicePlan()), *where[1:], DevicePlan())
    run.begin()
    values["training"]["epochs"] = 90
    again = preparing.resume(Recipe.from_dict(values), *where[1:], DevicePlan())
    assert again.recipe.training == dataclasses.replace(run.recipe.training, epochs=90)
    assert again.recipe.training.learning_rate == 3e-5
    assert run.recipe.origin == again.recipe.origin == origin
    shortlists = (one.shortlist_file.read_bytes() for one in (run.folder, RunFiles(start)))
    assert next(shortlists) == next(shortlists)  # Both runs have one vocabulary.
    assert run.folder.training_summary()["licence"] == "cc-by-nc-4.0"
    # A run that began without a shortlist gets one later only if its recipe asks for it.
    run.folder.shortlist_file.unlink()
    for learns in (False, True):
        training = dataclasses.replace(again.recipe.training, shortlist=learns)
        recipe = dataclasses.replace(again.recipe, training=training)
        prepared = dataclasses.replace(again, recipe=recipe)
        Run(prepared, *where[1:], DevicePlan())._complete(run.folder)
        assert run.folder.shortlist_file.exists() is learns


@pytest.mark.parametrize("begun", [DevicePlan(training_shapes=1, batch_tokens=200), DevicePlan()])
@pytest.mark.parametrize("resumed", [DevicePlan(training_shapes=2, batch_tokens=400), DevicePlan()])
def test_a_resumed_run_has_the_batches_of_the_device_that_it_began_on(tmp_path, begun, resumed):
    values = recipe_values(write_corpus(tmp_path / "corpus"), max_shapes=None, batch_tokens=None)
    where = Recipe.from_dict(values), RunFolder(tmp_path / "run"), SINGLE_HOST
    run = Run(preparing.prepare(*where, begun), *where[1:], begun)
    run.begin()
    again = preparing.resume(*where, resumed)
    training = again.recipe.training
    # At most two shapes, as an epoch has fewer than 50 steps.
    shapes = min(2, begun.training_shapes)
    assert (training.max_shapes, training.batch_tokens) == (shapes, begun.batch_tokens)
    earlier, later = run.datasets["train"], again.datasets["train"]
    steps = range(earlier.steps_per_epoch)
    assert later.step_shapes(0) == earlier.step_shapes(0)
    assert [later.lines(0, step) for step in steps] == [earlier.lines(0, step) for step in steps]


def test_the_engine_of_a_training_chooses_by_the_size_of_the_model_unless_a_plan_is_given():
    """A large model in training would otherwise be searched with twice its weights."""
    run, received = Run.__new__(Run), []
    run.folder = mock.Mock(**{"engine_options.return_value": {}})
    run.host = mock.Mock(engine=lambda *_, plan: received.append(plan))
    run.model, run.tokenizers = None, ()
    for run.plan in (device_plan(), DevicePlan(workers=7)):
        run.make_engine()
    assert received == [None, DevicePlan(workers=7)]
