import sys

import numpy as np
import pytest

from keras_transformer.decoding.shapes import pad_to_few_shapes
from keras_transformer.export import text_to_text

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.tensorflow


def test_blank_in_the_graph_is_blank_in_python():
    """Every character that there is, but the halves of surrogate pairs."""
    characters = [chr(i) for i in range(1, sys.maxunicode + 1) if not 0xD800 <= i < 0xE000]
    blank = tf.strings.regex_full_match(tf.constant(characters), text_to_text._BLANK).numpy()
    different = [
        hex(ord(character))
        for character, is_blank in zip(characters, blank, strict=True)
        if is_blank != (character.strip() == "")
    ]
    assert different == []


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 17, 32])
@pytest.mark.parametrize("longest", [1, 16, 17, 29])
def test_the_graph_pads_to_the_shapes_of_the_live_engine(rows, longest):
    ids = [[7] * (1 + (longest - 1) * (row == 0)) for row in range(rows)]
    ragged = tf.ragged.constant(ids, dtype=tf.int32)
    for limit in (23, 64):
        if longest > limit:
            continue
        padded = text_to_text._pad(tf, ragged, tf.constant(rows), limit)
        np.testing.assert_array_equal(padded.numpy(), pad_to_few_shapes(ids, limit))
