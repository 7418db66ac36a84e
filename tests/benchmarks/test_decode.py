import importlib.util
import json

import pytest
from small_corpus import PAIRS, recipe_values, write_corpus

from benchmarks import measure
from benchmarks.decode import forced, text
from benchmarks.engines import ENGINES, choose_engines
from keras_transformer import Tokenizer, Transformer, TransformerConfig
from keras_transformer.engine.run_folder import save_model
from keras_transformer.errors import InputError
from keras_transformer.export import export_ctranslate2
from keras_transformer.training import Recipe, RunFolder

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("short_turns")]


class Fake:
    """An engine of two settings that gives `steps + more` ids and takes no time."""

    package = "keras"
    note = "made up"
    more = 0

    def __init__(self, model):
        pass

    def settings(self, threads, batch):
        assert threads == 2
        return [{"way": "slow"}, {"way": "fast", "by": batch}]

    def forced(self, source_ids, beam_size, steps, **setting):
        assert [len(ids) for ids in source_ids] == [5] * len(source_ids)
        return lambda: [[4] * (steps + self.more) for _ in source_ids]


@pytest.fixture
def fakes(tiny, monkeypatch):
    monkeypatch.setitem(ENGINES, "ours", Fake)
    monkeypatch.setitem(ENGINES, "keras_hub", type("Other", (Fake,), {}))
    return ENGINES


def test_each_engine_takes_part_with_its_best_setting(fakes, monkeypatch):
    asked = []

    def turns(calls, rounds):
        if "ours" in calls:
            assert rounds == 3
            return {"ours": [0.5, 0.25, 0.2], "keras_hub": [1.0, 1.0, 0.4]}
        asked.append(list(calls))
        return {setting: [1.0 if "slow" in setting else 0.5] for setting in calls}

    monkeypatch.setattr(measure, "in_turns", turns)
    options = dict(length=5, steps=7, batch_sizes=[3], beam_sizes=[4], rounds=3)
    options |= dict(preset="transformer_tiny", vocabulary_size=13)
    (row,) = forced(engines=["ours", "keras_hub"], **options).figures["rows"]
    assert asked == [["way=slow", "way=fast, by=3"]] * 2
    for engine in row["engines"].values():
        assert engine["setting"] == "way=fast, by=3"
        assert engine["tried"] == {"way=slow": 1.0, "way=fast, by=3": 0.5}
    assert row["engines"]["ours"]["rate"] == 3 * 7 / 0.25
    assert row["engines"]["keras_hub"]["rate"] == 3 * 7
    assert row["engines"]["keras_hub"]["ratio"] == 2  # of 2, 4 and 2, not 1 / 0.25
    assert row["engines"]["keras_hub"]["same"] == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"engines": ["marian"]}, "engine='marian'"),
        ({"preset": "base"}, "preset='base'"),
        ({"steps": 0}, "steps=0"),
        ({"length": 1025}, "must be at most 1024. Received: length=1025"),
        ({"batch_sizes": (1, -1)}, "batch_sizes=-1"),
        ({"vocabulary_size": 4, "preset": "transformer_tiny"}, "vocabulary_size=4"),
    ],
)
def test_a_wrong_option_is_a_users_mistake(options, expected):
    with pytest.raises(InputError) as caught:
        forced(**{"preset": "transformer_tiny", "vocabulary_size": 7, **options})
    assert expected in str(caught.value)


@pytest.fixture
def run(tmp_path):
    """A run folder with random weights, whose translations have at most 6 tokens."""
    texts = [text for pair in PAIRS for text in pair]
    values = recipe_values(write_corpus(tmp_path / "corpus"))
    values["decoding"] = {"length_penalty": 0.0, "max_source_length": 32, "max_target_length": 6}
    folder = RunFolder(tmp_path / "run")
    tokenizer = Tokenizer.train_from_texts(texts, 120)
    folder.create(Recipe.from_dict(values), (tokenizer, tokenizer), digests={})
    sizes = dict(model_dim=16, num_heads=2, intermediate_dim=24)
    layers = dict(num_encoder_layers=1, num_decoder_layers=1, normalize_first=True)
    model = Transformer(TransformerConfig(120, **sizes, **layers, tie_embeddings="none"))
    save_model(model, folder.model_file)
    return folder


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "some.en"
    path.write_text("".join(text + "\n" for text, _ in PAIRS[:9]) + "\n \n", encoding="utf-8")
    return path


@pytest.mark.slow
def test_a_trained_run_is_measured_side_by_side(run, source, tmp_path):
    exports = []
    if importlib.util.find_spec("ctranslate2"):
        exports.append(tmp_path / "exported")
        export_ctranslate2(run.engine(), exports[0], beam_size=1, length_penalty=0.0)
    engines = ["ours", "litert_int8", "ctranslate2"]
    options = {"beam_sizes": [1], "batch_sizes": [4, 16], "rounds": 2, "engines": engines}
    options |= {"exports": exports, "call_sizes": [0, 2]}
    report = text(run.path, source, **options).figures
    chosen, not_installed = choose_engines(engines, of_text=True)
    assert report["not_installed"] == not_installed
    row, in_calls = report["rows"]
    assert [each["call_size"] for each in report["rows"]] == [9, 2]
    assert in_calls["engines"].keys() == row["engines"].keys()
    assert list(row["engines"]) == [*chosen, *(path.name for path in exports)]
    assert row["sentences"] == 9
    assert report["length_penalty"] == 0.0
    for name, engine in row["engines"].items():
        assert engine["setting"] in engine["tried"]
        assert {each.split(",")[0] for each in engine["tried"]} == {"batch_size=4", "batch_size=16"}
        settings = {"ours": 2, "exported": 1}.get(name, 3)
        assert len(engine["tried"]) == 2 * settings
        assert len(engine["seconds"]) == 2
    assert json.loads(json.dumps(report)) == report
