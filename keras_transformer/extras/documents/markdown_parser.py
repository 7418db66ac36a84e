"""A parser of Markdown whose tokens say which characters they come from.

It is CommonMark with the tables and the strikethrough of GitHub. Rules of this module find what
other dialects add, so that it stays as it is:

- Lines that are commands, such as `:::` and `{% include %}`.
- Blocks whose content is indented: footnotes, and boxes as in `!!! note`.
- References to footnotes, emoji such as `:dog:`, and attributes such as `{: .wide}`.
- Elements of HTML that are not translated, such as `<kbd>`.
"""

import functools
import re

from keras_transformer.base.errors import require
from keras_transformer.text.elements import EMPTY, is_kept

# No repetition may contain what it begins with: a long text is read once.
_FOOTNOTE = r"\[\^[^\[\]\s]+\]"
_ATTRIBUTES = r"\{[:#.][^{}\n]{1,200}\}"
_INLINE = re.compile(rf"{_FOOTNOTE}|(?<![\w:]):[\w+-]{{1,50}}:(?![\w:])|{_ATTRIBUTES}(?!\}})")
_COMMAND = re.compile(
    rf":::.*|(?:{_ATTRIBUTES}|\{{%[^{{}}\n]{{1,200}}%\}}|\[\[?_?TOC_?\]\]?)[ \t]*$", re.IGNORECASE
)
_CONTAINER = re.compile(rf"{_FOOTNOTE}:[ \t]*|(?:!!!|\?\?\?\+?|===[!+]?)[ \t]+[\w\"'].*")
_HTML_NAME = re.compile(r"<(/?)([a-zA-Z][^\s/>]*)")


@functools.lru_cache(maxsize=1)
def parser():
    """Returns a parser whose inline tokens have a `span` in the content that they come from."""
    package = require("markdown_it", "The parser of Markdown", "documents")
    parser = package.MarkdownIt("commonmark").enable(["table", "strikethrough"])
    parser.disable("text_join")  # It joins escaped characters with others.
    ends = {"alt": ["paragraph", "reference", "blockquote", "list"]}
    parser.block.ruler.before("reference", "dialects", _dialect_block, ends)
    parser.inline.ruler.before("link", "dialects", _dialect_inline)
    parser.inline.ruler2.push("kept_elements", _fold_kept_elements)
    names = parser.get_active_rules()["inline"]
    for name, rule in zip(names, parser.inline.ruler.getRules(""), strict=True):
        parser.inline.ruler.at(name, functools.partial(_run, name, rule))
    return parser


def with_partners(tokens):
    """Returns tokens with the number of the other end of their element, None without one."""
    partners: dict[int, int] = {}
    open_tokens: list[tuple[int, str]] = []
    for number, token in enumerate(tokens):
        name, nesting = token.type.removesuffix("_open").removesuffix("_close"), token.nesting
        if token.info == "auto":
            continue
        if token.type == "html_inline" and (match := _HTML_NAME.match(token.content)):
            name, nesting = f"<{match[2].lower()}", -1 if match[1] else 1
            if name[1:] in EMPTY or token.content.endswith("/>"):
                continue
            if nesting < 0 and (not open_tokens or open_tokens[-1][1] != name):
                continue
        if nesting > 0:
            open_tokens.append((number, name))
        elif nesting < 0:
            while (opening := open_tokens.pop())[1] != name:  # tags of HTML without an end
                pass
            partners[number], partners[opening[0]] = opening[0], number
    return [(token, partners.get(number)) for number, token in enumerate(tokens)]


def _dialect_block(state, start_line, end_line, silent):
    """Skips a line that is a command, or the beginning of a block whose content is indented."""
    if state.is_code_block(start_line):
        return False
    start, stop = state.bMarks[start_line] + state.tShift[start_line], state.eMarks[start_line]
    line = state.src[start:stop]
    container = _CONTAINER.match(line)
    if container is None and _COMMAND.match(line) is None:
        return False
    if silent:
        return True
    state.line = start_line + 1
    if container is None:
        return True
    columns = state.bMarks[start_line], state.tShift[start_line], state.sCount[start_line]
    indent = state.blkIndent
    # The content of a footnote begins in its first line. That of other blocks is empty there.
    state.blkIndent = columns[2] + 4
    state.bMarks[start_line], state.tShift[start_line] = start + container.end(), 0
    state.sCount[start_line] = state.blkIndent
    state.level += 1  # The parser limits the depth of blocks.
    state.md.block.tokenize(state, start_line, end_line)
    state.level -= 1
    state.blkIndent = indent
    state.bMarks[start_line], state.tShift[start_line], state.sCount[start_line] = columns
    return True


def _dialect_inline(state, silent):
    match = _INLINE.match(state.src, state.pos, state.posMax)
    if match is None:
        return False
    if not silent:
        state.push("dialect", "", 0).content = match[0]
    state.pos = match.end()
    return True


def _fold_kept_elements(state):
    """Makes one token of each element of HTML that is not translated."""
    spans = [token for token in state.tokens if "span" in token.meta]
    stops = {
        id(token): spans[partner]
        for token, partner in with_partners(spans)
        if partner is not None
        and token.type == "html_inline"
        and (match := _HTML_NAME.match(token.content))
        and not match[1]
        and is_kept(token.content)
    }
    tokens, last = [], None
    for token in state.tokens:
        if last is not None:
            last = None if token is last else last
            continue
        if (last := stops.get(id(token))) is not None:
            start, stop = token.meta["span"][0], last.meta["span"][1]
            token.type, token.content = "kept_element", state.src[start:stop]
            token.meta["span"] = start, stop
        tokens.append(token)
    state.tokens[:] = tokens


def _run(name, rule, state, silent):
    """Runs a rule of the parser, and notes which characters its tokens come from."""
    start, count = state.pos, len(state.tokens)
    if not rule(state, silent):
        return False
    tokens = state.tokens[count:]  # The first may be the text before the rule's own.
    if silent or not tokens:
        return True
    if name in ("emphasis", "strikethrough"):
        stop = state.pos
        for token in reversed(tokens):
            if stop == start:
                break
            token.meta["span"] = stop - len(token.content), stop
            stop -= len(token.content)
    elif name == "link":
        opening = next(token for token in tokens if token.type == "link_open")
        stop = state.md.helpers.parseLinkLabel(state, start, True)
        opening.meta["span"], tokens[-1].meta["span"] = (start, start + 1), (stop, state.pos)
        tokens[-1].meta["label"] = state.src[start + 1 : stop]
    elif name == "autolink":
        tokens[-3].meta["span"] = start, state.pos
    else:
        tokens[-1].meta["span"] = start, state.pos
    return True
