"""Subtitles in SubRip (`.srt`) and WebVTT (`.vtt`): sentences that run over several cues.

A sentence is translated whole, and its translation is divided over the cues that the sentence is
in. Numbers, times, settings and notes stay as they are, and so do tags and dashes around words.
"""

import collections
import html
import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

import regex

from keras_transformer.documents.dividing import borders, divided
from keras_transformer.documents.document import Document, Settings, replaced
from keras_transformer.documents.marked_texts import MarkedTexts
from keras_transformer.text.language_codes import primary_language
from keras_transformer.text.sentences import has_letters, sentence_ends, space_after

MAX_LINES = 2
"""Lines of a cue whose text was changed."""
_LINE_COLUMNS = 42  # what fits on a screen; a longer translation gets a second line
_MAX_CUES = 8  # of one sentence: captions that machines make may have no full stop
_LINE = re.compile(r"([^\r\n]*)(\r\n?|\n|\Z)")
_TIME = r"(?:\d+:)?\d{1,2}:\d{2}[.,]\d{1,3}"
_TIMES = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}")
_TAG = re.compile(r"(</?[a-zA-Z][^<>]*>|<[\d:.]+>|\{\\[^{}]*\})")
_DASH = r"[-‐‑–—](?:\s++|(?=[^\s\d-]))"  # A minus has a digit after it.
# Before and after the words of a line: tags, a speaker's dash and signs of music.
_BEFORE = regex.compile(rf"(?:{_TAG.pattern}|{_DASH}|[♪♫#]|\s)*+")
_AFTER = regex.compile(rf"(?r)(?:{_TAG.pattern}|[♪♫#]|\s)*+")  # It is read backwards.
_SPEAKER = regex.compile(rf"(?:{_TAG.pattern}|\s)*+(?:{_DASH}|<v[\s.])")
_LEADING = regex.compile(rf"(?:{_DASH}|\s)*+")
_TAG_NAME = re.compile(r"<(/?)([a-zA-Z]+)")


class _Line(NamedTuple):
    """A line of a cue, from `start` to `stop` in the document."""

    start: int
    stop: int


class _Utterance:
    """Words of one speaker in one cue: the words between the tags at its beginning and end.

    Attributes:
        start: Offset in the document.
        stop: Offset of the end.
        text: Words and tags, with single spaces instead of the ends of lines.
        is_begun: Whether it begins with the sign of another speaker.
        max_lines: Number of lines that its translation may have.
    """

    def __init__(self, document: str, lines: list[_Line], max_lines: int):
        self.start, self.stop = lines[0].start, lines[-1].stop
        content = document[self.start : self.stop]
        self.is_begun = _SPEAKER.match(content) is not None
        before, after = _inner(content)
        self.start, self.stop = self.start + before, self.start + after
        lines = [line for line in lines if line.stop > self.start and line.start < self.stop]
        parts = [
            document[max(line.start, self.start) : min(line.stop, self.stop)].strip()
            for line in lines
        ]
        self.text = " ".join(parts)
        self.breaks = [document[i.stop : j.start] for i, j in itertools.pairwise(lines)]
        self.lengths = [len(part) for part in parts]
        self.max_lines = max_lines


def _cues(text: str, is_webvtt: bool) -> Iterator[list[_Line]]:
    """Yields the lines of each cue that has text.

    In SubRip, text after an empty line belongs to the cue, too.
    """
    matches = list(_LINE.finditer(text))
    are_times = [_TIMES.match(match[1]) is not None for match in matches]
    cue: list[_Line] | None = None
    for match, is_time, is_next_time in itertools.zip_longest(matches, are_times, are_times[1:]):
        content = match[1].strip()
        if is_time:
            if cue:
                yield cue
            cue = []
        elif not content:
            if cue and is_webvtt:
                yield cue
            cue = None if is_webvtt else cue
        elif cue is not None and not (is_next_time and content.isdigit()):
            start = match.start() + match[1].index(content)
            cue.append(_Line(start, start + len(content)))
    if cue:
        yield cue


def _utterances(text: str, lines: list[_Line]) -> list[_Utterance]:
    """Returns what the speakers of a cue say: each begins a line with a dash or a voice."""
    groups: list[list[_Line]] = []
    for line in lines:
        if not groups or _SPEAKER.match(text, line.start, line.stop):
            groups.append([])
        groups[-1].append(line)
    max_lines = MAX_LINES if len(groups) == 1 else 1
    return [_Utterance(text, group, max_lines) for group in groups]


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
        cues = [_utterances(text, lines) for lines in _cues(text, is_webvtt)]
        self._utterances = list(itertools.chain.from_iterable(cues))
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
            if text is None or text == " ".join(" ".join(sources).split()):
                texts = sources
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
        text = "".join([*pieces, utterance.text[position:]]).strip()
        return self._in_lines(text, utterance)

    def _in_lines(self, text, utterance):
        """Returns a text in as many lines as the source, but at most `max_lines`."""
        size, lengths = len(_TAG.sub("", text)), utterance.lengths
        has_long_line = size > max(_LINE_COLUMNS, len(utterance.text)) and len(lengths) == 1
        if len(lengths) > utterance.max_lines or has_long_line:
            lengths = [size] * utterance.max_lines
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


def _line_break(text):
    return next((match[2] for match in _LINE.finditer(text) if match[2]), "\n")


def _sentences(utterances: list[_Utterance], language: str | None) -> Iterator[list[_Part]]:
    """Yields the parts of each sentence, in order; nearly all sentences have one part."""
    run: list[int] = []  # utterances that may share sentences
    for number, utterance in enumerate(utterances):
        if run and utterance.is_begun:
            yield from _sentences_of(utterances, run, language)
            run = []
        run.append(number)
    yield from _sentences_of(utterances, run, language)


def _sentences_of(utterances, run, language):
    texts = [utterances[number].text for number in run]
    whole = " ".join(texts)
    stops = list(itertools.accumulate(len(text) + 1 for text in texts))
    index = start = 0
    for end in _ends(whole, language):
        parts: list[_Part] = []
        while start < end:
            stop = min(stops[index] - 1, end)
            begin = stops[index] - 1 - len(texts[index])  # of the utterance
            text = whole[start:stop]
            before, after = _inner(text)  # without tags of elements that other sentences share
            words = text[before:after].strip()
            if words:
                first = start - begin + text.index(words, before)
                parts.append(_Part(run[index], first, first + len(words), words))
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
