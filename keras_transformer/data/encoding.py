"""Tokenizes pairs of texts once, checks and counts them, and keeps ids in memory or in files."""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer.data.pairs import EncodedPairs, are_first, offsets_of, pair_hash
from keras_transformer.errors import InputError, writing
from keras_transformer.files import OwnedFolder, final_name, write_whole
from keras_transformer.options import declared, option

# Reasons to drop a pair, in the order of the checks.
_REASONS = (
    "empty side",
    "over-long side",
    "extreme length ratio",
    "equal to a held-out pair",
    "exact duplicate",
)
_REPORT = "report.json"
_KEPT, _EMPTY, _OVER_LONG, _RATIO, _HELD_OUT, _DUPLICATE = range(6)

Lines = Iterable[tuple[str, str] | None]

_LINES_NAMED = 5
# The ratio of shorter texts says nothing: "Yes." is a fair translation of a short sentence.
_RATIO_NEEDS_TOKENS = 10
# Number of texts tokenized at once: Python's lists of ids are about ten times as big as arrays.
_CHUNK = 50_000


@declared
class PairChecks:
    """Checks of training pairs."""

    max_length: int = option(
        128,
        "Maximum number of tokens of a side, EOS included; longer pairs are dropped.",
        ge=2,
    )
    max_length_ratio: float | None = option(
        4.0,
        "Maximum ratio of the sides' lengths in tokens; pairs above it are dropped. Pairs whose "
        "longer side has at most 10 tokens pass. null: any.",
        ge=1,
    )
    drop_duplicates: bool = option(True, "Keep only the first of equal training pairs.")


@dataclasses.dataclass(frozen=True)
class DropCount:
    """Number of pairs that one reason dropped, and their first line numbers (from 1)."""

    count: int
    first_lines: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class PairReport:
    """Filter statistics: numbers of pairs in `total`, `kept`, and `dropped` by reason.

    Each dropped pair is counted once, under the first reason that applies. `dropped` has the
    reasons that occurred; `str(report)` is a text of a few lines. With several corpora, `corpora`
    has a report per corpus, by name, with line numbers of its own files.
    """

    total: int
    kept: int
    dropped: dict[str, DropCount]
    corpora: dict[str, "PairReport"] = dataclasses.field(default_factory=dict)

    def __str__(self):
        lines = [f"{self.kept} of {self.total} pairs kept"]
        for name, report in self.corpora.items():
            lines += f"{name}: {report}".splitlines()
        for reason, drop in self.dropped.items() if not self.corpora else ():
            numbers = ", ".join(map(str, drop.first_lines))
            ellipsis = ", ..." if drop.count > len(drop.first_lines) else ""
            noun = "line" if drop.count == 1 else "lines"
            lines.append(f"  {drop.count} dropped, {reason}: {noun} {numbers}{ellipsis}")
        return "\n".join(lines)


def encode_pairs(
    source_texts: Sequence[str],
    target_texts: Sequence[str],
    source_tokenizer: Any,
    target_tokenizer: Any,
    **checks: Any,
) -> tuple[EncodedPairs, PairReport]:
    """Tokenizes parallel text once and drops the pairs that would harm training.

    Args:
        source_texts: One text per pair.
        target_texts: One text per pair.
        source_tokenizer: Object whose `tokenize(texts, add_eos=False)` returns lists of ids.
        target_tokenizer: `source_tokenizer` for a joint vocabulary.
        **checks: Fields of `PairChecks`. `drop_duplicates=False` is for validation and test sets,
            whose score is defined over all their lines.

    Raises:
        InputError: The counts differ, an option is out of range, or no pair is left.
    """
    for texts in (source_texts, target_texts):
        if isinstance(texts, (str, bytes)):
            raise InputError(f"Expected a list of strings. Received: one text, {texts!r:.40}.")
    if len(source_texts) != len(target_texts):
        raise InputError(
            "Both sides need the same number of texts. "
            f"Received: {len(source_texts)} sources, {len(target_texts)} targets."
        )
    options = PairChecks(**checks)
    pairs = zip(source_texts, target_texts, strict=True)
    return _encode({"": lambda: pairs}, (source_tokenizer, target_tokenizer), options)


