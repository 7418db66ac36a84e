import io
import os
import pickle

import pytest

from keras_transformer.errors import InputError, did_you_mean, is_terminal, require


def test_a_missing_package_is_named_with_the_extra_of_this_distribution():
    message = (
        r'The tool is needed \(package no_such\): pip install "keras-transformer-nmt\[jax\]"\.'
    )
    with pytest.raises(InputError, match=message):
        require("no_such.module", "The tool", "jax")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("num_layer", "`num_encoder_layers` or `num_decoder_layers`"),
        ("vocab_size", "`vocabulary_size`"),
        ("lenght_penalty", "`length_penalty`"),
        ("topk", "`top_k`"),
        ("hidden_size", ""),
        (3, ""),  # A key of a file need not be text.
    ],
)
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
