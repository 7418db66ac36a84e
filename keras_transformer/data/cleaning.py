"""Cleaning of corpora: rules that sentence pairs may break, duplicates, and a report."""

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
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Literal, get_args

import numpy as np
import regex

from keras_transformer.data import iterate_pairs
from keras_transformer.data.pairs import are_first, pair_hash
from keras_transformer.errors import InputError, require, writing
from keras_transformer.files import OwnedFolder, replaced_file, write_whole
from keras_transformer.options import check_choice, declared, option
from keras_transformer.reading import iterate_lines, without_compression
from keras_transformer.text.placeholders import ADDRESS

Script = Literal[
    "Arabic", "Armenian", "Bengali", "Cyrillic", "Devanagari", "Ethiopic", "Georgian", "Greek",
    "Gujarati", "Gurmukhi", "Han", "Hangul", "Hebrew", "Hiragana", "Kannada", "Katakana", "Khmer",
    "Lao", "Latin", "Malayalam", "Myanmar", "Sinhala", "Tamil", "Telugu", "Thai", "Tibetan",
]  # fmt: skip
Rule = Literal[
    "length", "ratio", "copy", "encoding", "punctuation", "urls", "numbers", "script", "language"
]

_SCRIPTS = f"a list of {', '.join(get_args(Script))}, or null"
# The ratio of shorter texts says nothing: "Yes." is a fair translation of a short sentence.
_RATIO_NEEDS_CHARACTERS = 20
# The language of shorter texts cannot be identified reliably.
_LANGUAGE_NEEDS_LETTERS = 15
# The other letters may belong to names.
_SCRIPT_SHARE = 0.8
# Words may replace a number of two digits ("forty-one" for 41, "May" for 5), but not a year.
_DIGITS_OF_WORDS = 2
_NUMBER = regex.compile(r"\d++")
_AMOUNT = regex.compile(r"\d++(?:[.,:/\-]\d++)*+")
_HOUR = regex.compile(r"(?<!\d)\d\d(?!\d)")
# In Chinese and Japanese, Korean, Vietnamese. "3个月" and "3 tháng" are three months, not March.
_MONTH = regex.compile(r"(?<!\d)\d{1,2} ?[月월]|\btháng \d{1,2}(?!\d)", regex.IGNORECASE)
_ADDRESS = regex.compile(ADDRESS, regex.V1)
# Vowel signs count as letters, because they are most of a Burmese or Hindi word.
_LETTER = regex.compile(r"[\p{L}\p{M}]")
_WIDE = regex.compile(r"\p{East_Asian_Width=W}")
# A question mark at the end, with closing quotes and brackets; Greek's looks like a semicolon.
_CLOSING = r"[\p{Sentence_Terminal}\p{Pe}\p{Pf}\p{Pi}\"'\s]*+$"
_QUESTION = regex.compile(rf"[?？؟፧⁇⁈⁉‽]{_CLOSING}")
_GREEK_QUESTION = regex.compile(rf"\p{{Greek}}.*[;?\u037e]{_CLOSING}", regex.DOTALL)
# Letters of scripts that do not end every question with a mark. Japanese, Thai, Lao, Khmer, Burmese
# and Tibetan have words that ask, and the mark may be absent; Armenian's mark is inside a word.
_ASKS_WITHOUT_MARK = regex.compile(
    r"(?V1)[\p{L}--[\p{Arabic}\p{Bengali}\p{Common}\p{Cyrillic}\p{Devanagari}\p{Ethiopic}"
    r"\p{Georgian}\p{Greek}\p{Gujarati}\p{Gurmukhi}\p{Han}\p{Hangul}\p{Hebrew}\p{Kannada}\p{Latin}"
    r"\p{Malayalam}\p{Oriya}\p{Sinhala}\p{Tamil}\p{Telugu}]]"
)


