import pytest

from keras_transformer import Translation, Translator
from keras_transformer.errors import InputError


class FakeEngine:
    def translate(self, texts, **options):
        self.options = options
        return [Translation(text.upper(), -1.0) for text in texts]


def test_the_runs_options_hold_until_others_are_given():
    engine = FakeEngine()
    translator = Translator(engine, {"beam_size": 5, "length_penalty": 0.7})
    assert [each.text for each in translator.translate(["a", "b"])] == ["A", "B"]
    assert engine.options == {"beam_size": 5, "length_penalty": 0.7}
    translator.translate(["a"], beam_size=2, n_best=1)
    assert engine.options == {"beam_size": 2, "length_penalty": 0.7, "n_best": 1}


def test_none_means_that_an_option_was_not_given():
    engine = FakeEngine()
    Translator(engine, {"beam_size": 5}).translate(["a"], beam_size=None)
    assert engine.options == {"beam_size": 5}


def test_a_folder_that_is_neither_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such run or export folder"):
        Translator.load(tmp_path / "nowhere")
    with pytest.raises(InputError, match="neither a run folder"):
        Translator.load(tmp_path)
