"""Transformer: tables and limits; `test_effects` has its formula, `test_every_model` its files."""

import numpy as np
import pytest
import reference
from reference import float64

from keras_transformer import Transformer, TransformerConfig

HEADS, WIDTH, INNER, SOURCE_VOCABULARY, TARGET_VOCABULARY = 3, 33, 13, 29, 31
SOURCE_IDS = np.array([[3, 5, 7, 2, 0, 0, 0], [11, 2, 0, 0, 0, 0, 0]])
TARGET_IDS = np.array([[1, 13, 17, 19, 5], [1, 23, 0, 0, 0]])
LEARNED = dict(positions="learned", max_length=11)
TWO = dict(target_vocabulary_size=TARGET_VOCABULARY)
VARIANTS = {
    "paper": dict(),
    "learned": LEARNED,
    "decoder_tied": dict(TWO, tie_embeddings="decoder"),
    "untied": dict(TWO, **LEARNED, tie_embeddings="none", normalize_first=True),
}


def config(variant="paper", **fields):
    sizes = dict(vocabulary_size=SOURCE_VOCABULARY, model_dim=WIDTH, num_heads=HEADS)
    sizes |= dict(intermediate_dim=INNER, num_encoder_layers=1, num_decoder_layers=2)
    sizes |= dict(dropout=0.3, attention_dropout=0.2)
    return TransformerConfig(**{**sizes, **VARIANTS[variant], **fields})


def test_a_model_without_its_configuration_says_which_calls_make_it():
    with pytest.raises(ValueError, match=r"Transformer.from_preset\(.*: vocabulary_size=100."):
        Transformer(vocabulary_size=100)
    with pytest.raises(ValueError, match=r"Received: config=\{'vocabulary_size': 100\}."):
        Transformer({"vocabulary_size": 100})


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_a_row_of_padding_alone_stays_finite(randomize, policy):
    model = randomize(Transformer(config(), dtype=policy))
    source_ids, target_ids = SOURCE_IDS.copy(), TARGET_IDS.copy()
    source_ids[1], target_ids[1] = 0, 0
    logits = float64(model((source_ids, target_ids)))
    assert np.isfinite(logits).all()
    alone = float64(model((SOURCE_IDS[:1], TARGET_IDS[:1])))
    tolerance = 1e-5 if policy == "float32" else 1e-2
    np.testing.assert_allclose(logits[:1], alone, atol=tolerance * np.abs(alone).max())


def test_decoding_past_the_learned_positions_is_refused():
    model = Transformer(config("learned"))
    with pytest.raises(ValueError, match="max_length=12, the model's max_length=11"):
        model.start_decoding(SOURCE_IDS, 12)


TABLES = [("paper", {"target_embedding"})]
TABLES += [("decoder_tied", {"source_embedding", "target_embedding"})]
TABLES += [("untied", {"source_embedding", "target_embedding", "output"})]


@pytest.mark.parametrize(("variant", "tables"), TABLES)
def test_tied_tables_are_one_weight(variant, tables):
    model = Transformer(config(variant))
    vocabularies = SOURCE_VOCABULARY, TARGET_VOCABULARY
    shapes = {name: w.shape for name, w in reference.weights_of(model).items()}
    owners = [name.split("/")[0] for name, shape in shapes.items() if {*shape} & {*vocabularies}]
    assert len(owners) == len(tables) and set(owners) == tables


def test_logits_of_a_new_model_are_of_unit_size(rng):
    c = config(vocabulary_size=503)
    ids = rng.integers(1, 503, (3, 41))
    logits = float64(Transformer(c)((ids, ids)))
    assert 0.7 < logits.std() < 1.4
