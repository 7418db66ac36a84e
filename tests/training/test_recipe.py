import pathlib

import pytest
import yaml
from small_corpus import recipe_values, write_recipe

from keras_transformer.errors import InputError
from keras_transformer.training import Recipe

RECIPES = pathlib.Path(__file__).parents[2] / "training" / "recipes"


def test_defaults_are_written_out_and_read_back(tmp_path):
    recipe = Recipe.from_dict(recipe_values(tmp_path))
    assert recipe.to_dict()["training"]["label_smoothing"] == 0.1
    assert recipe.to_dict()["data"]["max_length"] == 128
    assert Recipe.from_dict(recipe.to_dict()) == recipe


@pytest.mark.parametrize("name", ["multi30k_en_de.yaml", "tatoeba_en_es.yaml"])
def test_the_shipped_recipes_are_recipes(name):
    recipe = Recipe.load(RECIPES / name)
    assert recipe.model_config(8000).vocabulary_size == 8000


def test_the_commented_recipe_names_every_option():
    """It is the reference: an option that it lacks is an option that nobody finds."""
    written = yaml.safe_load((RECIPES / "multi30k_en_de.yaml").read_text(encoding="utf-8"))
    defaults = Recipe.load(RECIPES / "multi30k_en_de.yaml").to_dict()
    for section in ("data", "text", "training", "decoding"):
        assert set(written[section]) == set(defaults[section]), section
    config = Recipe.load(RECIPES / "multi30k_en_de.yaml").model_config(8000).to_dict()
    sizes = {"vocabulary_size", "target_vocabulary_size"}
    assert set(written["model"]) == set(config) - sizes | {"preset"}


def test_overrides_are_yaml_values_at_dotted_keys(tmp_path):
    path = write_recipe(tmp_path / "r.yaml", recipe_values(tmp_path))
    recipe = Recipe.load(
        path,
        ["training.epochs=7", "data.folder=/elsewhere", "text.joint=false", "model.dropout=0.25"],
    )
    assert recipe.training.epochs == 7
    assert recipe.data.folder == "/elsewhere"
    assert recipe.text.joint is False
    assert recipe.model_config(9).dropout == 0.25


def test_a_vocabulary_a_side_ties_what_two_sides_can_share(tmp_path):
    recipe = Recipe.from_dict(recipe_values(tmp_path))
    config = recipe.model_config(11, 13)
    assert (config.tie_embeddings, config.output_vocabulary_size) == ("decoder", 13)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("training.epoch=3", "unknown key `epoch` in `training`. Did you mean `epochs`?"),
        ("trainig.epochs=3", "unknown key `trainig`. Did you mean `training`?"),
        ("model.num_head=3", "unknown key `num_head` in `model`. Did you mean `num_heads`?"),
        ("model.vocabulary_size=9", "unknown key `vocabulary_size` in `model`"),
        ("training.epochs=many", "`training.epochs` must be an integer. Received: 'many'"),
        ("training.epochs=true", "`training.epochs` must be an integer. Received: True"),
        ("training.epochs=0", "`training.epochs` must be at least 1. Received: 0"),
        ("training.label_smoothing=1.5", "`training.label_smoothing` must be at least 0"),
        ("training.dtype_policy=float12", "must be one of float32, mixed_bfloat16"),
        ("training.max_shapes=9", "at least 1 and at most 8"),
        ("training.keep_checkpoints=0", "`training.keep_checkpoints` must be at least 1"),
        ("model.num_heads=7", "`num_heads` must divide `model_dim`"),
        ("model.preset=transformer_huge", "`preset` must be one of"),
        ("text.target_vocabulary_size=90", "needs `text.joint: false`"),
        ("data.train.source=''", "`data.train` must name its files"),
        ("data.folder=7", "`data.folder` must be text. Received: 7"),
        ("data=7", "`data` must be a section with keys"),
        ("data.folder.deeper=7", "`folder` is a value, not a section"),
        ("no-equals", "--set must be section.key=value"),
        ("training.epochs=[1", "the value must be YAML"),
    ],
)
def test_what_a_recipe_cannot_mean_is_one_clear_line(tmp_path, override, expected):
    path = write_recipe(tmp_path / "r.yaml", recipe_values(tmp_path))
    with pytest.raises(InputError) as caught:
        Recipe.load(path, [override])
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"training: [", "not valid YAML"),
        (b"\xff\xfe", "must be UTF-8"),
        (b"just words", "must have sections"),
        (b"", "must have sections"),
        (b"!!python/object/apply:os.system ['true']", "not valid YAML"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path, content, expected):
    path = tmp_path / "r.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=expected):
        Recipe.load(path)


def test_a_missing_recipe_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.yaml: cannot read the recipe"):
        Recipe.load(tmp_path / "nowhere.yaml")
