"""Rules for sentence pairs: each looks at one pair and says whether it is broken."""

import collections
import contextlib
import dataclasses
import functools
import itertools
import json
import multiprocessing
import os
import pathlib
import re
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
from keras_transformer.errors import InputError, require
from keras_transformer.files import iterate_lines
from keras_transformer.options import check_choice, declared, option
from keras_transformer.owned_folder import OwnedFolder

Script = Literal[
    "Arabic", "Armenian", "Bengali", "Cyrillic", "Devanagari", "Ethiopic", "Georgian", "Greek",
    "Gujarati", "Gurmukhi", "Han", "Hangul", "Hebrew", "Hiragana", "Kannada", "Katakana", "Khmer",
    "Lao", "Latin", "Malayalam", "Myanmar", "Sinhala", "Tamil", "Telugu", "Thai", "Tibetan",
]  # fmt: skip
Rule = Literal[
    "length", "ratio", "copy", "encoding", "punctuation", "urls", "numbers", "script", "language"
]

_SCRIPTS = f"a list of {', '.join(get_args(Script))}, or null"
# Below this a ratio says nothing: "Yes." against a short sentence is a fair translation.
_RATIO_NEEDS_CHARACTERS = 20
# Shorter texts are identified by chance.
_LANGUAGE_NEEDS_LETTERS = 15
# The rest may be names.
_SCRIPT_SHARE = 0.8
# "forty-one" for 41, but no words for a year.
_DIGITS_OF_WORDS = 2
_URL = re.compile(r"(?:https?://|www\.)\S+|[\w.+-]+@[\w-]+\.[\w.-]+", re.IGNORECASE)
_IN_URLS = "@", "/", "www", "WWW"  # one of which every URL has
# Vowel signs are letters, too: without them most of a Burmese or Hindi word is none.
_LETTER = regex.compile(r"[\p{L}\p{M}]")
_WIDE = regex.compile(r"\p{East_Asian_Width=W}")
# A question mark at the end, with what closes after it; Greek's looks like a semicolon.
_CLOSING = r"[\p{Sentence_Terminal}\p{Pe}\p{Pf}\p{Pi}\"'\s]*+$"
_QUESTION = regex.compile(rf"[?？؟፧⁇⁈⁉‽]{_CLOSING}")
_GREEK_QUESTION = regex.compile(rf"\p{{Greek}}.*[;?\u037e]{_CLOSING}", regex.DOTALL)
# Letters of scripts that do not end every question with a mark: in Japanese, Thai, Lao, Khmer,
# Burmese and Tibetan words ask, and the mark may be absent; Armenian's stands inside a word.
_ASKS_WITHOUT_MARK = regex.compile(
    r"(?V1)[\p{L}--[\p{Arabic}\p{Bengali}\p{Common}\p{Cyrillic}\p{Devanagari}\p{Ethiopic}"
    r"\p{Georgian}\p{Greek}\p{Gujarati}\p{Gurmukhi}\p{Han}\p{Hangul}\p{Hebrew}\p{Kannada}\p{Latin}"
    r"\p{Malayalam}\p{Oriya}\p{Sinhala}\p{Tamil}\p{Telugu}]]"
)


