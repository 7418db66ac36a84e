"""Places of tokens in the text that they were made from, or that was made from them."""

import codecs
import itertools
import re
from collections.abc import Sequence

import numpy as np

from keras_transformer.text.folding import fold
from keras_transformer.text.vocabulary import SPACE

_BYTE = re.compile("<0x([0-9A-F]{2})>")
_UNKNOWN = "\0"  # Stands for an unknown token.
# Numbers of characters that are looked at where a text and its tokens differ.
_MAX_DIFFERENCE, _EQUAL, _EQUAL_FAR_AWAY = 8, 3, 8
_FAR = 4096  # characters; a search to the end for each token would take too long


def positions_before(text: str) -> np.ndarray:
    """Returns for each offset in a text the number of characters before it, without spaces."""
    spaces = np.fromiter(map(str.isspace, text), bool, len(text))
    return np.concatenate([[0], np.cumsum(~spaces)])


def token_spans(tokens: Sequence[str], text: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns where each token begins and ends in a text, counted in characters without spaces.

    The text may be longer than its tokens. Tokens may be unknown, bytes, or normalized.
    """
    pieces = [token.replace(SPACE, "") for token in tokens]
    if "".join(text.split()).startswith("".join(pieces)):
        sizes = np.fromiter(map(len, pieces), int, len(pieces))
        ends = np.cumsum(sizes)
        return ends - sizes, ends
    folded, before = fold(text), positions_before(text)
    # Tokens begin with a space.
    starts = before[[0, *folded.starts, len(text)]]
    stops = before[[0, *folded.stops, len(text)]]
    characters, owners = _characters(tokens)
    begins, ends = np.full(len(tokens), -1), np.zeros(len(tokens), int)
    matches = _matches(characters, " " + folded.text.lower())
    for character, (first, last), (begin, end) in zip(characters, owners, matches, strict=True):
        if character == " " and tokens[first] != SPACE:
            continue
        position = slice(first, last + 1)
        begins[position] = np.where(begins[position] < 0, starts[begin], begins[position])
        ends[position] = stops[end - 1] if end > begin else starts[begin]
    # A token without characters is where the token before it ends.
    ends = np.maximum.accumulate(ends)
    return np.where(begins < 0, ends, begins), ends


def _characters(tokens):
    """Returns the characters of all tokens, and for each one its first and last token."""
    characters, owners = [], []
    decoder, first_byte = codecs.getincrementaldecoder("utf-8")("replace"), 0

    def add(text, first, last):
        characters.append(text)
        owners.extend([(first, last)] * len(text))

    for position, token in enumerate(tokens):
        if (byte := _BYTE.fullmatch(token)) is not None:
            if text := decoder.decode(bytes.fromhex(byte[1])):
                add(text, first_byte, position)
                first_byte = position + 1
            continue
        if ending := decoder.decode(b"", final=True):
            add(ending, first_byte, position - 1)
        first_byte = position + 1
        is_unknown = token == "<unk>"
        text = _UNKNOWN if is_unknown else fold(token.replace(SPACE, " ")).text.lower()
        add(text, position, position)
    if ending := decoder.decode(b"", final=True):
        add(ending, first_byte, len(tokens) - 1)
    return "".join(characters), owners


def _matches(reading: str, characters: str) -> list[tuple[int, int]]:
    """Returns for each character that was read its span in the characters of a text."""
    spans: list[tuple[int, int]] = []
    i = j = 0  # positions in both
    while i < len(reading):
        if reading[i] == _UNKNOWN:
            stop = i + 1
            while reading[stop : stop + 1] == _UNKNOWN:
                stop += 1
            end = _end_of_unknown(reading, stop, characters, j, stop - i)
            spans += _divided(characters, j, end, stop - i)
            i, j = stop, end
        elif reading[i] == characters[j : j + 1]:
            spans.append((j, j + 1))
            i, j = i + 1, j + 1
        else:
            size, width = _difference(reading, i, characters, j)
            spans += _divided(characters, j, j + width, size)
            i, j = i + size, j + width
    return spans


def _end_of_unknown(reading, stop, characters, start, count):
    """Returns the end of `count` unknown tokens: the next known token, or `count` words."""
    end, limit = start, min(start + count * _FAR, len(characters))
    for _ in range(count):
        end = characters.find(" ", end + 1, limit)
        if end < 0:
            end = limit
            break
    known = reading[stop : stop + _EQUAL_FAR_AWAY].partition(_UNKNOWN)[0]
    # An invisible character may have become a space.
    for near in (known, known.lstrip()):
        if near and (position := characters.find(near, start, end + len(near))) >= 0:
            return position
    position = characters.find(known, start, limit) if len(known) > _EQUAL else -1
    if position < 0 and known:
        position = characters.find(known[0], start, end + 1)
    return position if position >= 0 else end


def _divided(characters, start, stop, count):
    """Divides `characters[start:stop]` into spans: into its words, if they are `count`."""
    words = [match.span() for match in re.finditer(r"\S+", characters[start:stop])]
    if len(words) == count:
        return [(start + begin, start + end) for begin, end in words]
    width = stop - start
    ends = [start + width * position // max(count, 1) for position in range(count + 1)]
    return list(itertools.pairwise(ends))


def _difference(reading, i, characters, j):
    """Returns how many characters of both sides differ, until both are equal again."""
    for total in range(1, 2 * _MAX_DIFFERENCE + 1):
        # First those of equal length: one character that was written as another one.
        sizes = range(max(0, total - _MAX_DIFFERENCE), min(total, _MAX_DIFFERENCE) + 1)
        for size in sorted(sizes, key=lambda size: abs(2 * size - total)):
            width = total - size
            following = reading[i + size : i + size + _EQUAL]
            known, unknown, _ = following.partition(_UNKNOWN)
            is_end = bool(unknown) or len(following) < _EQUAL
            if not known and not (unknown and size == width):
                continue
            if (len(known) == _EQUAL or is_end) and characters.startswith(known, j + width):
                return size, width
    far = reading[i : i + _EQUAL_FAR_AWAY]
    if len(far) == _EQUAL_FAR_AWAY and _UNKNOWN not in far:
        position = characters.find(far, j, j + _FAR)
        if position > j:
            return 0, position - j
    return (1, 1) if j < len(characters) else (1, 0)
