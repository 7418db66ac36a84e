"""Texts, and a run of two epochs that many tests read."""

import shutil

import pytest
from shared_training import EagerTraining, recipe_of
from small_corpus import write_corpus

from keras_transformer.models import model_of
from keras_transformer.runs.model_file import save_model
from keras_transformer.training import RunFolder, train
from keras_transformer.training.recipe_texts import RecipeTexts

FINISHED = dict(select_by="bleu", sample_translations=2, shortlist=True, jit_compile=False)
FINISHED |= dict(ema_momentum=0.6, steps_per_epoch=1, learning_rate=0.01, warmup_steps=1)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A folder of texts, in which `few.en` has few sentences to validate on."""
    folder = write_corpus(tmp_path_factory.mktemp("corpus"))
    write_corpus(folder / "other")
    for side in ("en", "de"):
        lines = (folder / f"train.{side}").read_text("utf-8").splitlines(keepends=True)
        (folder / "other" / f"train.{side}").write_text("".join(lines[:20]), "utf-8")
        (folder / f"few.{side}").write_text("".join(lines[:5]), "utf-8")
        (folder / f"twice.{side}").write_text("".join(lines * 2), "utf-8")
    return folder


@pytest.fixture(scope="session")
def train_finished(corpus):
    """`train_finished(path, epochs, **options)`: the training of `finished`, or a part of it."""

    def train_finished(path, epochs=2, **options):
        recipe = recipe_of(corpus, has_sources=True, **FINISHED, epochs=epochs)
        return train(recipe, path, training_class=EagerTraining, **options)

    return train_finished


@pytest.fixture(scope="session")
def finished(train_finished, tmp_path_factory):
    """The folder of a run; its translations are perfect in the first epoch only."""
    return train_finished(tmp_path_factory.mktemp("finished") / "run")


def damaged(train_finished, finished, path):
    """A copy of `finished` with a damaged last checkpoint, and files that a kill left."""
    run = RunFolder(shutil.copytree(finished.path, path))
    checkpoint = bytearray(run.checkpoint_file(2).read_bytes())
    checkpoint[len(checkpoint) // 2] ^= 255
    run.checkpoint_file(2).write_bytes(checkpoint)
    for name in ("checkpoints/.epoch-0001.partial.keras", ".history.partial.csv"):
        (run.path / name).write_bytes(b"half")


def stopped(train_finished, finished, path):
    """A run of one epoch, which began in the empty folder of a killed training."""
    path.mkdir()
    train_finished(path, epochs=1, resume=True)


@pytest.fixture(scope="session", params=[damaged, stopped])
def resumed(request, train_finished, finished, tmp_path_factory):
    """The folder of the training of `finished`, which was resumed."""
    path = tmp_path_factory.mktemp("resumed") / "run"
    request.param(train_finished, finished, path)
    return train_finished(path, resume=True)


@pytest.fixture(scope="session")
def origin(corpus):
    """A run of a language model with random weights."""
    recipe, run = recipe_of(corpus), RunFolder(corpus / "origin")
    tokenizers = RecipeTexts(recipe).tokenizers()
    run.create(recipe.to_dict(), tokenizers, {})
    save_model(model_of(recipe.model_config(tokenizers[0].vocabulary_size)), run.model_file)
    return run
