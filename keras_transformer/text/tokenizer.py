"""Tokenizes text with SentencePiece models that have this package's special ids."""

import collections
import functools
import itertools
import os
import re
import string
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from keras_transformer.base.errors import InputError
from keras_transformer.base.files import write_output
from keras_transformer.base.ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.base.reading import iterate_lines, read_checked
from keras_transformer.text.per_text import checked_texts
from keras_transformer.text.symbols import TERM_SYMBOLS, Placeholders
from keras_transformer.text.tags import (
    check_new_tag,
    corpus_in_tag,
    language_in_tag,
    split_tag,
    tag_tokens,
)
from keras_transformer.text.vocabulary import (
    OF_WORDS,
    SPACE,
    VocabularyOptions,
    known_ids,
    parsed,
    train_model,
    with_warning,
)

# Signs of ASCII, of money, measures and typography, which texts of every language may have.
_SIGNS = string.punctuation + string.digits + "€£¥§°±×÷–—…‘’“”„«»•©®™"
_BYTE = re.compile("<0x[0-9A-F]{2}>")
_SPECIAL_IDS = {"pad": PAD_ID, "bos": BOS_ID, "eos": EOS_ID, "unk": UNK_ID}


class Tokenizer:
    """Converts text to token ids and back.

    Ids 0 to 3 are padding, BOS, EOS and the unknown token. Text never produces the first three:
    `"</s>"` in a sentence is spelled like any other characters.

    Two tokenizers are equal if the bytes of their models are.

    Args:
        model_bytes: A serialized SentencePiece model, such as `Tokenizer.model_bytes`.

    Raises:
        InputError: The bytes are not a complete SentencePiece model, it is neither a unigram nor a
            BPE model, or it has other special ids.

    Attributes:
        model_bytes: The serialized model.
        whole_words: True for a word-level vocabulary, in which an unknown word is one unknown
            token.
        kind: `"unigram"`, the kind of trained vocabularies, or `"bpe"`.
        tag_tokens: Tokens that may precede a source, by name: `{"2de": "<2de>"}`, and in an
            imported model the languages, `{"epo": ">>epo<<"}`.
        vocabulary_size: Number of ids, including the four special ids. An imported model may have
            more pieces, which take part in the segmentation and are unknown tokens.

    Example:

    >>> tokenizer = Tokenizer.train_from_texts(["a man and a dog"] * 9, vocabulary_size=13)
    >>> tokenizer.detokenize(tokenizer.tokenize("a dog", add_eos=True))
    'a dog'
    """

    def __init__(self, model_bytes: bytes):
        model = _checked_model(model_bytes)
        self.model_bytes = bytes(model_bytes)
        self._processor = _load_processor(self.model_bytes)
        self.whole_words = OF_WORDS in model.trainer_spec.control_symbols
        self._symbols = list(model.trainer_spec.user_defined_symbols)
        self.kind = model.trainer_spec.ModelType.Name(model.trainer_spec.model_type).lower()
        self.vocabulary_size = known_ids(model)
        pieces = model.pieces[: self.vocabulary_size]
        symbols = (piece.piece for piece in pieces if piece.type == piece.USER_DEFINED)
        languages = filter(None, map(language_in_tag, symbols))
        tags = filter(None, map(corpus_in_tag, self._symbols))
        self.tag_tokens = tag_tokens(tags) | tag_tokens(languages, are_languages=True)

    @classmethod
    def train(
        cls,
        files: str | os.PathLike | Sequence[str | os.PathLike],
        vocabulary_size: int,
        **options: Any,
    ) -> "Tokenizer":
        """Learns a vocabulary from the lines of text files.

        Args:
            files: A path or a list of paths: UTF-8, plain or compressed (`.gz`, `.xz`, `.bz2`,
                `.zst`); both sides of a parallel corpus for a joint vocabulary.
            vocabulary_size: Number of ids, including the four special ids.
            **options: Fields of `VocabularyOptions`.

        Raises:
            InputError: See `read_lines` and `train_from_texts`.
        """
        paths = [files] if isinstance(files, (str, os.PathLike)) else list(files)
        if not paths:
            raise InputError("`files` must name at least one text file. Received: files=[].")
        lines = itertools.chain.from_iterable(map(iterate_lines, paths))
        return cls.train_from_texts(lines, vocabulary_size, **options)

    @classmethod
    def train_from_texts(
        cls,
        texts: Iterable[str],
        vocabulary_size: int,
        tags: Sequence[str] = (),
        terms: bool = False,
        languages: Sequence[str] = (),
        **options: Any,
    ) -> "Tokenizer":
        """Learns a vocabulary; equal texts and options give equal models.

        Args:
            texts: An iterable of sentences. Nothing is written to disk.
            vocabulary_size: Number of ids, including the four special ids.
            tags: Names of tokens `<name>`, which may precede a source: lower-case letters,
                digits and hyphens.
            terms: Whether the vocabulary has tokens that annotate terms with their translations.
            languages: Tokens of languages, such as `>>de<<`, which may precede a source.
            **options: Fields of `VocabularyOptions`. A word-level vocabulary has the token `"▁"`,
                which is not a word: SentencePiece needs it to find unknown words.

        Raises:
            InputError: An option is out of range, a text is not a string, there is no text, or the
                texts do not have `vocabulary_size` tokens. The message names a size that works.
        """
        for tag in tags:
            check_new_tag(tag)
        vocabulary_options = VocabularyOptions(vocabulary_size=vocabulary_size, **options)
        if vocabulary_options.sample_sentences is None:
            texts = checked_texts("texts", texts)
        placeholders = Placeholders(
            vocabulary_options.placeholders, vocabulary_options.placeholder_numbers
        )
        symbols = [f"<{tag}>" for tag in tags] + placeholders.symbols
        symbols += TERM_SYMBOLS if terms else ()
        # The only symbols that begin with a space.
        words = [*languages, *filter(None, [vocabulary_options.turn_separator])]
        symbols = [SPACE + word for word in words] + symbols
        model = train_model(
            with_warning(texts, vocabulary_options.normalization),
            sample_sentences=vocabulary_options.sample_sentences,
            model_type="word" if vocabulary_options.whole_words else "unigram",
            vocab_size=vocabulary_size,
            byte_fallback=vocabulary_options.byte_fallback,
            split_digits=vocabulary_options.split_digits,
            character_coverage=vocabulary_options.character_coverage,
            normalization_rule_name=vocabulary_options.normalization,
            control_symbols=[OF_WORDS] if vocabulary_options.whole_words else [],
            user_defined_symbols=symbols,
        )
        return cls(model)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Tokenizer":
        """Reads a model file; raises the constructor's `InputError`, with the file's name."""
        model_bytes = read_checked(path)
        try:
            return cls(model_bytes)
        except InputError as error:
            raise InputError(f"{os.fspath(path)}: {error}") from None

    def save(self, path: str | os.PathLike) -> None:
        """Writes the model to a file, completely or not at all."""
        write_output(path, self.model_bytes)

    def tokenize(
        self, texts: str | Iterable[str], add_bos: bool = False, add_eos: bool = False
    ) -> Any:
        """Returns a list of ids of one text, or a list of such lists of several texts.

        A tag before a text counts as a word, also without a space after it.

        Args:
            texts: A string, or an iterable of strings.
            add_bos: Whether ids begin with `BOS_ID`.
            add_eos: Whether ids end with `EOS_ID`.

        Raises:
            InputError: An element is not a string, or contains half a surrogate pair.
        """
        single = isinstance(texts, str)
        texts = self._readable([texts] if single else texts)
        ids = self._processor.encode(texts, add_bos=add_bos, add_eos=add_eos)
        if self.whole_words:
            ids = [_one_per_word(row) for row in ids]
        elif self.has_unknown_pieces:
            ids = list(map(self._known, ids))
        return ids[0] if single else ids

    def sample(
        self, text: str, num_candidates: int, alpha: float, rng: np.random.Generator
    ) -> list[int]:
        """Draws ids of one of the `num_candidates` most probable tokenizations, as p^alpha.

        Reference: Kudo 2018 (arXiv:1804.10959).
        """
        if self.kind != "unigram":
            rule = "Tokenizations are sampled from unigram vocabularies."
            raise InputError(f"{rule} Received: a vocabulary of the kind {self.kind}.")
        (text,) = self._readable([text])
        candidates = self._processor.nbest_encode(text, nbest_size=num_candidates)
        scores = np.array([sum(self._processor.get_score(ids)) for ids in candidates])
        weights = np.exp(alpha * (scores - scores.max()))
        return self._known(candidates[rng.choice(len(candidates), p=weights / weights.sum())])

    def _known(self, row):
        return [id if id < self.vocabulary_size else UNK_ID for id in row]

    def pieces(self, texts: str | Iterable[str]) -> Any:
        """Returns the tokens of one text, or of several texts; `"▁"` represents a space."""
        single = isinstance(texts, str)
        rows = self._processor.encode(self._readable([texts] if single else texts), out_type=str)
        if self.whole_words:
            rows = [re.findall(f"{SPACE}[^{SPACE}]*", "".join(row)) for row in rows]
        return rows[0] if single else rows

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Returns where each token of a text begins and ends in it, after spaces around a tag.

        Spans are in order and cover the text. A token may have the space before it. All bytes of a
        character have its span.
        """
        (text,) = self._readable([text])
        row = self._processor.encode(text, return_type="offset_mapping")
        pieces, spans = row["pieces"], row["offsets"]
        if self.whole_words:
            starts = [index for index, piece in enumerate(pieces) if piece.startswith(SPACE)]
            words = itertools.pairwise([*starts, len(pieces)])
            return [(spans[start][0], spans[stop - 1][1]) for start, stop in words]
        return _with_whole_bytes(pieces, spans)

    def detokenized(self, tokens: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
        """Returns the text of tokens that a model has written, and where each of them is in it."""
        if not tokens:
            return "", []
        row = self._processor.decode(list(tokens), return_type="offset_mapping")
        return row["text"], _with_whole_bytes(tokens, row["offsets"])

    def unknown_characters(self, texts: Iterable[str]) -> collections.Counter[str]:
        """Counts the texts that have each character that the vocabulary lacks.

        Characters are counted in normalized texts. Of an imported model with unknown pieces, pieces
        are counted, too. A word-level vocabulary lacks words instead, which are not counted.
        """
        counts: collections.Counter[str] = collections.Counter()
        texts = [] if self.whole_words else self._readable(texts)
        for text, ids in zip(texts, self._processor.encode(texts), strict=True):
            if UNK_ID in ids or max(ids, default=0) >= self.vocabulary_size:
                unknown = set[str]()
                for piece, id in zip(self._processor.encode(text, out_type=str), ids, strict=True):
                    if id == UNK_ID:
                        unknown.update(piece.replace(SPACE, ""))
                    elif id >= self.vocabulary_size:
                        unknown.add(piece.strip(SPACE))
                counts.update(unknown)
        return counts

    def lacking_signs(self) -> str:
        """Returns the signs that many texts have and the vocabulary lacks, such as `€`."""
        return "".join(sign for sign in _SIGNS if self.unknown_characters([sign]))

    def split_tag(self, text: str) -> tuple[str, str]:
        """Returns the tag's token that a text begins with, or "", and the rest of the text."""
        return split_tag(text, self.tag_tokens.values())

    def split_tags(self, text: str) -> tuple[str, str]:
        """Returns the tags' tokens that a text begins with, or "", and the rest of the text.

        A tag, such as `<bt>`, may follow the token of a language: `>>de<< <bt> Two dogs`.
        """
        language, rest = self.split_tag(text)
        tag, rest = self.split_tag(rest) if language_in_tag(language) else ("", rest)
        return " ".join(filter(None, (language, tag))), rest

    def _readable(self, texts):
        """Returns checked texts with one space after a tag at their beginning."""
        texts = checked_texts("texts", texts)
        if not self.tag_tokens:
            return texts
        return [" ".join(filter(None, self.split_tag(text))) for text in texts]

    def pieces_of(self, ids: Iterable[int]) -> list[str]:
        """Returns the tokens of ids as strings, including special tokens.

        Raises:
            InputError: An id is not an integer or outside the vocabulary.
        """
        pieces = self._processor.id_to_piece(self._checked_ids(list(ids)).tolist())
        # Equal tokens are one string: those of all sentences are most of a long page's memory.
        return list(map(sys.intern, pieces))

    def id_of(self, token: str) -> int:
        """Returns the id of a token, which may follow a space; raises `InputError` without one."""
        for piece in (token, SPACE + token):
            id = self._processor.piece_to_id(piece)
            if id != UNK_ID and id < self.vocabulary_size:
                return id
        raise InputError(f"The vocabulary must have the token. Received: {token!r:.80}.")

    def detokenize(self, ids: Any) -> str | list[str]:
        """Returns the text of one sequence of ids, or a list of texts of several sequences.

        A sequence ends at its first `EOS_ID`; `PAD_ID` and `BOS_ID` are skipped.

        Args:
            ids: Integers `(length,)`, or `(batch, length)` with rows of any lengths: lists or
                arrays. An empty list is one empty sequence.

        Raises:
            InputError: An id is not an integer or outside the vocabulary.
        """
        if hasattr(ids, "ndim"):
            several = ids.ndim == 2
        else:
            several = len(ids) > 0 and np.ndim(ids[0]) == 1
        return [self._detokenize_row(row) for row in ids] if several else self._detokenize_row(ids)

    def _detokenize_row(self, row):
        row = self._checked_ids(row)
        row = row[np.cumsum(row == EOS_ID) == 0]
        row = row[(row != PAD_ID) & (row != BOS_ID)]
        return self._processor.decode(row.tolist()) if row.size else ""

    def _checked_ids(self, row):
        row = np.asarray(row)
        if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
            raise InputError(f"`ids` must be integers. Received: {row.tolist()!r:.80}.")
        if row.size and not 0 <= row.min() <= row.max() < self.vocabulary_size:
            raise InputError(
                f"`ids` must lie below the vocabulary size of {self.vocabulary_size}. "
                f"Received: smallest={row.min()}, largest={row.max()}."
            )
        return row

    @property
    def has_unknown_pieces(self) -> bool:
        """True for an imported model with pieces that its vocabulary lacks."""
        return self._processor.get_piece_size() > self.vocabulary_size

    @property
    def space_id(self) -> int | None:
        """Id of the token that is only a space, or None."""
        space_id = self._processor.piece_to_id(SPACE)
        return space_id if UNK_ID < space_id < self.vocabulary_size else None

    @property
    def turn_id(self) -> int | None:
        """Id of the token between two turns of a conversation, or None."""
        words = (symbol for symbol in self._symbols if symbol.startswith(SPACE))
        separators = itertools.filterfalse(language_in_tag, words)
        return next(map(self._processor.piece_to_id, separators), None)

    @property
    def tags(self) -> tuple[str, ...]:
        """Names of the tokens that may precede a source."""
        return tuple(self.tag_tokens)

    @functools.cached_property
    def tag_ids(self) -> frozenset[int]:
        """Ids of a text that has nothing except a tag."""
        return frozenset(itertools.chain(*self.tokenize(self.tag_tokens.values())))

    @functools.cached_property
    def symbol_ids(self) -> list[int]:
        """Ids of tokens that are not learned: tags, placeholders, separators, marks of terms."""
        return self._ids_of_type("USER_DEFINED")

    @functools.cached_property
    def byte_ids(self) -> list[int]:
        """Ids of the bytes that spell characters without a token; empty without such tokens."""
        return self._ids_of_type("BYTE")

    def _ids_of_type(self, name):
        pieces = parsed(self.model_bytes).pieces[: self.vocabulary_size]
        return [id for id, piece in enumerate(pieces) if piece.type == piece.Type.Value(name)]

    @property
    def placeholders(self) -> Placeholders:
        """Placeholders for text that is not translated."""
        return Placeholders.of_symbols(self._symbols)

    @property
    def annotates_terms(self) -> bool:
        """True if the vocabulary has tokens that annotate terms with their translations."""
        return TERM_SYMBOLS[0] in self._symbols

    def __eq__(self, other):
        return isinstance(other, Tokenizer) and self.model_bytes == other.model_bytes

    def __hash__(self):
        return hash(self.model_bytes)

    def __reduce__(self):
        return Tokenizer, (self.model_bytes,)


