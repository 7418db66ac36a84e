"""Pictures draw the arrays that they are given."""

import numpy as np
import pytest

from keras_transformer.extras.analysis import plots, positions
from keras_transformer.extras.analysis.attention import Attention, WordAlignment
from keras_transformer.extras.analysis.heads import Head

pytest.importorskip("matplotlib", reason="comes with the extra [plots]")


def images(figure):
    return [np.asarray(image.get_array()) for axis in figure.axes for image in axis.images]


ENCODING = positions.sinusoids(24, 8)


def test_pictures_draw_the_arrays_that_they_are_given(rng):
    weights = rng.uniform(size=(2, 3, 5, 7))
    figure = plots.plot_attention(weights, ["$a_$"] * 5, ["b"] * 7, "t")  # no formula
    np.testing.assert_array_equal(images(figure), weights.reshape(6, 5, 7))
    assert plots.png(figure).startswith(b"\x89PNG")
    figures = plots.plot_pair(Attention(*[weights[..., :5]] * 3), "abcde", "vwxyz")
    titles = {kind: figure.get_suptitle() for kind, figure in figures.items()}
    assert titles == {"encoder": "encoder", "decoder": "decoder", "cross": "decoder to source"}
    # Each link of words is a dot.
    figure = plots.plot_alignment(WordAlignment(np.eye(3, 5)[[1, 2, 0]], [*"abcde"], [*"xyz"]))
    width, height = figure.get_size_inches()
    assert width > height  # of five source words and three target words
    dots = [(*line.get_xdata(), *line.get_ydata()) for line in figure.axes[0].lines]
    assert sorted(dots) == [(0, 2), (1, 0), (2, 1)]
    numbers = [0.5, 1.0, 0.25, float("nan"), 0.75]
    heads = [Head(f"encoder.{i}.{j}", "other", *numbers, i + j) for i in range(2) for j in range(3)]
    importance, confidence, *_ = images(plots.plot_heads(heads))
    np.testing.assert_array_equal(importance, [[0, 1, 2], [1, 2, 3]])
    np.testing.assert_array_equal(confidence, np.full((2, 3), 0.5))


def test_positions_are_drawn_as_vectors_products_rotations_and_hands_of_clocks():
    np.testing.assert_array_equal(images(plots.plot_encoding({"fixed": ENCODING}))[0], ENCODING)
    products, _, rotation = images(plots.plot_similarity(ENCODING, offset=3))
    np.testing.assert_allclose(products, ENCODING @ ENCODING.T)
    np.testing.assert_allclose(rotation, positions.rotation(8, 3))
    figure = plots.plot_clock_hands(ENCODING, positions=5, pairs=2)
    _, hands = figure.axes[0].collections  # After the circles.
    # Of both pairs, at position 3: a hand points to the sine and the cosine of its position.
    for hand, angle in zip(hands.get_segments()[3::5], (3, 0.3), strict=True):
        np.testing.assert_allclose(np.diff(hand, axis=0), [[np.sin(angle), np.cos(angle)]])
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["pair 0\nonce in 6", "pair 1\nonce in 63"]  # 2 pi and 20 pi positions
