"""What an engine is given: checked, and turned into ids."""

import functools
import threading
import warnings

import numpy as np
import pytest
from decoding_oracles import NumberTokenizer
from naive_search import EOS

from keras_transformer import Tokenizer
from keras_transformer.base.errors import InputError
from keras_transformer.engine import inputs

TOKENIZER = NumberTokenizer()


TURN = 4


CUT = [(9, [5, 6, TURN, 7, TURN, 8, 9, 10]), (6, [7, TURN, 8, 9, 10]), (4, [8, 9, 10])]
CUT += [(3, [8, 9])]  # The last turn alone is too long: it is cut.


@pytest.mark.parametrize(("limit", "expected"), CUT)
def test_a_cut_conversation_loses_its_oldest_turns_and_never_the_last(limit, expected):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = inputs.source_ids(["5 6 4 7 4 8 9 10"], TOKENIZER, limit, "truncate", turn_id=TURN)
    assert result == ([[*expected, EOS]], [[0]])
    said = f"1 of 1 texts are longer than {limit} tokens and were cut, the oldest turns first."
    assert [str(warning.message) for warning in caught] == [said] * (limit < 9)


def test_a_separator_at_the_end_begins_no_turn():
    with pytest.warns(UserWarning, match="oldest turns first"):
        text = "10 11 4 20 21 22 4"  # The last turn alone is too long: it is cut.
        sources, _ = inputs.source_ids([text], TOKENIZER, 4, "truncate", turn_id=TURN)
    assert sources == [[20, 21, 22, EOS]]


def test_a_long_conversation_can_be_cut():
    with pytest.raises(InputError, match=r"can be cut \(`long_input=truncate`\). Received: 4 tok"):
        inputs.source_ids(["5 4 6"], TOKENIZER, 3, "refuse", TURN, inputs.LONG_INPUT_FOR_DIALOG)


@pytest.fixture(scope="module")
def sentences():
    """A tokenizer of lower-case letters."""
    return Tokenizer.train_from_texts(["a man and a dog"] * 9, vocabulary_size=13)


BLANK = ["", " \t", *"\u200b\ufeff\u200e\x07\u2581\x85", "\u3000\u200b\x07 \u2581"]


@pytest.mark.tensorflow
def test_a_text_without_tokens_is_blank(sentences):
    sources, parts = inputs.source_ids([*BLANK, "a"], sentences, 3, "refuse")
    assert len(sources) == 1 and parts == [[]] * len(BLANK) + [[0]]


@pytest.mark.tensorflow
def test_a_part_without_tokens_is_left_out(sentences):
    with pytest.warns(UserWarning, match="split"):
        sources, (parts,) = inputs.source_ids(["a dog. \u200b\n a man."], sentences, 8, "split")
    assert parts == [0, 1]
    assert [sentences.detokenize(ids)[:5] for ids in sources] == ["a dog", "a man"]


@pytest.mark.tensorflow
def test_characters_of_a_prefix_that_the_vocabulary_lacks_are_named(sentences):
    assert inputs.prefix_ids(["a dog", "\u200b"], 2, sentences, 9)[1] == []
    with pytest.raises(InputError) as caught:
        inputs.prefix_ids(["a", "a xüx dog"], 2, sentences, 20)
    assert caught.value.message.endswith("Received: 'x', 'ü' in 'a xüx dog'.")
    assert caught.value.index == 1


@pytest.mark.tensorflow
def test_with_bytes_no_character_is_unknown():
    tokenizer = Tokenizer.train_from_texts(["a man"] * 9, vocabulary_size=264, byte_fallback=True)
    (ids,) = inputs.prefix_ids(["漢"], 1, tokenizer, 9)
    assert tokenizer.detokenize(ids) == "漢"


@pytest.mark.parametrize("longest", [2, 13, 16, 17, 100, 129, 512, 1023])
def test_lengths_are_few_and_padding_is_at_most_half_as_much_again_from_32_tokens_on(longest):
    buckets = inputs.length_buckets(longest)
    assert buckets[-1] == longest and buckets == sorted(set(buckets)) and len(buckets) <= 12
    for length in range(1, longest + 1):
        padded = inputs.bucket(length, buckets)
        assert length <= padded and (padded == length or length not in buckets)
        assert padded <= max(16, 1.5 * length) or length < 32


