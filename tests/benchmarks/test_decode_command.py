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


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--engines", "marian"], "engine='marian'"),
        (["--preset", "small"], "preset='small'"),
        (["--model", "run"], "required: --source"),
        (["--source", "text"], "required: --model"),
        (
            ["--model", "run", "--source", "text", "--steps", "4"],
            "unrecognized arguments: --steps 4",
        ),
        (["--length-penalty", "1"], "unrecognized arguments: --length-penalty 1"),
        (["--model", "run", "--source", "text"], "run: no such run folder"),
        (["--output", "no/such/report.json"], "no/such/report.json: cannot be written"),
    ],
)
def test_a_users_mistake_is_exit_code_2_and_said_in_the_last_line(arguments, expected, capsys):
    with pytest.raises(SystemExit) as caught:
        decode.main(arguments)
    assert caught.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[-1].startswith("python -m benchmarks.decode: error: ")
    assert expected in captured.err.splitlines()[-1]
