"""The decoder-only language model: against NumPy, its cache, and what it may see."""

import math

import numpy as np
import pytest
import reference
from keras import ops
from reference import float64, part

from keras_transformer.config import LanguageModelConfig
from keras_transformer.decoding import search
from keras_transformer.models import LanguageModel

VOCABULARY, WIDTH = 23, 14
NO_SOURCE = np.array([[2], [2]])
IDS = np.array([[1, 13, 17, 19, 5], [1, 22, 7, 0, 0]])
VARIANTS = {
    "post_norm": dict(),
    "pre_norm, untied": dict(normalize_first=True, tie_embeddings="none"),
    "learned": dict(positions="learned", max_length=11),
}
EACH = pytest.mark.parametrize(
    ("variant", "policy", "tolerance"),
    [(variant, "float32", 1e-5) for variant in VARIANTS]
    + [("pre_norm, untied", "mixed_bfloat16", 5e-2)],
)


def model_of(randomize, variant="post_norm", policy="float32"):
    sizes = dict(vocabulary_size=VOCABULARY, model_dim=WIDTH, num_heads=2, intermediate_dim=11)
    config = LanguageModelConfig(**sizes, num_decoder_layers=2, **VARIANTS[variant])
    return randomize(LanguageModel(config, dtype=policy))


def close(actual, expected, tolerance):
    scale = np.abs(float64(expected)).max()
    np.testing.assert_allclose(float64(actual), float64(expected), atol=tolerance * scale, rtol=0)


@EACH
def test_it_equals_the_numpy_oracle(randomize, variant, policy, tolerance):
    model = model_of(randomize, variant, policy)
    weights, config = reference.weights_of(model), model.config
    table = weights["target_embedding/embeddings"]
    positions = weights.get("target_positions/embeddings", reference.positional_encoding(5, WIDTH))
    hidden = table[IDS] * math.sqrt(WIDTH) + positions[:5]
    mask = (IDS != 0)[:, None, None, :]
    for i in range(2):
        block = part(weights, f"decoder/block_{i}")
        hidden = reference.decoder_block(
            block, hidden, mask=mask, normalize_first=config.normalize_first
        )
    if config.normalize_first:
        hidden = reference.layer_norm(part(weights, "decoder/final_norm"), hidden)
    expected = hidden @ weights.get("output/kernel", table.T)
    real = IDS != 0
    close(float64(model((NO_SOURCE, IDS)))[real], expected[real], 2 * tolerance)


@EACH
def test_steps_batch_mates_and_padding_change_nothing(rng, randomize, variant, policy, tolerance):
    model, beams, length = model_of(randomize, variant, policy), 3, 5
    cache = model.start_decoding(NO_SOURCE, length, beams)
    histories = np.zeros((2, beams, length), int)
    for t in range(length):
        histories[:, :, t] = rng.integers(1, VOCABULARY, (2, beams))
        logits, cache = model.step(ops.convert_to_tensor(histories[:, :, t], "int32"), cache)
        for row in range(2):  # Each hypothesis alone and unpadded.
            for beam in range(beams):
                full = model((NO_SOURCE[:1], histories[row : row + 1, beam, : t + 1]))
                close(logits[row, beam], full[0, t], tolerance)
        parents = rng.integers(0, beams, (2, beams))
        cache = model.reorder(cache, ops.convert_to_tensor(parents, "int32"))
        histories = np.take_along_axis(histories, parents[:, :, None], axis=1)
    alone = model((NO_SOURCE[:1], IDS[1:, :3]))
    close(float64(model((NO_SOURCE, IDS)))[1, :3], float64(alone)[0], tolerance)


@EACH
def test_neither_the_future_nor_the_source_leaks(randomize, variant, policy, tolerance):
    model, changed = model_of(randomize, variant, policy), IDS.copy()
    changed[:, 3:] = 4
    before = float64(model((NO_SOURCE, IDS)))
    after = float64(model((NO_SOURCE + 3, changed)))
    np.testing.assert_allclose(after[:, :3], before[:, :3], atol=1e-6, rtol=0)
    assert np.abs(after - before)[0, 3:].max() > 1e-3


@pytest.mark.parametrize("options", [{"beam_size": 1}, {"beam_size": 3}, {"sampling": True}])
def test_a_search_goes_on_from_the_source(randomize, options):
    model = model_of(randomize)
    source = np.array([[5, 6, 7, 8, 2], [9, 2, 0, 0, 0], [0, 0, 0, 0, 0]], "int32")
    found = search(model, source, max_length=9, max_length_ratio=math.inf, **options)
    ids = np.asarray(found.ids)[:, 0]
    assert ids[0, :4].tolist() == [5, 6, 7, 8] and ids[1, 0] == 9
    assert not ids[2].any()
    # As probable as the whole text is in one pass.
    for row in range(2):
        text = ids[row][ids[row] != 0]
        read = np.concatenate([[1], text[:-1]])[None]
        logits = float64(model((NO_SOURCE[:1], read)))[0]
        chosen = np.log(reference.softmax(logits))[np.arange(len(text)), text].sum()
        assert float(np.asarray(found.log_probabilities)[row, 0]) == pytest.approx(chosen, abs=1e-4)


def test_fields_of_an_encoder_are_refused():
    for fields in ({"num_encoder_layers": 2}, {"cross_heads": (8,) * 6}, {"turn_id": 4}):
        with pytest.raises(ValueError, match="A language_model has no `"):
            LanguageModelConfig(vocabulary_size=9, **fields)
    with pytest.raises(ValueError, match="`tie_embeddings` must be one of all, none"):
        LanguageModelConfig(vocabulary_size=9, tie_embeddings="decoder")
