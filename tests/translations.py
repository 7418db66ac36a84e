"""Whether two engines have found the same translations, and what SentencePiece says of a text."""

import numpy as np
import pytest
from sentencepiece import sentencepiece_pb2


def sentencepiece_pieces(tokenizer, text):
    """SentencePiece's own pieces, each with its id and its place in the bytes of the text."""
    content = tokenizer._processor.encode(text, out_type="serialized_proto")
    return sentencepiece_pb2.SentencePieceText.FromString(content).pieces


def check_same(expected, received, *names):
    """Compares texts, scores, alternatives, alignments, and other fields of these names."""
    for ours, theirs in zip(expected, received, strict=True):
        assert theirs.text == ours.text
        for name in ("score", "log_probability"):
            value = pytest.approx(getattr(ours, name), rel=1e-4, abs=1e-4)
            assert getattr(theirs, name) == value, name
        if ours.tokens:
            assert [getattr(theirs, name) for name in names] == [getattr(ours, n) for n in names]
            if ours.alignment is not None:
                np.testing.assert_allclose(theirs.alignment, ours.alignment, atol=1e-4)
        check_same(ours.alternatives, theirs.alternatives, *names)
