"""Inputs of engines: checked, turned into ids, and padded to few shapes."""

import concurrent.futures
import operator
import queue
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from keras_transformer.base.errors import InputError, TooLongError
from keras_transformer.base.ids import EOS_ID, PAD_ID, UNK_ID
from keras_transformer.base.options import received
from keras_transformer.engine.steps.tag import tagged
from keras_transformer.text.languages import Direction
from keras_transformer.text.per_text import checked_phrases, checked_texts
from keras_transformer.text.sentences import split_text

LongInput = Literal["refuse", "split", "truncate"]
LONG_INPUT = get_args(LongInput)  # treatments of a text of too many tokens
# Treatments of a conversation: the answer to its last part would not know the turns before.
LONG_INPUT_FOR_DIALOG = ("refuse", "truncate")

_SHOWN_CHARACTERS = 40


class Job(NamedTuple):
    """A sentence to translate."""

    source: Any  # ids including EOS, or bytes of an engine that reads text
    seed: int = 0  # for sampling
    prefix: Sequence[int] = ()  # Its translation begins with these ids.
    phrases: Sequence[Sequence[int]] = ()  # Its translation contains these ids.
    direction: Direction = Direction()

    @property
    def start(self) -> tuple[int, ...]:
        """Ids that the decoder reads before it chooses one: of the language, and the prefix."""
        return (*self.direction.target_prefix, *self.prefix)


def source_ids(
    texts: Sequence[str],
    tokenizer,
    limits: int | Sequence[int],
    long_input: LongInput,
    turn_id: int | None = None,
    long_inputs: Sequence[str] = LONG_INPUT,
    stacklevel: int = 3,
) -> tuple[list[list[int]], list[list[int]]]:
    """Returns ids of source texts, including EOS, and the indices of each text's parts in them.

    A blank text (white space, or characters without tokens, also after a tag) has no part. A text
    of more tokens than its limit has several parts if it is split; one number is the limit of all
    texts. With `turn_id`, the token between two turns, a text is a conversation. It has one part,
    and truncation removes its oldest turns.
    The error about a refused text names another one of `long_inputs`, which the engine takes.
    """
    ids = tokenizer.tokenize(texts, add_eos=True)
    sources, parts, long = [], [[] for _ in texts], []
    rows = zip(ids, _of_each(limits, texts), strict=True)
    for index, (row, limit) in enumerate(rows):
        if _is_blank(row, tokenizer) or not texts[index].strip():
            continue
        shortened = [row]
        if len(row) > limit:
            long.append(limit)
            if long_input == "refuse":
                way = "split" if "split" in long_inputs else "truncate"
                change = "split" if way == "split" else "cut"
                raise InputError(
                    f"A text must have at most {limit} tokens; longer ones can be {change} "
                    f"(`long_input={way}`). Received: {_shown(row, texts[index])}",
                    index,
                )
            if long_input == "truncate":
                shortened = [_cut(row, limit, turn_id)]
            else:
                shortened = _split(texts, index, tokenizer, limit)
        parts[index] = list(range(len(sources), len(sources) + len(shortened)))
        sources += shortened
    if long:
        change = "cut there" if turn_id is None else "cut, the oldest turns first"
        change = "split between sentences, words or characters" if long_input == "split" else change
        shown = " or ".join(map(str, sorted({*long})))
        message = f"{len(long)} of {len(texts)} texts are longer than {shown} tokens"
        warnings.warn(f"{message} and were {change}.", stacklevel=stacklevel)
    return sources, parts


def _of_each(limits, sequences):
    return [limits] * len(sequences) if isinstance(limits, int) else limits


def _cut(ids, limit, turn_id):
    """Returns the last turns that fit, or the beginning of the last turn.

    A text that is not a conversation counts as one turn.
    """
    starts = [0, *(i + 1 for i, id in enumerate(ids[:-2]) if id == turn_id)]
    fitting = [start for start in starts if len(ids) - start <= limit]
    start = fitting[0] if fitting else starts[-1]
    return [*ids[start:-1][: limit - 1], EOS_ID]


def _split(texts, index, tokenizer, limit):
    try:
        parts = parts_of(texts[index], tokenizer, limit)
    except InputError as error:
        raise InputError(error.message, index) from None
    return tokenizer.tokenize(parts, add_eos=True)


