"""The cache of a Transformer: capacity for more steps, and beams that go on from one another."""

import numpy as np
from keras import ops

from keras_transformer.layers.kv_cache import DecodingCache, KeyValue

BATCH, BEAMS, HEADS, STEPS, WIDTH = 2, 3, 5, 7, 11


def made():
    rng = np.random.default_rng(1)
    key, value = (
        rng.normal(size=(BATCH, HEADS, *axes)).astype("float32")
        for axes in ((WIDTH, STEPS * BEAMS), (STEPS * BEAMS, WIDTH))
    )
    lineage = rng.random((BATCH, BEAMS, STEPS * BEAMS)) < 0.5
    return DecodingCache((KeyValue(key, value),), (), (), lineage, np.int32(4))


def test_extending_keeps_what_was_written_and_adds_what_nobody_attends_to():
    cache = made()
    grown = cache.extended(STEPS + 2)
    key, value = (np.asarray(each) for each in grown.layers[0])
    assert key.shape == (BATCH, HEADS, WIDTH, (STEPS + 2) * BEAMS)
    assert value.shape == (BATCH, HEADS, (STEPS + 2) * BEAMS, WIDTH)
    np.testing.assert_array_equal(key[..., : STEPS * BEAMS], cache.layers[0].key)
    np.testing.assert_array_equal(value[:, :, : STEPS * BEAMS], cache.layers[0].value)
    lineage = np.asarray(grown.lineage)
    np.testing.assert_array_equal(lineage[:, :, : STEPS * BEAMS], cache.lineage)
    assert lineage.shape[2] == (STEPS + 2) * BEAMS and not lineage[:, :, STEPS * BEAMS :].any()
    assert grown.position == cache.position


def test_reordering_gives_each_hypothesis_the_past_of_its_parent():
    cache, parents = made(), [[2, 0, 2], [1, 1, 0]]
    reordered = cache.reorder(ops.convert_to_tensor(parents, "int32"))
    for row in range(BATCH):
        expected = cache.lineage[row][parents[row]]
        np.testing.assert_array_equal(np.asarray(reordered.lineage)[row], expected)
    assert reordered.layers is cache.layers
