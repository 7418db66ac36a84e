import json
import sys

import pytest

from benchmarks import parity
from keras_transformer import Translation, Translator
from keras_transformer.engine import Engine


class Live(Engine):
    """Translates to upper case; knows how probable a few targets are."""

    defaults = {"beam_size": 4, "length_penalty": 0.6}
    turns = None

    def translate(self, texts, **_):
        return [self.described(text.upper()) for text in texts]

    def score(self, sources, targets, **_):
        return [self.described(text) for text in targets]

    def described(self, text):
        values = {"A B": (-1.0, -2.0), "A C": (-1.0, -2.00005), "B": (-1.0002,), "A": (-1.0,)}
        values = values.get(text, (-9.0,) * len(text.split()))
        ids = tuple(ord(each) for each in text.split())
        return Translation(text, sum(values), ids=ids, token_log_probabilities=values)


@pytest.mark.parametrize(
    "beam_size, translations, kinds",
    [
        (4, ["A B", "A"], (2, 0, 0)),
        (4, ["A C", "A"], (1, 1, 0)),  # the scores differ by 5e-5
        (4, ["A B", "B"], (1, 0, 1)),  # by 2e-4
        (1, ["A C", "A"], (1, 1, 0)),  # so do the second tokens
        (1, ["A", "A"], (1, 0, 1)),  # one ended before the other
    ],
)
def test_a_difference_is_a_tie_where_rounding_may_have_decided(beam_size, translations, kinds):
    found = parity.compare(Live(), ["a b", "a"], translations, beam_size, 0.6)
    assert (found["equal"], len(found["ties"]), len(found["different"])) == kinds


def test_the_program_compares_files_and_artifacts(tmp_path, monkeypatch, capsys):
    (tmp_path / "source").write_text("a b\na\n")
    (tmp_path / "found").write_text("A C\nZ\n")
    monkeypatch.setattr(Translator, "load", lambda path: Translator(Live(), Live.defaults))
    common = ["parity", "--model", "run", "--source", str(tmp_path / "source")]
    for more, different in (
        (["--translations", str(tmp_path / "found"), "--beam-sizes", "4"], 1),
        (["--artifact", "export"], 0),
    ):
        monkeypatch.setattr(sys, "argv", [*common, *more])
        with pytest.raises(SystemExit) as error:
            parity.main()
        assert error.value.code == bool(different)
        report = json.loads(capsys.readouterr().out)
        assert len(report["beam_4"]["different"]) == different
    assert set(report) == {"beam_1", "beam_4"} and report["beam_1"]["equal"] == 2
