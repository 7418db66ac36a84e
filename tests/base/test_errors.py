import importlib.metadata
import io
import os
import pickle

import pytest

from keras_transformer.base.errors import InputError, did_you_mean, is_terminal, require
from keras_transformer.base.options import received

MISSING = [({"a": "1.0"}, 'pip install "b\\[c,d\\]<3,>=2"')]
MISSING += [({"a": "0.9", "b": "2.5"}, 'pip install "a>=1"')]
MISSING += [({"a": "1.0", "b": "2.5"}, 'pip install "a>=1" "b\\[c,d\\]<3,>=2"')]
MISSING += [(None, 'pip install "\\.\\[tools\\]" in a checkout')]


@pytest.mark.parametrize(("installed", "command"), MISSING)
def test_a_missing_package_is_named_with_what_its_extra_still_needs(
    installed, command, monkeypatch
):
    def version(name):
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    def requires(name):
        if installed is None:
            raise importlib.metadata.PackageNotFoundError(name)
        of_extra = ['a>=1; extra == "tools"', 'b[c,d]>=2,<3; extra == "tools"']
        return ["keras>=3", 'x; python_version > "3"', *of_extra, 'y; extra == "more"']

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.metadata, "requires", requires)
    message = rf"^The tool is needed \(package no_such\): {command}\.$"
    with pytest.raises(InputError, match=message):
        require("no_such.module", "The tool", "tools")


NEAR_NAMES = [("num_layer", "`num_encoder_layers` or `num_decoder_layers`")]
NEAR_NAMES += [("vocab_size", "`vocabulary_size`"), ("lenght_penalty", "`length_penalty`")]
NEAR_NAMES += [("topk", "`top_k`"), ("beamsize", "`beam_size`"), ("hidden_size", "")]
NEAR_NAMES += [("beams", "`beam_size`"), ("turns", "`turn_layers`")]
NEAR_NAMES += [(3, "")]  # A key of a file need not be text.


@pytest.mark.parametrize(("name", "expected"), NEAR_NAMES)
def test_a_near_name_has_all_words_of_the_unknown_name_or_nearly_its_letters(name, expected):
    known = ["turn_layers", "num_encoder_layers", "num_decoder_layers", "num_heads", "model_dim"]
    known += ["vocabulary_size", "length_penalty", "word_penalty", "top_k", "top_p", "beam_size"]
    assert did_you_mean(name, known) == (expected and f" Did you mean {expected}?")


def test_the_text_at_fault_is_a_place_from_0_and_named_from_1():
    error = pickle.loads(pickle.dumps(InputError("Too long.", 2)))
    assert (str(error), error.message, error.index) == ("Text 3: Too long.", "Too long.", 2)
    assert str(InputError("No file.")) == "No file." and isinstance(error, ValueError)


def test_a_terminal_is_one():
    master, slave = os.openpty()
    with os.fdopen(slave, "w") as terminal:
        assert is_terminal(terminal)
    os.close(master)
    for other in (io.StringIO(), None, terminal):  # The last is closed.
        assert not is_terminal(other)


def nested(levels):
    value = ["x" * 1000]
    for _ in range(levels):
        value = [value] * 10
    return value


VALUES = [nested(8), {"x" * 1000: nested(8)}, b"x" * 10**6, ("x" * 10**6,) * 6, 10**4000]


@pytest.mark.parametrize("value", VALUES)
def test_a_message_shows_the_beginning_of_a_value_of_any_size(value):
    assert 10 < len(received(value)) <= 303


def test_a_name_of_any_length_is_compared_in_no_time(monkeypatch):
    monkeypatch.setattr("difflib.SequenceMatcher", None)
    assert did_you_mean("x" * 10**6, ["num_layers"]) == ""