def test_batches_hold_what_is_of_similar_length_and_results_keep_their_order():
    called = []

    def call(chosen):
        called.append(chosen)
        return [10 * index for index in chosen]

    assert inputs.in_batches([3, 11, 5, 7, 2], 2, [call]) == [0, 10, 20, 30, 40]
    assert called == [[1, 3], [2, 0], [4]]
    assert inputs.in_batches([], 2, [call]) == [] and len(called) == 3


def test_each_call_has_a_batch_of_its_own_at_the_same_time():
    both = threading.Barrier(2, timeout=30)

    def call(name, chosen):
        if max(chosen) < 4:  # The two longest batches: one call alone would never pass.
            both.wait()
        return [(name, index) for index in chosen]

    calls = [functools.partial(call, name) for name in "ab"]
    results = inputs.in_batches([9, 9, 8, 8, 2], 2, calls)
    assert [index for _, index in results] == [0, 1, 2, 3, 4]
    assert {results[0], results[2]} in ({("a", 0), ("b", 2)}, {("b", 0), ("a", 2)})


def test_what_one_of_several_calls_raises_is_raised():
    def call(chosen):
        raise InputError(f"no {chosen}")

    with pytest.raises(InputError, match="no"):
        inputs.in_batches([1, 2, 3], 1, [call, call])


def test_rows_are_padded_to_a_power_of_two():
    counts = [inputs.row_count(n) for n in (1, np.int64(2), 3, 4, 5, 31, 32, 33)]
    assert counts == [1, 2, 4, 4, 8, 32, 32, 64]


@pytest.mark.parametrize("spaces", [("", " "), (" ", "  "), ("", ""), ("\u3000", "\u00a0")])
@pytest.mark.parametrize("tag", ["<bt>", ">>epo<<"])
def test_each_part_of_a_split_text_has_the_tag_of_the_whole(tag, spaces):
    texts = ["a dog.", "a man."]
    # An imported model's tag is a symbol as a separator of turns is.
    symbols = {"tags": ("bt",)} if tag == "<bt>" else {"turn_separator": tag}
    tokenizer = Tokenizer.train_from_texts([*texts * 9, f"{tag} a"], 14, **symbols)
    limit = len(tokenizer.tokenize(f"{tag} a man.", add_eos=True))
    with pytest.warns(UserWarning, match="split"):
        text = tag.join(spaces) + "a dog. a man."
        sources, (parts,) = inputs.source_ids([text], tokenizer, limit, "split")
    parts = tokenizer.detokenize([sources[part] for part in parts])
    assert parts == [f"{tag} a dog.", f"{tag} a man."]
    # A tag before a blank text is blank, and a part of a text that has nothing else is left out.
    blanks = [f"{tag} {blank}" for blank in ["", *BLANK]]
    texts = [tag, *blanks]
    assert inputs.source_ids(texts, tokenizer, limit, "refuse") == ([], [[]] * len(texts))
    with pytest.warns(UserWarning, match="split"):
        _, (parts,) = inputs.source_ids(
            [f"{tag} a dog. \u200b\n a man."], tokenizer, limit, "split"
        )
    assert parts == [0, 1]


def test_each_part_of_a_split_text_has_its_language_and_its_tag():
    symbols = {"tags": ("bt",), "languages": (">>de<<", ">>en<<")}
    tokenizer = Tokenizer.train_from_texts(["a dog.", "a man."] * 9, 16, **symbols)
    limit = len(tokenizer.tokenize(">>de<< <bt> a man.", add_eos=True))
    with pytest.warns(UserWarning, match="split"):
        text = ">>de<< <bt> a dog. a man."
        sources, (parts,) = inputs.source_ids([text], tokenizer, limit, "split")
    parts = tokenizer.detokenize([sources[part] for part in parts])
    assert parts == [">>de<< <bt> a dog.", ">>de<< <bt> a man."]


@pytest.mark.parametrize(
    ("count", "width", "beam_size", "rows", "rows_of_leaving"),
    [
        (1000, 128, 4, 8, 64),
        (32, 128, 1, 8, 8),
        (255, 256, 4, 8, 8),
        (256, 256, 1, 16, 64),
        (63, 1024, 4, 16, 16),
        (1000, 512, 4, 32, 32),
    ],
)
def test_rows_per_batch_grow_with_the_width_in_greedy_search_and_where_sentences_leave(
    count, width, beam_size, rows, rows_of_leaving
):
    assert inputs.batch_rows(count, width, beam_size) == rows
    assert inputs.batch_rows(count, width, beam_size, True) == rows_of_leaving
