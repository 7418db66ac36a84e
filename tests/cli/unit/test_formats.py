import dataclasses
import json
import math

import numpy as np

from keras_transformer import Translation
from keras_transformer.cli.formats import as_json, as_list, as_scored_json, as_scored_row, as_text
from keras_transformer.cli.lines import Line

LINE = Line(7, "a b\u2028", 9)
OTHER = Translation("y", -2.0, -3.0, tokens=("y",), token_log_probabilities=(-3.0,))
BEST = Translation(
    "x\nz ü",
    -1.0,
    float(np.float32(-1.1)),
    alternatives=(OTHER,),
    tokens=("x", "</s>"),
    token_log_probabilities=(float(np.float32(-0.1)), -1e-7),
    source_tokens=("a", "b", "</s>"),
    alignment=np.float32([[0.12346, 0.5, 1 / 3], [0, 1, 0]]),
)


def test_text_is_one_line_and_a_list_is_numbered_from_0():
    assert as_text(LINE, BEST) == "x z ü\n"
    assert as_text(LINE._replace(end="\r\n"), BEST) == "x z ü\r\n"
    lines = "6 ||| x z ü ||| -1.0000\n6 ||| y ||| -2.0000\n"
    assert as_list(LINE, BEST, 2) == lines
    # Three lines are three: a search may find fewer hypotheses, and a blank text has one.
    assert as_list(LINE, BEST, 3) == lines + "6 |||  ||| -inf\n"
    blank = as_list(Line(1, "", 1), Translation("", 0.0), 3)
    assert blank == "0 |||  ||| 0.0000\n" + "0 |||  ||| -inf\n" * 2


def test_json_holds_all_of_it_in_one_line():
    text = as_json(LINE, BEST)
    other = {"translation": "y", "score": -2.0, "log_probability": -3.0, "tokens": ["y"]}
    assert text.count("\n") == 1 and "ü" in text
    expected = {"line": 7, "source": "a b\u2028", "translation": "x\nz ü", "score": -1.0}
    expected |= {"log_probability": -1.1, "token_log_probabilities": [-0.1, -1e-7]}
    expected |= {"tokens": ["x", "</s>"], "source_tokens": ["a", "b", "</s>"]}
    expected |= {"alignment": [[0.1235, 0.5, 0.3333], [0, 1, 0]]}
    expected["alternatives"] = [{**other, "token_log_probabilities": [-3.0]}]
    assert json.loads(text) == expected


def test_a_number_that_json_does_not_know_is_null():
    fields = json.loads(as_json(LINE, Translation("x", -1.0, math.nan)))
    assert fields["log_probability"] is None


def test_a_text_that_was_split_shows_its_parts():
    joined = Translation.joined([BEST, OTHER])
    fields = json.loads(as_json(LINE, joined))
    assert fields["translation"] == "x\nz ü y"
    assert [part["translation"] for part in fields["parts"]] == ["x\nz ü", "y"]
    assert fields["parts"][0]["alignment"][1] == [0, 1, 0] and "alignment" not in fields
    assert [part["translation"] for part in fields["alternatives"][0]["parts"]] == ["y", "y"]


def test_the_continuation_of_a_forced_beginning_is_shown():
    following = {"continuation_log_probability": -0.5, "continuation_length": 3}
    fields = json.loads(as_json(LINE, dataclasses.replace(OTHER, **following)))
    assert fields.items() >= following.items()


def test_a_scored_row_has_the_nats_of_a_token_for_programs_that_filter():
    scored = dataclasses.replace(OTHER, log_probability=-6.0, token_log_probabilities=(-1, -2, -3))
    assert as_scored_row(LINE._replace(target="y\tz"), scored) == "a b\ty z\t2.0000\n"
    quoted = as_scored_row(LINE._replace(text='"a"', target='"b" c'), scored)
    assert quoted == '"a"\t"b" c\t2.0000\n'  # these programs split at tabs
    # Without tokens two words and the end count.
    scored = dataclasses.replace(scored, token_log_probabilities=())
    assert as_scored_row(LINE._replace(target="y z"), scored).endswith("\t2.0000\n")


def test_a_scored_target_has_no_alternatives():
    fields = json.loads(as_scored_json(LINE._replace(target="y"), OTHER))
    assert fields["target"] == "y"
    numbers = {"score", "log_probability", "token_log_probabilities"}
    assert set(fields) == numbers | {"line", "source", "target", "tokens", "source_tokens"}
