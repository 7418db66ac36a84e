import pytest

from keras_transformer import demo
from keras_transformer.cli import run

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ("demo", {"overwrite": False})),
        (["--output", "there"], ("there", {"overwrite": False})),
        (["--overwrite"], ("demo", {"overwrite": True})),
    ],
)
def test_options_reach_the_library_and_its_table_is_printed(
    monkeypatch, arguments, expected, capsys
):
    asked = []

    def run_demo(*arguments, **options):
        asked.append((*arguments, options))
        return "a table\nof two lines"

    monkeypatch.setattr(demo, "run_demo", run_demo)
    assert run(["demo", *arguments]) == 0
    assert asked == [expected]
    assert capsys.readouterr().out == "a table\nof two lines\n"


def test_what_the_library_refuses_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys):
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "mine.txt").write_text("mine")
    monkeypatch.chdir(tmp_path)
    assert run(["demo"]) == 2
    message = "demo: exists already. Give --overwrite or another --output."
    assert capsys.readouterr() == ("", f"keras-transformer: {message}\n")


def test_an_option_that_does_not_exist_is_exit_code_2(monkeypatch, capsys):
    monkeypatch.setattr(demo, "run_demo", lambda *arguments, **options: "")
    with pytest.raises(SystemExit) as caught:
        run(["demo", "--epochs", "1"])
    assert caught.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith("error: unrecognized arguments: --epochs 1")