def parts_of(text: str, tokenizer, limit: int) -> list[str]:
    """Returns the parts of a text of at most `limit` tokens, including EOS, without blank parts."""
    tags, text = tokenizer.split_tags(text)  # Each part gets the tags of the text.

    def ids_of(part):
        return tokenizer.tokenize([tagged(part, tags or None)], add_eos=True)[0]

    parts = split_text(text, lambda part: len(ids_of(part)) <= limit)
    return [tagged(part, tags or None) for part in parts if not _is_blank(ids_of(part), tokenizer)]


def _is_blank(ids, tokenizer):
    return all(id == EOS_ID or id in tokenizer.tag_ids for id in ids)


def prefix_ids(prefixes: Sequence[str] | None, count: int, tokenizer, limit: int) -> list:
    """Returns the ids that each of `count` translations of up to `limit` tokens begins with."""
    if prefixes is None:
        return [()] * count
    prefixes = checked_texts("target_prefixes", prefixes)
    if len(prefixes) != count:
        received = f"{len(prefixes)} prefixes and {count} texts"
        raise InputError(f"There must be a target prefix for each text. Received: {received}.")
    ids = tokenizer.tokenize(prefixes, add_eos=False)
    for index, prefix in enumerate(ids):
        if len(prefix) >= limit:
            rule = f"A target prefix must have fewer tokens than a translation may, {limit}."
            raise InputError(f"{rule} Received: a prefix of {len(prefix)} tokens.", index)
        _check_known("target prefix", prefix, prefixes[index], tokenizer, index)
    return ids


def phrase_ids(phrases: Sequence[Sequence[str]] | None, count: int, tokenizer) -> list:
    """Returns for each of `count` translations the ids of phrases that it must contain."""
    if phrases is None:
        return [()] * count
    ids_of_phrases = []
    for index, texts in enumerate(checked_phrases(phrases, count)):
        ids = tokenizer.tokenize(texts, add_eos=False)
        for phrase, text in zip(ids, texts, strict=True):
            noun = "phrase, such as the translation of a term,"
            _check_known(noun, phrase, text, tokenizer, index)
        ids_of_phrases.append(tuple(phrase for phrase in ids if phrase))
    return ids_of_phrases


def _check_known(noun, ids, text, tokenizer, index):
    """Raises `InputError` for a character that the vocabulary lacks."""
    if UNK_ID in ids:
        pairs = zip(ids, tokenizer.pieces(text), strict=True)
        unknown = dict.fromkeys(c for id, token in pairs if id == UNK_ID for c in token)
        rule = f"A {noun} must have only characters of the target vocabulary."
        received = f"{', '.join(map(repr, unknown))} in {text[:_SHOWN_CHARACTERS]!r}"
        raise InputError(f"{rule} Received: {received}.", index)


def ids_and_texts(
    name: str,
    sequences: Sequence[str] | Sequence[Sequence[int]],
    tokenizer,
    limits: int | Sequence[int],
) -> tuple[list[list[int]], list[str]]:
    """Converts texts or lists of ids to both; `limits` are of their tokens including EOS.

    Raises `InputError` for ids outside the vocabulary, for padding, and for ids behind EOS, and
    `TooLongError` for sequences of more tokens.
    """
    if sequences and not any(isinstance(sequence, str) for sequence in sequences):
        ids = [_integers(name, row, index) for index, row in enumerate(sequences)]
        for index, row in enumerate(ids):
            if not row:
                rule = f"Ids of `{name}` must be at least the end of the sentence, [{EOS_ID}]."
                raise InputError(f"{rule} Received: [].", index)
            _check_ids(name, row, tokenizer.vocabulary_size, index)
        texts = tokenizer.detokenize(ids)
    else:
        texts = checked_texts(name, sequences)
        ids = tokenizer.tokenize(texts, add_eos=True)
    limit_of = _of_each(limits, ids)
    if too_long := [index for index, row in enumerate(ids) if len(row) > limit_of[index]]:
        first = too_long[0]
        rule = f"Each of `{name}` must have at most {limit_of[first]} tokens."
        raise TooLongError(f"{rule} Received: {_shown(ids[first], texts[first])}", too_long)
    return ids, texts


def _integers(name, row, index):
    try:
        return [operator.index(id) for id in row]  # `int` would accept 5.7.
    except TypeError:
        rule = f"`{name}` must be strings, or lists of integers."
        raise InputError(f"{rule} Received: {received(row)}.", index) from None


