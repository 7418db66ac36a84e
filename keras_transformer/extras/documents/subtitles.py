"""Subtitles in SubRip (`.srt`) and WebVTT (`.vtt`): sentences that run over several cues.

A sentence is translated whole, and its translation is divided over the cues that the sentence is
in. Numbers, times, settings and notes stay as they are, and so do tags and dashes around words.
"""

import html
import itertools
import re
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import regex

from keras_transformer.base.errors import InputError
from keras_transformer.extras.documents.cues import (
    LINE,
    TAG,
    Utterance,
    inner_span,
    read_cues,
    tags_of,
    utterances_of,
)
from keras_transformer.extras.documents.dividing import borders, columns, divided
from keras_transformer.extras.documents.document import Document, Settings, replaced
from keras_transformer.extras.documents.marked_texts import MarkedTexts
from keras_transformer.text.language_codes import primary_language
from keras_transformer.text.sentences import has_letters, sentence_ends, space_after

# What fits on a screen: a longer line becomes two, unless the document has longer lines, too.
_LINE_COLUMNS = 42
_MAX_CUES = 8  # of one sentence: captions that machines make may have no full stop
# Spaces inside an element, at its beginning and end.
_OPEN_SPACE = regex.compile(r"(?<!\s)\s*+((?:<[a-zA-Z][^<>]*>)++)\s++")
_CLOSED_SPACE = regex.compile(r"(?<!\s)\s++((?:</[^<>]*>)++)\s*+")


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
        cues, damaged = read_cues(text, is_webvtt)
        if text.strip() and not cues and (damaged or not text.startswith("WEBVTT")):
            rule = "expected lines with times, such as 00:00:01,000 --> 00:00:02,500"
            raise InputError(f"{settings.name}: {rule}. Received: no such line.")
        if damaged:
            message = f"cues whose times cannot be read stay as they are: {len(damaged)}"
            message = f"{settings.name}: {message}, the first in line {damaged[0]}"
            warnings.warn(message, stacklevel=2)
        cues = [cue for cue in cues if cue.lines]
        self._utterances = list(utterances_of(text, cues))
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
        self._texts = MarkedTexts([source for source, _ in marked], settings.fallback_step)
        self.texts = self._texts.texts
        self.forced_options = dict(self._texts.forced_options)
        if settings.fallback_step is None:
            self.forced_options["alignment"] = True

    def pairs(self, translations, states):
        return self._texts.pairs(translations)

    def written(self, translations):
        restored = self._texts.restored(translations)
        aligned = translations if self.forced_options.get("alignment") else [None] * len(restored)
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
        tags = tags_of(text)
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


def _is_tag(text: str) -> bytearray:
    """Returns for each character whether it is in a tag."""
    result = bytearray(len(text))
    for match in TAG.finditer(text):
        result[match.start() : match.end()] = b"\1" * len(match[0])
    return result


def _width(text):
    return columns(TAG.sub("", text))


def _line_break(text):
    return next((match[2] for match in LINE.finditer(text) if match[2]), "\n")


def _sentences(utterances: list[Utterance], language: str | None) -> Iterator[list[_Part]]:
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
            before, after = inner_span(text)  # without tags of elements that other sentences share
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
    without_tags = TAG.sub("", text)
    if len(without_tags) == len(text):
        return sentence_ends(text, language)
    places = [place for place, is_tag in enumerate(_is_tag(text)) if not is_tag]
    ends = sentence_ends(without_tags, language)
    return [*(places[end] for end in ends[:-1]), len(text)]


def _bounded(parts):
    """Yields the parts of a sentence, apart where tags are in one of several parts."""
    if len(parts) > 1 and any(TAG.search(part.text) for part in parts):
        yield from ([part] for part in parts)
        return
    for first in range(0, len(parts), _MAX_CUES):
        yield parts[first : first + _MAX_CUES]
