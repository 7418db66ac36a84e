"""Properties of tokenizers of all kinds, over drawn texts and ids."""

import itertools

import numpy as np
import pytest
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_transformer.base.errors import InputError
from keras_transformer.base.ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.text import Tokenizer
from keras_transformer.text.vocabulary import OF_FIRST_IDS, parsed

LANGUAGES = (">>de<<", ">>fr<<")


@pytest.fixture(scope="module")
def tagged(sentences):
    """Has languages, a tag, a turn separator and placeholders, and pieces beyond its ids."""
    texts = [f"{sentence} <ph_1>" for sentence in sentences]
    symbols = dict(tags=("bt",), languages=LANGUAGES, turn_separator="<sep>", placeholders=1)
    return Tokenizer.train_from_texts(texts, vocabulary_size=80, **symbols)


@pytest.fixture(scope="module")
def shortened(tokenizer):
    model = parsed(tokenizer.model_bytes)
    model.trainer_spec.control_symbols.append(f"{OF_FIRST_IDS}{tokenizer.vocabulary_size - 9}")
    return Tokenizer(model.SerializeToString())


@pytest.fixture(
    scope="module",
    params=["tokenizer", "byte_tokenizer", "symbol_tokenizer", "tagged", "shortened"],
)
def any_tokenizer(request):
    return request.getfixturevalue(request.param)


# Words that are known, with what Unicode has.
TEXTS = st.text(st.sampled_from("atwodgsmn ▁<>_/12") | st.characters(exclude_categories=["Cs"]))


@settings(max_examples=40)
@given(drawn=TEXTS)
@example(drawn="")
def test_tokens_are_those_of_sentencepiece_alone_among_others_and_with_special_ids(
    any_tokenizer, nasty_texts, drawn
):
    peer = sentencepiece.SentencePieceProcessor(model_proto=any_tokenizer.model_bytes)
    for text in [drawn, *nasty_texts] if drawn == "" else [drawn]:
        ids = any_tokenizer.tokenize(text)
        if any_tokenizer.split_tags(text)[0] == "":  # whose next space does not count
            expected = peer.encode(text)
            size = any_tokenizer.vocabulary_size
            assert ids == [id if id < size else UNK_ID for id in expected]
            if ids == expected:
                assert any_tokenizer.detokenize(ids) == peer.decode(ids)
        assert not {PAD_ID, BOS_ID, EOS_ID} & {*ids}
        rows = any_tokenizer.tokenize(["", text], add_bos=True, add_eos=True)
        assert rows == [[BOS_ID, EOS_ID], [BOS_ID, *ids, EOS_ID]]
        assert any_tokenizer.tokenize(text, add_bos=True) == [BOS_ID, *ids]
        assert any_tokenizer.tokenize([text, ""], add_eos=True) == [[*ids, EOS_ID], [EOS_ID]]


def test_samples_of_any_text_are_its_tokenizations(any_tokenizer, sentences, nasty_texts):
    rng = np.random.default_rng(0)
    for text in [*sentences[::40], *nasty_texts[:-3], " ".join(sentences[:20])]:
        ids = any_tokenizer.tokenize(text)
        assert any_tokenizer.sample(text, 1, 0.5, rng) == ids
        for alpha in (0.0, 0.3, 5.0):
            sampled = any_tokenizer.sample(text, 3, alpha, rng)
            assert all(0 <= id < any_tokenizer.vocabulary_size for id in sampled)
            if UNK_ID not in sampled:
                assert any_tokenizer.detokenize(sampled) == any_tokenizer.detokenize(ids)


def test_each_token_has_its_own_id(any_tokenizer):
    ids = range(UNK_ID + 1, any_tokenizer.vocabulary_size)
    pieces = any_tokenizer.pieces_of(ids)
    assert [any_tokenizer.id_of(piece) for piece in pieces] == [*ids]


@pytest.mark.parametrize("start", [0, 1])
def test_a_sequence_ends_at_its_first_end_in_any_container(any_tokenizer, sentences, start):
    rows = any_tokenizer.tokenize(sentences[start::50])
    texts = any_tokenizer.detokenize(rows)
    longest = max(map(len, rows))
    after = any_tokenizer.vocabulary_size - 1
    rows = [[BOS_ID, *row, EOS_ID, after, EOS_ID, *[PAD_ID] * (longest - len(row))] for row in rows]
    arrays = [np.array(row, "uint16") for row in rows]
    for batch in (rows, tuple(map(tuple, rows)), arrays, tuple(arrays), np.array(rows)):
        assert any_tokenizer.detokenize(batch) == texts
        assert any_tokenizer.detokenize(batch[0]) == texts[0]


def test_ids_lie_within_the_vocabulary(any_tokenizer):
    size = any_tokenizer.vocabulary_size
    for method in (any_tokenizer.detokenize, any_tokenizer.pieces_of):
        method([0, size - 1])
        for outside in (-1, size, size + 1, 2**31):
            with pytest.raises(InputError, match=f"below the vocabulary size of {size}"):
                method([4, outside])


@pytest.mark.parametrize("spaces", ["", " ", "  "])
def test_a_text_begins_with_a_language_and_a_tag_or_either(tagged, spaces):
    known = {"": "", ">>de<<": ">>de<<", "<bt>": "<bt>", ">>it<<": None, "<cat>": None}
    for first, second in itertools.product(known, repeat=2):
        text = f"{spaces}{first}{spaces}{second}{spaces}Two dogs"
        parts = []
        for part in filter(None, (first, second)):
            # A tag may follow a language; nothing else follows anything.
            if known[part] is None or (parts and parts[0] != ">>de<<"):
                break
            parts.append(part)
        tags, rest = tagged.split_tags(text)
        assert tags == " ".join(parts)
        assert rest.replace(" ", "").endswith("Twodogs")
        assert (tags + rest).replace(" ", "") == text.replace(" ", "")


def test_the_separator_of_turns_is_no_language(tagged, tokenizer):
    assert tagged.pieces_of([tagged.turn_id]) == ["▁<sep>"]
    assert set(tagged.tags) == {"bt", "de", "fr"}
    assert tokenizer.turn_id is None