def _check_ids(name, row, vocabulary_size, index):
    last = vocabulary_size - 1
    for id in row:
        if not PAD_ID < id <= last:
            rule = f"The ids of `{name}` must be tokens of the vocabulary, from 1 to {last}."
            raise InputError(f"{rule} Received: {received(id)}.", index)
    if EOS_ID in row[:-1]:
        rule = f"The ids of `{name}` must end with their first {EOS_ID}, the end of the sentence."
        rest = row[row.index(EOS_ID) + 1 :]
        raise InputError(f"{rule} Received: {received(rest)} after it. Remove them.", index)


def _shown(ids, text):
    return f"{len(ids)} tokens, {text[:_SHOWN_CHARACTERS]!r}…"


def encoded(name: str, texts: Sequence[str]) -> list[bytes]:
    """Encodes texts as UTF-8; raises `InputError` for a text that is not valid Unicode."""
    return [text.encode("utf-8") for text in checked_texts(name, texts)]


def check_tokenizers(config: Any, source_tokenizer: Any, target_tokenizer: Any) -> None:
    """Raises `InputError` unless the tokenizers have the sizes of a model's vocabularies."""
    sizes = config.vocabulary_size, config.output_vocabulary_size
    sides = zip(("source", "target"), (source_tokenizer, target_tokenizer), sizes, strict=True)
    for side, tokenizer, size in sides:
        if tokenizer.vocabulary_size != size:
            raise InputError(
                f"The {side} tokenizer has {tokenizer.vocabulary_size} ids, the model {size}: "
                "they must come from the same run."
            )


def length_buckets(max_length: int) -> list[int]:
    """Returns the lengths that sources are padded to: 16, 32, 48, 64, 96, … up to `max_length`.

    A source is padded to at most one and a half times its length; ten lengths reach 512.
    """
    lengths = [16, 32, 48, 64, 96]
    while lengths[-1] < max_length:
        lengths += [lengths[-2] * 2, lengths[-1] * 2]
    return [length for length in sorted(set(lengths)) if length < max_length] + [max_length]


def bucket(length: int, buckets: Sequence[int]) -> int:
    """Returns the smallest of the `buckets` that `length` fits into, or the largest bucket."""
    return next((size for size in buckets if length <= size), buckets[-1])


def batch_rows(count: int, width: int, beam_size: int, can_shrink: bool = False) -> int:
    """Returns the rows per batch with which a compiled search translates `count` texts fastest.

    A batch takes steps until its longest translation has ended, and two batches share the cores of
    a CPU, so small batches waste the fewest steps. More rows pay only where they make the matrix
    products of a step more efficient: in a wide model, and a little in greedy search. Where
    sentences that have ended leave the batch, they pay in many texts, which are worth the
    compilation of more programs. `docs/results/speed.md` shows the seconds by number of rows.
    """
    max_rows = 32 if width > 256 else max(8, 16 // beam_size)
    if can_shrink and width <= 256 and count >= 256:
        return 64
    return max(8, min(max_rows, row_count(count // 4)))


def row_count(count: int) -> int:
    """Returns the number of rows that a batch is padded to: a power of two of at least `count`."""
    return 1 << max(int(count) - 1, 0).bit_length()  # NumPy's integers have no such method.


def pad(ids: Sequence[Sequence[int]], rows: int, columns: int) -> np.ndarray:
    """Pads lists of ids with 0 to one int32 array `(rows, columns)`."""
    padded = np.full((rows, columns), PAD_ID, "int32")
    for row, sequence in enumerate(ids):
        padded[row, : len(sequence)] = sequence
    return padded


def in_batches(
    lengths: Sequence, batch_size: int, calls: Sequence[Callable[[list[int]], Iterable]]
) -> list:
    """Runs calls on batches of similar length, the longest first; returns results in order.

    Args:
        lengths: A length, or a tuple of lengths, for each element.
        batch_size: Maximum number of elements in a batch.
        calls: Functions from the indices of a batch to one result per index. They run in parallel,
            each on one batch at a time.
    """
    order = sorted(range(len(lengths)), key=lambda index: lengths[index], reverse=True)
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    free_calls: queue.SimpleQueue = queue.SimpleQueue()
    for call in calls:
        free_calls.put(call)

    def run(indices):
        call = free_calls.get()
        try:
            return list(call(indices))
        finally:
            free_calls.put(call)

    results = [None] * len(lengths)
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        results_of_batches = pool.map(run, batches) if len(calls) > 1 else map(run, batches)
        for indices, values in zip(batches, results_of_batches, strict=True):
            for index, result in zip(indices, values, strict=True):
                results[index] = result
    return results
