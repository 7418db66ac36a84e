"""Subtitles in SubRip (`.srt`) and WebVTT (`.vtt`): sentences that run over several cues.

A sentence is translated whole, and its translation is divided over the cues that the sentence is
in. Numbers, times, settings and notes stay as they are, and so do tags and dashes around words.
"""

import bisect
import collections
import html
import itertools
import re
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import regex

from keras_transformer.documents.dividing import borders, columns, divided
from keras_transformer.documents.document import Document, Settings, replaced
from keras_transformer.documents.marked_texts import MarkedTexts
from keras_transformer.errors import InputError
from keras_transformer.text.language_codes import primary_language
from keras_transformer.text.sentences import has_letters, sentence_ends, space_after

MAX_LINES = 2
"""Lines of a cue whose text was changed."""
# What fits on a screen: a translation gets a second line if all lines of its source are shorter.
_LINE_COLUMNS = 42
_MAX_CUES = 8  # of one sentence: captions that machines make may have no full stop
_LONGEST_PAUSE = 5  # seconds between two cues of a sentence
_LINE = re.compile(r"([^\r\n]*)(\r\n?|\n|\Z)")
# As players read times: any number of digits, and any fraction or none.
_TIME = r"(?:(\d{1,9}): *)?(\d{1,9}): *(\d{1,9})(?:[.,:] *\d*)?"
_TIMES = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}")
_CLOCK = re.compile(r"\s*\d+:\d+:\d+[.,:]\d")
_TAG = re.compile(r"(</?[a-zA-Z][^<>]*>|<[\d:.]+>|\{\\[^{}]*\})")
_TAG_NAME = re.compile(r"<(/?)([a-zA-Z]+)")
_DASH = r"(?:[-‐‑–—](?:\s++|(?=[^\s\d-]))|(?:>|&gt;){2,}+\s*+)"  # A minus has a digit after it.
_MUSIC = "[♩-♬]"
# Before and after the words of a line: tags, a speaker's sign and signs of music.
_BEFORE = regex.compile(rf"(?:{_TAG.pattern}|{_DASH}|{_MUSIC}|#(?=\s)|\s)*+")
_AFTER = regex.compile(rf"(?r)(?:{_TAG.pattern}|{_MUSIC}|(?<=\s)#|\s)*+")  # It is read backwards.
_LEADING = regex.compile(rf"(?:{_DASH}|\s)*+")
_VOICE = r"<v[\s.>]"  # the tag of WebVTT that names a speaker
_NAME = r"\p{Lu}[\p{Lu}\p{M}\p{N}.#&'’ -]{1,30}+(?: ?\([^()]{1,30}\))?:(?!\S)"
_BEGIN = rf"(?<![^\r\n])(?:(?!{_VOICE}){_TAG.pattern}|[^\S\r\n])*+"  # of a line
_END = r"(?:</[^<>]*>|[^\S\r\n])*+(?![^\r\n])"
_OPENING, _CLOSING = r"\[(（【", r"\])）】"
_CAPTION = rf"[{_OPENING}][^{_OPENING}{_CLOSING}]*+[{_CLOSING}]:?"
# No sentence goes over the beginning or the end of these: captions in brackets that begin a line or
# follow a sentence, and music; over the beginnings of what a speaker says; over the ends of these.
_BORDER = regex.compile(
    rf"(?:(?:{_BEGIN}{_DASH}?|(?<=[.!?…][\"'”’»]{{0,2}}\s)){_CAPTION}|{_MUSIC})(?:</[^<>]*>|\s)*+"
    rf"|(?P<beginning>{_BEGIN}(?:{_DASH}|{_NAME}|#\s|[{_OPENING}])|{_VOICE})"
    rf"|(?P<end></v>\s*+|(?<=\s)#{_END}|{_BEGIN}[^\r\n{_OPENING}{_CLOSING}]*+[{_CLOSING}]{_END})"
)
_WORD = regex.compile(r"\p{L}+")
_LONG_WORD = 5  # letters of a word in capitals that is no abbreviation


