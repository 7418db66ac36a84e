"""Cues of subtitles: their times, and the words of each speaker in them."""

import bisect
import collections
import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

import regex

_MAX_LINES = 2  # of an utterance whose text was changed
_LONGEST_PAUSE = 5  # seconds between two cues of a sentence
LINE = re.compile(r"([^\r\n]*)(\r\n?|\n|\Z)")
"""A line, and how it ends."""
# As players read times: any number of digits, and any fraction or none.
_TIME = r"(?:(\d{1,9}): *)?(\d{1,9}): *(\d{1,9})(?:[.,:] *\d*)?"
_TIMES = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}")
_CLOCK = re.compile(r"\s*\d+:\d+:\d+[.,:]\d")
TAG = re.compile(r"(</?[a-zA-Z][^<>]*>|<[\d:.]+>|\{\\[^{}]*\})")
"""A tag of a format, or a time inside a cue."""
_TAG_NAME = re.compile(r"<(/?)([a-zA-Z]+)")
_DASH = r"(?:[-‐‑–—](?:\s++|(?=[^\s\d-]))|(?:>|&gt;){2,}+\s*+)"  # A minus has a digit after it.
_MUSIC = "[♩-♬]"
# Before and after the words of a line: tags, a speaker's sign and signs of music.
_BEFORE = regex.compile(rf"(?:{TAG.pattern}|{_DASH}|{_MUSIC}|#(?=\s)|\s)*+")
_AFTER = regex.compile(rf"(?r)(?:{TAG.pattern}|{_MUSIC}|(?<=\s)#|\s)*+")  # It is read backwards.
_LEADING = regex.compile(rf"(?:{_DASH}|\s)*+")
_VOICE = r"<v[\s.>]"  # the tag of WebVTT that names a speaker
_NAME = r"\p{Lu}[\p{Lu}\p{M}\p{N}.#&'’ -]{1,30}+(?: ?\([^()]{1,30}\))?:(?!\S)"
_BEGIN = rf"(?<![^\r\n])(?:(?!{_VOICE}){TAG.pattern}|[^\S\r\n])*+"  # of a line
_END = r"(?:</[^<>]*>|[^\S\r\n])*+(?![^\r\n])"
_OPENING, _CLOSING = r"\[(（【", r"\])）】"
_CAPTION = rf"[{_OPENING}][^{_OPENING}{_CLOSING}]*+[{_CLOSING}]:?"
# No sentence goes over these places: both ends of music, and of captions in brackets that begin a
# line or follow a sentence; where a speaker or a caption begins; where a voice or a caption ends.
_BORDER = regex.compile(
    rf"(?:(?:{_BEGIN}{_DASH}?|(?<=[.!?…][\"'”’»]{{0,2}}\s)){_CAPTION}|{_MUSIC})(?:</[^<>]*>|\s)*+"
    rf"|(?P<beginning>{_BEGIN}(?:{_DASH}|{_NAME}|#\s|[{_OPENING}])|{_VOICE})"
    rf"|(?P<end></v>\s*+|(?<=\s)#{_END}|{_BEGIN}[^\r\n{_OPENING}{_CLOSING}]*+[{_CLOSING}]{_END})"
)
_WORD = regex.compile(r"\p{L}+")
_LONG_WORD = 5  # letters of a word in capitals that is no abbreviation


class Line(NamedTuple):
    """A line of a cue, from `start` to `stop` in the document."""

    start: int
    stop: int


class Cue(NamedTuple):
    """A cue: when it is shown, in whole seconds, and its lines that have text."""

    start: int
    end: int
    lines: list[Line]


class Utterance:
    """Words of one speaker in one cue: the words between the tags at its beginning and end.

    Attributes:
        start: Offset in the document.
        stop: Offset of the end.
        text: Words and tags, with single spaces instead of the ends of lines.
        borders: Ascending offsets in `text` that no sentence goes over.
        max_lines: Number of lines that its translation may have.
    """

    def __init__(self, document: str, lines: list[Line], borders: list[int], max_lines: int):
        self.start, self.stop = lines[0].start, lines[-1].stop
        before, after = inner_span(document[self.start : self.stop])
        self.start, self.stop = self.start + before, self.start + after
        lines = [line for line in lines if line.stop > self.start and line.start < self.stop]
        starts = [max(line.start, self.start) for line in lines]
        parts = [
            document[start : min(line.stop, self.stop)].strip()
            for start, line in zip(starts, lines, strict=True)
        ]
        self.text = " ".join(parts)
        self.breaks = [document[i.stop : j.start] for i, j in itertools.pairwise(lines)]
        self.lengths = [len(part) for part in parts]
        self.max_lines = max_lines
        offsets = [0, *itertools.accumulate(length + 1 for length in self.lengths)]
        self.borders = []
        for border in borders:
            number = max(bisect.bisect_right(starts, border) - 1, 0)
            offset = max(border - starts[number], 0)
            self.borders.append(offsets[number] + min(offset, self.lengths[number]))


