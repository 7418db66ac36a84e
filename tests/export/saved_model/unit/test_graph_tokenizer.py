# ruff: noqa: F401, F811
import re
import sys

import pytest
from text_fixtures import (
    byte_tokenizer,
    nasty_texts,
    sentences,
    symbol_tokenizer,
    tokenizer,
    word_tokenizer,
)

from keras_transformer.base.errors import InputError
from keras_transformer.base.ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID

tf = pytest.importorskip("tensorflow", reason="needs TensorFlow")
pytest.importorskip("tensorflow_text", reason="needs TensorFlow's tensorflow-text")

from keras_transformer.export.saved_model import graph_tokenizer as graph  # noqa: E402

TEXTS = ["two dogs sits", "", "Käse 你好 😀", "a man"]

KINDS = ["tokenizer", "byte_tokenizer", "word_tokenizer", "symbol_tokenizer"]


@pytest.fixture(scope="module", params=KINDS)
def both(request):
    """A tokenizer and its graph: without and with byte fallback, of whole words, with symbols."""
    chosen = request.getfixturevalue(request.param)
    return chosen, graph.GraphTokenizer(chosen)


def decoded(texts):
    return [text.decode("utf-8") for text in texts.numpy()]


def test_nasty_texts_give_equal_ids_and_texts(both, nasty_texts):
    tokenizer, in_graph = both
    for options in ({}, {"add_bos": True}, {"add_eos": True}):
        ids = tokenizer.tokenize(nasty_texts, **options)
        ids_in_graph = in_graph.tokenize(nasty_texts, **options)
        assert ids_in_graph.dtype == tf.int32 and ids_in_graph.to_list() == ids
        assert decoded(in_graph.detokenize(ids_in_graph)) == tokenizer.detokenize(ids)


def test_text_ends_at_the_first_end_alike(both):
    tokenizer, in_graph = both
    dogs, man = tokenizer.tokenize(["two dogs", "a man"])
    rows = [[PAD_ID, BOS_ID, *dogs, PAD_ID, EOS_ID, *man, EOS_ID], [], [EOS_ID, *man]]
    rows += [[*dogs, PAD_ID, *man], [PAD_ID]]
    expected = ["two dogs", "", "", "two dogs a man", ""]
    assert tokenizer.detokenize(rows) == expected
    ragged = tf.ragged.constant(rows, dtype=tf.int32)
    assert decoded(in_graph.detokenize(ragged)) == expected
    # The same rows as a search gives them: dense, int64, padded.
    assert decoded(in_graph.detokenize(tf.cast(ragged.to_tensor(PAD_ID), tf.int64))) == expected


def test_an_empty_batch_stays_empty(both):
    _, in_graph = both
    ids = in_graph.tokenize(tf.zeros([0], tf.string), add_bos=True, add_eos=True)
    assert ids.shape[0] == 0
    assert in_graph.detokenize(ids).shape == (0,)
    assert in_graph.detokenize(tf.zeros([0, 5], tf.int32)).shape == (0,)


def test_a_wrong_byte_is_no_error(tokenizer, byte_tokenizer):
    wrong = tf.constant([b"a\xff man"])
    a, man = tokenizer.tokenize(["a", "man"])
    assert graph.GraphTokenizer(tokenizer).tokenize(wrong).to_list() == [[*a, UNK_ID, *man]]
    # Ids 4 to 259 are the bytes; U+FFFD is EF BF BD.
    a, man = byte_tokenizer.tokenize(["a", "man"])
    replacement = [4 + 0xEF, 4 + 0xBF, 4 + 0xBD]
    ids = graph.GraphTokenizer(byte_tokenizer).tokenize(wrong).to_list()
    assert ids == [[*a, *replacement, *man]]


def test_setting_a_seed_breaks_nothing(both):
    tokenizer, in_graph = both
    compiled = tf.function(lambda texts: in_graph.detokenize(in_graph.tokenize(texts)))
    ids = tokenizer.tokenize(TEXTS)
    for seed in range(3):
        assert decoded(compiled(tf.constant(TEXTS))) == tokenizer.detokenize(ids)
        assert in_graph.tokenize(TEXTS).to_list() == ids
        tf.random.set_seed(seed)


def test_an_error_about_tensorflow_text_names_versions(tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    message = (
        rf"minor version. Received: TensorFlow {re.escape(tf.__version__)}, tensorflow-text 2.*"
        r'Run pip install "tensorflow-text==[\d.]+\*", or export to litert or ctranslate2\.$'
    )
    with pytest.raises(ImportError, match=message):
        graph.GraphTokenizer(tokenizer)
    # As an operation library of another TensorFlow fails.
    monkeypatch.setattr(tf, "load_op_library", lambda path: tf.io.read_file("").numpy())
    with pytest.raises(InputError, match=message):
        graph.load_operations()
