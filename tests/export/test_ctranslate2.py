import keras
import numpy as np
import pytest
from decoding_oracles import log_softmax

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.config import BOS_ID, EOS_ID
from keras_transformer.decoding import Constraints, Greedy, decode
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
    source = [[PIECES[i] for i in row[:-1]] for row in ids]
    # All ids may be chosen here, as there.
    limit = 13
    cache = model.start_decoding(keras.ops.convert_to_tensor(ids.astype("int32")), limit)
    limits = keras.ops.full((len(ids),), limit, "int32")
    constraints = Constraints(limits, forbidden_ids=())
    found = decode(model.step, cache, Greedy(), constraints, limit)
    theirs = translator.translate_batch(
        source, beam_size=1, max_decoding_length=limit, min_decoding_length=0
    )
    for ours, result in zip(np.asarray(found.ids)[:, 0].tolist(), theirs, strict=True):
        ours = ours[: ours.index(EOS_ID)] if EOS_ID in ours else ours
        assert result.hypotheses[0] == [PIECES[i] for i in ours]

    # What a search reports there is a tenth of a percent off its own scoring, which is exact.
    targets = rng.integers(4, VOCABULARY, (5, 3))
    scored = translator.score_batch(source, [[PIECES[i] for i in row] for row in targets])
    read = np.pad(targets, ((0, 0), (1, 0)), constant_values=BOS_ID)
    expected = np.pad(targets, ((0, 0), (0, 1)), constant_values=EOS_ID)
    log_probabilities = log_softmax(model((ids, read)))
    np.testing.assert_allclose(
        [result.log_probs for result in scored],
        np.take_along_axis(log_probabilities, expected[..., None], -1)[..., 0],
        rtol=1e-4,
        atol=1e-4,
    )
