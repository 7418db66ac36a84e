"""LoRA: what is trained, what checkpoints hold, and that the saved model is the merged one."""

import dataclasses
import shutil

import keras
import numpy as np
import pytest
from killed_trainings import copied
from shared_training import EagerTraining, SharedModel, prepared_of, recipe_of
from small_corpus import recipe_values, write_corpus, write_recipe

from benchmarks import large
from keras_transformer import Transformer, TransformerConfig, Translator
from keras_transformer.base.errors import InputError
from keras_transformer.base.large_variables import assign_each
from keras_transformer.cli import main
from keras_transformer.models import model_of
from keras_transformer.runs.model_file import load_model, save_model
from keras_transformer.training import Recipe, RunFolder, train
from keras_transformer.training.checkpoints import save_checkpoint
from keras_transformer.training.hosts import SINGLE_HOST
from keras_transformer.training.lora import (
    enable_lora,
    load_adapter,
    merged_weights,
    projections_of,
    save_adapter,
    set_merged_weights,
)
from keras_transformer.training.recipe_texts import RecipeTexts
from keras_transformer.training.training import Training

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("plain_graphs")]

RANK = 3


def small_model(**fields):
    sizes = {"model_dim": 12, "num_heads": 3, "intermediate_dim": 17}
    sizes |= {"num_encoder_layers": 1, "num_decoder_layers": 1}
    return Transformer(TransformerConfig(41, **sizes, **fields))


@pytest.mark.parametrize("decoder", ["attention", "ssru"])
def test_only_small_matrices_of_the_projections_are_trained(rng, decoder):
    model = small_model(decoder=decoder)
    ids = rng.integers(4, 41, (2, 5)), rng.integers(4, 41, (2, 7))
    before = keras.ops.convert_to_numpy(model(ids))
    enable_lora(model, RANK)
    np.testing.assert_array_equal(model(ids), before)
    # Encoder: 4 of attention and 2; decoder: 4 or 2, 4 of cross-attention and 2.
    count = 6 + (10 if decoder == "attention" else 8)
    assert len(projections_of(model)) == count
    assert len(model.trainable_variables) == 2 * count
    assert all(RANK in variable.shape for variable in model.trainable_variables)


def test_merged_weights_compute_what_the_matrices_add(rng):
    model, other = small_model(decoder="ssru"), small_model(decoder="ssru")
    enable_lora(model, RANK)
    base = {id(layer): np.asarray(layer._kernel) for layer in projections_of(model)}
    for variable in model.trainable_variables:
        variable.assign(rng.normal(size=variable.shape))
    assign_each(other.weights, merged_weights(model))
    for layer, merged in zip(projections_of(model), projections_of(other), strict=True):
        small = [np.asarray(x, "float64") for x in (layer.lora_kernel_a, layer.lora_kernel_b)]
        expected = base[id(layer)] + np.tensordot(*small, axes=1)
        np.testing.assert_allclose(merged.kernel, expected, atol=1e-5)
    ids = rng.integers(4, 41, (2, 5)), rng.integers(4, 41, (2, 7))
    np.testing.assert_allclose(other(ids), model(ids), atol=1e-4)


@pytest.fixture
def stepped(rng):
    """A model with LoRA, after a step of Adam with random gradients."""
    model = small_model()
    enable_lora(model, RANK)
    model.compile(optimizer=keras.optimizers.Adam(0.1))
    gradients = [rng.normal(size=variable.shape) for variable in model.trainable_variables]
    model.optimizer.apply(gradients, model.trainable_variables)
    return model


def arrays_of(model):
    variables = *model.trainable_variables, *model.optimizer.variables
    return [keras.ops.convert_to_numpy(variable) for variable in variables]


# Of a file that must have so many arrays.
DAMAGES = {
    "no zip": lambda path, count: path.write_bytes(b"PK\x03\x04 no zip"),
    "another rank": lambda path, count: np.savez(path, *np.zeros((count, 3, RANK + 1))),
    "too few": lambda path, count: np.savez(path, np.zeros((3, RANK))),
}


def test_a_small_file_restores_the_matrices_and_the_optimizer_and_is_named_when_damaged(
    stepped, tmp_path
):
    other, path = small_model(), tmp_path / "a.npz"
    save_adapter(stepped, path)
    enable_lora(other, RANK)
    other.compile(optimizer=keras.optimizers.Adam(0.1))
    load_adapter(other, path)
    for array, same in zip(arrays_of(stepped), arrays_of(other), strict=True):
        np.testing.assert_array_equal(same, array)
    for damage in DAMAGES.values():
        damage(path, len(arrays_of(stepped)))
        with pytest.raises(InputError) as caught:
            load_adapter(other, path)
        line = str(caught.value)
        assert line.startswith(f"{path}: cannot be read as a checkpoint of LoRA: ")
        assert "\n" not in line