# Spaces inside an element, at its beginning and end.
_OPEN_SPACE = regex.compile(r"(?<!\s)\s*+((?:<[a-zA-Z][^<>]*>)++)\s++")
_CLOSED_SPACE = regex.compile(r"(?<!\s)\s++((?:</[^<>]*>)++)\s*+")


class _Line(NamedTuple):
    """A line of a cue, from `start` to `stop` in the document."""

    start: int
    stop: int


class _Cue(NamedTuple):
    """A cue: when it is shown, in whole seconds, and its lines that have text."""

    start: int
    end: int
    lines: list[_Line]


class _Utterance:
    """Words of one speaker in one cue: the words between the tags at its beginning and end.

    Attributes:
        start: Offset in the document.
        stop: Offset of the end.
        text: Words and tags, with single spaces instead of the ends of lines.
        borders: Ascending offsets in `text` that no sentence goes over.
        max_lines: Number of lines that its translation may have.
    """

    def __init__(self, document: str, lines: list[_Line], borders: list[int], max_lines: int):
        self.start, self.stop = lines[0].start, lines[-1].stop
        before, after = _inner(document[self.start : self.stop])
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


def _cues(text: str, is_webvtt: bool) -> tuple[list[_Cue], list[int]]:
    """Returns the cues that have text, and the numbers of lines with times that cannot be read.

    An empty line ends a cue of WebVTT. In SubRip, text after an empty line belongs to the cue, too.
    """
    matches = list(_LINE.finditer(text))
    contents = [match[1].strip() for match in matches]
    cues: list[_Cue] = []
    damaged: list[int] = []
    cue, is_first = None, True  # of a block, or after the block's number
    for number, (match, content, following) in enumerate(
        itertools.zip_longest(matches, contents, contents[1:], fillvalue=""), 1
    ):
        if times := _TIMES.match(content):
            cue = _Cue(_seconds(*times.groups()[:3]), _seconds(*times.groups()[3:]), [])
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
            cue.lines.append(_Line(start, start + len(content)))
        is_first = not content or content.isdigit()
    return cues, damaged


def _seconds(hours, minutes, seconds):
    return 3600 * int(hours or 0) + 60 * int(minutes) + int(seconds)


def _is_time(content):
    return "-->" in content or _CLOCK.match(content) is not None


def _utterances(document: str, cues: list[_Cue]) -> Iterator[_Utterance]:
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
    firsts, index = [], 0
    for number, line in enumerate(lines):
        index = bisect.bisect_left(borders, lines[number - 1].stop) if number else 0
        if not number or (index < len(borders) and borders[index] <= line.start):
            firsts.append(number)
    for first, last in itertools.pairwise([*firsts, len(lines)]):
        low = lines[first - 1].stop if first else 0
        high = lines[last].start if last < len(lines) else len(document)
        inner = borders[bisect.bisect_left(borders, low) : bisect.bisect_right(borders, high)]
        count = last - first if len(firsts) > 1 else MAX_LINES
        yield _Utterance(document, lines[first:last], inner, min(count, MAX_LINES))


def _in_capitals(text: str) -> bool | None:
    """Returns whether a line is in capitals, as captions of sounds are; None if nothing tells.

    An abbreviation, or `I`, in a line of its own tells nothing.
    """
    words = _WORD.findall(_TAG.sub("", text))
    if any(sign.islower() for word in words for sign in word):
        return False
    words = [word for word in words if len(word) > 1 and word.isupper()]
    return True if len(words) > 1 or any(len(word) >= _LONG_WORD for word in words) else None


class _Part(NamedTuple):
    """A part of a sentence: `start` to `stop` of an utterance's text."""

    utterance: int
    start: int
    stop: int
    text: str


