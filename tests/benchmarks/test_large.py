"""The program that measures large models makes one, and shows what commands take."""

import json

import pytest

from benchmarks import large


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "share"), [("float32", 1), ("float16", 0.5)])
def test_a_table_of_two_commands_on_a_small_model(tmp_path, capsys, dtype, share):
    words = ["--shape", "toy", "--dtype", dtype, "--commands", "import", "translate"]
    large.main(["--work", str(tmp_path), *words])
    report = json.loads(capsys.readouterr().out)
    assert [row["command"] for row in report["rows"]] == ["import", "translate"]
    # TensorFlow alone has more than a third of a gigabyte.
    assert all(0.3 < row["peak, GB"] < 2 and row["seconds"] > 1 for row in report["rows"])
    size = (tmp_path / "model-toy" / "model.safetensors").stat().st_size
    assert report["weights"] == pytest.approx(share * size / 1e9)
    assert share <= report["rows"][0]["MB"] / (size / 1e6) < share + 0.5


def test_an_unknown_command_is_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit):
        large.main(["--work", str(tmp_path), "--commands", "import", "train"])
    assert "`commands` must be of import, translate" in capsys.readouterr().err
