import importlib.util
import json
import math
import os
import shutil
import sys

import numpy as np
import pytest
from small_corpus import PAIRS, recipe_values, write_corpus

from keras_transformer.engine.run_folder import load_model
from keras_transformer.errors import InputError
from keras_transformer.files import file_digests
from keras_transformer.locks import locked_folder
from keras_transformer.training import Recipe, compile_model, train
from keras_transformer.training.corpus import Corpus
from keras_transformer.training.run import Run

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path / "corpus")


def recipe(corpus, **training):
    values = recipe_values(corpus, **training)
    values["model"]["dropout"] = 0.2  # so that generators matter
    return Recipe.from_dict(values)


def metrics(folder):
    return json.loads(folder.metrics_file.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    base = tmp_path_factory.mktemp("finished")
    corpus = write_corpus(base / "corpus")
    options = dict(epochs=3, ema_momentum=0.9, keep_checkpoints=2, sample_translations=2)
    options["jit_compile"] = False
    options["attention_images"] = 2 if importlib.util.find_spec("matplotlib") else None
    return train(recipe(corpus, **options), base / "run")


def test_the_first_validation_pairs_are_kept_in_the_run(finished):
    assert finished.sample_pairs() == PAIRS[:300]


def test_a_run_folder_holds_the_files_of_the_readme(finished):
    names = {file.name for file in finished.path.iterdir()}
    assert names == {
        "recipe.yaml",
        "tokenizer.model",
        "data.json",
        "model.keras",
        "checkpoints",
        "history.csv",
        "metrics.json",
        "samples.tsv",
        "samples.txt",
        "tensorboard",
    }
    assert finished.checkpoint_epochs() == [2, 3]
    assert len(finished.history()) == 3


def test_a_conversation_is_answered_in_training_as_by_the_run(corpus, tmp_path):
    """The targets are much longer than twice the sources, and only the last turn is read."""
    lines = [f"{target} </s> A dog.\t{target} {target}\n" for _, target in PAIRS]
    (corpus / "dialog.tsv").write_text("".join(lines), encoding="utf-8")
    values = recipe_values(corpus, epochs=1, sample_translations=1, jit_compile=False)
    values["data"] |= {part: {"source": "dialog.tsv"} for part in ("train", "validation")}
    values["data"] |= {"context_turns": 1, "max_length_ratio": None}
    values["text"]["turn_separator"] = "</s>"
    folder = train(Recipe.from_dict(values), tmp_path / "run")
    (found,) = folder.engine().translate(["A dog."], beam_size=1)
    assert len(found.ids) > 2 * len(found.source_tokens) + 10
    assert f"  translation: {found.text}\n" in folder.samples()


def test_history_has_the_curves_and_the_throughput(finished):
    row = finished.history()[0]
    wanted = {"loss", "token_accuracy", "perplexity", "learning_rate", "tokens_per_second"}
    assert wanted | {"val_loss", "val_token_accuracy", "val_perplexity", "epoch"} <= set(row)
    assert row["tokens_per_second"] > 0
    # The smoothed loss is above the plain cross-entropy, whose exponential perplexity is.
    assert math.isclose(row["val_perplexity"], math.exp(row["val_loss"]), rel_tol=0.5)
    # Seven steps have passed; the schedule's value for the eighth, counted from 1.
    steps = metrics(finished)["steps_per_epoch"]
    expected = 64**-0.5 * (steps + 1) * 100**-1.5
    assert math.isclose(row["learning_rate"], expected, rel_tol=1e-4)


def test_the_saved_model_is_the_epoch_with_the_lowest_validation_loss(finished):
    best = min(finished.history(), key=lambda row: row["val_loss"])
    assert metrics(finished)["best_epoch"] == best["epoch"]
    model = finished.model()
    compile_model(model, finished.recipe().training)
    datasets, _ = Corpus(finished.recipe()).datasets(finished.tokenizers())
    loss = model.evaluate(datasets["validation"].to_tf_dataset(), verbose=0, return_dict=True)[
        "loss"
    ]
    assert math.isclose(loss, best["val_loss"], rel_tol=1e-4)


@pytest.mark.parametrize("of", ["last", "best"])
def test_an_average_of_the_last_epochs_is_the_model_one_of_the_best_if_it_is_better(
    corpus, tmp_path, of
):
    options = dict(epochs=3, average_epochs=2, average_of=of, learning_rate_scale=5.0)
    folder = train(recipe(corpus, jit_compile=False, **options), tmp_path / "run")
    average, losses = metrics(folder)["average"], [row["val_loss"] for row in folder.history()]
    order = range(3) if of == "last" else np.argsort(losses)[::-1]
    assert average["epochs"] == sorted(int(epoch) + 1 for epoch in list(order)[-2:])
    assert average["is_the_best_model"] == (of == "last" or average["val_loss"] < min(losses))
    models = [load_model(folder.candidate_file(each), False) for each in average["epochs"]]
    if not average["is_the_best_model"]:
        models = [load_model(folder.candidate_file(int(np.argmin(losses)) + 1), False)]
    found = load_model(folder.model_file, False).get_weights()
    for weight, *each in zip(found, *(model.get_weights() for model in models), strict=True):
        np.testing.assert_allclose(weight, np.mean(each, axis=0), rtol=1e-6, atol=1e-7)


def test_tensorboard_gets_every_curve(finished):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util

    for part in ("train", "validation"):
        events = EventAccumulator(str(finished.tensorboard / part))
        events.Reload()
        assert {"loss", "token_accuracy", "perplexity"} <= set(events.Tags()["tensors"]) | set(
            events.Tags()["scalars"]
        )
    events = EventAccumulator(str(finished.tensorboard / "train"))
    events.Reload()
    tags = set(events.Tags()["tensors"]) | set(events.Tags()["scalars"])
    wanted = {"learning_rate", "tokens_per_second", "gradient_norm", "padding_share", "recipe"}
    assert wanted <= tags
    (text,) = tensor_util.make_ndarray(events.Tensors("recipe")[0].tensor_proto).ravel()
    assert "    ema_momentum: 0.9" in text.decode()


def test_the_attention_of_one_pair_is_in_tensorboard_every_few_epochs(finished):
    pytest.importorskip("matplotlib", reason="comes with the extra [plots]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(finished.tensorboard / "attention"), {"images": 0})
    events.Reload()
    kinds = [f"attention/{kind}" for kind in ("cross", "decoder", "encoder")]
    assert sorted(events.Tags()["images"]) == kinds
    for kind in kinds:
        (image,) = events.Images(kind)
        assert image.step == 2 and image.encoded_image_string.startswith(b"\x89PNG")
        assert min(image.width, image.height) > 100


def test_images_without_matplotlib_name_the_extra_before_anything_is_made(
    tmp_path, corpus, monkeypatch
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"attention_images`, is needed .*\[plots\]"):
        train(recipe(corpus, attention_images=1), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_sample_translations_are_written_each_epoch(finished):
    text = (finished.path / "samples.txt").read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if line.startswith("epoch")] == [
        "epoch 1",
        "epoch 2",
        "epoch 3",
    ]
    assert text.count(PAIRS[0][0]) == 3 and text.count(PAIRS[1][1]) == 3


def test_the_recipe_in_the_folder_repeats_the_run(finished):
    assert Recipe.load(finished.recipe_file) == finished.recipe()
    assert finished.recipe().training.keep_checkpoints == 2


def test_a_run_is_not_replaced_unasked_nor_by_a_run_made_from_its_files(finished, tmp_path):
    before = sorted((path, path.stat().st_mtime_ns) for path in finished.path.rglob("*"))
    with pytest.raises(InputError, match="exists already"):
        train(finished.recipe(), finished.path)
    with pytest.raises(InputError, match="the recipe is in it"):
        train(finished.recipe(), finished.path, overwrite=True, recipe_file=finished.recipe_file)
    (tmp_path / "link").symlink_to(finished.path)
    of_samples, of_run = finished.recipe().to_dict(), finished.recipe().to_dict()
    of_samples["data"]["validation"]["target"] = str(finished.path / "samples.txt")
    of_run["training"]["start_from"] = str(finished.path)
    for values, name in (of_samples, "data.validation.target"), (of_run, "training.start_from"):
        for output in (finished.path, tmp_path / "link"):
            with pytest.raises(InputError, match=f"not overwritten, because `{name}` is in it"):
                train(Recipe.from_dict(values), output, overwrite=True)
    after = sorted((path, path.stat().st_mtime_ns) for path in finished.path.rglob("*"))
    assert after == before


def test_a_run_that_was_finished_meanwhile_is_not_deleted(finished, tmp_path, monkeypatch):
    output, make_datasets = tmp_path / "run", Run._make_datasets

    def make_slowly(run, corpus):
        make_datasets(run, corpus)
        shutil.copytree(finished.path, output)  # by a program that asks for no lock

    monkeypatch.setattr(Run, "_make_datasets", make_slowly)
    with pytest.raises(InputError, match="exists already"):
        train(finished.recipe(), output)
    assert file_digests(output) == file_digests(finished.path)


def test_two_trainings_in_one_folder_are_kept_apart(corpus, tmp_path):
    output, expected = tmp_path / "run", f"run: process {os.getpid()} writes to this folder"
    with locked_folder(output):
        for options in ({}, {"overwrite": True}, {"resume": True}):
            with pytest.raises(InputError, match=expected):
                train(recipe(corpus), output, **options)
    assert sorted(tmp_path.iterdir()) == [corpus]


def test_a_folder_with_anything_but_a_run_is_never_overwritten(tmp_path, corpus):
    # `recipe.yaml` may be anybody's; the corpus, too, may lie there.
    output = tmp_path / "output"
    output.mkdir()
    for name in ("chapter.txt", "recipe.yaml", "train.de"):
        (output / name).write_text("years of work")
        with pytest.raises(InputError, match=f"did not make: {name}"):
            train(recipe(corpus), output, overwrite=True)
        assert (output / name).read_text() == "years of work"
        (output / name).unlink()
    (tmp_path / "file").write_text("years of work")
    with pytest.raises(InputError, match="must be a folder"):
        train(recipe(corpus), tmp_path / "file", overwrite=True)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("model", "model_dim", 32),
        ("text", "vocabulary_size", 140),
        ("training", "warmup_steps", 7),
        ("training", "ema_momentum", 0.8),
        ("training", "batch_tokens", 400),
        ("data", "max_length", 100),
        ("data", "drop_duplicates", False),
    ],
)
def test_a_resumed_run_keeps_its_recipe(finished, section, key, value):
    before = finished.recipe_file.read_bytes()
    values = finished.recipe().to_dict()
    values[section][key] = value
    with pytest.raises(InputError, match=f"another `{section}.{key}` than"):
        train(Recipe.from_dict(values), finished.path, resume=True)
    assert finished.recipe_file.read_bytes() == before