def encode_lines(
    read: Callable[[], Lines] | Mapping[str, Callable[[], Lines]],
    tokenizers: tuple[Any, Any],
    checks: PairChecks,
    cache: str | os.PathLike | None = None,
    key: Any = None,
    with_sources: bool = True,
    held_out: Iterable[tuple[str, str]] = (),
) -> tuple[EncodedPairs, PairReport]:
    """Tokenizes and checks a stream of pairs, like `encode_pairs`, that need not fit in memory.

    Args:
        read: Function that returns all pairs, with None for a skipped line of the files; or such
            functions of several corpora by their names.
        tokenizers: Tokenizers of the sources and the targets, see `encode_pairs`.
        checks: Checks of the pairs.
        cache: Folder that keeps the ids for other calls with equal texts, tokenizers and options.
            The ids are then mapped from its files; about 60 bytes per pair stay in memory. Two
            different pairs count as duplicates if their hashes of 64 bits are equal.
        key: Value, fit for JSON, that the pairs, their lines and `held_out` depend on. By default a
            `cache` uses checksums of all three, and so reads the pairs twice.
        with_sources: False for a model that reads no sources, whose targets are still checked.
        held_out: Pairs to drop from the stream.

    Raises:
        InputError: See `encode_pairs`; or the folder cannot be written.
    """
    read = read if isinstance(read, Mapping) else {"": read}
    if cache is None:
        return _encode(read, tokenizers, checks, held_out=held_out, with_sources=with_sources)
    if key is None:
        held_out = set(held_out)
        key = [digests(sorted(held_out))]
        for name, reader in read.items():
            numbered = _numbered({name: reader}, {})
            key += [name, digests((f"{line}\t{pair[0]}", pair[1]) for line, pair in numbered)]
    folder = pathlib.Path(cache) / _name(key, tokenizers, checks, with_sources)
    _remove_left_behind(folder.parent)
    if not (folder / _REPORT).exists():
        try:
            with OwnedFolder(folder, _REPORT).staged(wait=True) as staging:
                pairs, report = _encode(read, tokenizers, checks, staging, held_out, with_sources)
                for name in ("source_offsets", "target_offsets", "lines"):
                    _save(staging / f"{name}.npy", getattr(pairs, name))
                write_whole(staging / _REPORT, json.dumps(dataclasses.asdict(report)))
                del pairs
        except (InputError, OSError):
            if not (folder / _REPORT).exists():  # unless another process has written it
                raise
    return _load(folder)


