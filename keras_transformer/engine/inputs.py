"""Inputs of engines: checked, turned into ids, and padded to few shapes."""

import concurrent.futures
import queue
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, get_args

import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.ids import EOS_ID, PAD_ID, UNK_ID
from keras_transformer.options import check_choice
from keras_transformer.text.splitting import split_text

LongInput = Literal["refuse", "split", "truncate"]
LONG_INPUT = get_args(LongInput)  # what may be done with a text of too many tokens
LONG_INPUT_FOR_DIALOG = ("refuse", "truncate")  # what may be done with a conversation

_SHOWN_CHARACTERS = 40
_TAG = re.compile(r"<([a-z0-9][a-z0-9-]*)>\s+")


def source_ids(
    texts: Sequence[str], tokenizer, limit: int, long_input: LongInput, turn_id: int | None = None
) -> tuple[list[list[int]], list[list[int]]]:
    """Ids of texts to be translated, including EOS, and the places of each text's parts in them.

    A blank text (only white space, or what the tokenizer takes no token from) has no part, one of
    more than `limit` tokens that is split has several. With `turn_id`, the token between two turns,
    a text is a conversation: it is answered whole, and cut by leaving out its oldest turns.
    """
    # The last of a conversation's parts would be answered without what was said before.
    check_choice("long_input", long_input, LONG_INPUT if turn_id is None else LONG_INPUT_FOR_DIALOG)
    ids = tokenizer.tokenize(texts, add_eos=True)
    sources, parts, long = [], [[] for _ in texts], []
    for place, row in enumerate(ids):
        if row == [EOS_ID] or not texts[place].strip():
            continue
        shortened = [row]
        if len(row) > limit:
            long.append(place)
            if long_input == "refuse":
                done, way = ("split", "split") if turn_id is None else ("cut", "truncate")
                raise InputError(
                    f"A text must have at most {limit} tokens; longer ones can be {done} "
                    f"(long_input={way!r}). Received: {_shown(row, texts[place])}",
                    place,
                )
            if long_input == "truncate":
                shortened = [_cut(row, limit, turn_id)]
            else:
                shortened = _split(texts, place, tokenizer, limit)
        parts[place] = list(range(len(sources), len(sources) + len(shortened)))
        sources += shortened
    if long:
        done = "cut there" if turn_id is None else "cut, the oldest turns first"
        done = "split between sentences or words" if long_input == "split" else done
        message = f"{len(long)} of {len(texts)} texts are longer than {limit} tokens"
        warnings.warn(f"{message} and were {done}.", stacklevel=3)
    return sources, parts


def _cut(ids, limit, turn_id):
    """The last turns that fit, or the beginning of the last one; any text is one turn."""
    starts = [0, *(i + 1 for i, id in enumerate(ids[:-2]) if id == turn_id)]
    start = next(
        (start_of_turn for start_of_turn in starts if len(ids) - start_of_turn <= limit), starts[-1]
    )
    return [*ids[start:-1][: limit - 1], EOS_ID]


def _split(texts, place, tokenizer, limit):
    # Each part gets the tag in front of the whole.
    match = _TAG.match(texts[place])
    is_tagged = match is not None and match[1] in getattr(tokenizer, "tags", ())
    tag, text = (match[0], texts[place][match.end() :]) if is_tagged else ("", texts[place])

    def fits(part):
        return len(tokenizer.tokenize([tag + part], add_eos=True)[0]) <= limit

    try:
        every = tokenizer.tokenize([tag + part for part in split_text(text, fits)], add_eos=True)
    except InputError as error:
        raise InputError(error.message, place) from None
    return [ids for ids in every if ids != [EOS_ID]]


def prefix_ids(prefixes: Sequence[str] | None, count: int, tokenizer, limit: int) -> list:
    """Ids that each of `count` translations of up to `limit` tokens must begin with."""
    if prefixes is None:
        return [()] * count
    check_texts("target_prefixes", prefixes)
    if len(prefixes) != count:
        received = f"{len(prefixes)} prefixes and {count} texts"
        raise InputError(f"There must be a target prefix for each text. Received: {received}.")
    ids = tokenizer.tokenize(prefixes, add_eos=False)
    for place, prefix in enumerate(ids):
        if len(prefix) >= limit:
            rule = f"A target prefix must have fewer tokens than a translation may, {limit}."
            raise InputError(f"{rule} Received: a prefix of {len(prefix)} tokens.", place)
        _check_known("target prefix", prefix, prefixes[place], tokenizer, place)
    return ids


def phrase_ids(phrases: Sequence[Sequence[str]] | None, count: int, tokenizer) -> list:
    """Lists of ids that each of `count` translations must have."""
    if phrases is None:
        return [()] * count
    if len(phrases) != count:
        received = f"{len(phrases)} lists and {count} texts"
        raise InputError(f"There must be a list of phrases for each text. Received: {received}.")
    ids_of_phrases = []
    for place, texts in enumerate(phrases):
        check_texts("phrases", texts)
        ids = tokenizer.tokenize(texts, add_eos=False)
        for phrase, text in zip(ids, texts, strict=True):
            _check_known("phrase", phrase, text, tokenizer, place)
        ids_of_phrases.append(tuple(phrase for phrase in ids if phrase))
    return ids_of_phrases