class Subtitles(Document):
    """A file of subtitles.

    Args:
        text: The document.
        settings: Its settings.
        is_webvtt: Whether its format is WebVTT, where `&` and `<` are written as in HTML.
    """

    def __init__(self, text: str, settings: Settings, is_webvtt: bool):
        self._text, self._is_webvtt = text, is_webvtt
        cues, damaged = _cues(text, is_webvtt)
        if text.strip() and not cues and (damaged or not text.startswith("WEBVTT")):
            rule = "expected lines with times, such as 00:00:01,000 --> 00:00:02,500"
            raise InputError(f"{settings.name}: {rule}. Received: no such line.")
        if damaged:
            message = f"cues whose times cannot be read were left as they are: {len(damaged)}"
            warnings.warn(f"{message}, the first in line {damaged[0]}", stacklevel=2)
        cues = [cue for cue in cues if cue.lines]
        self._utterances = list(_utterances(text, cues))
        lines = (text[start:stop] for cue in cues for start, stop in cue.lines)
        self._width = max(_LINE_COLUMNS, max(map(_width, lines), default=0))
        language = primary_language(settings.source_language)
        self._sentences = [
            parts
            for parts in _sentences(self._utterances, language)
            if has_letters("".join(part.text for part in parts))
        ]
        marked = [self._marked(" ".join(part.text for part in parts)) for parts in self._sentences]
        self._tags = [tags for _, tags in marked]
        self._texts = MarkedTexts([source for source, _ in marked], settings.markup_step)
        self.texts, self.options = self._texts.texts, dict(self._texts.options)
        if settings.markup_step is None:
            self.options["alignment"] = True

    def written(self, translations):
        restored = self._texts.restored(translations)
        aligned = translations if self.options.get("alignment") else [None] * len(restored)
        new_parts: list[list[tuple[_Part, str]]] = [[] for _ in self._utterances]
        for parts, tags, text, translation in zip(
            self._sentences, self._tags, restored, aligned, strict=True
        ):
            sources = [part.text for part in parts]
            text = self._unmarked(text, tags)
            if text is None or self._signs(text) == self._signs("".join(sources)):
                texts = sources
            elif self._is_webvtt and len(sources) > 1:  # The model has not seen `&amp;`.
                texts = divided(html.unescape(text), [*map(html.unescape, sources)], translation)
                texts = [html.escape(part, quote=False) for part in texts]
            else:
                texts = divided(text, sources, translation)
            for part, new_text in zip(parts, texts, strict=True):
                new_parts[part.utterance].append((part, new_text))
        pairs = [
            ((utterance.start, utterance.stop), self._written(utterance, pairs))
            for utterance, pairs in zip(self._utterances, new_parts, strict=True)
        ]
        spans, new_texts = zip(*pairs, strict=True) if pairs else ((), ())
        return replaced(self._text, spans, new_texts)

    def _marked(self, text):
        """Returns a text in HTML with numbered tags, and what the tags stand for."""
        pieces, literals, position = [], {}, 0
        tags = _tags(text)
        for number, (start, stop, partner) in enumerate(tags):
            words = text[position:start]
            pieces.append(words if self._is_webvtt else html.escape(words, quote=False))
            tag = f'<x{number} translate="no"></x{number}>'
            if partner is not None:
                tag = f"<x{number}>" if number < partner else f"</x{partner}>"
            pieces.append(tag)
            literals[tag] = text[start:stop]
            position = stop
        words = text[position:]
        pieces.append(words if self._is_webvtt else html.escape(words, quote=False))
        return "".join(pieces), literals

    def _unmarked(self, text, literals):
        """Returns a translation as the document has it, None if it has other tags."""
        left = dict(literals)
        pieces = re.split(r'(<x\d+ translate="no"></x\d+>|</?x\d+>)', text)
        for number in range(1, len(pieces), 2):
            if (literal := left.pop(pieces[number], None)) is None:
                return None
            pieces[number] = literal
        if left:
            return None
        if not self._is_webvtt:
            pieces[::2] = map(html.unescape, pieces[::2])
        return " ".join("".join(pieces).split())

    def _signs(self, text):
        """Returns a text without spaces, and in WebVTT without the forms of its characters."""
        return "".join((html.unescape(text) if self._is_webvtt else text).split())

    def _written(self, utterance, pairs):
        """Returns an utterance with the translations of its parts, in lines."""
        source = self._text[utterance.start : utterance.stop]
        if all(part.text == new_text for part, new_text in pairs):
            return source
        pieces, position = [], 0
        for part, new_text in pairs:
            space = utterance.text[position : part.start]
            pieces += [space_after(space, pieces[-1]) if pieces else space, new_text]
            position = part.stop
        text = "".join([*pieces, utterance.text[position:]])
        text = _OPEN_SPACE.sub(r" \1", _CLOSED_SPACE.sub(r"\1 ", text))
        return self._in_lines(text.strip(), utterance)

    def _in_lines(self, text, utterance):
        """Returns a text in as many lines as the source, but at most `max_lines`."""
        lengths = utterance.lengths
        has_long_line = len(lengths) == 1 and _width(text) > self._width
        if len(lengths) > utterance.max_lines or has_long_line:
            lengths = [len(text)] * utterance.max_lines
        is_tag = _is_tag(text)
        places = [(start, stop) for start, stop in borders(text) if not is_tag[start]]
        lines = divided(text, ["x" * length for length in lengths], places=places)
        line_break = utterance.breaks[0] if utterance.breaks else _line_break(self._text)
        return line_break.join(filter(None, lines))