@declared
class PairRules:
    """Rules for the text of a pair, and their limits."""

    min_characters: int = option(1, "length: minimum number of characters of a side.", ge=1)
    max_characters: int = option(1000, "length: maximum number of characters of a side.", ge=1)
    max_ratio: float | None = option(
        3.0,
        "ratio: maximum ratio of the sides' lengths in characters; null: any. Wide characters, "
        "such as Chinese, count twice. Pairs whose longer side has at most 20 characters pass.",
        ge=1,
    )
    min_letter_share: float = option(
        0.5,
        "punctuation: minimum share of letters in a side's characters without spaces; a number "
        "counts as one character.",
        ge=0,
        le=1,
    )
    source_scripts: list[Script] | None = option(
        None,
        "script: Unicode scripts of the source, such as [Han, Hiragana, Katakana]; null: any.",
        _SCRIPTS,
        strict=None,
        min_length=1,
    )
    target_scripts: list[Script] | None = option(
        None,
        "script: Unicode scripts of the target; null: any.",
        _SCRIPTS,
        strict=None,
        min_length=1,
    )
    source_language: str | None = option(
        None, "language: ISO 639-1 code of the source, with the extra `clean`; null: any."
    )
    target_language: str | None = option(
        None, "language: ISO 639-1 code of the target, with the extra `clean`; null: any."
    )
    min_language_probability: float = option(
        0.02,
        "language: minimum probability of a side's language; sides of fewer than 15 letters pass.",
        ge=0,
        le=1,
    )
    without: list[Rule] = option(
        [],
        "Rules that are not applied; encoding needs the extra `clean`.",
        f"a list of {', '.join(get_args(Rule))}",
        strict=None,
    )

    def check_packages(self) -> None:
        """Raises `InputError` if a package that a rule needs is not installed."""
        if "encoding" not in self.without:
            require("ftfy", "ftfy, for the rule encoding,", "clean")
        for name in ("source_language", "target_language"):
            language = getattr(self, name)
            if "language" not in self.without and language is not None:
                check_choice(name, language, tuple(_identifier().labels))

    def broken(self, source: str, target: str) -> Rule | None:
        """Returns the name of the first rule that a pair breaks, or None."""
        for name, breaks in RULES.items():
            if name not in self.without and breaks(self, source, target):
                return name
        return None


def _length(options, *sides):
    shorter, longer = sorted(len(side.strip()) for side in sides)
    return shorter < options.min_characters or longer > options.max_characters


def _ratio(options, *sides):
    shorter, longer = sorted(len(side) + len(_WIDE.findall(side)) for side in map(str.strip, sides))
    limit = options.max_ratio
    return limit is not None and longer > max(limit * shorter, _RATIO_NEEDS_CHARACTERS)


def _copy(options, source, target):
    """True for equal sides of several words; one word may be a name."""
    letters = skeleton(source)
    return bool(letters) and letters == skeleton(target) and len(source.split()) > 1


def _encoding(options, *sides):
    """True for text that was decoded with a wrong encoding, or has lost or control characters."""
    from ftfy.badness import is_bad

    def is_control(text):
        return not text.isprintable() and any(unicodedata.category(c) == "Cc" for c in text)

    return any(
        is_control(side) or not side.isascii() and ("\ufffd" in side or is_bad(side))
        for side in sides
    )


def _punctuation(options, *sides):
    """True for a side of mostly signs and numbers, or a question on only one side."""
    for side in sides:
        texts = {side, _without_addresses(side)}  # An address may have many signs, or all letters.
        if all(_letter_share(text) < options.min_letter_share for text in texts):
            return True
    source, target = map(_is_question, sides)
    return source != target and not any(map(_ASKS_WITHOUT_MARK.search, sides))


def _letter_share(text):
    text = _AMOUNT.sub("0", text)
    count = len(text) - text.count(" ")
    return len(_LETTER.findall(text)) / count if count else 1.0


def _is_question(text):
    return bool(_QUESTION.search(text) or _GREEK_QUESTION.search(text))


def _urls(options, *sides):
    source, target = map(_addresses, sides)
    return source != target


def _addresses(text):
    """Returns the URLs and e-mail addresses of a text, sorted, in lower case."""
    if not _may_have_address(text):
        return []
    return sorted(address.rstrip("/").lower() for address in _ADDRESS.findall(text))


def _without_addresses(text):
    """Returns what the rules about words judge."""
    return _ADDRESS.sub("", text) if _may_have_address(text) else text


def _may_have_address(text):
    """Returns True for a text with a sign that every address has; faster than the pattern."""
    return "@" in text or "/" in text or "www" in text.lower()


def _numbers(options, *sides):
    """True for different digits except 0: 1,000.50 equals 1.000,5, and 17:00 equals 5 p.m.

    Words may replace two digits, and the number of a month.
    """
    sides = [_without_addresses(side) for side in sides]
    if not _digits_differ(sides):
        return False
    sides = [_MONTH.sub("", side) for side in sides]
    return _digits_differ(sides) and _digits_differ([_HOUR.sub(_of_clock, side) for side in sides])


