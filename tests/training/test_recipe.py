import contextlib
import pathlib
import re

import pytest
import reference
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from small_corpus import recipe_values, write_recipe

from keras_transformer.base.errors import InputError
from keras_transformer.runs.run_folder import RunFolder
from keras_transformer.training import Recipe
from keras_transformer.training.optimizer import schedule_of
from keras_transformer.training.recipe_sections import TrainingSection

RECIPES = pathlib.Path(__file__).parents[2] / "training" / "recipes"
REFERENCE = (RECIPES / "reference.yaml").read_text(encoding="utf-8")

# The paper's learning rate for a width and a warm-up has this factor in a published recipe.
FACTORS = {"iwslt15_en_vi": 1.6, "multi30k_en_de": 1.8, "multi30k_en_de_en": 1.8}
FACTORS |= {"multi30k_lc_tok": 2.53, "multi30k_recurrent": 0.9, "multi30k_student": 1.8}
FACTORS |= {"dialog_multi": 0.3, "sst2": 0.3, "trec": 0.6}
PUBLISHED = sorted(file.stem for file in RECIPES.glob("*.yaml") if file.stem != "reference")


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_shipped_recipes_are_recipes_with_the_learning_rates_of_their_models(name):
    file = RECIPES / f"{name}.yaml"
    recipe = Recipe.load(file)
    turn_id = 4 if recipe.text.turn_separator else None
    config = recipe.model_config(8000, turn_id=turn_id)
    assert config.vocabulary_size == 8000
    warmup_steps = yaml.safe_load(file.read_text(encoding="utf-8"))["training"]["warmup_steps"]
    rates = schedule_of(recipe.training.with_schedule(10**6), config.model_dim)
    for step in (1, warmup_steps, 4 * warmup_steps):
        width, factor = config.model_dim, FACTORS.get(name, 1)
        expected = reference.schedule(step, width, warmup_steps, factor)
        assert float(rates(step - 1)) == pytest.approx(expected, rel=1e-6)


def test_the_reference_is_what_the_declarations_say_and_a_recipe(load_program, tmp_path):
    assert load_program("docs/_ext/reference.py").recipe_reference() == REFERENCE
    written, values = yaml.safe_load(REFERENCE), recipe_values(tmp_path)
    defaults = Recipe.from_dict(values).to_dict()
    for section in ("data", "text", "training", "decoding"):
        assert set(written[section]) == set(defaults[section]), section
    assert Recipe.from_dict({**written, "data": values["data"]}).kind == "transformer"


def test_overrides_are_yaml_values_at_dotted_keys(tmp_path):
    path = write_recipe(tmp_path / "r.yaml", recipe_values(tmp_path))
    overrides = ["training.epochs=7", "data.folder=/elsewhere", "text.joint=false"]
    overrides += ["training.learning_rate=1e-3", "model.layer_norm_epsilon=1E-6"]
    recipe = Recipe.load(path, overrides)
    assert recipe.training.epochs == 7 and recipe.data.folder == "/elsewhere"
    assert recipe.text.joint is False
    assert recipe.training.learning_rate == 0.001
    assert recipe.model_config(9, 9).layer_norm_epsilon == 1e-6


@pytest.mark.parametrize(
    ("options", "steps", "warmup_steps", "peak"),
    [
        ({}, 57, 5, None),
        ({"warmup_steps": 7}, 50, 7, None),
        ({"start_from": "run"}, 57, 5, 3e-5),
        ({"start_from": "run"}, 3, 1, 3e-5),
        ({"start_from": "run"}, 60_000, 4000, 3e-5),
        ({"start_from": "run", "lora_rank": 2}, 57, 5, 3e-4),
        ({"start_from": "run", "warmup_steps": 7, "learning_rate": 0.3}, 57, 7, 0.3),
    ],
)
def test_a_warmup_is_a_tenth_of_the_steps_and_a_training_from_a_run_has_a_low_rate(
    options, steps, warmup_steps, peak
):
    training = TrainingSection(**options).with_schedule(steps)
    assert (training.warmup_steps, training.learning_rate) == (warmup_steps, peak)


