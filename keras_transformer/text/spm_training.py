"""SentencePiece's trainer behind checked arguments: texts in, model bytes out."""

import collections.abc
import io
import os
import re

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.errors import InputError
from keras_transformer.files import read_lines

NORMALIZATIONS = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity")

# The trainer's result depends on how it splits its sums, so the number is fixed; it is also part
# of the model file. More threads than cores do no harm.
_THREADS = 4
# Longer lines are passed over by the trainer. Its own limit of 4,192 bytes drops ordinary
# paragraphs in scripts of three bytes a character.
_LONGEST_LINE_BYTES = 65_536


def read_all_lines(files):
    """The lines of one file or of several, one after the other; see `read_lines`."""
    paths = [files] if isinstance(files, (str, os.PathLike)) else list(files)
    if not paths:
        raise InputError("`files` must name at least one text file. Received: files=[].")
    return [line for path in paths for line in read_lines(path)]


def check_texts(texts):
    """The texts as a list, each a string that UTF-8 can hold; otherwise `InputError`."""
    if isinstance(texts, (str, bytes)) or not isinstance(texts, collections.abc.Iterable):
        raise InputError(f"Expected several strings. Received: one {type(texts).__name__}.")
    texts = list(texts)
    for number, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise InputError(
                f"Text {number} must be a string. Received: {type(text).__name__}, {text!r:.40}."
            )
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(
                f"Text {number} must be valid Unicode. "
                f"Received: half a surrogate pair at character {error.start + 1}."
            ) from None
    return texts


def train_model(
    texts, vocabulary_size, *, byte_fallback, split_digits, character_coverage, normalization
):
    """A serialized unigram model; arguments and errors as `Tokenizer.train_from_texts`."""
    import sentencepiece

    _check_options(vocabulary_size, byte_fallback, split_digits, character_coverage, normalization)
    texts = check_texts(texts)
    if not any(text.strip() for text in texts):
        raise InputError("A vocabulary needs some text. Received: no text but white space.")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocabulary_size,
            pad_id=PAD_ID,
            bos_id=BOS_ID,
            eos_id=EOS_ID,
            unk_id=UNK_ID,
            byte_fallback=byte_fallback,
            split_digits=split_digits,
            character_coverage=character_coverage,
            normalization_rule_name=normalization,
            max_sentence_length=_LONGEST_LINE_BYTES,
            num_threads=_THREADS,
            minloglevel=2,  # errors come as exceptions; the rest is progress
        )
    except RuntimeError as error:
        raise InputError(_explain(str(error), vocabulary_size)) from None
    return model.getvalue()


def _check_options(vocabulary_size, byte_fallback, split_digits, character_coverage, normalization):
    size = vocabulary_size
    # Five: the four special ids and one piece of text.
    if isinstance(size, bool) or not isinstance(size, int) or size < 5:
        raise InputError(
            "`vocabulary_size` must be an integer of at least 5. "
            f"Received: vocabulary_size={size!r}."
        )
    for name, value in (("byte_fallback", byte_fallback), ("split_digits", split_digits)):
        if not isinstance(value, bool):
            raise InputError(f"`{name}` must be true or false. Received: {name}={value!r}.")
    coverage = character_coverage
    if isinstance(coverage, bool) or not isinstance(coverage, (int, float)):
        raise InputError(
            f"`character_coverage` must be a number. Received: character_coverage={coverage!r}."
        )
    # SentencePiece's own limits.
    if not 0.98 <= coverage <= 1:
        raise InputError(
            f"`character_coverage` must be in [0.98, 1]. Received: character_coverage={coverage!r}."
        )
    if normalization not in NORMALIZATIONS:
        raise InputError(
            f"`normalization` must be one of {', '.join(NORMALIZATIONS)}. "
            f"Received: normalization={normalization!r}."
        )


def _explain(message, vocabulary_size):
    """One line for a trainer's error, whose own text starts with a C++ condition."""
    received = f"Received: vocabulary_size={vocabulary_size}."
    if found := re.search(r"value <= (\d+)", message):
        return (
            f"`vocabulary_size` is too large for this text: it gives at most {found[1]} pieces. "
            + received
        )
    if found := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return (
            "`vocabulary_size` is too small for the characters of this text: it needs at least "
            f"{found[1]}, or a lower `character_coverage`. " + received
        )
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return f"A vocabulary needs some text in lines of at most {_LONGEST_LINE_BYTES} bytes."
    return f"SentencePiece cannot train on this text: {' '.join(message.split())}"
