"""Rules for all programs."""

import importlib
import json
import pathlib
import sys
from collections.abc import Sequence

import pytest

from benchmarks import command_line

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"
PROGRAMS = sorted(p.stem for p in FOLDER.glob("*.py") if "def main(" in p.read_text("utf-8"))


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_says_how_it_is_run(name, capsys):
    program = importlib.import_module(f"benchmarks.{name}")
    command = f"python -m benchmarks.{name}"
    assert f"{command} " in program.__doc__
    with pytest.raises(SystemExit) as caught:
        program.main(["--help"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {command} ")


def test_options_are_the_parameters_of_a_function(monkeypatch, capsys):
    def first(
        paths: Sequence[str], /, size: int, rates: Sequence[float] = (0.5, 1.0), fast: bool = False
    ) -> list:
        """Does one thing.

        Args:
            paths: Paths that
                are long.
            size: Size in %.
            rates: Rates.
            fast: Be fast.
        """
        return [paths, size, list(rates), fast]

    def the_other() -> command_line.Report:
        """Does another thing."""
        return command_line.Report({"n": 1}, "| a table |")

    module = type(sys)("made_up")
    module.__file__, module.__doc__ = "made_up.py", "Measures.\n"
    monkeypatch.setitem(sys.modules, __name__, module)

    def output(*words, **options):
        command_line.run(first, the_other, arguments=words, **options)
        captured = capsys.readouterr()
        return json.loads(captured.out), captured.err

    some = output("first", "x", "y", "--size", "3", "--rates", "2", "--fast")
    assert some == ([["x", "y"], 3, [2.0], True], "")
    few = output("x", "--size", "3", default=first)
    assert few == ([["x"], 3, [0.5, 1.0], False], "")
    assert output("the-other") == ({"n": 1}, "| a table |\n")
    for words, code in ((["first", "x"], 2), ([], 2), (["first", "--help"], 0)):
        with pytest.raises(SystemExit) as caught:
            output(*words)
        assert caught.value.code == code
    assert "Rates; default: 0.5 1.0" in " ".join(capsys.readouterr().out.split())