def _tags(text: str) -> list[tuple[int, int, int | None]]:
    """Returns start and end of each tag, and the number of the other tag of its element."""
    matches, partners = list(_TAG.finditer(text)), dict[int, int]()
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


def _is_tag(text: str) -> bytearray:
    """Returns for each character whether it is in a tag."""
    result = bytearray(len(text))
    for match in _TAG.finditer(text):
        result[match.start() : match.end()] = b"\1" * len(match[0])
    return result


def _inner(content: str) -> tuple[int, int]:
    """Returns where the words of an utterance begin and end, between tags that belong together."""
    before, after = _BEFORE.match(content).end(), _AFTER.match(content).start()
    if before >= after:
        return 0, len(content)
    tags = _tags(content)
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


def _width(text):
    return columns(_TAG.sub("", text))


def _line_break(text):
    return next((match[2] for match in _LINE.finditer(text) if match[2]), "\n")


def _sentences(utterances: list[_Utterance], language: str | None) -> Iterator[list[_Part]]:
    """Yields the parts of each sentence, in order; nearly all sentences have one part."""
    run: list[tuple[int, int, int]] = []  # parts of utterances that may share sentences
    for number, utterance in enumerate(utterances):
        size, borders = len(utterance.text), {*utterance.borders}
        for start, stop in itertools.pairwise(sorted({0, *borders, size})):
            if start in borders:
                yield from _sentences_of(utterances, run, language)
                run = []
            run.append((number, start, stop))
        if size in borders:
            yield from _sentences_of(utterances, run, language)
            run = []
    yield from _sentences_of(utterances, run, language)


def _sentences_of(utterances, run, language):
    texts = [utterances[number].text[start:stop] for number, start, stop in run]
    whole = " ".join(texts)
    stops = list(itertools.accumulate(len(text) + 1 for text in texts))
    index = start = 0
    for end in _ends(whole, language):
        parts: list[_Part] = []
        while start < end:
            stop = min(stops[index] - 1, end)
            begin = stops[index] - 1 - len(texts[index])  # of the utterance's part
            text = whole[start:stop]
            before, after = _inner(text)  # without tags of elements that other sentences share
            words = text[before:after].strip()
            if words:
                number, offset, _ = run[index]
                first = offset + start - begin + text.index(words, before)
                parts.append(_Part(number, first, first + len(words), words))
            start = stop
            if start >= stops[index] - 1:
                start, index = start + 1, index + 1
        yield from _bounded(parts)


def _ends(text, language):
    """Returns where sentences end, which tags between them do not hide."""
    without_tags = _TAG.sub("", text)
    if len(without_tags) == len(text):
        return sentence_ends(text, language)
    places = [place for place, is_tag in enumerate(_is_tag(text)) if not is_tag]
    ends = sentence_ends(without_tags, language)
    return [*(places[end] for end in ends[:-1]), len(text)]


def _bounded(parts):
    """Yields the parts of a sentence, apart where tags are in one of several parts."""
    if len(parts) > 1 and any(_TAG.search(part.text) for part in parts):
        yield from ([part] for part in parts)
        return
    for first in range(0, len(parts), _MAX_CUES):
        yield parts[first : first + _MAX_CUES]