@pytest.mark.parametrize("order", [1, -1])
def test_null_removes_a_key_that_cannot_be_null(tmp_path, order):
    values = recipe_values(tmp_path)
    path = write_recipe(tmp_path / "r.yaml", values)
    removed = ["data.validation=null", "training.epochs=null", "model.dropout=null", "text=null"]
    # The recipe does not have these.
    removed += ["decoding.beam_size=null", "data.noise=null", "model.positions=null"]
    recipe = Recipe.load(path, ["data.hold_out_every=20", *removed][::order])
    assert recipe.data.hold_out_every == 20
    assert {corpus.source for corpus in recipe.data.corpora("validation")} == {"train.en"}
    defaults = Recipe.from_dict({"data": values["data"]})
    assert recipe.training.epochs == defaults.training.epochs != values["training"]["epochs"]
    assert recipe.model_config(9).dropout == defaults.model_config(9).dropout == 0.1
    assert recipe.text == defaults.text
    assert recipe.decoding.beam_size == defaults.decoding.beam_size
    again = ["data.validation=null", "data.validation={source: val.tsv}", "training.epochs=3"]
    recipe = Recipe.load(path, [*again, "training.epochs=null"])
    assert recipe.data.validation.source == "val.tsv"
    assert recipe.training.epochs == defaults.training.epochs


def test_null_is_the_value_of_an_option_that_may_be_null_whatever_its_default(tmp_path):
    path = write_recipe(tmp_path / "r.yaml", recipe_values(tmp_path))
    defaults = Recipe.from_dict({})
    assert defaults.training.batch_tokens == 4096 and defaults.data.max_length_ratio == 4.0
    recipe = Recipe.load(path, ["training.batch_tokens=null", "data.max_length_ratio=null"])
    assert recipe.training.batch_tokens is None and recipe.data.max_length_ratio is None


def test_the_corpora_of_a_recipe_are_made_once(tmp_path):
    data = Recipe.from_dict(recipe_values(tmp_path)).data
    for part in ("train", "validation"):
        assert data.corpora(part) is data.corpora(part)


def test_a_recipe_has_the_values_of_the_run_that_it_starts_from(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "run").mkdir()
    search = {"length_normalization": "marian", "word_penalty": 0.2}
    search |= {"beam_size": 7, "max_length_ratio": 1.5}
    earlier = {**recipe_values(tmp_path), "decoding": search}
    RunFolder(tmp_path / "run").write_sections(earlier)

    def decoding(values, *overrides):
        new = {**earlier, "decoding": values}
        del new["text"]
        path = write_recipe(tmp_path / "r.yaml", new)
        recipe = Recipe.load(path, ["training.start_from=~/run", *overrides])
        assert recipe.training.start_from == str(tmp_path / "run")
        assert recipe.text.vocabulary_size == 150
        return recipe.decoding

    assert vars(decoding({"beam_size": 5})).items() >= {**search, "beam_size": 5}.items()
    # `null` removes what the run has, too.
    removed = decoding(
        {"max_length_ratio": 1.25}, "decoding.beam_size=null", "decoding.max_length_ratio=null"
    )
    assert removed.beam_size == 4 and removed.max_length_ratio is None
    # Another ranking drops the word penalty.
    gnmt = decoding({"length_normalization": "gnmt"})
    assert (gnmt.word_penalty, gnmt.beam_size) == (0.0, 7)


def test_a_recipe_with_text_has_the_origin_of_the_run_that_it_starts_from(tmp_path):
    origin = {"name": "a/b", "licence": "cc-by-nc-4.0"}
    (tmp_path / "run").mkdir()
    earlier = recipe_values(tmp_path)
    RunFolder(tmp_path / "run").write_sections({**earlier, "origin": origin})
    path = write_recipe(tmp_path / "r.yaml", earlier)
    start = [f"training.start_from={tmp_path / 'run'}"]
    assert Recipe.load(path, start).origin == origin
    # What a recipe says itself is kept, and a run that has gone is no error yet.
    path = write_recipe(tmp_path / "r.yaml", {**earlier, "origin": {"name": "c/d"}})
    assert Recipe.load(path, start).origin == {"name": "c/d"}
    path = write_recipe(tmp_path / "r.yaml", earlier)
    assert Recipe.load(path, ["training.start_from=nowhere"]).origin == {}


