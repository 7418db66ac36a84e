import keras
import numpy as np
import pytest

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.config import EOS_ID
from keras_transformer.decoding import greedy_search
from keras_transformer.export.ctranslate2 import convert_to_ctranslate2

ctranslate2 = pytest.importorskip("ctranslate2", reason="comes with the extra [peers]")

VOCABULARY = 61
PIECES = ["<pad>", "<s>", "</s>", "<unk>"] + [f"p{i}" for i in range(4, VOCABULARY)]


@pytest.mark.parametrize("normalize_first", [False, True])
@pytest.mark.parametrize("tie_embeddings", ["all", "decoder", "none"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_the_other_engine_finds_the_same_translations(
    tmp_path, rng, randomize, normalize_first, tie_embeddings, positions
):
    config = TransformerConfig(
        VOCABULARY,
        model_dim=24,
        num_heads=3,
        intermediate_dim=40,
        num_encoder_layers=2,
        num_decoder_layers=1,
        normalize_first=normalize_first,
        tie_embeddings=tie_embeddings,
        positions=positions,
        max_length=64,
    )
    model = randomize(Transformer(config))
    convert_to_ctranslate2(model, PIECES, PIECES, tmp_path / "model")
    translator = ctranslate2.Translator(str(tmp_path / "model"), compute_type="float32")
    ids = rng.integers(4, VOCABULARY, (5, 7))
    ids[:, -1] = EOS_ID
    # All ids may be chosen here: the other engine takes what is forbidden out of the probabilities
    # as well, so that scores would differ.
    limit = 24
    cache = model.start_decoding(keras.ops.convert_to_tensor(ids.astype("int32")), limit)
    limits = keras.ops.full((len(ids),), limit, "int32")
    found = greedy_search(model.step, cache, limits, limit, forbidden_ids=())
    for row, ours, score in zip(
        ids, np.asarray(found.ids)[:, 0], np.asarray(found.log_probabilities)[:, 0], strict=True
    ):
        ended = EOS_ID in ours
        ours = ours[: list(ours).index(EOS_ID)] if ended else ours
        theirs = translator.translate_batch(
            [[PIECES[i] for i in row[:-1]]],
            beam_size=1,
            length_penalty=0,
            max_decoding_length=limit,
            return_scores=True,
        )[0]
        assert theirs.hypotheses[0] == [PIECES[i] for i in ours]
        np.testing.assert_allclose(theirs.scores[0], score, rtol=5e-3, atol=1e-2)