def read_cues(text: str, is_webvtt: bool) -> tuple[list[Cue], list[int]]:
    """Returns the cues that have text, and the numbers of lines with times that cannot be read.

    An empty line ends a cue of WebVTT. In SubRip, text after an empty line belongs to the cue, too.
    """
    matches = list(LINE.finditer(text))
    contents = [match[1].strip() for match in matches]
    cues: list[Cue] = []
    damaged: list[int] = []
    cue = None
    is_first = True  # of a block, or after the block's number
    for number, (match, content, following) in enumerate(
        itertools.zip_longest(matches, contents, contents[1:], fillvalue=""), 1
    ):
        if times := _TIMES.match(content):
            cue = Cue(_seconds(*times.groups()[:3]), _seconds(*times.groups()[3:]), [])
            cues.append(cue)
        elif _is_time(content) and (is_first or (is_webvtt and "-->" in content)):
            cue = None  # Its text is no part of the cue before it.
            damaged.append(number)
        elif not content:
            cue = cue if match[1] or not is_webvtt else None
        elif cue is not None and not (
            _is_time(following) if content.isdigit() else is_first and _TIMES.match(following)
        ):
            start = match.start() + match[1].index(content)
            cue.lines.append(Line(start, start + len(content)))
        is_first = not content or content.isdigit()
    return cues, damaged


def _seconds(hours, minutes, seconds):
    return 3600 * int(hours or 0) + 60 * int(minutes) + int(seconds)


def _is_time(content):
    return "-->" in content or _CLOCK.match(content) is not None


def utterances_of(document: str, cues: list[Cue]) -> Iterator[Utterance]:
    """Yields what the speakers of each cue say."""
    before, was_in_capitals = None, None
    for cue in cues:
        start = cue.lines[0].start
        borders = []
        if before and not before.start <= cue.start <= before.end + _LONGEST_PAUSE:
            borders.append(start)
        before = cue
        for line in cue.lines:
            in_capitals = _in_capitals(document[line.start : line.stop])
            if in_capitals is not None:
                if was_in_capitals not in (None, in_capitals):
                    borders.append(line.start)
                was_in_capitals = in_capitals
        for match in _BORDER.finditer(document[start : cue.lines[-1].stop]):
            if match.lastgroup != "end":
                borders.append(start + match.start())
            if match.lastgroup != "beginning":
                borders.append(start + match.end())
        borders.sort()
        yield from _utterances_of(document, cue.lines, borders)


def _utterances_of(document, lines, borders):
    """Yields the utterances of a cue, which begin at lines with a border before them."""

    def borders_between(start, stop):
        return borders[bisect.bisect_left(borders, start) : bisect.bisect_right(borders, stop)]

    stops = [0, *(line.stop for line in lines)]  # of the line before each line
    firsts = [
        number
        for number, line in enumerate(lines)
        if number == 0 or borders_between(stops[number], line.start)
    ]
    for first, last in itertools.pairwise([*firsts, len(lines)]):
        end = lines[last].start if last < len(lines) else len(document)
        count = last - first if len(firsts) > 1 else _MAX_LINES
        utterance_borders = borders_between(stops[first], end)
        yield Utterance(document, lines[first:last], utterance_borders, min(count, _MAX_LINES))


def _in_capitals(text: str) -> bool | None:
    """Returns whether a line is in capitals, as captions of sounds are; None if nothing tells.

    An abbreviation, or `I`, in a line of its own tells nothing.
    """
    # Text recognition writes `l` for `I`.
    words = _WORD.findall(TAG.sub("", text).replace("l", "I"))
    if any(sign.islower() for word in words for sign in word):
        return False
    words = [word for word in words if len(word) > 1 and word.isupper()]
    return True if len(words) > 1 or any(len(word) >= _LONG_WORD for word in words) else None


def tags_of(text: str) -> list[tuple[int, int, int | None]]:
    """Returns start and end of each tag, and the number of the other tag of its element."""
    matches, partners = list(TAG.finditer(text)), dict[int, int]()
    open_tags: list[tuple[int, str]] = []
    open_names: collections.Counter[str] = collections.Counter()
    for number, match in enumerate(matches):
        name = _TAG_NAME.match(match[0])
        if name is None:
            continue
        if not name[1]:
            open_tags.append((number, name[2]))
            open_names[name[2]] += 1
        elif open_names[name[2]]:
            while (opening := open_tags.pop())[1] != name[2]:
                open_names[opening[1]] -= 1  # a tag without an end
            open_names[name[2]] -= 1
            partners[number], partners[opening[0]] = opening[0], number
    return [(*match.span(), partners.get(number)) for number, match in enumerate(matches)]


def inner_span(content: str) -> tuple[int, int]:
    """Returns where the words of an utterance begin and end, between tags that belong together."""
    before, after = _BEFORE.match(content).end(), _AFTER.match(content).start()
    if before >= after:
        return 0, len(content)
    tags = tags_of(content)
    for start, _, partner in tags:
        if start < before and partner is not None and before <= tags[partner][0] < after:
            before = start  # The element ends among the words.
    for _, stop, partner in reversed(tags):
        if stop > after and partner is not None and tags[partner][0] >= before:
            after = stop
    removed = (partner for start, _, partner in tags if start < before and partner is not None)
    if any(before <= tags[partner][0] < after for partner in removed):
        return len(_LEADING.match(content)[0]), len(content)
    return before, after