def _digits_differ(sides):
    """True unless at most one side has further digits, at most two, and no number has changed."""
    numbers = [list(map(_ascii_digits, _NUMBER.findall(side))) for side in sides]
    missing, added = _differences("".join(row).replace("0", "") for row in numbers)
    count = (missing + added).total()
    if count == 0 or count > _DIGITS_OF_WORDS or (missing and added):
        return count > 0
    # 2020 and 2021 differ in one digit. Words are not the reason where both are numbers.
    missing, added = _differences([number.lstrip("0") for number in row] for row in numbers)
    lengths = ({*map(len, only)} - {0, 1} for only in (missing, added))
    return bool(set.intersection(*lengths))


def _ascii_digits(number):
    return "".join(str(unicodedata.decimal(character)) for character in number)


def _differences(sides):
    """Returns what only the source has, and what only the target has."""
    source, target = map(collections.Counter, sides)
    return source - target, target - source


def _of_clock(match):
    hour = int(match[0])
    return str(hour - 12 if 12 < hour < 24 else hour)


def _named(kind, options, sides):
    """Returns pairs of a side and its option about languages or scripts, without None."""
    values = (getattr(options, f"{side}_{kind}") for side in ("source", "target"))
    return [(side, value) for side, value in zip(sides, values, strict=True) if value is not None]


def _script(options, *sides):
    for side, scripts in _named("scripts", options, sides):
        letters = list(filter(str.isalpha, _without_addresses(side)))
        count = len(_letters_of(tuple(scripts)).findall("".join(letters)))
        if count < _SCRIPT_SHARE * len(letters):
            return True
    return False


@functools.cache
def _letters_of(scripts: tuple[str, ...]):
    """Returns a pattern of a letter that some scripts use; Hiragana and Katakana share `ー`."""
    properties = "".join(rf"\p{{Script_Extensions={script}}}" for script in scripts)
    return regex.compile(f"[{properties}]")


def _language(options, *sides):
    return any(
        dict(_identifier().rank(side))[language] < options.min_language_probability
        for side, language in _named("language", options, map(_without_addresses, sides))
        if len(_LETTER.findall(side)) >= _LANGUAGE_NEEDS_LETTERS
    )


@functools.cache
def _identifier():
    langid = require("py3langid.langid", "py3langid, for the rule language,", "clean")
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)


def skeleton(text: str) -> str:
    """Returns the letters of a text without case and accents, which near-duplicates share."""
    text = text.casefold()
    if text.isascii():
        return "".join(filter(str.isalpha, text))
    return "".join(filter(_is_letter, unicodedata.normalize("NFKD", text)))


def _is_letter(character):
    # Vowel signs and voicing marks are letters; accents have the combining classes from 200 on.
    is_mark = unicodedata.category(character)[0] == "M"
    return character.isalpha() or is_mark and unicodedata.combining(character) < 200


_FUNCTIONS = _length, _ratio, _copy, _encoding, _punctuation, _urls, _numbers, _script, _language
RULES: dict[Rule, Callable[[Any, str, str], bool]] = dict(
    zip(get_args(Rule), _FUNCTIONS, strict=True)
)


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


@declared
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

    A pair that is not UTF-8, or has a tab within a side, is dropped as `malformed`.

    Args:
        corpora: Pairs of paths: two aligned files, or a TSV of two columns and None.
        output: Folder to make: the cleaned files under their names, without `.gz` or the ending of
            another compressed format, `report.json`, and `length_ratios.png`.
        held_out: Paths of test sets. A pair is dropped if one of its sides equals a line, or a
            column of a TSV, except for case, accents, digits, punctuation and spaces.
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
    names = [
        [without_compression(os.path.basename(path)) for path in corpus if path is not None]
        for corpus in corpora
    ]
    all_names = [name for corpus_names in names for name in corpus_names]
    for name in all_names:
        if all_names.count(name) > 1 or name in (_REPORT, _PICTURE):
            rule = "Cleaned files have the names of their corpora, which must differ"
            raise InputError(f"{rule}, also from {_REPORT} and {_PICTURE}. Received: {name}.")
    return names


def _hashes_of_lines(paths):
    for path in paths:
        for line in iterate_lines(path):
            yield from filter(None, map(_hash_of, line.split("\t")))


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
                    else [map("\t".join, kept_pairs)]
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
