"""Patterns of texts: letters, words and graphemes; addresses, items and tags of markup.

They are written for the module `regex` with `regex.V1`, except `MARKUP_TAG`, which `re` reads too.
"""

import regex

# In a row of flags, `\X` counts all flags before each of them.
GRAPHEME = r"\p{Regional_Indicator}{1,2}+[\p{GCB=Extend}\p{GCB=ZWJ}\p{GCB=SpacingMark}]*+|\X"
"""A grapheme: what readers see as one character, such as a letter with its marks."""
UNSPACED = (
    r"[\p{scx=Han}\p{scx=Hiragana}\p{scx=Katakana}\p{scx=Hangul}\p{scx=Thai}\p{scx=Lao}"
    r"\p{scx=Khmer}\p{scx=Myanmar}\p{scx=Tibetan}]"
)
"""A character of a script without spaces between words, or, as Korean, before endings."""
LETTER = rf"[\w--{UNSPACED}]"
"""A letter, a mark or a digit of a script that has spaces between words."""
# For Python \x1c to \x1f are spaces too.
UNIT = rf"{LETTER}++|[^\s\x1c-\x1f]\p{{M}}*+"
"""A word; or a character of a script without spaces between words; or a sign."""

CLOSING_MARK = r"[\p{Pe}\p{Pf}\p{Terminal_Punctuation}…]"
"""A sign that has no space before it, except where a language wants one, as French before `!`."""
OPENING_MARK = r"[\p{Ps}\p{Pi}¿¡]"
"""A sign that has no space after it."""

_WITHIN_START = regex.compile(rf"(?<={LETTER})(?!{UNSPACED})|(?=\p{{M}})", regex.V1)
_WITHIN_STOP = regex.compile(rf"(?<!{UNSPACED})(?={LETTER})|(?=\p{{M}})", regex.V1)


def is_word_start(text: str, position: int) -> bool:
    """Returns True if a part of a text that starts at a position does not start within a word."""
    return _WITHIN_START.match(text, position) is None


def is_word_end(text: str, position: int) -> bool:
    """Returns True if a part of a text that ends at a position does not end within a word."""
    return _WITHIN_STOP.match(text, position) is None


def _in_brackets(content):
    return rf"[(\[{{](?:{content})*+[)\]}}]"


