"""Cleaning of corpora: pairs that break rules, duplicates, and a report."""

import collections
import contextlib
import dataclasses
import functools
import itertools
import json
import multiprocessing
import os
import pathlib
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Literal, NamedTuple

import numpy as np

from keras_transformer.base.errors import InputError, writing
from keras_transformer.base.files import OwnedFolder, write_whole
from keras_transformer.base.options import option, options_class
from keras_transformer.base.reading import (
    check_rereadable,
    csv_row,
    iterate_lines,
    without_compression,
)
from keras_transformer.data import iterate_pairs
from keras_transformer.data.pairs import are_first, pair_hash
from keras_transformer.extras.corpora.rules import (
    RULES,
    PairRules,
    skeleton,
    with_numbers,
    without_escapes,
)
from keras_transformer.extras.corpora.translation_memory import TranslationMemory
from keras_transformer.text.tables import is_table, iterate_rows

FilePath = str | os.PathLike
Corpus = tuple[FilePath, FilePath | None]
Progress = Callable[[str, int], None]

_REASONS = ("malformed", *RULES, "held_out", "duplicate")
_CODES = {name: code for code, name in enumerate((None, *_REASONS))}
_REPORT = "report.json"
_PAIRS_AT_ONCE = 1000
# Sorting that many hashes takes about 130 MB.
_HASHES_AT_ONCE = 1 << 22
_EXAMPLES = 3
_MAX_RULES = 8  # lines of the summary


@options_class
class CleanOptions(PairRules):
    """Rules for the text of a pair, and for the corpus."""

    duplicates: Literal["near", "exact", "keep"] = option(
        "near",
        "Duplicates, of which only the first is kept: equal pairs (exact), or pairs that are equal "
        "except for case, accents, punctuation and spaces (near). Numbers must be equal.",
        strict=None,
    )
    escapes: Literal["undo", "keep"] = option(
        "undo",
        "Escapes of HTML and Moses, such as &apos; and &amp;amp;. undo: they become the characters "
        "that they stand for, except in memories whose tags are kept; keep: they stay.",
        strict=None,
    )
    processes: int | None = option(
        None, "Number of processes that apply the rules; null: one per processor.", ge=1
    )


def clean_corpora(
    corpora: Sequence[Corpus],
    output: FilePath,
    held_out: Sequence[FilePath] = (),
    overwrite: bool = False,
    progress: Progress = lambda stage, size: None,
    **options: Any,
) -> dict[str, Any]:
    """Writes the pairs of corpora that break no rule, in their order, in constant memory.

    A pair that is not UTF-8, has a tab within a side, or has a character that XML forbids in a
    memory, is dropped as `malformed`.

    Args:
        corpora: Pairs of paths: two aligned files, or a table of two columns and None, or a
            `PairTable` or `TranslationMemory` and None.
        output: Folder to make: the cleaned files under their names, without `.gz` or the ending of
            another compressed format, tables and memories as CSV, and `report.json`.
        held_out: Paths of test sets. A pair is dropped if one of its sides equals a line, or a
            cell of a table, except for case, accents, digits, punctuation and spaces.
        overwrite: Whether an earlier `output` of this function is replaced.
        progress: Called with the stage and the number of bytes of text that were processed.
        **options: Fields of `CleanOptions`.

    Returns:
        The report. For each corpus it has the counts of `pairs`, of `kept` pairs, of those whose
        escapes were `undone`, and of `dropped` pairs by rule. For each rule it has the first
        `examples` with their lines.

    Raises:
        InputError: A file or an option is invalid, or a package is missing.
    """
    checked_options = CleanOptions(**options)
    checked_options.check_packages()
    for path in itertools.chain.from_iterable(corpora):
        if path is not None:
            check_rereadable(path)
    names = _output_names(corpora)
    held_out_hashes = frozenset(_hashes_of_lines(held_out, checked_options))
    with OwnedFolder(output, _REPORT).staged(overwrite) as staging:
        with tempfile.TemporaryDirectory(dir=staging) as work:
            reasons, hashes = _examined(
                corpora, checked_options, held_out_hashes, pathlib.Path(work), progress
            )
            if checked_options.duplicates != "keep":
                _drop_repeated(hashes, reasons)
            report = _write(corpora, names, reasons, checked_options, staging, progress)
            del reasons, hashes
        report["options"] = dataclasses.asdict(checked_options)
        files = [name for corpus_names in names for name in corpus_names]
        report["files"] = [*files, _REPORT]
        text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
        write_whole(staging / _REPORT, text)
    return {"output": os.fspath(output), **report}


