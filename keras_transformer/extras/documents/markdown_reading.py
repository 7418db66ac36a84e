"""Reads Markdown: the marks of a content become pieces, and a translation is parsed to check it."""

import collections
import functools
import html
import re
from collections.abc import Sequence
from typing import Any

from keras_transformer.extras.documents.markdown_lines import Content, Piece
from keras_transformer.extras.documents.markdown_parser import parser, with_partners
from keras_transformer.extras.documents.markdown_passage import Parsed, Passage, without_spaces

# Kinds of pieces by the type of their token. Others are elements with two ends, or copied.
_KINDS = {"softbreak": "line", "hardbreak": "break", "text_special": "sign"}
# What readers read as a word of the sentence is a word for the model, too.
_WORDS = {"code_inline": "x", "link_open": "x", "kept_element": "x"}
# Characters of a mark before and after the span of its token, which is that of one sign.
_MARGINS = {"strong_open": (1, 0), "strong_close": (0, 1)}


def check_content(
    references: dict[str, Any], around: tuple[str, str] | None, content: str
) -> Parsed:
    """Parses the content of a block; returns its blocks and marks, and its text."""
    # A content must not change what other contents refer to.
    environment = {"references": collections.ChainMap({}, references)}
    if around is None:
        tokens = parser().parseInline(content, environment)
    else:
        tokens = parser().parse(content.join(around), environment)
    marks, text = _marks_and_text(tokens)
    return Parsed([*(token.type for token in tokens), *sorted(marks)], text)


def _check_image(references, content):
    """Parses the text of an image as `check_content` does."""
    environment = {"references": collections.ChainMap({}, references)}
    (token,) = parser().parseInline(f"![{content}](x)", environment)
    marks, text = _marks_and_text(token.children)
    return Parsed(sorted([*(child.type for child in token.children), *marks]), text)


def _marks_and_text(tokens):
    """Returns the marks in the children of tokens, and their text without white space."""
    marks, texts = [], []
    for token in tokens:
        is_address = False
        for child in token.children or ():
            if child.type in ("text", "text_special"):
                texts.append("" if is_address else child.content)
            elif child.type != "softbreak":
                attributes = sorted(child.attrs.items())
                content = "" if child.type == "image" else child.content  # which is text
                marks.append(repr((child.type, child.markup, content, attributes)))
            is_address = child.type == "link_open" and child.info == "auto"
    return marks, without_spaces("".join(texts))


def pieces_of(
    content: Content, tokens: Sequence[Any], references: dict[str, Any], shift: int = 0
) -> list[Piece] | None:
    """Returns the marks of a content from the parser's tokens, or None if they overlap.

    `shift` is the number of characters that were removed before the content.
    """
    tokens = [token for token in tokens if "span" in token.meta and token.type != "text"]
    pieces: list[Piece] = []
    for number, (token, partner) in enumerate(with_partners(tokens)):
        start, stop = (place - shift for place in token.meta["span"])
        if stop <= 0:
            continue
        last = pieces[-1].stop if pieces else 0
        if token.type in ("softbreak", "hardbreak"):
            start = last + len(content.text[last:start].rstrip(" "))
        before, after = _MARGINS.get(token.type, (0, 0))
        start, stop = start - before, stop + after
        if start < last:
            return None
        label = image = None
        if token.type == "link_close" and content.text[start:stop] in ("]", "][]"):
            label = token.meta["label"]
        elif token.type == "image":
            image = _image_text(content, token, start + len("!["), references)
        kind, tag = _kind_and_tag(token, number, partner)
        pieces.append(Piece(kind, start, stop, tag, label, image))
    return pieces


def _kind_and_tag(token, number, partner):
    """Returns the kind of a token's piece, and what stands for it in HTML."""
    kind = _KINDS.get(token.type)
    if kind is None and partner is not None:
        kind = "begin" if number < partner else "end"
    word = _WORDS.get(token.type, "")
    tags = {
        "line": " ",
        "break": f'<br x="{number}">',
        "sign": html.escape(token.content, quote=False),
        "begin": f"<x{number}>",
        "end": f"</x{partner}>",
        None: f'<x{number} translate="no">{word}</x{number}>',
    }
    if kind is None and token.content.lower().startswith("<br"):
        return "copy", tags["break"]
    return kind or "copy", tags[kind]


def _image_text(content, token, start, references):
    """Returns the passage of an image's text, None if that also names the image's address."""
    stop = start + len(token.content)
    if not re.match(r"\]\(|\]\[[^\]]", content.text[stop : stop + 3]):
        return None
    part = content.part(start, stop)._replace(text=token.content)
    pieces = pieces_of(part, token.children or (), references)
    check = functools.partial(_check_image, references)
    return None if pieces is None else Passage(part, pieces, check)