def digests(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Computes the SHA-256 checksum of each side of the texts, which are read once."""
    sides = hashlib.sha256(), hashlib.sha256()
    for pair in pairs:
        for digest, line in zip(sides, pair, strict=True):
            digest.update(line.encode("utf-8") + b"\n")
    return {name: side.hexdigest() for name, side in zip(("source", "target"), sides, strict=True)}


def _remove_left_behind(cache):
    """Removes what killed processes left in a cache."""
    for path in list(cache.glob(".*")):
        name = final_name(path.name)
        if name != path.name and re.fullmatch("[0-9a-f]{32}", name):
            # An error: another process writes to the folder. Releasing the lock removes its file.
            with contextlib.suppress(InputError), OwnedFolder(cache / name).locked():
                pass


def _name(key, tokenizers, options, with_sources):
    models = [hashlib.sha256(tokenizer.model_bytes).hexdigest() for tokenizer in tokenizers]
    checks = {**dataclasses.asdict(options), "with_sources": with_sources}
    content = ["with lines", key, models, checks]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def _save(path, array):
    """Writes a `.npy` file; `np.save`, like `tofile`, would not report each full disk."""
    header = np.lib.format.header_data_from_array_1_0(array)
    with writing(path), open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.write(array)


def _load(folder):
    try:
        report = _read_report(json.loads((folder / _REPORT).read_text(encoding="utf-8")))
        sides = []
        for side in ("source", "target"):
            offsets = _mapped(folder / f"{side}_offsets.npy")
            flat = np.memmap(folder / f"{side}.ids", np.int32, "r")
            if len(flat) != offsets[-1]:
                raise ValueError("the ids are not as many as their offsets say")
            sides += [flat, offsets]
        lines = _mapped(folder / "lines.npy")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder}: damaged ({error}); remove the folder.") from None
    return EncodedPairs(*sides, lines, _sizes(report)), report


def _read_report(values):
    dropped = {
        why: DropCount(drop["count"], tuple(drop["first_lines"]))
        for why, drop in values["dropped"].items()
    }
    corpora = {name: _read_report(corpus) for name, corpus in values["corpora"].items()}
    return PairReport(values["total"], values["kept"], dropped, corpora)


def _sizes(report):
    return {name: corpus.kept for name, corpus in report.corpora.items()} or None


def _mapped(file):
    return np.asarray(np.load(file, mmap_mode="r", allow_pickle=False))


def _numbered(read, ends):
    """Yields the pairs of all corpora with their lines; `ends` gets the pairs' count per corpus."""
    count = 0
    for name, pairs in read.items():
        for line, pair in enumerate(pairs(), start=1):
            if pair is not None:
                count += 1
                yield line, pair
        ends[name] = count


def _encode(read, tokenizers, options, folder=None, held_out=(), with_sources=True):
    ends: dict[str, int] = {}
    numbered, lines, held_out = _numbered(read, ends), [np.zeros(0, np.int64)], set(held_out)
    names = ("source.ids", "target.ids")
    sides = [_Side(None if folder is None else folder / name) for name in names]
    reasons, hashes = [np.zeros(0, np.uint8)], [np.zeros(0, np.uint64)]
    for lines_and_pairs in iter(lambda: list(itertools.islice(numbered, _CHUNK)), []):
        numbers, chunk = zip(*lines_and_pairs, strict=True)
        lines.append(np.array(numbers))
        texts = [list(side) for side in zip(*chunk, strict=True)]
        encoded = [
            _tokenize(side, tokenizer, add_eos)
            for side, tokenizer, add_eos in zip(texts, tokenizers, (True, False), strict=True)
        ]
        (_, source_lengths), (_, target_lengths) = encoded
        source_tokens = source_lengths - 1 if with_sources else target_lengths
        reasons.append(_reasons(source_tokens, target_lengths, options))
        keep = reasons[-1] == _KEPT
        if held_out:
            keep &= [pair not in held_out for pair in chunk]
            reasons[-1][(reasons[-1] == _KEPT) & ~keep] = _HELD_OUT
        if options.drop_duplicates:
            hashes.append(np.array([pair_hash(*chunk[i]) for i in np.flatnonzero(keep)], np.uint64))
        for side, (flat, lengths) in zip(sides, encoded, strict=True):
            side.append(flat[np.repeat(keep, lengths)], lengths[keep])
    reasons, lines = np.concatenate(reasons), np.concatenate(lines)
    kept_indices = np.flatnonzero(reasons == _KEPT)
    is_first = np.ones(len(kept_indices), bool)
    if options.drop_duplicates:
        is_first = are_first(hashes)
        reasons[kept_indices[~is_first]] = _DUPLICATE
    report = _report(reasons, lines, {} if list(ends) == [""] else ends)
    if not report.kept:
        raise InputError(
            "No sentence pair is left after the checks: "
            + "; ".join(line.strip() for line in str(report).splitlines())
            + "."
        )
    (source, source_offsets), (target, target_offsets) = (side.finish(is_first) for side in sides)
    sides = source, source_offsets, target, target_offsets
    return EncodedPairs(*sides, lines[reasons == _KEPT], _sizes(report)), report


class _Side:
    """Ids of one side, collected in memory or in a file from which `path` is made."""

    def __init__(self, path):
        self._path, self._flats, self._lengths = path, [np.zeros(0, np.int32)], []
        self._unfiltered = None if path is None else path.with_suffix(".all")

    def append(self, flat, lengths):
        self._lengths.append(lengths)
        if self._path is None:
            self._flats.append(flat)
            return
        with writing(self._path), open(self._unfiltered, "ab") as file:
            file.write(flat)

    def finish(self, keep):
        """Returns the flat array and the offsets of the kept pairs."""
        lengths = np.concatenate(self._lengths)
        if self._path is None:
            flat = np.concatenate(self._flats)[np.repeat(keep, lengths)]
            return flat, offsets_of(lengths[keep])
        offsets, all_ids = offsets_of(lengths), np.memmap(self._unfiltered, np.int32, "r")
        with writing(self._path), open(self._path, "wb") as file:
            for start in range(0, len(lengths), _CHUNK):
                part = slice(start, start + _CHUNK)
                flat = all_ids[offsets[start] : offsets[min(start + _CHUNK, len(lengths))]]
                file.write(flat[np.repeat(keep[part], lengths[part])])
        self._unfiltered.unlink()
        return np.memmap(self._path, np.int32, "r"), offsets_of(lengths[keep])


def _tokenize(texts, tokenizer, add_eos):
    """Returns concatenated int32 ids of all texts, and int32 lengths `(texts,)`."""
    rows = tokenizer.tokenize(texts, add_eos=add_eos)
    lengths = np.array(list(map(len, rows)), np.int32)
    return np.fromiter(itertools.chain.from_iterable(rows), np.int32), lengths


def _reasons(source_tokens, target_tokens, options):
    """Returns uint8 `(pairs,)`: the reason to drop each pair, or 0."""
    shorter = np.minimum(source_tokens, target_tokens)
    longer = np.maximum(source_tokens, target_tokens)
    conditions = [shorter == 0, longer + 1 > options.max_length]
    ratio = options.max_length_ratio
    if ratio is not None:
        conditions.append((longer > _RATIO_NEEDS_TOKENS) & (longer > ratio * shorter))
    choices = [_EMPTY, _OVER_LONG, _RATIO][: len(conditions)]
    return np.select(conditions, choices, default=_KEPT).astype(np.uint8)


def _report(reasons, lines, ends):
    dropped, parts, start = {}, {}, 0
    for name, end in ends.items():
        parts[name] = _report(reasons[start:end], lines[start:end], {})
        start = end
    for reason, name in enumerate(_REASONS, start=1):
        dropped_lines = lines[reasons == reason]
        if len(dropped_lines):
            dropped[name] = DropCount(
                len(dropped_lines), tuple(dropped_lines[:_LINES_NAMED].tolist())
            )
    return PairReport(len(reasons), int(np.sum(reasons == _KEPT)), dropped, parts)