def test_weights_that_are_set_are_the_merged_ones(stepped):
    weights = [2.0 * weight for weight in merged_weights(stepped)]
    set_merged_weights(stepped, weights)
    for weight, same in zip(weights, merged_weights(stepped), strict=True):
        np.testing.assert_array_equal(same, weight)


@pytest.mark.parametrize("rank", [None, RANK])
def test_a_new_training_begins_with_its_origins_weights_and_dropouts_of_its_own(
    origin, corpus, tmp_path, rank
):
    rates = {"dropout": 0.3, "attention_dropout": 0.2, "feed_forward_dropout": 0.1}
    values = recipe_of(corpus, start_from=str(origin.path), lora_rank=rank).to_dict()
    values["model"] |= rates
    replaced = RunFolder(tmp_path / "run")  # A run with LoRA is there, which this one replaces.
    replaced.checkpoints.mkdir(parents=True)
    save_model(model_of(origin.model().config), replaced.base_file)
    prepared = prepared_of(Recipe.from_dict(values), origin.tokenizers())
    model, _ = Training(prepared, replaced, SINGLE_HOST).model_and_start()
    for weight, expected in zip(merged_weights(model), origin.model().weights, strict=True):
        np.testing.assert_array_equal(weight, expected)
    assert rates.items() <= model.config.to_dict().items()


def test_a_resumed_training_keeps_the_weights_that_its_matrices_are_added_to(
    origin, corpus, tmp_path
):
    recipe = recipe_of(corpus, start_from=str(origin.path), lora_rank=RANK)
    prepared = prepared_of(recipe, origin.tokenizers())
    begun = EagerTraining(prepared, RunFolder(tmp_path / "run"), SINGLE_HOST)
    begun.begin()
    for layer in projections_of(begun.model):
        layer.lora_kernel_b.assign(np.ones(layer.lora_kernel_b.shape))
    folder = begun.folder
    folder.checkpoint_suffix = ".npz"  # as `train` does
    save_checkpoint(begun.model, folder.checkpoint_file(1))
    folder.write_history([{"epoch": 1.0, "val_loss": 0.5}])
    for _ in range(2):
        resumed = EagerTraining(dataclasses.replace(prepared, is_resumed=True), folder, SINGLE_HOST)
        resumed.begin()
        weights = load_model(folder.base_file, compile=False).weights
        for weight, expected in zip(weights, origin.model().weights, strict=True):
            np.testing.assert_array_equal(weight, expected)
        for weight, expected in zip(resumed.model.weights, begun.model.weights, strict=True):
            np.testing.assert_array_equal(weight, expected)


@pytest.fixture(scope="module")
def first_run(tmp_path_factory):
    """A run of a model with random weights, and a function that trains from it."""
    base = tmp_path_factory.mktemp("lora")
    tuned = SharedModel()
    corpus = write_corpus(base / "corpus")

    def train_run(name, resume=False, **training):
        options = {"jit_compile": False, "warmup_steps": 8, "batch_tokens": 128}
        values = recipe_values(corpus, **options, **training)
        values["model"].update(dropout=0.1, model_dim=16, intermediate_dim=16)
        options = {"resume": resume, "training_class": tuned.training_class()}
        return train(Recipe.from_dict(values), base / name, **options)

    values = recipe_values(corpus)
    values["model"].update(dropout=0.2, model_dim=16, intermediate_dim=16)
    recipe, run = Recipe.from_dict(values), RunFolder(base / "origin")
    tokenizers = RecipeTexts(recipe).tokenizers()
    run.create(recipe.to_dict(), tokenizers, {})
    save_model(model_of(recipe.model_config(tokenizers[0].vocabulary_size)), run.model_file)
    return run, train_run


@pytest.fixture(scope="module")
def tuned(first_run):
    """A run of three epochs with LoRA, whose origin has gone; a copy from within the last epoch."""
    run, train_run = first_run
    copy = shutil.copytree(run.path, run.path.with_name("copy"))
    options = {"start_from": str(copy), "lora_rank": RANK, "epochs": 3, "ema_momentum": 0.6}
    options |= {"average_epochs": 2}
    stopped = run.path.with_name("stopped")
    with copied(run.path.with_name("tuned"), stopped, 2, 2):
        folder = train_run("tuned", **options)
    shutil.rmtree(copy)
    return folder, RunFolder(stopped), options


