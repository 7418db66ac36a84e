"""Vocabularies: options, SentencePiece's trainer, and its models."""

import io
import random
import re
import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import pydantic
import regex

from keras_transformer.base.errors import InputError
from keras_transformer.base.ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.base.options import option, options_class

# The number is fixed, because the trainer's sums depend on it; it is also part of the model file.
# More threads than cores do no harm.
_THREADS = 4
# The trainer skips longer lines, so they are split. Its default limit of 4,192 bytes would split
# ordinary paragraphs in scripts with three bytes per character.
_LONGEST_LINE_BYTES = 65_536
# The trainer writes this character in place of unknown ones, and skips lines that have it.
_RESERVED = "\u2585"
_SPECIAL_NAMES = {"<unk>", "<s>", "</s>", "<pad>"}
_LIKE_A_NAME = re.compile(r"[<＜][/／]?\w{1,3}[>＞]")
# The normalizations `nmt_…` replace these characters by spaces. Persian and Telugu have non-joiners
# within words, Khmer and Thai have zero-width spaces between words.
_ZERO_WIDTH = regex.compile(r"(?<=[\p{L}\p{M}])[\u200b\u200c](?=\p{L})")
_ZERO_WIDTH_SHARE = 0.01
SPACE = "\u2581"
"""Represents a space in a token."""
# The only control symbol of a word-level vocabulary, which identifies it. No text has such a piece,
# because spaces become `SPACE`.
OF_WORDS = " "
# Beginning of a control symbol that no vocabulary has as a piece, followed by the number of ids.
# Further pieces of the model take part in the segmentation and are unknown tokens.
OF_FIRST_IDS = " ids "


@options_class
class VocabularyOptions:
    """Options of `Tokenizer.train`."""

    vocabulary_size: int = option(
        8000, "Number of ids of the vocabulary, including the four special ids.", ge=5
    )
    byte_fallback: bool = option(
        False, "Spell characters that the vocabulary lacks as bytes; false: they are unknown."
    )
    split_digits: bool = option(False, "Make each digit a token.")
    whole_words: bool = option(
        False,
        "Word-level vocabulary: tokens are the most frequent words, other words are <unk>. Not "
        "together with `byte_fallback` or `split_digits`.",
    )
    # The range is SentencePiece's.
    character_coverage: float = option(
        1.0,
        "Share of all characters that the vocabulary must cover; about 0.9995 for scripts with "
        "thousands of characters.",
        ge=0.98,
        le=1,
    )
    normalization: Literal["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity"] = option(
        "nmt_nfkc", "SentencePiece's normalization; a name with `cf` folds case.", strict=None
    )
    turn_separator: str | None = option(
        None,
        "Word between two turns of sources that are conversations, such as </s>: one token, which "
        "targets must not contain. null: a source is one sequence.",
        pattern=r"^[^\s\x00,]+$",
    )
    placeholders: int = option(
        0,
        "Number of tokens <ph_1>, <ph_2>, … for URLs, e-mail addresses, fields such as {name} or "
        "%s, and tags that are equal on both sides of a pair. With `markup`, `translate` puts the "
        "original text back.",
        ge=0,
        le=99,
    )
    placeholder_numbers: bool = option(False, "Numbers become placeholders too.")
    # The minimum is SentencePiece's.
    sample_sentences: int | None = option(
        None, "Number of sentences to sample and learn from; null: all, in memory.", gt=100
    )

    @pydantic.model_validator(mode="after")
    def _check_words(self) -> "VocabularyOptions":
        for name in ("byte_fallback", "split_digits", "placeholders") if self.whole_words else ():
            if value := getattr(self, name):
                raise InputError(f"`whole_words` has no parts of words. Received: {name}={value}.")
        return self


def known_ids(model: Any) -> int:
    """Returns the number of ids of a `ModelProto`; further pieces are unknown tokens."""
    count = len(model.pieces)
    for symbol in model.trainer_spec.control_symbols:
        if symbol.startswith(OF_FIRST_IDS):
            number = symbol.removeprefix(OF_FIRST_IDS)
            is_number = re.fullmatch("[0-9]{1,9}", number)
            if not is_number or not UNK_ID < int(number) <= count:
                rule = f"the number of ids must be from {UNK_ID + 1} to {count}, as the pieces"
                raise InputError(f"Not a SentencePiece model: {rule}. Received: {number!r:.40}.")
            return int(number)
    return count


def parsed(model_bytes: bytes) -> Any:
    """Parses the `ModelProto` of a serialized SentencePiece model."""
    return sentencepiece_schema().ModelProto.FromString(model_bytes)


def sentencepiece_schema() -> Any:
    """Returns SentencePiece's module of messages, whose classes are made when it is imported."""
    import google.protobuf
    import sentencepiece

    try:
        from sentencepiece import sentencepiece_model_pb2
    # It checks the version of protobuf, which the package's metadata does not name.
    except Exception as error:
        raise InputError(
            "SentencePiece was made for a newer protobuf. Received: SentencePiece "
            f"{sentencepiece.__version__}, protobuf {google.protobuf.__version__}. "
            'Run pip install "protobuf>=7.36", or pip install "sentencepiece<0.2.3".'
        ) from error
    return sentencepiece_model_pb2