def summary(report: dict[str, Any]) -> str:
    """Returns a table of at most ten lines: kept pairs, and dropped pairs by rule, most first.

    If pairs were dropped, the last line has the path of examples.
    """
    pairs, kept, dropped = 0, 0, collections.Counter[str]()
    for corpus in report["corpora"]:
        pairs += corpus["pairs"]
        kept += corpus["kept"]
        dropped.update(corpus["dropped"])
    rules = dropped.most_common()
    if len(rules) > _MAX_RULES:
        others = rules[_MAX_RULES - 1 :]
        rules[_MAX_RULES - 1 :] = [(f"{len(others)} other rules", sum(dict(others).values()))]
    rows = [("kept", kept), *rules]
    width, digits = max(len(name) for name, _ in rows), len(f"{pairs:,}")
    lines = [
        f"{name:{width}}  {count:{digits},}  {count / max(pairs, 1):6.1%}" for name, count in rows
    ]
    lines[0] += f" of {pairs:,} pairs"
    if dropped:
        lines.append(f"Examples of dropped pairs: {os.path.join(report['output'], _REPORT)}")
    return "\n".join(lines)


def _output_names(corpora):
    names = [[_output_name(path) for path in corpus if path is not None] for corpus in corpora]
    counts = collections.Counter(itertools.chain([_REPORT], *names))
    for name, count in counts.items():
        if count > 1:
            rule = "Cleaned files have the names of their corpora, which must differ"
            raise InputError(f"{rule}, also from {_REPORT}. Received: {name}.")
    return names


def _output_name(path):
    name = without_compression(os.path.basename(path))
    if isinstance(path, TranslationMemory) or is_table(name):
        return os.path.splitext(name)[0] + ".csv"
    return name


def _hashes_of_lines(paths, options):
    for path in paths:
        if is_table(path):
            rows = (cells for _, cells in iterate_rows(path, header=False))
        else:
            rows = (line.split("\t") for line in iterate_lines(path))
        texts = itertools.chain.from_iterable(rows)
        if options.escapes == "undo":
            texts = map(without_escapes, texts)
        yield from filter(None, map(_hash_of, texts))


def _hash_of(text):
    letters = skeleton(text)
    return pair_hash(letters, "") if letters else None


class _Pair(NamedTuple):
    """A pair of a corpus; escapes in it were undone, or there were none."""

    source: str
    target: str
    is_undone: bool


def _chunks(corpora, options) -> Iterator[list[_Pair]]:
    """Yields the pairs of all corpora in lists, with malformed pairs."""
    pairs = (pair for corpus in corpora for pair in _pairs(corpus, options))
    return iter(lambda: list(itertools.islice(pairs, _PAIRS_AT_ONCE)), [])


def _pairs(corpus, options):
    has_markup = isinstance(corpus[0], TranslationMemory) and corpus[0].inline_tags == "keep"
    for pair in iterate_pairs(*corpus, lenient=True):
        sides = pair
        if options.escapes == "undo" and not has_markup:
            sides = tuple(map(without_escapes, pair))
        yield _Pair(*sides, is_undone=sides != pair)


def _size(pairs):
    return sum(len(f"{source}\n{target}\n".encode()) for source, target, _ in pairs)


def _examined(corpora, options, held_out, work, progress):
    """Returns the reason and the hash of each pair, in files: uint8 and uint64 `(pairs,)`."""
    examine = functools.partial(_examine, options=options, held_out=held_out)
    with contextlib.ExitStack() as stack:
        outputs = _opened([work / "reasons", work / "hashes"], stack)
        processes = options.processes or os.cpu_count() or 1
        for results, size in _map(examine, _chunks(corpora, options), processes):
            for output, array in zip(outputs, results, strict=True):
                with writing(output.name):
                    output.write(array)  # `tofile` would not report a full disk.
            progress("rules", size)
    return np.memmap(work / "reasons", np.uint8, "r+"), np.memmap(work / "hashes", np.uint64, "r")


def _opened(paths, stack):
    """Opens files to write, which `stack` closes."""
    outputs = []
    for path in paths:
        stack.enter_context(writing(path))  # The last bytes are written when the file is closed.
        outputs.append(stack.enter_context(open(path, "wb")))
    return outputs


def _map(function, chunks, processes):
    """Yields the result and the size of each chunk in order, with a few chunks in memory."""
    if processes == 1:
        yield from ((function(chunk), _size(chunk)) for chunk in chunks)
        return
    # Not forked, because a process that has loaded TensorFlow has threads. The children ignore
    # Ctrl-C, which ends this process.
    context, ignore_sigint = multiprocessing.get_context("spawn"), (signal.SIGINT, signal.SIG_IGN)
    with ProcessPoolExecutor(processes, context, signal.signal, ignore_sigint) as pool:
        futures: collections.deque = collections.deque()
        for chunk in itertools.chain(chunks, [None] * 3 * processes):
            if chunk is not None:
                futures.append((pool.submit(function, chunk), _size(chunk)))
            if futures and (chunk is None or len(futures) > 3 * processes):
                future, size = futures.popleft()
                yield future.result(), size