def check_equal(one, other, epoch):
    """The models, the histories and the checkpoints after an epoch are equal."""
    for ours, theirs in zip(one.model().weights, other.model().weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    names = "loss", "val_loss", "gradient_norm"
    rows = [[[row[name] for name in names] for row in run.history()] for run in (one, other)]
    assert rows[0] == rows[1]
    files = [run.checkpoint_file(epoch).with_suffix(".npz") for run in (one, other)]
    arrays = [dict(np.load(file)) for file in files]
    assert arrays[0].keys() == arrays[1].keys()
    for name, array in arrays[0].items():
        np.testing.assert_array_equal(array, arrays[1][name])


@pytest.mark.slow
def test_a_run_with_lora_saves_the_merged_model_and_small_checkpoints(first_run, tuned):
    (run, _), (folder, *_) = first_run, tuned
    losses = [row["val_loss"] for row in folder.history()]
    assert losses[2] < losses[0]
    before, after = run.model(), folder.model()
    names = [layer.path for layer in projections_of(after)]
    for old, new in zip(before.weights, after.weights, strict=True):
        is_kernel = new.path.endswith("/kernel") and new.path.rpartition("/")[0] in names
        assert np.array_equal(old, new) != is_kernel, new.path
    assert not any("lora" in weight.path for weight in after.weights)
    checkpoints = "base.keras best-0002.keras best-0003.keras epoch-0002.npz epoch-0003.npz"
    assert sorted(file.name for file in folder.checkpoints.iterdir()) == checkpoints.split()
    with np.load(folder.checkpoint_file(3).with_suffix(".npz")) as arrays:
        # Adam has two moments of each matrix, and there is its average.
        trained = 2 * len(names)
        assert sum(RANK in array.shape for array in arrays.values()) == 4 * trained
        assert all(array.size <= 16 * 16 for array in arrays.values())


@pytest.mark.slow
def test_a_resumed_run_is_the_uninterrupted_one_without_its_origin(first_run, tuned, capsys):
    (_, train_run), (whole, stopped, options) = first_run, tuned
    damaged = RunFolder(shutil.copytree(whole.path, whole.path.with_name("damaged")))
    no_zip = b"PK\x03\x04 no zip"
    (damaged.checkpoints / "epoch-0003.npz").write_bytes(no_zip)
    check_equal(whole, train_run("damaged", resume=True, **options), epoch=3)
    assert "epoch-0003.npz: cannot be read as a checkpoint of LoRA" in capsys.readouterr().err
    values = {**Recipe.of_run(damaged).to_dict(), "model": {"dropout": 0.1}}
    del values["text"]  # which comes from the run itself
    file = write_recipe(damaged.path.with_name("r.yaml"), values)
    command = ["train", "--no-compilation-cache", str(file), "--output"]
    assert main.run([*command, str(damaged.path), "--resume"]) == 0
    assert main.run([*command, str(damaged.path.with_name("new")), "--resume"]) == 2
    assert "copy/recipe.yaml: cannot read the recipe" in capsys.readouterr().err
    assert stopped.checkpoint_epochs() == [] and len(stopped.history()) == 2
    check_equal(whole, train_run("stopped", resume=True, **options), epoch=3)


@pytest.mark.slow
def test_a_model_of_many_languages_is_tuned_and_translates_each_direction_meanwhile(
    tmp_path, capsys
):
    model, many = tmp_path / "model", tmp_path / "many"
    large.make_model(model, large.Shape(16, 2, 1, 32, 300))
    assert main.run(["import", str(model), "--output", str(many)]) == 0
    sentences = ["a dog plays", "a man looks on", "a ball in the snow"]
    (tmp_path / "text").write_text("".join(f"{sentence}\n" for sentence in sentences))
    sides = {"source": "text", "target": "text"}
    both_ways = [{**sides, "languages": languages} for languages in ("en-de", "de-en")]
    training = {"start_from": str(many), "lora_rank": RANK, "epochs": 1, "select_by": "bleu"}
    data = {"folder": str(tmp_path), "train": both_ways, "validation": both_ways}
    values = {"data": data, "training": {**training, "jit_compile": False}}
    folder = train(Recipe.from_dict(values), tmp_path / "tuned")
    (row,) = folder.history()
    assert {"val_bleu/en-de", "val_bleu/de-en"} <= row.keys()
    translator = Translator.load(folder.path)
    texts = [sentences[0]] * 2
    translations = translator.translate(
        texts, source_language=["en", "de"], target_language=["de", "en"], beam_size=1
    )
    assert len(translations) == 2
    del values["data"]["train"], values["data"]["validation"]
    values["data"] |= {"train": sides, "validation": sides}
    with pytest.raises(InputError, match="`data.train` needs `languages` such as en-de"):
        train(Recipe.from_dict(values), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_lora_needs_a_model_with_attention():
    with pytest.raises(InputError, match="needs a model with attention"):
        enable_lora(type("Model", (), {"config": type("C", (), {"kind": "recurrent"})}), 2)
