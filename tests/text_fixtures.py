import pytest

from keras_transformer.text import Tokenizer

SUBJECTS = "a man|a woman|two dogs|three children|the old clerk|a girl in a red coat".split("|")
VERBS = "runs|is sleeping|sits|eats an apple|reads 12 books|läuft schnell".split("|")
PLACES = "in the park|on a bench|near the river|at 7 o'clock|in Köln|behind the house".split("|")

# What breaks tokenizers: nothing to say, spaces, bytes that end C strings, marks that normalize
# away, scripts never seen, the special pieces spelled out, and very long texts.
NASTY_TEXTS = (
    *("", " ", "   ", "  two  dogs  ", "\t", "a\tb\nc\r\nd", "a\x00b", "\x01\x02\x07\x7f"),
    *("😀", "two 😀😀 dogs", "👨\u200d👩\u200d👧 the", "नमस्ते दुनिया", "你好", "ΑΒΓ", "שלום עולם"),
    *("<s> a </s> <pad> <unk>", "▁ ▁▁a", " ⁇ ", "<0x41>", "\ufffd", "12345 1 23", "ÄÖÜß"),
    *("dogsled", "the gnu gnus", "adogs two dogs.x intheparks in"),
    *("e\u0301 ﬁ Å Ⅷ", "\ufeffa", "a\u00a0b", "\u2028x", "\u200b a", "\u00ad", "\u0301"),
    *("<2de> a man", "two <2de>dogs<ph_1>, (<ph_2>) <ph_3>", "<2de>", "<PH_1>"),
    *("a" * 20_000, "the man " * 3_000, "😀" * 5_000),
)


@pytest.fixture(scope="session")
def sentences():
    """216 sentences of a few words."""
    return [f"{s} {v} {p}." for s in SUBJECTS for v in VERBS for p in PLACES]


@pytest.fixture(scope="session")
def nasty_texts():
    return list(NASTY_TEXTS)


@pytest.fixture(scope="session")
def tokenizer(sentences):
    return Tokenizer.train_from_texts(sentences, vocabulary_size=53)


@pytest.fixture(scope="session")
def byte_tokenizer(sentences):
    return Tokenizer.train_from_texts(sentences, vocabulary_size=309, byte_fallback=True)


@pytest.fixture(scope="session")
def word_tokenizer(sentences):
    options = {"vocabulary_size": 43, "tags": ("2de",)}
    return Tokenizer.train_from_texts(sentences, whole_words=True, **options)


@pytest.fixture(scope="session")
def symbol_tokenizer(sentences):
    """Has a tag, and two placeholders."""
    texts = [f"<2de> {sentence} <ph_1>" for sentence in sentences]
    return Tokenizer.train_from_texts(texts, vocabulary_size=58, tags=("2de",), placeholders=2)
