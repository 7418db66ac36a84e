import pytest

from keras_transformer import TransformerConfig
from keras_transformer.benchmark import measure
from keras_transformer.benchmark.measure import (
    check_positive,
    in_turns,
    matrix_product,
    multiply_adds,
    ratio,
    use_threads,
)
from keras_transformer.errors import InputError


def test_multiply_adds_are_those_counted_by_hand():
    config = TransformerConfig(
        13,
        model_dim=6,
        num_heads=2,
        intermediate_dim=5,
        num_encoder_layers=2,
        num_decoder_layers=3,
        target_vocabulary_size=7,
        tie_embeddings="none",
    )
    # A product of [n, k] and [k, m] is n · k · m. Two heads of width 3, a source of 11 tokens.
    encoder_block = (
        4 * 11 * 6 * 6  # query, key, value, output
        + 2 * (11 * 3 * 11)  # scores of each head
        + 2 * (11 * 11 * 3)  # weighted sums of each head
        + 11 * 6 * 5
        + 11 * 5 * 6
    )
    memory = 2 * 11 * 6 * 6
    step_without_past = (
        4 * 6 * 6  # self-attention: query, key, value, output
        + 2 * 6 * 6  # cross-attention: query, output
        + 2 * (3 * 11)  # its scores
        + 2 * (11 * 3)  # its weighted sums
        + 6 * 5
        + 5 * 6
    )
    past = [2 * (3 * t) + 2 * (t * 3) for t in (1, 2)]  # scores and weighted sums, two steps
    decoder_block = 2 * step_without_past + sum(past)
    logits = 2 * 6 * 7
    expected = 5 * (2 * encoder_block + 3 * memory + 4 * (3 * decoder_block + logits))
    assert multiply_adds(config, batch=5, beams=4, source_length=11, steps=2) == expected


def test_engines_take_turns_and_each_round_begins_with_another(monkeypatch):
    monkeypatch.setattr(measure, "_PAUSE_SECONDS", 0)
    clock = iter(range(100))
    monkeypatch.setattr(measure.time, "perf_counter", lambda: next(clock) ** 2)
    order = []
    seconds = in_turns({name: lambda name=name: order.append(name) for name in "abc"}, 2)
    assert order == ["a", "b", "c", "b", "c", "a"]
    # Each call reads the clock twice: 1² - 0², 3² - 2², 5² - 4², ...
    assert seconds == {"a": [1, 21], "b": [5, 13], "c": [9, 17]}


def test_a_turn_of_short_calls_is_their_mean(monkeypatch):
    monkeypatch.setattr(measure, "_PAUSE_SECONDS", 0)
    # Three calls until half a second is over: at 0.2, 0.4 and 0.6.
    clock = iter([0.0, 0.2, 0.4, 0.6])
    monkeypatch.setattr(measure.time, "perf_counter", lambda: next(clock))
    calls = []
    assert in_turns({"a": lambda: calls.append(1)}, 1) == {"a": [pytest.approx(0.2)]}
    assert len(calls) == 3


def test_the_ratio_is_the_median_of_the_rounds_ratios():
    # 2, 3 and 8 times; the ratio of the medians would be 6 / 2.
    assert ratio([3, 2, 1], [6, 6, 8]) == 3
    assert ratio([4, 1, 2], [8, 3, 16]) == 3


@pytest.mark.tensorflow
def test_the_matrix_product_says_its_operations(monkeypatch):
    monkeypatch.setattr(measure, "_MATRIX_SIZE", 7)
    multiply, operations = matrix_product()
    assert multiply().shape == (7, 7)
    assert operations == 2 * 7 * 7 * 7


@pytest.mark.tensorflow
def test_threads_that_come_too_late_are_a_users_mistake():
    import tensorflow as tf

    tf.constant(1) + 1  # TensorFlow has begun, with the two threads of conftest.py.
    use_threads(2)
    with pytest.raises(InputError, match="threads=5, TensorFlow runs with 2"):
        use_threads(5)


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "2", [], [1, 0], None])
def test_a_value_that_is_not_positive_is_a_users_mistake(value):
    with pytest.raises(InputError, match="`steps` must be positive"):
        check_positive(steps=value)
    check_positive(steps=1, batch_sizes=(1, 2))
