import numpy as np
import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as schema

from keras_transformer import Tokenizer
from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.errors import InputError
from keras_transformer.export.litert.engine import tokenizer_operations
from keras_transformer.export.litert.file import convert, join, traced
from keras_transformer.export.litert.text import (
    needed_rules,
    text_to_text,
    without_needless_rules,
)
from keras_transformer.inputs import pad

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

    spec = tf.TensorSpec((None,), tf.string, name="text")
    function = traced(text_to_text(search, *tokenizers, LONGEST), spec)
    (part,) = convert([("search", function)], custom_operations=True)
    interpreter = InterpreterWithCustomOps(
        custom_op_registerers=tokenizer_operations(), model_content=join([part])
    )
    found = interpreter.get_signature_runner("search")(text=np.array(texts, dtype=object))
    return np.vectorize(bytes.decode)(found["translation"]), found["score"]


def test_each_unknown_word_is_one_token_in_litert(texts):
    pytest.importorskip("ai_edge_litert", reason="comes with the extra [litert]")
    words = Tokenizer.train_from_texts(texts, 23, whole_words=True)
    given = ["two", "a gnu gnus a", "", "twodogs atwo a. gnu", "gnu"]
    known = {piece[1:] for piece in words.pieces_of(range(23))}

    def search(ids):
        import tensorflow as tf

        wide = tf.concat([ids, tf.zeros_like(ids)[:, :1] + [0] * LONGEST], axis=1)[:, :LONGEST]
        return {"ids": tf.reshape(wide, (-1, LONGEST)), "score": tf.cast(ids[:, 0], tf.float32)}

    found, _ = translate_in_litert(given, search, words, words)
    shown = [text.replace("⁇", " ⁇ ").split() for text in found.tolist()]
    expected = [[word if word in known else "⁇" for word in text.split()] for text in given]
    assert shown == expected and expected[1] == ["a", "⁇", "⁇", "a"]


@pytest.mark.parametrize(
    ("translate", "hypotheses"),
    [(translate, ()), (translate_in_litert, ()), (translate_in_litert, (3,))],
)
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


@pytest.fixture(scope="module")
def rules(tokenizer):
    return sentencepiece.SentencePieceNormalizer(model_proto=tokenizer.model_bytes).Decompile()


def same_ids(model_bytes, smaller, given):
    """Whether tensorflow-text's operation gives the same ids of the texts with both models."""
    import tensorflow_text

    both = (tensorflow_text.FastSentencepieceTokenizer(each) for each in (model_bytes, smaller))
    one, other = (each.tokenize(given) for each in both)
    return np.array_equal(one.values, other.values) and np.array_equal(
        one.row_splits, other.row_splits
    )


def test_all_texts_keep_their_ids_with_a_hundredth_of_the_rules(tokenizer, rules, texts):
    smaller = without_needless_rules(tokenizer.model_bytes)
    assert len(rules) > 200_000
    assert len(tokenizer.model_bytes) - len(smaller) > 200_000
    sources = [source for source, _ in rules]
    assert same_ids(tokenizer.model_bytes, smaller, [f"laufe{each}n" for each in sources])
    characters = [chr(each) for each in range(1, 0x30000) if not 0xD800 <= each < 0xE000]
    assert same_ids(tokenizer.model_bytes, smaller, characters)
    # Rules and words in any order, of which some rules for several characters overlap.
    chance = np.random.default_rng(11)
    parts = [*sources, *characters[:0x3100], *(" ".join(texts).split() * 50)]
    mixed = chance.choice(np.array(parts, dtype=object), (20_000, 7)).sum(axis=1)
    assert same_ids(tokenizer.model_bytes, smaller, mixed.tolist())
    # Such a comparison does find a rule that is missing.
    model = schema.ModelProto.FromString(tokenizer.model_bytes)
    fewer = sentencepiece.SentencePieceNormalizer(norm_map=[("Ａ", "A")])
    model.normalizer_spec.precompiled_charsmap = schema.NormalizerSpec.FromString(
        fewer.serialized_normalizer_spec()
    ).precompiled_charsmap
    assert not same_ids(tokenizer.model_bytes, model.SerializeToString(), mixed.tolist())


def test_it_is_the_same_tokenizer_to_sentencepiece(tokenizer):
    smaller = Tokenizer(without_needless_rules(tokenizer.model_bytes))
    text = "Ｚｗｅｉ ﬁne cafe\u0301 \u00ad ½"
    assert smaller.tokenize(text) == tokenizer.tokenize(text)
    ids = range(tokenizer.vocabulary_size)
    assert smaller.pieces_of(ids) == tokenizer.pieces_of(ids)


def test_a_tokenizer_without_rules_stays_as_it_is(texts):
    model_bytes = Tokenizer.train_from_texts(
        texts, vocabulary_size=53, normalization="identity"
    ).model_bytes
    assert without_needless_rules(model_bytes) == model_bytes


def test_an_old_sentencepiece_is_named(tokenizer, monkeypatch):
    without_needless_rules.cache_clear()
    monkeypatch.delattr(sentencepiece.SentencePieceNormalizer, "Decompile")
    with pytest.raises(InputError, match=r"newer SentencePiece.*keras_transformer\[litert\]"):
        without_needless_rules(tokenizer.model_bytes)


@pytest.mark.parametrize(
    ("rule", "needed"),
    [
        (("Ａ", "a"), True),
        (("b", "ｂ"), True),
        (("ab\u0308", "x"), True),
        (("\u00ad", ""), True),  # Gone, instead of a piece for the unknown.
        (("ｶ", "カ"), False),
        (("ｶﾞ", "ガ"), False),
    ],
)
def test_a_rule_is_needed_if_a_known_character_or_nothing_is_on_a_side(rule, needed):
    assert needed_rules([rule], {"a", "b"}) == [rule] * needed


def test_a_rule_that_hides_a_needed_one_is_needed():
    # Without "xy", the "y" would become "a"; without "zxy" the same, from its second character on.
    rules = [("y", "a"), ("xy", "ξ"), ("zxw", "ζ"), ("qv", "ω"), ("v", "ν")]
    assert needed_rules(rules, {"a"}) == [("y", "a"), ("xy", "ξ"), ("zxw", "ζ")]