def train_model(
    texts: Iterable[str], vocab_size: int, sample_sentences: int | None, **options: Any
) -> bytes:
    """Trains a serialized model.

    With subword tokens and a coverage of 1, each character of the texts is a token or is spelled as
    bytes, except characters that cannot be tokens.

    Args:
        texts: Texts, which are read once.
        vocab_size: Number of ids.
        sample_sentences: Maximum number of texts in memory, which the trainer samples; None: all.
        **options: Other options of SentencePiece's trainer.
    """
    import sentencepiece

    if sample_sentences is None:
        # The trainer looks for repeats across lines: a corpus that is there twice, in one order, is
        # one repeat, for which it takes time in the square of its length.
        texts = list(texts)
        texts = random.Random(0).sample(texts, len(texts))
    symbols = {symbol.removeprefix(SPACE) for symbol in options["user_defined_symbols"]}
    errors: list[InputError] = []
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_lines(texts, _SPECIAL_NAMES - symbols, errors),
            model_writer=model,
            vocab_size=vocab_size,
            input_sentence_size=sample_sentences or 0,
            pad_id=PAD_ID,
            bos_id=BOS_ID,
            eos_id=EOS_ID,
            unk_id=UNK_ID,
            max_sentence_length=_LONGEST_LINE_BYTES,
            num_threads=_THREADS,
            minloglevel=2,  # errors come as exceptions; the rest is progress
            **options,
        )
    except RuntimeError as error:
        raise (errors or [InputError(_explain(str(error), vocab_size))])[0] from None
    trained = parsed(model.getvalue())
    trained.trainer_spec.ClearField("input_sentence_size")  # Equal tokens are equal models.
    # A word-level vocabulary is also segmented as unigram, the only algorithm in TensorFlow.
    trained.trainer_spec.model_type = trained.trainer_spec.UNIGRAM
    symbols = set(options["user_defined_symbols"])
    for piece in trained.pieces:
        # For words the trainer adds each symbol again with a space, which TensorFlow ignores.
        if piece.type == piece.USER_DEFINED and piece.piece not in symbols:
            piece.type = piece.UNUSED
        if piece.piece == OF_WORDS:
            # A known token, so that SentencePiece does not merge neighbouring unknown words.
            piece.piece, piece.type = SPACE, piece.NORMAL
    return trained.SerializeToString()


def with_warning(texts: Iterable[str], normalization: str) -> Iterator[str]:
    """Yields texts, then warns once if many have zero-width characters that become spaces."""
    num_texts = num_zero_width = 0
    for text in texts:
        num_texts += bool(text.strip())
        num_zero_width += bool(_ZERO_WIDTH.search(text))
        yield text
    if normalization.startswith("nmt_") and num_zero_width > _ZERO_WIDTH_SHARE * num_texts:
        better = normalization.removeprefix("nmt_")
        # Without counts, so that the warning about a second vocabulary is the same.
        warnings.warn(
            f"More than 1% of the lines have zero-width characters within words. `{normalization}` "
            f"replaces them by spaces; `{better}` keeps them (in a recipe: "
            f"`text.normalization: {better}`).",
            stacklevel=1,
        )


def _lines(texts, names, errors):
    """Yields the lines for the trainer; `errors` gets the error that the trainer would hide."""

    def with_space(match):
        is_name = unicodedata.normalize("NFKC", match[0]).casefold() in names
        return f"{match[0][0]} {match[0][1:]}" if is_name else match[0]

    try:
        for text in filter(str.strip, texts):
            # The trainer removes the names of special tokens, with their characters.
            yield from _readable(_LIKE_A_NAME.sub(with_space, text))
    except InputError as error:
        errors.append(error)
        raise


def _readable(text: str) -> Iterator[str]:
    """Splits a text into parts that the trainer does not skip, at spaces where possible."""
    line, start = text.replace(_RESERVED, " ").encode(), 0
    while len(line) - start > _LONGEST_LINE_BYTES:
        end = line.rfind(b" ", start, start + _LONGEST_LINE_BYTES) + 1
        if not end:
            end = start + _LONGEST_LINE_BYTES
            while line[end] & 0xC0 == 0x80:  # in the middle of a character
                end -= 1
        yield line[start:end].decode()
        start = end
    yield line[start:].decode()


def _explain(message, vocabulary_size):
    """Returns one line about a trainer's error, whose own text begins with a C++ condition."""
    received = f"Received: vocabulary_size={vocabulary_size}."
    if match := re.search(r"value <= (\d+)", message):
        return (
            f"`vocabulary_size` is too large for this text: it gives at most {match[1]} tokens "
            f"(for a recipe: `--set text.vocabulary_size={match[1]}`). {received}"
        )
    if match := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return (
            "`vocabulary_size` is too small for the characters of this text: it needs at least "
            f"{match[1]}, or a lower `character_coverage`. " + received
        )
    without_text = ("sentences_.empty()", "all_chars_count", "required_chars_.empty()")
    if any(condition in message for condition in without_text):
        return "A vocabulary needs some text. Received: only characters that cannot be tokens."
    return f"SentencePiece cannot train on this text: {' '.join(message.split())}"
