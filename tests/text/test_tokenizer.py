import collections
import copy
import gzip
import io
import os
import sys
import unicodedata
import warnings

import numpy as np
import pytest
import sentencepiece

from keras_transformer.base.errors import InputError
from keras_transformer.base.ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.text import Tokenizer, vocabulary


def foreign_model(sentences, **options):
    """A model straight from SentencePiece, as other projects train theirs."""
    ids = dict(pad_id=PAD_ID, bos_id=BOS_ID, eos_id=EOS_ID, unk_id=UNK_ID)
    model = io.BytesIO()
    options = {"vocab_size": 53, "model_type": "unigram", "minloglevel": 2, **ids, **options}
    train = sentencepiece.SentencePieceTrainer.train
    train(sentence_iterator=iter(sentences), model_writer=model, **options)
    return model.getvalue()


def test_sentences_come_back(tokenizer, sentences):
    rows = tokenizer.tokenize(sentences)
    assert tokenizer.detokenize(rows) == sentences
    assert min(map(min, rows)) > UNK_ID and max(map(max, rows)) < tokenizer.vocabulary_size


def test_no_ids_are_an_empty_text_and_no_rows_are_no_texts(tokenizer):
    assert tokenizer.tokenize([]) == []
    assert tokenizer.detokenize([]) == "" and tokenizer.detokenize(np.zeros((0, 3), int)) == []


def test_byte_fallback_brings_unseen_characters_back(tokenizer, byte_tokenizer):
    text = "two 你好 😀"
    assert UNK_ID in tokenizer.tokenize(text)
    assert UNK_ID not in byte_tokenizer.tokenize(text)
    assert byte_tokenizer.detokenize(byte_tokenizer.tokenize(text)) == text


MISTAKES = [
    ("tokenize", texts, "Received") for texts in (3, None, b"two", ["a", b"b"], ["a", None])
]
MISTAKES += [("tokenize", texts, "Received") for texts in ("\ud800", [["a"]])]
MISTAKES += [
    (method, ids, "`ids`")
    for method in ("detokenize", "pieces_of")
    for ids in ([4, 2, 10**6], [1.5], ["a"], [[4], [53]])
]


@pytest.mark.parametrize(("method", "value", "expected"), MISTAKES)
def test_other_texts_and_ids_are_refused(tokenizer, method, value, expected):
    with pytest.raises(InputError, match=expected):
        getattr(tokenizer, method)(value)


def test_a_saved_tokenizer_loads_as_its_equal(tokenizer, byte_tokenizer, tmp_path):
    path = tmp_path / "tokenizer.model"
    tokenizer.save(path)
    loaded = Tokenizer.load(str(path))
    assert loaded == tokenizer == copy.deepcopy(tokenizer) and hash(loaded) == hash(tokenizer)
    assert loaded != byte_tokenizer and loaded != tokenizer.model_bytes
    assert os.listdir(tmp_path) == ["tokenizer.model"]
    # The file is a plain SentencePiece model, which other programs read.
    assert path.read_bytes() == tokenizer.model_bytes


def test_an_error_of_loading_names_the_file(tmp_path):
    for path, message in [(tmp_path / "none", "no such file"), (tmp_path, "a directory")]:
        with pytest.raises(InputError, match=message) as caught:
            Tokenizer.load(path)
        assert str(path) in str(caught.value)
    garbage = tmp_path / "garbage.model"
    garbage.write_bytes(b"<html>404 Not Found</html>")
    with pytest.raises(InputError, match="garbage.model: Expected a complete SentencePiece model"):
        Tokenizer.load(garbage)


