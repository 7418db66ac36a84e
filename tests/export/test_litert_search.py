import numpy as np
import pytest

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.decoding import search
from keras_transformer.export.litert_search import Search
from keras_transformer.export.litert_strategies import Options

pytestmark = pytest.mark.tensorflow

LENGTH, ROOM = 11, 29  # More than three blocks of steps.


def make_model(rng, **fields):
    config = TransformerConfig(
        **{
            "vocabulary_size": 41,
            "model_dim": 12,
            "num_heads": 3,
            "intermediate_dim": 17,
            "num_encoder_layers": 1,
            "num_decoder_layers": 2,
            **fields,
        }
    )
    model = Transformer(config)
    for weight in model.trainable_weights:
        weight.assign(0.7 * rng.normal(size=weight.shape))
    return model


def source_ids(rng):
    ids = rng.integers(3, 41, (5, LENGTH)).astype("int32")
    for row, length in enumerate((LENGTH, 7, 1, 0, 5)):
        ids[row, length:] = 0
    return ids


def traced(function):
    """As one graph: the loops in Python would take seconds."""
    import tensorflow as tf

    return tf.function(function, autograph=False)


MODELS = [
    {"normalize_first": True},
    {
        "target_vocabulary_size": 43,
        "tie_embeddings": "none",
        "positions": "learned",
        "max_length": ROOM,
        "activation": "gelu",
        "num_decoder_layers": 1,
    },
]


@pytest.mark.parametrize("fields", MODELS)
@pytest.mark.parametrize(
    ("beam_size", "n_best", "length_penalty"), [(1, 1, 0.6), (3, 3, 0.9), (4, 2, 0.0)]
)
def test_it_finds_what_the_models_own_search_finds(rng, fields, beam_size, n_best, length_penalty):
    model, ids = make_model(rng, **fields), source_ids(rng)
    options = {"beam_size": beam_size, "n_best": n_best, "max_length": ROOM}
    live = traced(
        lambda ids: search(
            model, ids, length_penalty=length_penalty, max_length_ratio=3.0, **options
        )
    )(ids)
    run = Search(model, Options(beam_size, length_penalty, n_best, ROOM, ratio=3.0), LENGTH)
    found = traced(run.__call__)(ids)
    shape = (len(ids), n_best, ROOM)
    np.testing.assert_array_equal(np.reshape(found["ids"], shape), np.asarray(live.ids))
    # What is -inf here, as there is no such hypothesis, is far below all else there.
    scores = np.maximum(np.reshape(found["score"], shape[:2]), -1e30)
    np.testing.assert_allclose(scores, np.asarray(live.scores), rtol=1e-4, atol=1e-4)
    sums = np.reshape(found["log_probability"], shape[:2])
    np.testing.assert_allclose(sums, np.asarray(live.log_probabilities), rtol=1e-4, atol=1e-4)


def test_batch_mates_and_padding_change_nothing(rng):
    model, ids = make_model(rng, normalize_first=True), source_ids(rng)
    run = traced(Search(model, Options(3, 0.6, 3, ROOM), LENGTH + 4).__call__)
    together = run(ids)
    alone = run(np.pad(ids[1:2], ((0, 0), (0, 4))))
    np.testing.assert_array_equal(alone["ids"][0], together["ids"][1])
    np.testing.assert_allclose(alone["score"][0], together["score"][1], atol=1e-4)


def test_a_forbidden_id_counts_in_the_sum_and_is_never_chosen(rng):
    model, ids = make_model(rng, normalize_first=True), source_ids(rng)
    free = Search(model, Options(1, 0.0, 1, 1, forbidden_ids=(0,)), LENGTH)(ids[:1])
    first = int(free["ids"][0, 0])
    other = Search(model, Options(1, 0.0, 1, 1, forbidden_ids=(0, first)), LENGTH)(ids[:1])
    logits = np.asarray(model((ids[:1], np.array([[1]]))), "float64")[0, 0]
    logits[0], total = -np.inf, np.log(np.sum(np.exp(logits)))
    logits[first] = -np.inf
    assert int(other["ids"][0, 0]) == logits.argmax()
    assert float(other["log_probability"][0]) == pytest.approx(logits.max() - total, abs=1e-4)
