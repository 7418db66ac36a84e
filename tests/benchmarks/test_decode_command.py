import json

import pytest

from benchmarks import decode, measure
from benchmarks.engines import choose_engines
from keras_transformer.models import config

pytestmark = pytest.mark.tensorflow


def test_engines_side_by_side_the_table_on_stderr_and_json_alone_on_stdout(
    tmp_path, capsys, monkeypatch
):
    sizes = dict(model_dim=8, num_heads=2, intermediate_dim=6)
    layers = dict(num_encoder_layers=1, num_decoder_layers=1)
    monkeypatch.setitem(config.PRESETS, "transformer_tiny", {**sizes, **layers})
    monkeypatch.setattr(measure, "_TURN_SECONDS", 0.05)
    output = tmp_path / "report.json"
    options = ["--preset", "transformer_tiny", "--vocabulary-size", "23", "--length", "5"]
    options += ["--steps", "3", "--batch-sizes", "2", "--beam-sizes", "1", "--rounds", "2"]
    engines = ["ours", "ctranslate2", "keras_hub"]
    options += ["--threads", "2", "--output", str(output), "--engines", *engines]
    decode.main(options)
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report == json.loads(output.read_text())
    assert report["config"]["vocabulary_size"] == 23
    chosen, not_installed = choose_engines(engines)
    assert report["not_installed"] == not_installed
    (row,) = report["rows"]
    assert (row["sentences"], row["beam_size"]) == (2, 1)
    assert list(row["engines"]) == list(report["notes"]) == list(chosen)
    for engine in row["engines"].values():
        assert len(engine["seconds"]) == 2 and min(engine["seconds"]) > 0
        assert engine["ratio"] > 0
        assert engine["setting"] in engine["tried"]
    assert decode.table(report) in captured.err