def test_a_model_cut_anywhere_is_refused_in_silence(tokenizer, capfd):
    whole = tokenizer.model_bytes
    # The last fields are few bytes of defaults; all cuts near the end, some before.
    cuts = {*range(0, len(whole), len(whole) // 97), *range(len(whole) - 2000, len(whole))}
    for cut in cuts:
        try:
            survivor = Tokenizer(whole[:cut])
        except InputError as error:
            assert "\n" not in str(error)
        else:
            pytest.fail(f"{cut} of {len(whole)} bytes were taken: {survivor!r}")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (b"\0", "Expected a complete SentencePiece model"),
        (None, "Expected a complete SentencePiece model"),
        (dict(model_type="word", hard_vocab_limit=False), "unigram or bpe.*model_type=word"),
        (dict(pad_id=3, unk_id=0), "special ids must be.*'pad': 3, 'bos': 1, 'eos': 2, 'unk': 0"),
        (dict(bos_id=-1), "special ids must be.*'pad': 0, 'bos': -1, 'eos': 2, 'unk': 3"),
        # A short vocabulary of an import names the number of its ids.
        *(
            (dict(control_symbols=[f" ids {number}"]), f"number of ids must be .*{number!r}")
            for number in ("99999999999", "x", "3", "-1", "", "²")
        ),
    ],
)
def test_other_models_are_refused(sentences, model, message):
    content = foreign_model(sentences, **model) if isinstance(model, dict) else model
    with pytest.raises(InputError, match=message):
        Tokenizer(content)


def test_files_and_texts_give_equal_models_and_print_nothing(sentences, tmp_path, tokenizer, capfd):
    half = len(sentences) // 2
    plain, zipped = tmp_path / "first.txt", tmp_path / "second.txt.gz"
    plain.write_text("\n".join(sentences[:half]) + "\n", "utf-8")
    zipped.write_bytes(gzip.compress("\n".join(sentences[half:]).encode()))
    assert Tokenizer.train([plain, str(zipped)], vocabulary_size=53) == tokenizer
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.txt", "second.txt.gz"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("options", "symbols"),
    [({}, 0), ({"normalization": "identity"}, 0), ({"placeholders": 5, "tags": ("2de",)}, 6)],
)
@pytest.mark.parametrize("name", ["", "</s>", "＜/ｓ＞"])
def test_a_size_that_an_error_names_works_with_names_of_special_tokens(options, symbols, name):
    texts = [f"a {name} b qz"] * 20 + ["zig zig hoof"] * 20
    spelled = name if options.get("normalization") else unicodedata.normalize("NFKC", name)
    # Four special ids, the symbols, the space and single characters.
    least = 4 + symbols + 1 + len(set(f"abqzighof{spelled}"))
    with pytest.raises(InputError, match=f"too small for the characters.* at least {least},"):
        Tokenizer.train_from_texts(texts, least - 1, **options)
    with pytest.raises(InputError, match="too large for this text") as caught:
        Tokenizer.train_from_texts(texts, 1000, **options)
    message = str(caught.value)
    assert "vocabulary_size=1000" in message and "\n" not in message and ".cc" not in message
    largest = int(message.split("at most ")[1].split()[0])
    with pytest.raises(InputError, match="too large"):
        Tokenizer.train_from_texts(texts, largest + 1, **options)
    for size in (least, largest):
        tokenizer = Tokenizer.train_from_texts(texts, size, **options)
        assert tokenizer.vocabulary_size == size and UNK_ID not in tokenizer.tokenize(texts[0])