@declared
class PairRules:
    """Rules for the text of a pair, and their limits."""

    min_characters: int = option(1, "length: fewest characters of a side.", ge=1)
    max_characters: int = option(1000, "length: most characters of a side.", ge=1)
    max_ratio: float | None = option(
        3.0,
        "ratio: most times that one side may be as long as the other, in characters (wide ones, "
        "as of Chinese, count twice), looked at once the longer one has more than 20; null: any.",
        ge=1,
    )
    min_letter_share: float = option(
        0.5,
        "punctuation: least share of letters in a side's characters without spaces.",
        ge=0,
        le=1,
    )
    source_scripts: list[Script] | None = option(
        None,
        "script: Unicode scripts of the source, such as [Han, Hiragana, Katakana]; null: any.",
        _SCRIPTS,
        strict=None,
    )
    target_scripts: list[Script] | None = option(
        None, "script: those of the target; null: any.", _SCRIPTS, strict=None
    )
    source_language: str | None = option(
        None, "language: ISO 639-1 code of the source, with the extra `clean`; null: any."
    )
    target_language: str | None = option(None, "language: that of the target; null: any.")
    min_language_probability: float = option(
        0.02,
        "language: least probability of a side's language, looked at once it has 15 letters.",
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
        """Raises `InputError` for a package that a rule needs and that is not installed."""
        if "encoding" not in self.without:
            require("ftfy", "ftfy, for the rule encoding,", "clean")
        if "language" not in self.without and (self.source_language or self.target_language):
            labels = _identifier().labels
            for language in filter(None, (self.source_language, self.target_language)):
                check_choice("language", language, tuple(labels))

    def broken(self, source: str, target: str) -> Rule | None:
        """Returns the name of the first rule that a pair breaks, None where it breaks none."""
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
    """One word may be a name: two sides of several words are equal."""
    letters = skeleton(source)
    return bool(letters) and letters == skeleton(target) and len(source.split()) > 1


def _encoding(options, *sides):
    """Text that was decoded as what it is not, or lost characters on the way."""
    from ftfy.badness import is_bad

    def is_control(text):
        return not text.isprintable() and any(unicodedata.category(c) == "Cc" for c in text)

    return any(
        is_control(side) or not side.isascii() and ("\ufffd" in side or is_bad(side))
        for side in sides
    )


def _punctuation(options, *sides):
    """Mostly signs and digits, or a question on only one side."""
    for side in sides:
        count = len(side) - side.count(" ")
        if len(_LETTER.findall(side)) < options.min_letter_share * count:
            return True
    source, target = map(_is_question, sides)
    return source != target and not any(map(_ASKS_WITHOUT_MARK.search, sides))


def _is_question(text):
    return bool(_QUESTION.search(text) or _GREEK_QUESTION.search(text))


def _urls(options, *sides):
    found = [_URL.findall(side) if any(each in side for each in _IN_URLS) else [] for side in sides]
    source, target = (sorted(url.rstrip(".,;:!?)\"'").lower() for url in side) for side in found)
    return source != target


def _numbers(options, *sides):
    """Digits but 0, whatever stands between them: 1,000.50 is 1.000,5; words may stand for two."""
    digits = [
        [unicodedata.decimal(character) for character in side if character.isdecimal()]
        for side in sides
    ]
    fewer, more = sorted((sorted(filter(None, numbers)) for numbers in digits), key=len)
    return fewer != more and (bool(fewer) or len(more) > _DIGITS_OF_WORDS)


def _named(kind, options, sides):
    """Pairs of a side and its languages or scripts, where they are given."""
    values = (getattr(options, f"{side}_{kind}") for side in ("source", "target"))
    return [(side, value) for side, value in zip(sides, values, strict=True) if value is not None]


def _script(options, *sides):
    for side, scripts in _named("scripts", options, sides):
        letters = list(filter(str.isalpha, side))
        count = len(_letters_of(tuple(scripts)).findall("".join(letters)))
        if count < _SCRIPT_SHARE * len(letters):
            return True
    return False


@functools.cache
def _letters_of(scripts: tuple[str, ...]):
    """Pattern of a letter that some scripts use: Hiragana's and Katakana's `ー` is of both."""
    properties = "".join(rf"\p{{Script_Extensions={script}}}" for script in scripts)
    return regex.compile(f"[{properties}]")


def _language(options, *sides):
    return any(
        dict(_identifier().rank(side))[language] < options.min_language_probability
        for side, language in _named("language", options, sides)
        if len(_LETTER.findall(side)) >= _LANGUAGE_NEEDS_LETTERS
    )


@functools.cache
def _identifier():
    langid = require("py3langid.langid", "py3langid, for the rule language,", "clean")
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)


def skeleton(text: str) -> str:
    """Letters of a text without case and accents: what near-duplicates share."""
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

_REASONS = (*RULES, "held_out", "duplicate")
_CODES = {name: code for code, name in enumerate((None, *_REASONS))}
_REPORT, _PICTURE = "report.json", "length_ratios.png"
_PAIRS_AT_ONCE = 1000
# About 130 MB while they are sorted.
_HASHES_AT_ONCE = 1 << 22
_EXAMPLES = 3
_EDGES = np.linspace(-3, 3, 61)  # base-2 logarithms of length ratios