def _examine(pairs, options, held_out):
    reasons, hashes = np.zeros(len(pairs), np.uint8), np.zeros(len(pairs), np.uint64)
    for index, (*pair, _) in enumerate(pairs):
        reason = "malformed" if _is_malformed(pair) else options.broken(*pair)
        if reason is None and held_out and not held_out.isdisjoint(map(_hash_of, pair)):
            reason = "held_out"
        reasons[index] = _CODES[reason]
        letters = list(map(with_numbers, pair)) if options.duplicates == "near" else pair
        hashes[index] = pair_hash(*(letters if any(letters) else pair))
    return reasons, hashes


def _is_malformed(pair):
    """Returns True for a tab within a side, and for bytes that are not UTF-8."""
    return any("\t" in side or "\ufffd" in side for side in pair)


def _drop_repeated(hashes, reasons):
    """Marks pairs whose hash an earlier kept pair has, some hashes at a time."""
    parts = -(-len(hashes) // _HASHES_AT_ONCE)
    for part in range(parts):
        indices_of_slices = []
        for start in range(0, len(hashes), _HASHES_AT_ONCE):
            hash_slice = slice(start, start + _HASHES_AT_ONCE)
            is_here = (hashes[hash_slice] % np.uint64(parts) == part) & (reasons[hash_slice] == 0)
            indices_of_slices.append(start + np.flatnonzero(is_here))
        indices = np.concatenate(indices_of_slices)
        reasons[indices[~are_first([hashes[indices]])]] = _CODES["duplicate"]


def _write(corpora, names, reasons, options, staging, progress):
    """Writes the kept pairs; returns the report."""
    rows: list[dict] = []
    examples: dict[str, list] = {}
    first = 0
    for corpus, files in zip(corpora, names, strict=True):
        row = _write_corpus(corpus, files, reasons[first:], options, staging, examples, progress)
        first += row["pairs"]
        rows.append(row)
    return {"corpora": rows, "examples": examples}


def _write_corpus(corpus, files, reasons, options, staging, examples, progress):
    """Writes the kept pairs of a corpus, and adds to the examples of dropped pairs.

    Args:
        corpus: Files of a corpus.
        files: Names of the files to write: a table, or a file per side.
        reasons: Codes of reasons, from the corpus' first pair on.
        options: Rules and names of the columns, `CleanOptions`.
        staging: Folder of the files to write.
        examples: Dropped pairs by their reason; changed.
        progress: Called with the step and the number of bytes.

    Returns:
        The row of the corpus in the report.
    """
    source = os.path.basename(corpus[0])  # Numbers of lines are of this file.
    counts = np.zeros(len(_CODES), np.int64)  # of each code
    num_pairs = num_undone = 0
    with contextlib.ExitStack() as stack:
        outputs = _opened([staging / name for name in files], stack)
        for chunk in _chunks([corpus], options):
            codes = np.asarray(reasons[num_pairs : num_pairs + len(chunk)])
            kept_pairs = [chunk[index] for index in np.flatnonzero(codes == 0)]
            for output, lines in zip(outputs, _columns(kept_pairs, len(files)), strict=True):
                with writing(output.name):
                    output.write("".join(lines).encode())
            _add_examples(examples, chunk, codes, source, first_line=num_pairs + 1)
            counts += np.bincount(codes, minlength=len(_CODES))
            num_undone += sum(pair.is_undone for pair in kept_pairs)
            num_pairs += len(chunk)
            progress("writing", _size(chunk))
    num_kept, *nums_dropped = counts.tolist()
    return {
        "files": files,
        "pairs": num_pairs,
        "kept": num_kept,
        "undone": num_undone,
        "dropped": {
            reason: count for reason, count in zip(_REASONS, nums_dropped, strict=True) if count
        },
    }


def _add_examples(examples, pairs, reasons, file, first_line):
    """Adds pairs that rules drop to the first examples of each rule."""
    for index in np.flatnonzero(reasons).tolist():
        rule_examples = examples.setdefault(_REASONS[reasons[index] - 1], [])
        if len(rule_examples) < _EXAMPLES:
            source, target, _ = pairs[index]
            position = {"file": file, "line": first_line + index}
            rule_examples.append({**position, "source": source, "target": target})


def _columns(pairs, num_files):
    """Returns the lines of each file: of one side, or of a table with both sides."""
    if num_files == 1:
        return [[csv_row(pair[:2]) for pair in pairs]]
    return [[f"{pair[side]}\n" for pair in pairs] for side in (0, 1)]