def test_a_protobuf_that_is_too_old_for_sentencepiece_is_one_line(tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece.sentencepiece_model_pb2", None)
    monkeypatch.delattr("sentencepiece.sentencepiece_model_pb2", raising=False)
    with pytest.raises(InputError, match=r"newer protobuf. Received: SentencePiece \d.*protobuf"):
        Tokenizer(tokenizer.model_bytes)


def size_of_characters(texts):
    """The size of a vocabulary of the special tokens, the space and single characters."""
    return 5 + len(set("".join(texts)) - set(" ▅\0"))


# Not with the limit itself: SentencePiece's time grows with the square of a line's length.
@pytest.mark.parametrize(("limit", "end"), [(2048, ""), (999, " é")])
def test_the_whole_of_a_long_line_is_used(limit, end, monkeypatch):
    monkeypatch.setattr(vocabulary, "_LONGEST_LINE_BYTES", limit)
    lines = ["ab " * (limit // 2) + "xy" + end, "c" * (limit - 1) + "ü" * (limit // 2) + "ö" + end]
    for line in lines:
        tokenizer = Tokenizer.train_from_texts([line], size_of_characters([line]))
        assert UNK_ID not in tokenizer.tokenize(line)


NOTHING = "needs some text|only characters that cannot be tokens"
# Texts, None for sentences, options of a training, and what its error names.
UNFIT = [(texts, {}, NOTHING) for texts in ([], [""], ["  ", "\t"], ["▁▁"], ["▅ ▅"])]
for name, value in (
    *(("vocabulary_size", 4), ("split_digits", 1), ("normalization", "nfd")),
    *(("character_coverage", 1.5), ("character_coverage", float("nan"))),
):
    UNFIT.append((None, {name: value}, f"`{name}` must.* Received: {value!r}.$"))
for name, value in (("byte_fallback", True), ("split_digits", True), ("placeholders", 1)):
    expected = f"no parts of words. Received: {name}={value}"
    UNFIT.append((None, {"whole_words": True, name: value}, expected))


@pytest.mark.parametrize(("texts", "options", "expected"), UNFIT)
def test_unfit_texts_and_options_of_a_training_are_named(sentences, texts, options, expected):
    texts = sentences if texts is None else texts
    with pytest.raises(InputError, match=expected):
        Tokenizer.train_from_texts(texts, **{"vocabulary_size": 53, **options})
    with pytest.raises(InputError, match="at least one"):
        Tokenizer.train([], 50)


def test_split_digits_gives_each_digit_its_piece(sentences):
    words = sorted({word for text in sentences for word in text.split() if word.isalpha()})
    texts = [f"{word} {year}" for year in (2015, 2016, 2017) for word in words]
    train = Tokenizer.train_from_texts
    joined, split = (train(texts, 50, split_digits=choice) for choice in (False, True))
    assert joined.pieces("2016") != ["▁", "2", "0", "1", "6"] == split.pieces("2016")


def test_whole_words_are_the_most_frequent_ones_and_each_other_one_is_unknown(sentences):
    texts = [*sentences, "two zebras", "two yaks"]
    tokenizer = Tokenizer.train_from_texts(texts, 42, whole_words=True)
    counts = collections.Counter(word for text in texts for word in text.split())
    frequent = [word for word, _ in counts.most_common(42 - 4 - 1)]
    id_of = {word: tokenizer.tokenize(word)[0] for word in frequent}
    assert len({*id_of.values()} - {UNK_ID}) == 37
    # Also words that begin or end with a known one, are made of known ones, and neighbours.
    words = [*counts, *(f"{word}s" for word in frequent), *(f"x{word}" for word in frequent)]
    words += ["gnu", "twodogs", "dogs.", "two", "\u00adgnu"] * 9
    for count in (1, 2, len(words)):
        for index in range(0, len(words) - count + 1):
            text = "  ".join(words[index : index + count])
            expected = [id_of.get(word, UNK_ID) for word in words[index : index + count]]
            assert tokenizer.tokenize(text, add_bos=True, add_eos=True) == [1, *expected, 2]
    assert tokenizer.pieces("two dogsled gnus") == ["▁two", "▁dogsled", "▁gnus"]
    assert tokenizer.pieces(["", "gnu"]) == [[], ["▁gnu"]]
    again = Tokenizer(tokenizer.model_bytes)
    assert again.whole_words and not Tokenizer.train_from_texts(texts, 53).whole_words


def test_normalization_is_chosen(sentences):
    text = "TWO dogs"
    lower = Tokenizer.train_from_texts(sentences, 53, normalization="nmt_nfkc_cf")
    assert lower.detokenize(lower.tokenize(text)) == "two dogs"
    same = Tokenizer.train_from_texts(sentences + ["ﬁ"], 53, normalization="identity")
    assert same.detokenize(same.tokenize("ﬁ")) == "ﬁ"
    assert Tokenizer.train_from_texts(sentences, 53).pieces("ﬁ") != same.pieces("ﬁ")


# Persian, Telugu and Kannada have non-joiners within words, Khmer has zero-width spaces.
ZERO_WIDTH = ["می‌خواهم بخوانم", "సాఫ్ట్‌వేర్ ఉంది", "ಸಾಫ್ಟ್‌ವೇರ್ ಇದೆ", "ខ្ញុំ\u200bស្រឡាញ់ អ្នក"]


@pytest.mark.parametrize("text", ZERO_WIDTH)
def test_zero_width_characters_within_words_are_kept_by_nfkc_which_a_warning_names(text):
    character = "\u200c" if "\u200c" in text else "\u200b"
    plain = text.replace(character, " ")
    # Blank lines do not count, and neither do these characters at the ends of words.
    plain = [*[plain] * 97, plain + character, *[""] * 110, character]
    size = len(set(plain[0])) + 4  # its characters and the special tokens
    for normalization, better in (("nmt_nfkc", "nfkc"), ("nmt_nfkc_cf", "nfkc_cf")):
        message = f"More than 1% .* `{normalization}` .*in a recipe: `text.normalization: {better}`"
        with pytest.warns(UserWarning, match=message):
            lost = Tokenizer.train_from_texts([text] * 2 + plain, size, normalization=normalization)
        assert lost.detokenize(lost.tokenize(text)) == plain[0]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Tokenizer.train_from_texts([text] + plain, size, normalization=normalization)
            kept = Tokenizer.train_from_texts([text] * 2 + plain, size + 1, normalization=better)
        assert kept.detokenize(kept.tokenize(text)) == text


def test_symbols_are_known_by_their_names(symbol_tokenizer, tokenizer):
    assert symbol_tokenizer.tags == ("2de",) and symbol_tokenizer.placeholders == (2, False)
    assert symbol_tokenizer.turn_id is None
    assert tokenizer.tags == () and tokenizer.placeholders == (0, False)
    text = "<2de> a man (<ph_2>),<ph_1>"
    ids = [id for id in symbol_tokenizer.tokenize(text) if 4 <= id < 7]
    assert symbol_tokenizer.pieces_of(ids) == ["<2de>", "<ph_2>", "<ph_1>"]


def test_characters_that_a_vocabulary_lacks_are_counted_by_text():
    tokenizer = Tokenizer.train_from_texts(["a man and a dog!"] * 9, 14)
    texts = ["a dog", "", "€€ a €", "$man", "$ €", "a \u00a0dog"]
    assert tokenizer.unknown_characters(texts) == {"€": 2, "$": 2}
    signs = tokenizer.lacking_signs()
    assert {"€", "$", "7", "„"} <= set(signs) and "!" not in signs
    with_bytes = Tokenizer.train_from_texts(["a man and a dog!"] * 9, 270, byte_fallback=True)
    assert with_bytes.lacking_signs() == ""


def test_pieces_without_an_id_are_lacking_characters():
    model = vocabulary.parsed(Tokenizer.train_from_texts(["a man and a dog!"] * 9, 14).model_bytes)
    model.trainer_spec.control_symbols.append(" ids 12")
    assert [piece.piece for piece in model.pieces[11:]] == ["m", "n", "a"]
    tokenizer = Tokenizer(model.SerializeToString())
    texts = ["n", "mom", "go n n!", "no dog", "a dog"]
    assert tokenizer.unknown_characters(texts) == {"n": 3}


def test_equal_tokens_of_different_sentences_take_the_memory_of_one(tokenizer, sentences):
    pieces = [piece for ids in tokenizer.tokenize(sentences) for piece in tokenizer.pieces_of(ids)]
    assert len(set(map(id, pieces))) == len(set(pieces)) < len(pieces) / 2