def _check_known(noun, ids, text, tokenizer, place):
    """Raises `InputError` for a character that the vocabulary lacks."""
    if UNK_ID in ids:
        pairs = zip(ids, tokenizer.pieces(text), strict=True)
        unknown = dict.fromkeys(c for id, token in pairs if id == UNK_ID for c in token)
        rule = f"A {noun} must have only characters of the target vocabulary."
        received = f"{', '.join(map(repr, unknown))} in {text[:_SHOWN_CHARACTERS]!r}"
        raise InputError(f"{rule} Received: {received}.", place)


def ids_and_texts(
    name: str, given: Sequence[str] | Sequence[Sequence[int]], tokenizer, limit: int
) -> tuple[list[list[int]], list[str]]:
    """Ids and texts of what is given as either, of at most `limit` tokens including EOS."""
    if given and not any(isinstance(each, str) for each in given):
        ids = [[int(each) for each in row] for row in given]
        texts = tokenizer.detokenize(ids)
    else:
        check_texts(name, given)
        ids, texts = tokenizer.tokenize(given, add_eos=True), given
    for place, sequence in enumerate(ids):
        if len(sequence) > limit:
            rule = f"Each of `{name}` must have at most {limit} tokens."
            raise InputError(f"{rule} Received: {_shown(sequence, texts[place])}", place)
    return ids, texts


def tagged(text: str, tag: str | None) -> str:
    """A source with a tag in front; a blank one stays blank."""
    return text if tag is None or not text.strip() else f"<{tag}> {text}"


def _shown(ids, text):
    return f"{len(ids)} tokens, {text[:_SHOWN_CHARACTERS]!r}…"


def one_for_each(name: str, value: Any, count: int) -> list:
    """A list of `count` values from one value, or from a tuple of as many."""
    if not isinstance(value, tuple):
        return [value] * count
    if len(value) != count:
        rule = f"There must be one `{name}`, or one for each text."
        raise InputError(f"{rule} Received: {len(value)} for {count} texts.")
    return list(value)


def check_texts(name: str, texts: Any) -> None:
    """Raises an `InputError` unless `texts` is a list of strings."""
    rule = f"`{name}` must be a list of strings."
    if isinstance(texts, str):
        raise InputError(f"{rule} Received: one string.")
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"{rule} Received: one {type(text).__name__} in it.", place)


def check_tokenizers(config: Any, source_tokenizer: Any, target_tokenizer: Any) -> None:
    """Raises `InputError` for tokenizers of other sizes than a model's vocabularies."""
    sizes = config.vocabulary_size, config.output_vocabulary_size
    sides = zip(("source", "target"), (source_tokenizer, target_tokenizer), sizes, strict=True)
    for side, tokenizer, size in sides:
        if tokenizer.vocabulary_size != size:
            raise InputError(
                f"The {side} tokenizer has {tokenizer.vocabulary_size} ids, the model {size}: "
                "they must come from the same run."
            )


def length_buckets(max_length: int) -> list[int]:
    """The lengths that sources are padded to: 16, 32, 48, 64, 96, 128, 192, … up to `max_length`.

    Padding costs at most half as much again; ten lengths reach to 512.
    """
    lengths = [16, 32, 48, 64, 96]
    while lengths[-1] < max_length:
        lengths += [lengths[-2] * 2, lengths[-1] * 2]
    return [length for length in sorted(set(lengths)) if length < max_length] + [max_length]


def bucket(length: int, buckets: Sequence[int]) -> int:
    """The smallest of the `buckets` that `length` fits in, or the largest one."""
    return next((size for size in buckets if length <= size), buckets[-1])


def batch_rows(count: int, width: int, beam_size: int) -> int:
    """Returns the rows per batch with which a compiled search translates `count` texts fastest.

    A batch takes steps until its longest translation has ended, and two batches share the cores of
    a CPU, so small batches waste the fewest steps. Further rows pay only where the products of a
    step gain from them: in a wide model, and a little in greedy search.
    `docs/results/speed.md` has the seconds of each number of rows.
    """
    most = 32 if width > 256 else max(8, 16 // beam_size)
    return max(8, min(most, row_count(count // 4)))


def row_count(count: int) -> int:
    """Rows that a batch of `count` sentences is padded to: a power of two."""
    return 1 << max(count - 1, 0).bit_length()


def pad(ids: Sequence[Sequence[int]], rows: int, columns: int) -> np.ndarray:
    """Lists of ids as one int32 array `(rows, columns)`, padded with 0."""
    padded = np.full((rows, columns), PAD_ID, "int32")
    for row, sequence in enumerate(ids):
        padded[row, : len(sequence)] = sequence
    return padded


def in_batches(
    lengths: Sequence, batch_size: int, calls: Sequence[Callable[[list[int]], Iterable]]
) -> list:
    """Runs calls on batches of similar length, the longest first; their results in order.

    Args:
        lengths: A length, or a tuple of lengths, for each place.
        batch_size: Most places of a batch.
        calls: Functions from the places of a batch to a result for each. They run at once, each
            on one batch at a time.
    """
    order = sorted(range(len(lengths)), key=lambda place: lengths[place], reverse=True)
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    free: queue.SimpleQueue = queue.SimpleQueue()
    for call in calls:
        free.put(call)

    def run(chosen):
        call = free.get()
        try:
            return list(call(chosen))
        finally:
            free.put(call)

    results = [None] * len(lengths)
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        results_of_batches = pool.map(run, batches) if len(calls) > 1 else map(run, batches)
        for chosen, values in zip(batches, results_of_batches, strict=True):
            for place, result in zip(chosen, values, strict=True):
                results[place] = result
    return results
