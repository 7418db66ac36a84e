import numpy as np
import pytest

from keras_transformer import Tokenizer
from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.decoding.compiled import pad
from keras_transformer.errors import InputError
from keras_transformer.export.litert_file import convert, join
from keras_transformer.export.litert_process import tokenizer_operations
from keras_transformer.export.litert_text import text_to_text

pytestmark = pytest.mark.tensorflow

LONGEST = 11


def translate(texts, search, *tokenizers):
    import tensorflow as tf

    found = text_to_text(search, *tokenizers, LONGEST)(tf.constant(texts, tf.string))
    return np.vectorize(bytes.decode)(found["translation"].numpy()), found["score"]


def test_a_search_gets_the_tokenizers_ids_cut_and_padded(tokenizer, other_tokenizer):
    texts = [
        "a man",
        "",
        "   ",
        "two dogs eats an apple behind the house.",  # More than 11 tokens.
        "ｔｗｏ ｄｏｇｓ",  # A rule of normalization makes them ordinary letters.
        "A 北京 \u1100\u1161 girl\n",
    ]
    given = []

    def search(ids):
        given.append(np.array(ids))
        return {"ids": np.zeros((len(texts), 3), "int32"), "score": np.zeros(len(texts))}

    translate(texts, search, tokenizer, other_tokenizer)
    expected = [ids[: LONGEST - 1] + [EOS_ID] if ids else [] for ids in tokenizer.tokenize(texts)]
    assert max(map(len, expected)) == LONGEST > min(map(len, expected)) == 0
    np.testing.assert_array_equal(given[0], pad(expected, len(texts), LONGEST))


def translate_in_litert(texts, search, *tokenizers):
    import tensorflow as tf
    from ai_edge_litert.interpreter import InterpreterWithCustomOps

    function = tf.function(
        text_to_text(search, *tokenizers, LONGEST), [tf.TensorSpec((None,), tf.string, name="text")]
    )
    (part,) = convert([("search", function.get_concrete_function())], custom_operations=True)
    interpreter = InterpreterWithCustomOps(
        custom_op_registerers=tokenizer_operations(), model_content=join([part])
    )
    found = interpreter.get_signature_runner("search")(text=np.array(texts, dtype=object))
    return np.vectorize(bytes.decode)(found["translation"]), found["score"]


@pytest.mark.parametrize("translate", [translate, translate_in_litert])
@pytest.mark.parametrize("hypotheses", [(), (3,)])
def test_ids_become_the_text_that_sentencepiece_makes(
    tokenizer, other_tokenizer, hypotheses, translate
):
    pytest.importorskip("ai_edge_litert", reason="comes with the extra [litert]")
    chance, room = np.random.default_rng(7), 13
    ids = chance.integers(3, other_tokenizer.vocabulary_size, (17, *hypotheses, room))
    space = other_tokenizer.pieces_of(range(other_tokenizer.vocabulary_size)).index("▁")
    ids[1, ..., 0] = BOS_ID
    ids[2, ..., :2] = space  # Of which the text begins with none.
    ids[3] = PAD_ID
    ids[4, ..., 0] = UNK_ID  # SentencePiece writes it with a space on either side.
    ids[5, ..., :2] = (space, UNK_ID)
    for row, length in enumerate(chance.integers(2, room, 13), start=4):
        ids[row, ..., length:] = PAD_ID
        ids[row, ..., length] = EOS_ID
    scores = chance.normal(size=ids.shape[:-1]).astype("float32")

    def search(source_ids):
        import tensorflow as tf

        # Of the input: what is constant would be worked out by the converter.
        zero = source_ids[0, 0] * 0
        return {"ids": ids.astype("int32") + zero, "score": tf.constant(scores)}

    found, kept = translate([b"a"] * 17, search, tokenizer, other_tokenizer)
    rows = [[i for i in row if i > EOS_ID] for row in ids.reshape(-1, room).tolist()]
    assert any(row[:1] == [UNK_ID] for row in rows)
    assert found.reshape(-1).tolist() == other_tokenizer.detokenize(rows)
    assert found.shape == (17, *hypotheses)
    np.testing.assert_array_equal(kept, scores)


def test_pieces_for_bytes_are_refused(tokenizer, texts):
    bytewise = Tokenizer.train_from_texts(texts, vocabulary_size=300, byte_fallback=True)
    for pair in ((bytewise, tokenizer), (tokenizer, bytewise)):
        with pytest.raises(InputError, match="no byte fallback.*--ids-only"):
            text_to_text(lambda ids: {}, *pair, LONGEST)
