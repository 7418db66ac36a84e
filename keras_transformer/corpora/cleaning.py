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
from typing import Any, Literal

import numpy as np

from keras_transformer.corpora.rules import RULES, PairRules, skeleton
from keras_transformer.corpora.translation_memory import TranslationMemory
from keras_transformer.data import iterate_pairs
from keras_transformer.data.pairs import are_first, pair_hash
from keras_transformer.errors import InputError, require, writing
from keras_transformer.files import OwnedFolder, replaced_file, write_whole
from keras_transformer.options import option, options_class
from keras_transformer.reading import check_rereadable, iterate_lines, to_cell, without_compression
from keras_transformer.text.tables import is_table, iterate_rows

FilePath = str | os.PathLike
Corpus = tuple[FilePath, FilePath | None]
Progress = Callable[[str, int], None]

_REASONS = ("malformed", *RULES, "held_out", "duplicate")
_CODES = {name: code for code, name in enumerate((None, *_REASONS))}
_REPORT, _PICTURE = "report.json", "length_ratios.png"
_PAIRS_AT_ONCE = 1000
# Sorting that many hashes takes about 130 MB.
_HASHES_AT_ONCE = 1 << 22
_EXAMPLES = 3
_EDGES = np.linspace(-3, 3, 61)  # base-2 logarithms of length ratios