@declared
class CleanOptions(PairRules):
    """Rules for the text of a pair, and for the corpus."""

    duplicates: Literal["near", "exact", "keep"] = option(
        "near",
        "Pairs of which only the first is kept: equal ones (exact), or those that are equal but "
        "for case, accents, digits, punctuation and spaces (near).",
        strict=None,
    )
    processes: int | None = option(
        None, "Processes that apply the rules; null: one for each processor.", ge=1
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

    Args:
        corpora: Paths of two aligned files, or of a TSV of two columns and None.
        output: Folder to make: the cleaned files under their names without `.gz`, `report.json`,
            and `length_ratios.png`.
        held_out: Paths of test sets; a pair is dropped where a side equals one of their lines, or
            a column of a TSV, but for case, accents, digits, punctuation and spaces.
        overwrite: Whether an earlier `output` of this function is replaced.
        progress: Called with the stage and the bytes of text that it has done.
        **options: Fields of `CleanOptions`.

    Returns:
        The report: for each corpus `pairs`, `kept` and the counts of `dropped` by rule, and for
        each rule first `examples` with their lines.

    Raises:
        InputError: A file or an option is not what it must be, or a package is missing.
    """
    checked_options = CleanOptions(**options)
    checked_options.check_packages()
    require("matplotlib.figure", "Matplotlib, for the picture of length ratios,", "clean")
    names = _output_names(corpora)
    known = frozenset(_hashes_of_lines(held_out))
    with OwnedFolder(output, _REPORT).staged(overwrite) as staging:
        with tempfile.TemporaryDirectory(dir=staging) as work:
            reasons, hashes = _examined(
                corpora, checked_options, known, pathlib.Path(work), progress
            )
            if checked_options.duplicates != "keep":
                _drop_repeated(hashes, reasons)
            report = _write(corpora, names, reasons, staging, progress)
            del reasons, hashes
        report["options"] = dataclasses.asdict(checked_options)
        files = [name for each in names for name in each]
        report["files"] = [*files, _PICTURE, _REPORT]
        text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
        (staging / _REPORT).write_text(text, encoding="utf-8")
    return {"output": os.fspath(output), **report}


def _output_names(corpora):
    names = [
        [os.path.basename(path).removesuffix(".gz") for path in corpus if path is not None]
        for corpus in corpora
    ]
    every = [name for each in names for name in each]
    for name in every:
        if every.count(name) > 1 or name in (_REPORT, _PICTURE):
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
    """Yields the pairs of all corpora in lists."""
    pairs = itertools.chain.from_iterable(iterate_pairs(*corpus) for corpus in corpora)
    return iter(lambda: list(itertools.islice(pairs, _PAIRS_AT_ONCE)), [])


def _size(pairs):
    return len("\n".join(map("\n".join, pairs)).encode()) + 1


def _examined(corpora, options, held_out, work, progress):
    """Returns the reason and the hash of each pair, in files: uint8 and uint64 `(pairs,)`."""
    examine = functools.partial(_examine, options=options, held_out=held_out)
    with open(work / "reasons", "wb") as reasons, open(work / "hashes", "wb") as hashes:
        processes = options.processes or os.cpu_count() or 1
        for found, size in _map(examine, _chunks(corpora), processes):
            for file, array in zip((reasons, hashes), found, strict=True):
                array.tofile(file)
            progress("rules", size)
    return np.memmap(work / "reasons", np.uint8, "r+"), np.memmap(work / "hashes", np.uint64, "r")


def _map(function, chunks, processes):
    """Yields the result and the size of each chunk in order, with a few chunks in memory."""
    if processes == 1:
        yield from ((function(chunk), _size(chunk)) for chunk in chunks)
        return
    # Not forked: a process that has loaded TensorFlow has threads. This one alone ends at Ctrl-C.
    context, ignored = multiprocessing.get_context("spawn"), (signal.SIGINT, signal.SIG_IGN)
    with ProcessPoolExecutor(processes, context, signal.signal, ignored) as pool:
        waiting: collections.deque = collections.deque()
        for chunk in itertools.chain(chunks, [None] * 3 * processes):
            if chunk is not None:
                waiting.append((pool.submit(function, chunk), _size(chunk)))
            if waiting and (chunk is None or len(waiting) > 3 * processes):
                done, size = waiting.popleft()
                yield done.result(), size


def _examine(pairs, options, held_out):
    reasons, hashes = np.zeros(len(pairs), np.uint8), np.zeros(len(pairs), np.uint64)
    for place, pair in enumerate(pairs):
        reason = options.broken(*pair)
        if reason is None and held_out and not held_out.isdisjoint(map(_hash_of, pair)):
            reason = "held_out"
        reasons[place] = _CODES[reason]
        letters = tuple(map(skeleton, pair)) if options.duplicates == "near" else pair
        hashes[place] = pair_hash(*(letters if any(letters) else pair))
    return reasons, hashes


def _drop_repeated(hashes, reasons):
    """Notes the reason of pairs whose hash an earlier kept pair has, some hashes at a time."""
    parts = -(-len(hashes) // _HASHES_AT_ONCE)
    for part in range(parts):
        found = []
        for start in range(0, len(hashes), _HASHES_AT_ONCE):
            some = slice(start, start + _HASHES_AT_ONCE)
            is_here = (hashes[some] % np.uint64(parts) == part) & (reasons[some] == 0)
            found.append(start + np.flatnonzero(is_here))
        places = np.concatenate(found)
        reasons[places[~are_first([hashes[places]])]] = _CODES["duplicate"]


def _write(corpora, names, reasons, staging, progress):
    """Writes the kept pairs and the picture; returns the report."""
    ratios, start, rows = np.zeros((2, len(_EDGES) - 1), np.int64), 0, []
    examples: dict[str, list] = {}
    for corpus, files in zip(corpora, names, strict=True):
        counts, first = np.zeros(len(_CODES), np.int64), start
        with contextlib.ExitStack() as stack:
            paths = [staging / name for name in files]
            outputs = [stack.enter_context(open(path, "wb")) for path in paths]
            for chunk in _chunks([corpus]):
                some = np.asarray(reasons[start : start + len(chunk)])
                counts += np.bincount(some, minlength=len(_CODES))
                ratios += _histograms(chunk, some == 0)
                for place in np.flatnonzero(some).tolist():
                    listed = examples.setdefault(_REASONS[some[place] - 1], [])
                    where = {"file": files[0], "line": start - first + place + 1}
                    pair = dict(zip(("source", "target"), chunk[place], strict=True))
                    listed += [{**where, **pair}] * (len(listed) < _EXAMPLES)
                kept = [chunk[place] for place in np.flatnonzero(some == 0)]
                columns = zip(*kept, strict=True) if len(files) == 2 else [map("\t".join, kept)]
                for output, lines in zip(outputs, columns, strict=False):  # none kept
                    output.write("".join(line + "\n" for line in lines).encode())
                start += len(chunk)
                progress("writing", _size(chunk))
        dropped = {name: int(n) for name, n in zip(_REASONS, counts[1:], strict=True) if n}
        row = {"files": files, "pairs": start - first, "kept": int(counts[0])}
        rows.append({**row, "dropped": dropped})
    _picture(ratios).savefig(staging / _PICTURE, dpi=120)
    return {"corpora": rows, "examples": examples}


def _histograms(pairs, kept):
    lengths = np.array([[len(side) + 1 for side in pair] for pair in pairs])
    logarithms = np.clip(np.log2(lengths[:, 1] / lengths[:, 0]), _EDGES[0], _EDGES[-1])
    return np.stack([np.histogram(logarithms[mask], _EDGES)[0] for mask in (kept, ~kept)])


def _picture(ratios):
    """Figure of the length ratios of kept and dropped pairs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    for counts, label in zip(ratios, ("kept", "dropped"), strict=True):
        axes.stairs(counts, _EDGES, fill=True, alpha=0.6, label=f"{label}: {counts.sum():,}")
    axes.set_xticks(range(-3, 4), ["⅛", "¼", "½", "1", "2", "4", "8"])
    axes.set(
        xlabel="characters of the target to one of the source", ylabel="pairs", yscale="symlog"
    )
    axes.legend()
    return figure
