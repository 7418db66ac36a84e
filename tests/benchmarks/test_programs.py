"""What holds for each program."""

import importlib
import pathlib
import sys

import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"
NOT_RUN = {"__init__", "engines", "measure", "trainers"}
PROGRAMS = sorted({path.stem for path in FOLDER.glob("*.py")} - NOT_RUN)


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_says_how_it_is_run(name, monkeypatch, capsys):
    if name == "web":
        pytest.importorskip("ai_edge_litert", reason="comes with the extra [litert]")
    program = importlib.import_module(f"benchmarks.{name}")
    command = f"python -m benchmarks.{name}"
    assert f"    {command}" in program.__doc__.replace("KERAS_BACKEND=jax ", "")
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as caught:
        program.main()
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {command} ")