@pytest.mark.parametrize(
    ("written", "expanded"),
    [("~/text", "/home/a/text"), ("$HOME/text", "/home/a/text"), ("${DISK}/x", "/disk/x")],
)
def test_home_and_variables_are_replaced_in_every_path(tmp_path, monkeypatch, written, expanded):
    monkeypatch.setenv("HOME", "/home/a")
    monkeypatch.setenv("DISK", "/disk")
    files = {"source": written, "target": written}
    data = {"folder": written, "glossary": written}
    data |= {"train": [{"name": "a", **files}], "validation": files}
    recipe = Recipe.from_dict({"data": data, "training": {"start_from": written}})
    data_section = recipe.data
    paths = [data_section.folder, data_section.glossary]
    paths.append(recipe.training.start_from)
    for corpus in (*recipe.data.train, recipe.data.validation):
        paths += [corpus.source, corpus.target]
    assert paths == [expanded] * 7
    assert Recipe.from_dict(recipe.to_dict()) == recipe
    for path in ("$UNKNOWN/x", "a$b", "a~b"):
        data["folder"] = path
        assert Recipe.from_dict({"data": data}).data.folder == path


FEW = "decoding={beam_size: 2} model.positions=learned model.max_length=128 "
LANGUAGE_MODEL = "model={kind: language_model} data.train={source: a} data.validation={source: a} "
CLASSIFIER = "model={kind: classifier} data.train={source: a} data.validation={source: a} "
TWO = "data.train=[{name: a, source: a, target: b}, {source: a, target: b, %s}]"
TERMS = "data.glossary=terms.tsv "
# Overrides with spaces between them, and what the error names.
IMPOSSIBLE = [
    ("training.epoch=3", "unknown key `epoch` in `training`. Did you mean `epochs`?"),
    ("trainig.epochs=3", "unknown key `trainig`. Did you mean `training`?"),
    ("seed=5", "--set seed: unknown key `seed`."),
    ("model.dropout=0.1 training.epochs=x", "--set training.epochs: `training.epochs` must be a p"),
    ("model.num_head=3", "unknown key `num_head` in `model`. Did you mean `num_heads`?"),
    ("training.epochs=true", "`training.epochs` must be a positive integer. Received: True"),
    ("training.label_smoothing=1.5", "must be a number of at least 0 and below 1"),
    ("training.dtype_policy=float12", "must be one of float32, mixed_bfloat16"),
    ("training.epochs=-0x" + "f" * 5000, "Received: a number that is too long to show"),
    ("training.clip_norm=.nan", "`training.clip_norm` must be a number above 0, or null"),
    ("training.clip_norm=.inf", "`training.clip_norm` must be a number above 0, or null"),
    ("training.learning_rate='1e-3'", "a number above 0, or null. Received: '1e-3'"),
    ("training.steps_per_epoch=3 training.accumulation_steps=2", "_steps`. Received: 3 and 2"),
    ("training.seed=4294967296", "at most 4294967295. Received: 4294967296"),
    ("training.lora_rank=2", "`training.lora_rank` needs `training.start_from`"),
    ('data.folder="a\\0b"', r"Received: 'a\x00b'"),
    ("data.folder=2026-99-99", "--set data.folder='2026-99-99': not valid YAML: month"),
    ("model.activation=gellu", "Received: activation='gellu'. Did you mean `gelu`?"),
    ("model.kind=recurent", "`model.kind` must be one of transformer, recurrent"),
    ("model.preset=[x]", "`preset` must be one of"),
    ("model={kind: recurrent, num_heads: x}", "a recurrent model has no `num_heads`. Received: mo"),
    ("model.cell=x", "a transformer model has no `cell`. Received: model.cell='x'."),
    ("text.target_vocabulary_size=90", "needs `text.joint: false`"),
    ("text.joint=false model.tie_embeddings=all", "set model.tie_embeddings to decoder or none"),
    ("data.train.source=''", "`data.train` must name its files"),
    ("data.folder=7", "`data.folder` must be text. Received: 7"),
    ("data.validation={}", "or set `data.hold_out_every: 50`"),
    ("data.hold_out_every=20", "two validation sets. Delete one of them; `--set data.valid"),
    ("data.valdation=null", "unknown key `valdation` in `data`. Did you mean `validation`?"),
    ("model.num_head=null", "unknown key `num_head` in `model`. Did you mean `num_heads`?"),
    ("data.folder=~", "`data.folder` must be text. Received: None"),
    ("training.epochs=", "`training.epochs` must be a positive integer. Received: None"),
    ("data.object=7", "unknown key `object` in `data`"),
    ("data=7", "`data` must be a section with keys"),
    ("data.noise.typoes=0.1", "unknown key `typoes` in `data.noise`. Did you mean `typos`"),
    ("data.folder.deeper=7", "`folder` is a value, not a section"),
    ("no-equals", "--set must be section.key=value"),
    ("training.epochs=[1", "--set training.epochs='[1', line 1: not valid YAML"),
    ("decoding={min_length: 32, max_target_length: 31}", "min_length=32, max_target_length=31"),
    ("decoding.length_normalization=[gnmt]", "`decoding.length_normalization` must be one of gnm"),
    (FEW + "data.max_length=129", "model.max_length=128, data.max_length=129."),
    (FEW + "decoding.max_source_length=129", "max_length=128, decoding.max_source_length=129."),
    (FEW + "decoding.max_target_length=129", "max_length=128, decoding.max_target_length=129."),
    (LANGUAGE_MODEL + "data.train.target=b", "A language model learns from one text"),
    (LANGUAGE_MODEL + "data.train.header=true", "A language model learns from one text"),
    (LANGUAGE_MODEL + "data.train.header=false", "A language model learns from one text"),
    (CLASSIFIER + "training.select_by=bleu", "`training.select_by"),
    (CLASSIFIER + "training.select_by=chrf", "`training.select_by"),
    ("data.train.header=false", "`header` belongs to a table: `source` without `target`"),
    ("data.train={source: a.tmx, languages: en-de, header: false}", "`header` belongs to a table"),
    ("data.train={header: false}", "`header` belongs to a table: `source` without `target`"),
    (TWO % "name: a", "must have a `name` of its own. Received: a, a."),
    (TWO % "name: b, weigth: 1", "unknown key `weigth` in `data.train.1`. Did you mean `weight`?"),
    (TWO % "name: b, weight: 0", "`data.train.1.weight` must be a number above 0. Received: 0"),
    (TWO % "name: b, tag: <2en>", "`data.train.1.tag` must be text, or null. Received: '<2en>'."),
    (TERMS + "text.whole_words=true", "`data.glossary` needs parts of words"),
    (TERMS + "data.noise.typos=0.8", "at most 0.7 in all, because `data.glossary` has 0.3"),
    (TERMS + "text.turn_separator=</s>", "change sources of one sequence: no turns"),
]


