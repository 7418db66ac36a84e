import sys

import pytest

from benchmarks import curves


def test_curves_of_two_runs_and_their_best_epochs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    for name, header, rows in (
        ("a", "epoch,val_loss,val_bleu", ("1,3.0,7.0", "2,2.5,9.0", "3,2.7,8.0")),
        ("b", "epoch,val_loss", ("1,2.0", "2,1.5")),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "history.csv").write_text("\n".join([header, *rows, ""]))
    picture = tmp_path / "curves.png"
    runs = [str(tmp_path / "a"), str(tmp_path / "b")]
    monkeypatch.setattr(sys, "argv", ["curves", *runs, "--plot", str(picture)])
    curves.main()
    assert capsys.readouterr().out.splitlines() == [
        "a: 3 epochs, the best is 2: {'val_loss': 2.5, 'val_bleu': 9.0}",
        "b: 2 epochs, the best is 2: {'val_loss': 1.5}",
    ]
    assert picture.read_bytes().startswith(b"\x89PNG")
