"""Links of a Markdown document to its own headings, whose names are made of their texts."""

import collections
import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

import regex

_REMOVED = regex.compile(r"[^\w\- ]")
_TARGET = re.compile(r"""((?:\]\(|\]:|\bhref=)\s*+["'<]?)#([^\s"'<>()]+)""", re.IGNORECASE)


def heading_names(titles: Iterable[str]) -> list[str]:
    """Returns the names of headings as GitHub makes them.

    >>> heading_names(["What's new?", "Two dogs", "Two dogs"])
    ['whats-new', 'two-dogs', 'two-dogs-1']
    """
    counts: collections.Counter[str] = collections.Counter()
    names = []
    for title in titles:
        name = _REMOVED.sub("", title.lower()).replace(" ", "-")
        names.append(f"{name}-{counts[name]}" if counts[name] else name)
        counts[name] += 1
    return names


def with_new_names(text: str, names: Mapping[str, str]) -> str:
    """Returns a text whose links to headings have the headings' new names.

    >>> with_new_names("[see](#two-dogs) [x]: #b", {"two-dogs": "zwei-hunde"})
    '[see](#zwei-hunde) [x]: #b'
    """
    if not names:
        return text
    return _TARGET.sub(lambda match: f"{match[1]}#{names.get(unquote(match[2]), match[2])}", text)
