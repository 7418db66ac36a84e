import gzip

import pytest

from keras_transformer.config import UNK_ID
from keras_transformer.errors import InputError
from keras_transformer.text import Tokenizer


def test_files_and_texts_give_the_same_model(sentences, tmp_path, tokenizer):
    half = len(sentences) // 2
    plain, zipped = tmp_path / "first.txt", tmp_path / "second.txt.gz"
    plain.write_text("\n".join(sentences[:half]) + "\n", "utf-8")
    zipped.write_bytes(gzip.compress("\n".join(sentences[half:]).encode()))
    assert Tokenizer.train([plain, str(zipped)], vocabulary_size=53) == tokenizer
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.txt", "second.txt.gz"]


def test_one_file_needs_no_list(sentences, tmp_path, tokenizer):
    path = tmp_path / "all.txt"
    path.write_text("\n".join(sentences), "utf-8")
    assert Tokenizer.train(path, 53) == Tokenizer.train(str(path), 53) == tokenizer


def test_training_twice_gives_the_same_bytes_and_prints_nothing(sentences, capfd):
    first, second = (Tokenizer.train_from_texts(iter(sentences), 53) for _ in range(2))
    assert first.model_bytes == second.model_bytes and first.vocabulary_size == 53
    printed = capfd.readouterr()
    assert printed.out == printed.err == ""


def test_the_largest_possible_size_is_named_and_works(sentences):
    with pytest.raises(InputError, match="too large for this text: it gives at most") as caught:
        Tokenizer.train_from_texts(sentences, 100_000)
    message = str(caught.value)
    assert "vocabulary_size=100000" in message and "\n" not in message and ".cc" not in message
    largest = int(message.split("at most ")[1].split()[0])
    assert Tokenizer.train_from_texts(sentences, largest).vocabulary_size == largest
    with pytest.raises(InputError, match="too large"):
        Tokenizer.train_from_texts(sentences, largest + 1)


def test_the_smallest_possible_size_is_named():
    # Four special ids, the space and ten letters.
    texts = ["ab cd ef gh ij"] * 9
    with pytest.raises(InputError, match="too small for the characters.* at least 15,"):
        Tokenizer.train_from_texts(texts, 14)
    assert Tokenizer.train_from_texts(texts, 15).vocabulary_size == 15


@pytest.mark.parametrize("texts", [[], [""], ["  ", "\t"], ["▁▁"]])
def test_no_text_is_refused(texts):
    with pytest.raises(InputError, match="needs some text"):
        Tokenizer.train_from_texts(texts, 50)


def test_a_long_line_is_used_up_to_the_limit():
    assert Tokenizer.train_from_texts(["ab " * 20_000], 7).tokenize("ab")
    with pytest.raises(InputError, match="lines of at most 65536 bytes"):
        Tokenizer.train_from_texts(["ab " * 30_000], 7)


@pytest.mark.parametrize("texts", ["one string", [b"bytes"], ["good", None], ["good", "\ud800"]])
def test_texts_that_are_none_are_refused(texts):
    with pytest.raises(InputError, match="Received"):
        Tokenizer.train_from_texts(texts, 50)


@pytest.mark.parametrize(
    "options",
    [
        dict(vocabulary_size=0),
        dict(vocabulary_size=4),
        dict(vocabulary_size=80.0),
        dict(vocabulary_size="80"),
        dict(vocabulary_size=True),
        dict(byte_fallback="yes"),
        dict(split_digits=1),
        dict(character_coverage=0.5),
        dict(character_coverage=1.5),
        dict(character_coverage="1"),
        dict(character_coverage=float("nan")),
        dict(normalization="nfd"),
        dict(normalization=None),
    ],
)
def test_an_option_out_of_range_is_named(sentences, options):
    [(name, value)] = options.items()
    with pytest.raises(InputError, match=f"`{name}` must") as caught:
        Tokenizer.train_from_texts(sentences, **{"vocabulary_size": 53, **options})
    assert f"{name}={value!r}" in str(caught.value)


def test_a_latin_1_file_is_refused_with_its_line(tmp_path):
    path = tmp_path / "train.de"
    path.write_bytes("ein Mann\nein schöner Hund\n".encode("latin-1"))
    with pytest.raises(InputError, match="train.de, line 2: expected UTF-8.*0xf6"):
        Tokenizer.train(path, 50)


def test_missing_files_are_refused(tmp_path):
    with pytest.raises(InputError, match="none.txt: no such file"):
        Tokenizer.train([tmp_path / "none.txt"], 50)
    with pytest.raises(InputError, match="at least one"):
        Tokenizer.train([], 50)


def test_split_digits_gives_each_digit_its_piece(sentences):
    years = [f"{year} dogs" for year in range(2010, 2020)] * 20
    joined, split = (
        Tokenizer.train_from_texts(sentences + years, 50, split_digits=choice)
        for choice in (False, True)
    )
    assert joined.pieces("2016") != ["▁", "2", "0", "1", "6"] == split.pieces("2016")


def test_normalization_is_chosen(sentences):
    text = "TWO dogs"
    lower = Tokenizer.train_from_texts(sentences, 53, normalization="nmt_nfkc_cf")
    assert lower.detokenize(lower.tokenize(text)) == "two dogs"
    same = Tokenizer.train_from_texts(sentences + ["ﬁ"], 53, normalization="identity")
    assert same.detokenize(same.tokenize("ﬁ")) == "ﬁ"
    assert Tokenizer.train_from_texts(sentences, 53).pieces("ﬁ") != same.pieces("ﬁ")


def test_character_coverage_leaves_rare_characters_out():
    texts = ["the same line again and again"] * 100 + ["ж"]
    assert UNK_ID not in Tokenizer.train_from_texts(texts, 19).tokenize("ж")
    assert UNK_ID in Tokenizer.train_from_texts(texts, 18, character_coverage=0.99).tokenize("ж")