@pytest.mark.parametrize(("overrides", "expected"), IMPOSSIBLE)
def test_an_impossible_value_is_one_clear_line(tmp_path, overrides, expected):
    path = write_recipe(tmp_path / "r.yaml", recipe_values(tmp_path))
    words = re.split(r" (?=[\w.]+=)", overrides.strip())
    with pytest.raises(InputError) as caught:
        Recipe.load(path, words)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_error_names_the_file_that_has_the_mistake(tmp_path):
    values = recipe_values(tmp_path)
    values["training"]["sede"] = 5
    path = write_recipe(tmp_path / "r.yaml", values)
    with pytest.raises(InputError) as caught:
        Recipe.load(path, ["model.dropout=0.1", "training.epochs=5"])
    assert str(caught.value) == f"{path}: unknown key `sede` in `training`. Did you mean `seed`?"


def test_limits_that_a_recipe_leaves_out_end_with_the_learned_positions(tmp_path):
    path = write_recipe(tmp_path / "r.yaml", {**recipe_values(tmp_path), "decoding": {}})
    learned = ["model.positions=learned", "model.max_length=128", "data.max_length=128"]
    recipe = Recipe.load(path, learned)
    assert recipe.decoding.max_source_length == recipe.decoding.max_target_length == 128
    assert Recipe.from_dict(recipe.to_dict()) == recipe


def test_two_vocabularies_share_no_table_whatever_their_sizes(tmp_path):
    values = recipe_values(tmp_path)
    values["text"]["joint"] = False
    for target_size in (13, 11):
        config = Recipe.from_dict(values).model_config(11, target_size)
        assert (config.tie_embeddings, config.output_vocabulary_size) == ("decoder", target_size)