# All repetitions are bounded, possessive or begin at one place, so that a long text is read once.
# There are few of them, because each repetition makes the search in a short text slower.
_SIGN = rf"[/\-#&=+%$@[{LETTER}--_]]"  # A URL may end with such a character,
_MIDDLE = r"[.,:;!?*_~–]"  # but not with such a character, as in GitHub's Markdown.
_CLOSED = _in_brackets(f"{_SIGN}|{_MIDDLE}|{_in_brackets(f'{_SIGN}|{_MIDDLE}')}")
# A label of a host name in a script without spaces between words, such as https://例え.jp. The last
# label is a country's, or ends where no letter of such a script follows.
_UNSPACED_LETTER = rf"[\w&&{UNSPACED}]"
_UNSPACED_LABEL = (
    rf"(?<=//|\.){_UNSPACED_LETTER}[\w\-]*+(?=\.\w)|(?<={_UNSPACED_LETTER}\.)"
    rf"(?:한국|中[国國]|香港|台[湾灣]|澳[门門]|新加坡|ไทย|{_UNSPACED_LETTER}++)"
)
# Any scheme; a word before `http`, as in `seehttp://a.org`, is none.
_SCHEME = r"(?<![a-zA-Z0-9])[a-zA-Z][a-zA-Z0-9+.\-]{1,30}+:(?<![a-zA-Z][hH][tT][tT][pP][sS]?:)//"
_BEGIN = rf"(?:[hH][tT][tT][pP][sS]?://|{_SCHEME}|[wW][wW][wW]\.(?<!{LETTER}....))"
# The most frequent letters come first, because the search tests each word for an e-mail address.
_IN_NAME, _IN_HOST = rf"[a-zA-Z.+\-{LETTER}]", rf"[a-zA-Z\-[{LETTER}--_]]"
ADDRESS = "|".join(
    (
        rf"{_BEGIN}(?!{_MIDDLE}|')"
        rf"(?:(?:{_MIDDLE}++(?!{_BEGIN})|'(?={LETTER}))?+"
        rf"(?:{_SIGN}++|{_CLOSED}|{_UNSPACED_LABEL}))++",
        rf"(?<!{_IN_NAME})@?+{_IN_NAME}++@{_IN_HOST}+(?:\.{_IN_HOST}+)+(?<!-)",
    )
)
"""A URL, an e-mail address or a name such as `@bob@example.org`.

It is the regular expression of placeholders, cleaning and noise.

A URL ends before a letter of a script without spaces between words, and before a closing bracket
that it does not open.
"""
# Content of a field with spaces: without line breaks and braces, and bounded, because braces also
# stand around prose, JSON and LaTeX.
_CONTENT = r"[^{}\n\r]{1,100}+"
_SPACE = r"[ \t\xa0]{0,3}+"
_ARGUMENTS = r"\([^(){}\n\r]{0,100}+\)"
_ICU = r"(?:number|date|time|duration|spellout|ordinal)"
_FIELD = "|".join(
    (
        # One word: {name}, { $userName }, {"n":3}. Sentences of scripts without spaces are none.
        rf"\{{(?:{_SPACE}[[^\s{{}}]--[\p{{Sentence_Terminal}}--[.!?]]]++{_SPACE})?+\}}",
        rf"\{{\{{(?:{_CONTENT}|\{{{_CONTENT}\}})\}}\}}",  # {{ count | number }}, {{{body}}}
        r"\{%[^{}\n\r]{1,200}+\}(?<=%\})|\{#[^{}\n\r]{1,200}+\}(?<=#\})",  # {% url %}, {# note #}
        # {price, number, ::currency/EUR}
        rf"\{{{_SPACE}[\w.\-]{{1,50}}+{_SPACE},{_SPACE}{_ICU}"
        rf"(?:{_SPACE},[^{{}}\n\r]{{1,100}}+)?+{_SPACE}\}}",
        # { NUMBER($ratio, digits: 2) }, { -brand(case: "genitive") }
        rf"\{{{_SPACE}(?:[A-Z][A-Z_]{{0,30}}+|-[\w\-]{{1,50}}+){_ARGUMENTS}{_SPACE}\}}",
        # {\an8\pos(640, 105)\fnArial Black}
        r"\{(?:\\(?:fn[^{}()\\\n\r]{1,50}+"
        rf"|(?:[^\s{{}}()\\]{{1,100}}+|{_ARGUMENTS}){{1,9}}+)){{1,20}}+\}}",
    )
)
_IN_PATH = rf"[\-+~@[{LETTER}]]"
_STEPS = rf"(?:[/\\.]++{_IN_PATH}++)"
_OTHER_ITEM = "|".join(
    (
        # ~/.local, ../a.txt, /usr/bin, but not a word between slashes
        rf"(?<![.~/\\:{LETTER}])"
        rf"(?:(?:~|\.\.?+)(?=[/\\]){_STEPS}++|(?=/{_IN_PATH}){_STEPS}{{2,}}+)[/\\]?+",
        rf"(?<![:{LETTER}]):[a-zA-Z0-9_+\-]{{1,50}}+:(?![:{LETTER}])",  # :heart:
        rf"(?<!{_IN_NAME})@{_IN_NAME}++@{_IN_HOST}++(?<!-)",  # @bob@host
        rf"[$%#@]\{{{_CONTENT}\}}|[$%#@]?(?:{_FIELD})",  # ${ name }, %{count}, #{price}
        # %s, %(name)s, %1$d, %lu; after a number and a space, % means a percentage.
        r"(?<!\d\s)%(?:\(\w+\)|\d{1,2}\$)?[\-+#0]{0,5}\d{0,3}(?:\.\d{1,3})?(?:hh?|ll?|[zjt])?"
        rf"[sdiufgxXc@](?!{LETTER})",
        r"\[X\d{1,9}X\]",  # Weblate's name of a field
        r"<ph_\d+>",  # a placeholder's own name
    )
)
# The first character is tested once, because few texts have an item.
_DRIVE = rf"[a-zA-Z]:(?=\\)(?<!{LETTER}..){_STEPS}*+[/\\]?+"  # C:\Users
_ITEM = rf"{ADDRESS}|(?=[{{$%#@\[<:~./])(?:{_OTHER_ITEM})|{_DRIVE}"
MARKUP_TAG = (
    r"""</?(?:[A-Za-z](?:[^<>"'=]|"[^"<]*"|'[^'<]*'|=\s*+(?:"[^"<]*"|'[^'<]*'|(?!["'])[^\s<>]*+))*+"""
    r"""|[0-9]{1,3} ?/?)>"""
)
"""A well-formed tag in a line of text: of XML or HTML, or of react-i18next, such as `<0>`.

A value without quotation marks may contain some, as in `title=it's`. As in XML, no value has a `<`,
so that a text is read once. `find_tags` reads tags of HTML as browsers do.
"""
_NUMBER = rf"(?<!{LETTER})\d+(?:[.,:/\-]\d+)*(?!{LETTER})"

ITEM = regex.compile(_ITEM, regex.V1)
"""A URL, an e-mail address, a path, an emoji as `:heart:`, a field as {name}, `{{ name }}`, %s."""
ITEM_OR_NUMBER = regex.compile(f"{_ITEM}|{_NUMBER}", regex.V1)
"""An `ITEM`, or a number."""