def _load_processor(model_bytes):
    import sentencepiece

    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model_bytes)
    except RuntimeError as error:
        raise InputError(f"SentencePiece cannot use this model: {error}") from None
    received = {name: getattr(processor, f"{name}_id")() for name in _SPECIAL_IDS}
    if received != _SPECIAL_IDS:
        raise InputError(
            f"The model's special ids must be {_SPECIAL_IDS}, which losses, masks and decoding "
            f"rely on. Received: {received}."
        )
    return processor


def _with_whole_bytes(pieces, spans):
    """Gives all bytes of a character its span, which SentencePiece gives to the last byte."""
    spans = list(spans)
    for index in range(len(spans) - 2, -1, -1):
        begin, end = spans[index]
        if begin == end and _BYTE.fullmatch(pieces[index]):
            spans[index] = spans[index + 1]
    return spans


def _one_per_word(ids):
    """Converts SentencePiece's ids to one unknown token per unknown word.

    SentencePiece splits an unknown word into a known beginning, at least `"▁"`, and the unknown
    token.
    """
    pairs = zip(ids, [*ids[1:], EOS_ID], strict=False)
    return [UNK_ID if after == UNK_ID else id for id, after in pairs if id != UNK_ID]


def _checked_model(model_bytes):
    """Returns the message of a serialized model."""
    # SentencePiece itself accepts an empty model and prints its errors to stderr, so check the
    # message first.
    from google.protobuf.message import DecodeError

    is_bytes = isinstance(model_bytes, (bytes, bytearray, memoryview))
    size = f"{len(model_bytes)} bytes" if is_bytes else f"{type(model_bytes).__name__} objects"
    try:
        model = parsed(bytes(model_bytes))
    except (DecodeError, TypeError):
        raise InputError(
            f"Expected a complete SentencePiece model. Received: {size} that are not a model."
        ) from None
    # A file truncated between two fields still parses, but lacks the last fields.
    is_complete = model.HasField("trainer_spec") and model.HasField("normalizer_spec")
    if not is_complete or not model.pieces:
        raise InputError(f"Expected a complete SentencePiece model. Received: {size}, truncated.")
    kind = model.trainer_spec.ModelType.Name(model.trainer_spec.model_type)
    if kind not in ("UNIGRAM", "BPE"):
        rule = "The model must be of the kind unigram or bpe."
        raise InputError(f"{rule} Received: model_type={kind.lower()}.")
    return model
