"""Vocabularies: options, the trainer of SentencePiece, and the model that it writes."""

import io
import re
from collections.abc import Iterable
from typing import Any, Literal

import pydantic

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.declaration import declared, option
from keras_transformer.errors import InputError

# The trainer's result depends on how it splits its sums, so the number is fixed; it is also part
# of the model file. More threads than cores do no harm.
_THREADS = 4
# Longer lines are passed over by the trainer. Its own limit of 4,192 bytes drops ordinary
# paragraphs in scripts of three bytes a character.
_LONGEST_LINE_BYTES = 65_536
SPACE = "\u2581"
"""Stands for a space in a token."""
# The only control symbol of a vocabulary of words, by which one is known. No text has such a piece:
# its spaces have become `SPACE`.
OF_WORDS = " "


@declared
class VocabularyOptions:
    """Options of `Tokenizer.train`."""

    vocabulary_size: int = option(
        8000, "Ids of the vocabulary, the four special ones included.", ge=5
    )
    byte_fallback: bool = option(
        False, "Spell characters that the vocabulary lacks in bytes; false: they are unknown."
    )
    split_digits: bool = option(False, "Make each digit a token.")
    whole_words: bool = option(
        False,
        "Make tokens of the most frequent words, not of pieces of words; any other is one <unk>. "
        "Goes with neither `byte_fallback` nor `split_digits`.",
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
        "no target may have. null: a source is one sequence.",
        pattern=r"^[^\s\x00,]+$",
    )
    placeholders: int = option(
        0,
        "Tokens <ph_1>, <ph_2>, … for URLs, e-mail addresses, fields such as {name} or %s, and "
        "tags that are equal on both sides of a pair; `translate` puts them back with `markup`.",
        ge=0,
        le=99,
    )
    placeholder_numbers: bool = option(False, "Numbers become placeholders, too.")

    @pydantic.model_validator(mode="after")
    def _check_words(self) -> "VocabularyOptions":
        for name in ("byte_fallback", "split_digits", "placeholders") if self.whole_words else ():
            if value := getattr(self, name):
                raise InputError(f"`whole_words` has no parts of words. Received: {name}={value}.")
        return self


def parsed(model_bytes: bytes) -> Any:
    """The `ModelProto` of a serialized SentencePiece model."""
    from sentencepiece import sentencepiece_model_pb2

    schema: Any = sentencepiece_model_pb2  # whose classes are made when it is imported
    return schema.ModelProto.FromString(model_bytes)


def train_model(texts: Iterable[str], **options: Any) -> bytes:
    """Returns a serialized model; `options` are those of SentencePiece's trainer."""
    import sentencepiece

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
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
    # A vocabulary of words is searched as one of pieces is: TensorFlow has no other search.
    trained.trainer_spec.model_type = trained.trainer_spec.UNIGRAM
    for piece in trained.pieces:
        if piece.piece == OF_WORDS:
            # Known, so that SentencePiece does not make one unknown token of neighbours.
            piece.piece, piece.type = SPACE, piece.NORMAL
    return trained.SerializeToString()


def _explain(message, vocabulary_size):
    """One line for a trainer's error, whose own text starts with a C++ condition."""
    received = f"Received: vocabulary_size={vocabulary_size}."
    if found := re.search(r"value <= (\d+)", message):
        return (
            f"`vocabulary_size` is too large for this text: it gives at most {found[1]} tokens "
            f"(for a recipe: `--set text.vocabulary_size={found[1]}`). {received}"
        )
    if found := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return (
            "`vocabulary_size` is too small for the characters of this text: it needs at least "
            f"{found[1]}, or a lower `character_coverage`. " + received
        )
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return f"A vocabulary needs some text in lines of at most {_LONGEST_LINE_BYTES} bytes."
    return f"SentencePiece cannot train on this text: {' '.join(message.split())}"
