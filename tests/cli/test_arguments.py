import argparse
import dataclasses
import math

import pytest

from keras_transformer.cli.arguments import add_decoding, option_values
from keras_transformer.decoding import DecodingOptions
from keras_transformer.options import options_of

EVERY = {"beam_size": (["6"], 6), "length_penalty": (["0.9"], 0.9), "early_stopping": ([], True)}
EVERY |= {"sampling": ([], True), "temperature": (["0.8"], 0.8), "top_k": (["40"], 40)}
EVERY |= {"top_p": (["0.95"], 0.95), "seed": (["-11"], -11), "min_length": (["2"], 2)}
EVERY |= {"max_length": (["70"], 70), "min_length_ratio": (["0.5"], 0.5)}
EVERY |= {"max_length_ratio": (["none"], math.inf), "banned_ids": (["5", "7"], [5, 7])}
EVERY |= {"allow_unknown": ([], True), "logit_bias": (["5=-2.5", "7=1"], {5: -2.5, 7: 1.0})}
EVERY |= {"no_repeat_ngram_size": (["3"], 3), "length_normalization": (["marian"], "marian")}
EVERY |= {"word_penalty": (["0.25"], 0.25), "batch_size": (["16"], 16)}
EVERY |= {"long_input": (["split"], "split"), "shortlist": ([], True)}


def parsed(*arguments):
    parser = argparse.ArgumentParser()
    add_decoding(parser)
    return option_values(parser.parse_args(arguments))


def test_every_field_of_the_decoding_options_is_an_option():
    fields = {field.name for field in dataclasses.fields(DecodingOptions)}
    # How many translations are written is the command's own.
    assert fields - {"n_best"} == set(EVERY) - {"batch_size", "long_input"}


@pytest.mark.parametrize("name", EVERY)
def test_an_option_that_is_given_is_the_librarys(name):
    texts, value = EVERY[name]
    assert parsed("--" + name.replace("_", "-"), *texts) == {name: value}


def test_a_list_may_be_given_in_several_options():
    assert parsed("--banned-ids", "5", "--banned-ids", "7") == {"banned_ids": [5, 7]}


UNREADABLE = [(["--max-length-ratio", "two"], "expected a number or none, not 'two'")]
UNREADABLE += [(["--logit-bias", "5:1"], "expected an id and a number, as in 5=-2.5, not '5:1'")]
UNREADABLE += [(["--long-input", "cut"], "invalid choice")]


@pytest.mark.parametrize(("texts", "message"), UNREADABLE)
def test_an_unreadable_value_is_an_error(texts, message, capsys):
    with pytest.raises(SystemExit) as caught:
        parsed(*texts)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_help_says_what_the_library_declares(capsys):
    with pytest.raises(SystemExit):
        parsed("--help")
    text = " ".join(capsys.readouterr().out.split())
    for name, schema in options_of(DecodingOptions).items():
        assert schema["description"].rstrip(".") in text or name == "n_best"
    assert "; default: 1.0 " in text and "; default: the run's " in text