def test_a_resumed_run_keeps_its_texts(finished, tmp_path):
    before = finished.recipe_file.read_bytes()
    values = finished.recipe().to_dict()
    write_corpus(tmp_path / "elsewhere")
    values["data"]["folder"] = str(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "train.de").write_text(
        "".join(pair[1].upper() + "\n" for pair in PAIRS), encoding="utf-8"
    )
    with pytest.raises(InputError, match="another target side of `data.train`, .*train.de"):
        train(Recipe.from_dict(values), finished.path, resume=True)
    assert finished.recipe_file.read_bytes() == before


def test_a_run_goes_on_from_another_one_with_other_texts(finished, tmp_path):
    values = finished.recipe().to_dict()
    corpus = write_corpus(tmp_path / "elsewhere")
    for number, side in enumerate(("source", "target")):
        lines = [pair[number].upper() + "\n" for pair in PAIRS[:9]]
        (corpus / f"upper.{side}").write_text("".join(lines), encoding="utf-8")
    values["data"] |= {"train": {"source": "upper.source", "target": "upper.target"}}
    values["data"]["folder"] = str(corpus)
    values["model"]["dropout"] = 0.0
    values["training"] |= {"start_from": str(finished.path), "epochs": 1, "ema_momentum": None}
    values["training"] |= {"learning_rate_scale": 1e-9, "attention_images": None}
    run = train(Recipe.from_dict(values), tmp_path / "run")
    assert run.tokenizers() == finished.tokenizers()
    begun, after = finished.model().get_weights(), run.model().get_weights()
    for one, other in zip(begun, after, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    best = metrics(finished)["best_validation_loss"]
    assert metrics(run)["best_validation_loss"] == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize(
    ("section", "changes", "message"),
    [
        ("training", {"start_from": "nowhere"}, "no such run folder"),
        ("text", {"split_digits": True}, "its `text` is not that of the recipe"),
        ("model", {"num_heads": 1}, "its model is not the one of the recipe"),
        ("model", {"kind": "classifier"}, "its `kind` is not that of the recipe"),
    ],
)
def test_a_run_that_another_cannot_go_on_from_is_refused(
    finished, tmp_path, section, changes, message
):
    values = finished.recipe().to_dict()
    values["training"] |= {"start_from": str(finished.path), "attention_images": None}
    values[section] = changes if "kind" in changes else {**values[section], **changes}
    with pytest.raises(InputError, match=message):
        train(Recipe.from_dict(values), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_nothing_to_resume_is_said(tmp_path, corpus, finished):
    with pytest.raises(InputError, match="no such run folder"):
        train(recipe(corpus), tmp_path / "nowhere", resume=True)
    shutil.copytree(finished.path, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(InputError, match="no checkpoint to resume from"):
        train(finished.recipe(), tmp_path / "run", resume=True)


def test_bad_data_leaves_no_folder(tmp_path, corpus):
    (corpus / "train.de").write_text("one line\n", encoding="utf-8")
    with pytest.raises(InputError):
        train(recipe(corpus), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_two_vocabularies_train_and_translate_in_half_precision(tmp_path, corpus):
    values = recipe_values(corpus, epochs=1, dtype_policy="mixed_bfloat16", jit_compile=False)
    values["text"] = {"vocabulary_size": 120, "target_vocabulary_size": 140, "joint": False}
    folder = train(Recipe.from_dict(values), tmp_path / "run")
    source, target = folder.tokenizers()
    assert (source.vocabulary_size, target.vocabulary_size) == (120, 140)
    engine = folder.engine()
    assert engine.model.compute_dtype == "bfloat16"
    assert len(engine.translate(["A dog."], beam_size=2)) == 1