SINGLE = st.none() | st.booleans() | st.integers() | st.floats() | st.dates()
SINGLE |= st.text(max_size=8) | st.binary(max_size=3)
SINGLE |= st.sampled_from([10**400, "1e-3", "gelu", "learned", "transformer_tiny"])
VALUES = st.recursive(
    SINGLE,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=4,
)
KEYS = [(section, key) for section, keys in yaml.safe_load(REFERENCE).items() for key in keys]


@settings(max_examples=200)
@given(changes=st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=3))
@example(changes={("data", "train"): {"line\x85line": None}})
@example(changes={("model", "kind"): 10**5000})
@example(changes={("model", "kind"): 10**400})
@example(changes={("training", "lora_rank"): 10**5000})
@example(changes={("training", "accumulation_steps"): 10**5000, ("training", "steps_per_epoch"): 1})
def test_any_value_of_any_key_gives_a_recipe_or_one_line(changes):
    values = recipe_values("corpus")
    for (section, key), value in changes.items():
        values.setdefault(section, {})[key] = value
    try:
        recipe = Recipe.from_dict(values)
    except InputError as error:
        assert len(str(error).splitlines()) == 1 and len(str(error)) < 500
    else:
        assert Recipe.from_dict(recipe.to_dict()) == recipe


@settings(max_examples=40)
@given(text=st.text(max_size=20))
def test_any_text_after_set_gives_a_recipe_or_an_input_error(text, tmp_path_factory):
    path = write_recipe(tmp_path_factory.mktemp("r") / "r.yaml", recipe_values("corpus"))
    for override in (text, f"data.folder={text}", f"model.{text}"):
        with contextlib.suppress(InputError):
            Recipe.load(path, [override])


NO_RECIPES = [
    (None, r"r\.yaml: cannot read the recipe"),
    (b"training: [", "not valid YAML"),
    ("a: b".encode("utf-16"), "line 1: expected UTF-8 text. Received: UTF-16"),
    (b"just words", "must have sections"),
    (b"", "must have sections"),
    (b"a: b\xff", "line 1: expected UTF-8 text"),
    (b"- {source: a.en, target: a.de}\n" * 40_000, "a recipe must have at most 1,000,000 bytes"),
    (b"!!python/object/apply:os.system ['true']", "not valid YAML"),
    (b"training: [epochs]", "`training` must be a section with keys"),
    (b"training: {start_from: nowhere}\nmodel: 5", "`model` must be a section with keys"),
    (b"text: {joint: !!bool maybe}", "not valid YAML: a value does not fit its tag"),
    (b"text: {joint: !!int ''}", "not valid YAML: a value does not fit its tag"),
    (b"text: {joint: !!timestamp x}", "not valid YAML: a value does not fit its tag"),
    (b"text: {}\nmodel: {}\ntext: {}", "line 3: not valid YAML: duplicate key 'text'"),
]


@pytest.mark.parametrize(("content", "expected"), NO_RECIPES)
def test_a_file_that_is_no_recipe_is_refused(tmp_path, content, expected):
    path = tmp_path / "r.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=expected):
        Recipe.load(path)


@pytest.mark.parametrize(
    ("sections", "limit"),
    [
        ({"data": {"max_length": 30}}, 30),
        ({"data": {"max_length": 600}}, 512),
        ({"data": {"max_length": 30}, "decoding": {"max_source_length": 40}}, 40),
        ({"data": {"max_length": 30}, "text": {"turn_separator": "|"}}, 512),
        ({"data": {"max_length": 30}, "model": {"kind": "classifier"}}, 512),
        ({"data": {"max_length": 30}, "model": {"kind": "recurrent"}}, 30),
    ],
)
def test_a_source_has_as_many_tokens_as_in_training_unless_the_recipe_says_so(sections, limit):
    files = {"source": "a", "target": "b"}
    sections["data"] |= {"train": files, "validation": files}
    recipe = Recipe.from_dict(sections)
    assert recipe.decoding.max_source_length == limit
    assert Recipe.from_dict(recipe.to_dict()).decoding.max_source_length == limit