@options_class
class CleanOptions(PairRules):
    """Rules for the text of a pair, and for the corpus."""

    duplicates: Literal["near", "exact", "keep"] = option(
        "near",
        "Duplicates, of which only the first is kept: equal pairs (exact), or pairs that are equal "
        "except for case, accents, digits, punctuation and spaces (near).",
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
            another compressed format, tables and memories as TSV, `report.json`, and
            `length_ratios.png`.
        held_out: Paths of test sets. A pair is dropped if one of its sides equals a line, or a
            cell of a table, except for case, accents, digits, punctuation and spaces.
        overwrite: Whether an earlier `output` of this function is replaced.
        progress: Called with the stage and the number of bytes of text that were processed.
        **options: Fields of `CleanOptions`.

    Returns:
        The report. For each corpus it has `pairs`, `kept` and the counts of `dropped` by rule, and
        for each rule the first `examples` with their lines.

    Raises:
        InputError: A file or an option is invalid, or a package is missing.
    """
    checked_options = CleanOptions(**options)
    checked_options.check_packages()
    require("matplotlib.figure", "Matplotlib, for the picture of length ratios,", "clean")
    for path in itertools.chain.from_iterable(corpora):
        if path is not None:
            check_rereadable(path)
    names = _output_names(corpora)
    held_out_hashes = frozenset(_hashes_of_lines(held_out))
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
        report["files"] = [*files, _PICTURE, _REPORT]
        text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
        write_whole(staging / _REPORT, text)
    return {"output": os.fspath(output), **report}


def _output_names(corpora):
    names = [[_output_name(path) for path in corpus if path is not None] for corpus in corpora]
    all_names = [name for corpus_names in names for name in corpus_names]
    for name in all_names:
        if all_names.count(name) > 1 or name in (_REPORT, _PICTURE):
            rule = "Cleaned files have the names of their corpora, which must differ"
            raise InputError(f"{rule}, also from {_REPORT} and {_PICTURE}. Received: {name}.")
    return names


def _output_name(path):
    name = without_compression(os.path.basename(path))
    if isinstance(path, TranslationMemory) or is_table(name):
        return os.path.splitext(name)[0] + ".tsv"
    return name


def _hashes_of_lines(paths):
    for path in paths:
        rows = iterate_rows(path, header=False) if is_table(path) else None
        texts = iterate_lines(path) if rows is None else (cell for _, row in rows for cell in row)
        yield from filter(None, map(_hash_of, texts))


def _hash_of(text):
    letters = skeleton(text)
    return pair_hash(letters, "") if letters else None


def _chunks(corpora) -> Iterator[list[tuple[str, str]]]:
    """Yields the pairs of all corpora in lists, with malformed pairs."""
    pairs = (
        pair for source, target in corpora for pair in iterate_pairs(source, target, lenient=True)
    )
    return iter(lambda: list(itertools.islice(pairs, _PAIRS_AT_ONCE)), [])


def _size(pairs):
    return len("\n".join(map("\n".join, pairs)).encode()) + 1


def _examined(corpora, options, held_out, work, progress):
    """Returns the reason and the hash of each pair, in files: uint8 and uint64 `(pairs,)`."""
    examine = functools.partial(_examine, options=options, held_out=held_out)
    with contextlib.ExitStack() as stack:
        outputs = _opened([work / "reasons", work / "hashes"], stack)
        processes = options.processes or os.cpu_count() or 1
        for results, size in _map(examine, _chunks(corpora), processes):
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
    for index, pair in enumerate(pairs):
        reason = "malformed" if _is_malformed(pair) else options.broken(*pair)
        if reason is None and held_out and not held_out.isdisjoint(map(_hash_of, pair)):
            reason = "held_out"
        reasons[index] = _CODES[reason]
        letters = tuple(map(skeleton, pair)) if options.duplicates == "near" else pair
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
    """Writes the kept pairs and the picture; returns the report."""
    ratios, start, rows = np.zeros((2, len(_EDGES) - 1), np.int64), 0, []
    examples: dict[str, list] = {}
    for corpus, files in zip(corpora, names, strict=True):
        counts, corpus_start = np.zeros(len(_CODES), np.int64), start
        with contextlib.ExitStack() as stack:
            outputs = _opened([staging / name for name in files], stack)
            for chunk in _chunks([corpus]):
                chunk_reasons = np.asarray(reasons[start : start + len(chunk)])
                counts += np.bincount(chunk_reasons, minlength=len(_CODES))
                ratios += _histograms(chunk, chunk_reasons == 0)
                for index in np.flatnonzero(chunk_reasons).tolist():
                    rule_examples = examples.setdefault(_REASONS[chunk_reasons[index] - 1], [])
                    position = {"file": files[0], "line": start - corpus_start + index + 1}
                    pair = dict(zip(("source", "target"), chunk[index], strict=True))
                    if len(rule_examples) < _EXAMPLES:
                        rule_examples.append({**position, **pair})
                kept_pairs = [chunk[index] for index in np.flatnonzero(chunk_reasons == 0)]
                columns = (
                    zip(*kept_pairs, strict=True)
                    if len(files) == 2
                    else [["\t".join(map(to_cell, pair)) for pair in kept_pairs]]
                )
                for output, lines in zip(outputs, columns, strict=False):  # none kept
                    with writing(output.name):
                        output.write("".join(line + "\n" for line in lines).encode())
                start += len(chunk)
                progress("writing", _size(chunk))
        dropped = {
            name: int(count) for name, count in zip(_REASONS, counts[1:], strict=True) if count
        }
        row = {"files": files, "pairs": start - corpus_start, "kept": int(counts[0])}
        rows.append({**row, "dropped": dropped})
    with replaced_file(staging / _PICTURE) as path:
        _picture(ratios).savefig(path, dpi=120)
    return {"corpora": rows, "examples": examples}


def _histograms(pairs, is_kept):
    lengths = np.array([[len(side) + 1 for side in pair] for pair in pairs])
    logarithms = np.clip(np.log2(lengths[:, 1] / lengths[:, 0]), _EDGES[0], _EDGES[-1])
    return np.stack([np.histogram(logarithms[mask], _EDGES)[0] for mask in (is_kept, ~is_kept)])


def _picture(ratios):
    """Makes a figure of the length ratios of kept and dropped pairs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    for counts, label in zip(ratios, ("kept", "dropped"), strict=True):
        axes.stairs(counts, _EDGES, fill=True, alpha=0.6, label=f"{label}: {counts.sum():,}")
    axes.set_xticks(range(-3, 4), ["⅛", "¼", "½", "1", "2", "4", "8"])
    axes.set(
        xlabel="characters of the target per character of the source",
        ylabel="pairs",
        yscale="symlog",
    )
    axes.legend()
    return figure
