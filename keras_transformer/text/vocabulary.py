"""Vocabularies: options, SentencePiece's trainer, and its models."""

import collections
import io
import itertools
import random
import re
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import pydantic
import regex

from keras_transformer.errors import InputError
from keras_transformer.ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.options import option, options_class

# The number is fixed, because the trainer's sums depend on it; it is also part of the model file.
# More threads than cores do no harm.
_THREADS = 4
# The trainer skips longer lines, so they are split. Its default limit of 4,192 bytes would split
# ordinary paragraphs in scripts with three bytes per character.
_LONGEST_LINE_BYTES = 65_536
# The trainer writes this character in place of unknown ones, and skips lines that have it.
_RESERVED = "\u2585"
# Characters that cannot be tokens.
_NEVER_TOKENS = {_RESERVED, "\0"}
_SPECIAL_NAMES = {"<unk>", "<s>", "</s>", "<pad>"}
# The normalizations `nmt_…` replace these characters by spaces. Persian and Telugu have non-joiners
# within words, Khmer and Thai have zero-width spaces between words.
_ZERO_WIDTH = regex.compile(r"(?<=[\p{L}\p{M}])[\u200b\u200c](?=\p{L})")
_ZERO_WIDTH_SHARE = 0.01
# Number of texts encoded in one call, to bound the memory for their ids.
_AT_ONCE = 10_000
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


def train_model(texts: Iterable[str], **options: Any) -> bytes:
    """Trains a serialized model; `options` are options of SentencePiece's trainer.

    With subword tokens and a coverage of 1, each character of the texts is a token or is spelled as
    bytes. A warning counts and names the characters that cannot be tokens.
    """
    texts = list(texts)
    wants_all = options["model_type"] == "unigram" and options["character_coverage"] == 1
    if not wants_all or options["byte_fallback"]:
        return _train(texts, **options)
    # The trainer removes the names of special tokens, such as `</s>`, from the text.
    try:
        model = _train(texts, **options)
    except InputError:
        if not (characters := _characters_of_names(texts, options)):
            raise
        # The sizes that this error named do not count these characters.
        model = _train(texts, required_chars=characters, **options)
    if missing_characters := set(_unknown_characters(model, texts)) - _NEVER_TOKENS:
        model = _train(texts, required_chars="".join(sorted(missing_characters)), **options)
    if unknown := _unknown_characters(model, texts):
        names = ", ".join(
            f"U+{ord(character):04X} ({count})" for character, count in unknown.most_common(10)
        )
        warnings.warn(
            f"{len(unknown)} characters of the text cannot be tokens and become <unk> (times): "
            f"{names}. `byte_fallback` spells them as bytes.",
            stacklevel=4,
        )
    return model


def warn_of_zero_width(texts: Iterable[str], normalization: str) -> None:
    """Warns once if many texts have zero-width characters that the normalization replaces."""
    if not normalization.startswith("nmt_"):
        return
    has_zero_width = [bool(_ZERO_WIDTH.search(text)) for text in texts if text.strip()]
    if sum(has_zero_width) > _ZERO_WIDTH_SHARE * len(has_zero_width):
        better = normalization.removeprefix("nmt_")
        # Without counts, so that the warning about a second vocabulary is the same.
        warnings.warn(
            f"More than 1% of the lines have zero-width characters within words. `{normalization}` "
            f"replaces them by spaces; `{better}` keeps them (in a recipe: "
            f"`text.normalization: {better}`).",
            stacklevel=3,
        )


def _train(texts, **options):
    import sentencepiece

    # The trainer looks for repeats across lines: a corpus that is there twice, in one order, is one
    # repeat, for which it takes time in the square of its length.
    texts = random.Random(0).sample(texts, len(texts))
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=itertools.chain.from_iterable(map(_readable, texts)),
            model_writer=model,
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
        raise InputError(_explain(str(error), options["vocab_size"])) from None
    trained = parsed(model.getvalue())
    # A word-level vocabulary is also segmented as unigram, the only algorithm in TensorFlow.
    trained.trainer_spec.model_type = trained.trainer_spec.UNIGRAM
    symbols = set(trained.trainer_spec.user_defined_symbols)
    for piece in trained.pieces:
        # For words the trainer adds each symbol again with a space, which TensorFlow ignores.
        if piece.type == piece.USER_DEFINED and piece.piece not in symbols:
            piece.type = piece.UNUSED
        if piece.piece == OF_WORDS:
            # A known token, so that SentencePiece does not merge neighbouring unknown words.
            piece.piece, piece.type = SPACE, piece.NORMAL
    return trained.SerializeToString()


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


def _characters_of_names(texts, options):
    """Returns the characters that texts have only in the names of special tokens, sorted."""
    import sentencepiece

    symbols = sorted([*_SPECIAL_NAMES, *options["user_defined_symbols"]], key=len, reverse=True)
    symbol = re.compile("|".join(map(re.escape, symbols)))
    rule = options["normalization_rule_name"]
    normalizer: Any = sentencepiece.SentencePieceNormalizer(rule_name=rule)
    in_names: set[str] = set()
    elsewhere: set[str] = set()
    for text in map(normalizer.normalize, texts):
        text = SPACE + text.replace(" ", SPACE)
        in_names.update(*_SPECIAL_NAMES.intersection(symbol.findall(text)))
        elsewhere.update(symbol.sub("", text))
    return "".join(sorted(in_names - elsewhere))


def _unknown_characters(model: bytes, texts: list[str]) -> collections.Counter[str]:
    """Counts the characters of normalized texts that the model has no tokens for."""
    import sentencepiece

    processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model)
    unknown: collections.Counter[str] = collections.Counter()
    for start in range(0, len(texts), _AT_ONCE):
        batch = texts[start : start + _AT_ONCE]
        for text, ids in zip(batch, processor.encode(batch), strict=True):
            if UNK_ID in ids:
                pieces = processor.encode(text, out_type=str)
                for piece, id in zip(pieces, ids, strict=True):
                    unknown.update(piece if id == UNK_ID else "")
    return unknown


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
