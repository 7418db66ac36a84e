"""Shortlists of Marian and Bergamot (`lex.*`), and CTranslate2's `vmap.txt`.

A model translates without its shortlist, and a wrong one would spoil translations without a word.
So a damaged file gives a line for the user and no shortlist.

Reference: Marian's `data/shortlist.cpp`, CTranslate2's `vocabulary_map.cc`.
"""

import itertools
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.base.errors import InputError
from keras_transformer.base.reading import iterate_lines, reading_errors
from keras_transformer.extras.foreign.vocabulary import Vocabulary
from keras_transformer.text.shortlist import Shortlist

_LEXICONS = ("lex*.bin", "lex*.s2t", "lex*.s2t.gz")
_MAGIC, _HEADER = 0xF11A48D5013417F5, 48  # bytes
_SIZES = (100, 100)  # Marian's defaults of frequent tokens, and of candidates per token
_FULL = 2**64


def read_lexicon(
    folder: Path, vocabularies: Sequence[Vocabulary], decoder: Mapping[str, Any]
) -> dict[str, Any]:
    """Reads the shortlist of a folder of Marian's.

    Args:
        folder: The model's folder.
        vocabularies: Vocabularies of the source and of the target.
        decoder: Options of Marian's decoder.

    Returns:
        Fields of the `ForeignModel`: its shortlist or a note about its file, nothing without one.
    """
    path = next((path for name in _LEXICONS for path in sorted(folder.glob(name))), None)
    if path is None:
        return {}
    if path.suffix == ".bin":
        return _if_whole(path, lambda: _read_binary(path, vocabularies))
    sizes = decoder.get("shortlist")
    sizes = sizes[1:3] if isinstance(sizes, list) and len(sizes) > 2 else _SIZES
    return _if_whole(path, lambda: _read_text(path, vocabularies, *map(int, sizes)))


def read_map(folder: Path, vocabularies: Sequence[Vocabulary]) -> dict[str, Any]:
    """Reads the `vmap.txt` of a folder of CTranslate2's, as `read_lexicon` does.

    A line has a source token, or several with spaces between, and after a tab its candidates. An
    empty source has the candidates of every sentence.
    """
    path = folder / "vmap.txt"
    return _if_whole(path, lambda: _read_map(path, vocabularies)) if path.is_file() else {}


def _if_whole(path: Path, read: Callable[[], Shortlist]) -> dict[str, Any]:
    try:
        with reading_errors(path, "a shortlist"):
            return {"shortlist": read()}
    except InputError as error:
        return {"notes": (f"{error} The run has no shortlist.",)}


def _read_binary(path, vocabularies):
    content = path.read_bytes()
    magic, checksum, num_frequent, _, num_offsets, num_ids = struct.unpack_from("<6Q", content)
    if magic != _MAGIC:
        raise ValueError("it does not begin as Marian's binary shortlists do")
    if len(content) != _HEADER + 8 * num_offsets + 4 * num_ids or not num_offsets:
        raise ValueError(f"its sizes do not fit a file of {len(content)} bytes")
    if checksum != _checksum(content[16:]):
        raise ValueError("its content does not have its checksum")
    offsets = np.frombuffer(content, "<u8", num_offsets, _HEADER).astype("int64")
    ids = np.frombuffer(content, "<u4", num_ids, _HEADER + 8 * num_offsets)
    if offsets[0] or offsets[-1] != num_ids or (np.diff(offsets) < 0).any():
        raise ValueError("the places of its lists are in no rising order")
    lists = dict(enumerate(np.split(ids, offsets[1:-1]) if num_offsets > 1 else ()))
    return _shortlist(vocabularies, range(num_frequent), lists, has_own=True)


def _checksum(content):
    """Computes Marian's checksum: boost's `hash_combine` of all whole integers of eight bytes."""
    checksum = 0
    for value in np.frombuffer(content, "<u8", len(content) // 8).tolist():
        checksum ^= (value + 0x9E3779B9 + (checksum << 6) + (checksum >> 2)) % _FULL
    return checksum


def _read_text(path, vocabularies, num_frequent, num_best):
    """Reads lines of a target token, a source token and a probability."""
    source_ids, target_ids = map(_ids_by_name, vocabularies)
    probabilities: dict[int, dict[int, float]] = {}
    for line in iterate_lines(path):
        target, source, probability = line.split()
        if source in source_ids and target in target_ids and "NULL" not in (source, target):
            candidates = probabilities.setdefault(source_ids[source], {})
            candidates[target_ids[target]] = float(probability)
    lists = {
        source: sorted(candidates, key=lambda id: (-candidates[id], -id))[:num_best]
        for source, candidates in probabilities.items()
    }
    return _shortlist(vocabularies, range(num_frequent), lists, has_own=True)


def _read_map(path, vocabularies):
    source_ids, target_ids = map(_ids_by_name, vocabularies)
    frequent: list[int] = []
    lists: dict[int, list[int]] = {}
    for line in iterate_lines(path):
        source, tab, targets = line.partition("\t")
        if not tab:
            raise ValueError(f"there is a line without a tab, {line!r:.40}")
        ids = [target_ids[name] for name in targets.split(" ") if name in target_ids]
        tokens = [source_ids.get(name) for name in source.split(" ")]
        if not source:
            frequent += ids
        elif None not in tokens:
            # A sentence with all of the tokens has the one of the largest id, mostly the rarest.
            lists.setdefault(max(tokens), []).extend(ids)
    return _shortlist(vocabularies, frequent, lists)


def _ids_by_name(vocabulary):
    return {name: id for id, name in reversed(list(enumerate(vocabulary.names)))}


def _shortlist(vocabularies, frequent, lists, has_own=False):
    """Makes a shortlist of this package's ids.

    Args:
        vocabularies: Vocabularies of the source and of the target.
        frequent: The file's target ids that are candidates of every sentence.
        lists: The file's target ids for some of its source ids.
        has_own: Whether a source token is its own candidate if both sides have one vocabulary.
    """
    source, target = vocabularies
    if lists and max(lists) >= len(source.names):
        sizes = f"{max(lists) + 1} source tokens, {len(source.names)} of the vocabulary"
        raise ValueError(f"it is of another vocabulary: {sizes}")
    new_ids = np.zeros(len(target.names), "int64")
    for id, file_id in reversed(list(enumerate(target.rows))):
        if file_id is not None:
            new_ids[file_id] = id
    candidates = [new_ids[np.asarray(lists.get(id, ()), "int64")] for id in source.rows]
    if has_own and source == target:
        candidates = [np.append(ids, id) for id, ids in enumerate(candidates)]
    frequent = itertools.takewhile(lambda id: id < len(new_ids), frequent)
    return Shortlist(new_ids[np.array([*frequent], "int64")], candidates)
