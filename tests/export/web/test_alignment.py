"""Alignments of long texts, without the rest of a folder for browsers."""

import pytest

from keras_transformer.decoding import ModelEngine
from keras_transformer.errors import VerificationError
from keras_transformer.export.litert.engine import IDS_FILE
from keras_transformer.export.litert.file import convert, join, traced
from keras_transformer.export.litert.model import LiteRTAlignment
from keras_transformer.export.web.export import verify_alignment

pytestmark = pytest.mark.tensorflow

LENGTH = 420  # A weight is 1/420 on average: less than what int8 may do to one of a short text.


@pytest.fixture(scope="module")
def engines(make_engine):
    """Two engines of other weights, for long texts."""
    engines = [make_engine(normalize_first=True, seed=seed) for seed in (1, 2)]
    return [
        ModelEngine(each.model, each.source_tokenizer, None, LENGTH, LENGTH) for each in engines
    ]


@pytest.fixture(scope="module")
def parts(engines):
    """The alignment of the first engine, and one whose first row is another's."""
    pytest.importorskip("ai_edge_litert", reason="comes with the extra [litert]")
    import tensorflow as tf

    align = LiteRTAlignment(engines[0].model, LENGTH)

    def spoiled(source_ids, target_ids):
        weights = align(source_ids, target_ids)["alignment"]
        wrong = tf.concat([tf.ones_like(weights[:, :1, :1]), 0 * weights[:, :1, 1:]], axis=2)
        first = tf.cast(tf.reshape(tf.range(LENGTH) < 1, (1, LENGTH, 1)), tf.float32)
        return {"alignment": weights * (1 - first) + wrong * first}

    specs = [
        tf.TensorSpec((1, LENGTH), tf.int32, name=f"{side}_ids") for side in ("source", "target")
    ]
    functions = {"right": align.__call__, "spoiled": spoiled}
    found = convert([(name, traced(each, *specs)) for name, each in functions.items()])
    return {part.name: part._replace(name=f"align_1x{LENGTH}") for part in found}


@pytest.mark.slow
@pytest.mark.parametrize("quantize", ["none", "int8"])
def test_a_wrong_alignment_of_a_long_text_is_refused(parts, engines, texts, tmp_path, quantize):
    manifest = {"quantize": quantize, "align_lengths": {LENGTH: LENGTH}}
    long = [" ".join(texts[at : at + 40])[:400] for at in (0, 40, 80, 120)]

    def verify(name, engine):
        (tmp_path / IDS_FILE).write_bytes(join([parts[name]], quantize))
        return verify_alignment(tmp_path, engine, manifest, long)[f"align_1x{LENGTH}"]

    found = verify("right", engines[0])
    assert found["texts"] > 3 and found["mean_difference"] < 0.005
    for name, engine in (("right", engines[1]), ("spoiled", engines[0])):
        with pytest.raises(VerificationError, match="a token's weights may differ"):
            verify(name, engine)
