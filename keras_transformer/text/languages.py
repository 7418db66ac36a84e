"""Languages: codes such as `en` and `pt-BR`, English names, and the tokens of a model."""

import dataclasses
import itertools
import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from keras_transformer.errors import InputError, did_you_mean
from keras_transformer.files import write_output
from keras_transformer.options import parse_options, received
from keras_transformer.reading import read_checked

Side = Literal["source", "target"]

# Subtags of BCP 47. The first has one letter only in private codes, such as x-klingon.
_CODE = re.compile(r"([a-z]{2,8}|[ix](?=-))(-[a-z0-9]{1,8})*", re.IGNORECASE)
# Signs around the name of a language in a token: >>deu<< of Marian, __de__ of M2M100.
_SIGNS = re.compile("\u2581?(?:>>(.+)<<|__(.+)__)")
_LISTED = 12  # directions and codes that a message shows


def language_pair(languages: str) -> tuple[str, str]:
    """Returns the codes of a source and a target, in the usual letters.

    Args:
        languages: Both codes, with a hyphen or a comma between.

    Raises:
        InputError: These are not two codes of the form of BCP 47.

    >>> language_pair("en-de"), language_pair("EN_gb, zh-hans")
    (('en', 'de'), ('en-GB', 'zh-Hans'))
    """
    parts = languages.split("," if "," in languages else "-")
    codes = [part.strip().replace("_", "-") for part in parts]
    if len(codes) != 2 or not all(map(_CODE.fullmatch, codes)):
        rule = "`languages` must be two codes, such as en-de or en-GB,pt-BR"
        raise InputError(f"{rule}. Received: {received(languages)}.")
    source, target = map(_with_usual_letters, codes)
    return source, target


def _with_usual_letters(code):
    """Returns a code with its region in upper case, and its script in title case."""
    first, *subtags = code.lower().split("-")
    usual = [{2: part.upper(), 4: part.title()}.get(len(part), part) for part in subtags]
    return "-".join([first, *usual])


def language_name(code: str) -> str:
    """Returns the English name of a language, or its code if Unicode's list does not have it.

    >>> language_name("de"), language_name("pt-BR"), language_name("en-DE"), language_name("zz")
    ('German', 'Brazilian Portuguese', 'English (DE)', 'zz')
    """
    from babel import Locale

    names, (first, _, subtags) = Locale("en").languages, code.partition("-")
    name = names.get(code.replace("-", "_"))
    if name is None and first in names:
        name = f"{names[first]} ({subtags})"
    return name or code


def language_code(spelling: str) -> str:
    """Returns the code of BCP 47 for the name that a model gives a language.

    The code has two letters if such a code exists, and no script that the language usually has. A
    name of another form stays as it is.

    >>> [language_code(name) for name in ("deu_Latn", "__de__", ">>deu<<", "zho_Hant", "pt_br")]
    ['de', 'de', 'de', 'zh-Hant', 'pt-BR']
    """
    from babel.core import get_global

    name = _bare(spelling)
    if not _CODE.fullmatch(name.replace("_", "-")):
        return name
    first, *subtags = _with_usual_letters(name.replace("_", "-")).split("-")
    first, *implied = get_global("language_aliases").get(first, first).split("_")
    subtags = subtags or implied
    usual = get_global("likely_subtags").get(first, first).split("_")
    return "-".join([first, *(subtag for subtag in subtags if subtag not in usual[1:2])])


def codes_of(names: Iterable[str]) -> dict[str, str]:
    """Returns the names that a model gives its languages, by their codes.

    Two names of the same code, such as of two dialects, stay as they are.

    >>> codes_of(["deu_Latn", "prs_Arab", "pes_Arab"])
    {'de': 'deu_Latn', 'prs_Arab': 'prs_Arab', 'pes_Arab': 'pes_Arab'}
    """
    names, names_by_code = list(names), {}
    codes = list(map(language_code, names))
    for name, code in zip(names, codes, strict=True):
        names_by_code[_bare(name) if codes.count(code) > 1 else code] = name
    return names_by_code


class LanguageTokens(NamedTuple):
    """What a model reads for one direction, in addition to a text.

    Attributes:
        before: Tokens before those of the source.
        after: Tokens after the end of the source.
        forced: Token that the decoder reads before the translation.
    """

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    forced: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Languages:
    """Directions that a model translates, and the tokens that tell it the direction.

    A model of one direction has no tokens: it only checks codes.

    Attributes:
        tokens: Tokens of the vocabulary by the codes of their languages.
        before: Side whose token precedes the tokens of a source, None for no token.
        after: Side whose token follows the end of a source.
        forced: Side whose token the decoder reads before a translation.
        directions: Pairs of a source's and a target's code; the source None is any language.
            Without a list: all pairs of two languages with tokens.
        is_optional: Whether a text may be translated without naming a language, because texts
            themselves may begin with a token.

    Example:

    >>> languages = Languages({"de": "<to_de>", "en": "<to_en>"}, before="target")
    >>> languages.tokens_of(None, "de")
    LanguageTokens(before=('<to_de>',), after=(), forced=())
    """

    tokens: Mapping[str, str] = dataclasses.field(default_factory=dict)
    before: Side | None = None
    after: Side | None = None
    forced: Side | None = None
    directions: tuple[tuple[str | None, str], ...] = ()
    is_optional: bool = False

    def __post_init__(self):
        pairs = self.directions or itertools.permutations(self.tokens, 2)
        object.__setattr__(self, "directions", tuple(map(tuple, pairs)))
        for side, index in (("source", 0), ("target", 1)):
            if side in (self.before, self.after, self.forced):
                for code in dict.fromkeys(pair[index] for pair in self.directions):
                    if code not in self.tokens:
                        rule = f"Each {side} language must have a token"
                        raise InputError(f"{rule}. Received: {code:.80} without a token.")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "") -> "Languages":
        """Makes languages of `to_dict`'s result; raises `InputError` for other values."""
        return parse_options(cls, values, where)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Languages":
        """Reads the file of `save`; raises `InputError` if it is missing or invalid."""
        try:
            values = json.loads(read_checked(path))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: expected the languages of a model. {error}.") from None
        return cls.from_dict(values, f"{path}: ")

    def save(self, path: str | os.PathLike) -> None:
        """Writes a JSON object with the fields, without those that have their default."""
        write_output(path, (json.dumps(self.to_dict(), indent=2) + "\n").encode("utf-8"))

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields that differ from their defaults, as JSON has them."""
        values = {name: value for name, value in vars(self).items() if value}
        if self.directions == Languages(self.tokens).directions:
            del values["directions"]
        return values

    @property
    def num_added(self) -> int:
        """Number of tokens that a direction adds to a source."""
        return (self.before is not None) + (self.after is not None)

    def are_tags_of(self, tokenizer: Any) -> bool:
        """Returns whether the texts of a tokenizer may begin with each of the tokens."""
        return {*self.tokens.values()} <= {*tokenizer.tag_tokens.values()}

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the options that a text needs: the languages whose tokens the model reads."""
        sides = ("source", "target") if self.tokens and not self.is_optional else ()
        needed = {self.before, self.after, self.forced}
        return tuple(f"{side}_language" for side in sides if side in needed)

    @property
    def names(self) -> dict[str, str]:
        """Codes of the languages by their names: the codes, and tokens without their signs."""
        return {_bare(token): code for code, token in self.tokens.items()} | {
            code: code for code in self.codes
        }

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes of all languages that are named, in the order of the directions."""
        return tuple(dict.fromkeys(filter(None, itertools.chain(*self.directions))))

    def direction(
        self, source: str | None = None, target: str | None = None
    ) -> tuple[str | None, str | None]:
        """Returns the codes of the direction that is meant.

        A code may be left out where only one language is possible, or where no token needs it.

        Args:
            source: Code, or the model's own name of a language; None if it is not given.
            target: Likewise.

        Raises:
            InputError: The model lacks the language or the direction, or another code is needed.
        """
        if source is None and target is None and self.is_optional:
            return None, None
        sources = self._code("source_language", source, 0)
        targets = self._code("target_language", target, 1)
        pairs = [
            pair
            for pair in self.directions
            if sources in (None, pair[0]) or pair[0] is None
            if targets in (None, pair[1])
        ]
        if not pairs:
            rule = f"The model must have the direction: {_listed(self.directions)}"
            received = _shown((sources, targets))
            nearest = did_you_mean(received, map(_shown, self.directions))
            raise InputError(f"{rule}. Received: {received}.{nearest}")
        needed = {self.before, self.after, self.forced}
        chosen = []
        for side, (name, given) in enumerate((("source", sources), ("target", targets))):
            possible = dict.fromkeys(pair[side] for pair in pairs)
            if given is None and name in needed and len(possible) > 1:
                rule = f"`{name}_language` must be one of {_listed(possible)}"
                raise InputError(f"{rule}. Received: None. Name the language of the {name}.")
            chosen.append(given if given or len(possible) > 1 else next(iter(possible)))
        return chosen[0], chosen[1]

    def tokens_of(self, source: str | None, target: str | None) -> LanguageTokens:
        """Returns the tokens of a direction; takes the arguments of `direction`."""
        codes = self.direction(source, target)
        of_sides = {
            "source": self.tokens.get(codes[0] or ""),
            "target": self.tokens.get(codes[1] or ""),
        }
        tokens = (of_sides.get(side or "") for side in (self.before, self.after, self.forced))
        return LanguageTokens(*((token,) if token else () for token in tokens))

    def _code(self, name, spelling, side):
        """Returns the code of a language by one of its names."""
        if spelling is None:
            return None
        if not isinstance(spelling, str):
            raise InputError(f"`{name}` must be a code. Received: {received(spelling)}.")
        codes = {_folded(name): code for name, code in self.names.items()}
        for key in (spelling, _bare(spelling), language_code(spelling)):
            if _folded(key) in codes:
                return codes[_folded(key)]
        possible = dict.fromkeys(pair[side] for pair in self.directions)
        if None in possible:  # any language
            return language_code(spelling)
        rule = f"`{name}` must be one of {_listed(possible)}"
        raise InputError(f"{rule}. Received: {received(spelling)}.{did_you_mean(spelling, codes)}")


def languages_of_directions(directions: Iterable[tuple[str, str]]) -> Languages | None:
    """Returns the languages of a new model, None without directions.

    A model of several target languages has tokens such as `>>de<<` before its sources.
    """
    directions = tuple(dict.fromkeys(directions))
    tokens = {target: f">>{target.lower()}<<" for _, target in directions}
    if len(tokens) < 2:
        return Languages(directions=directions) if directions else None
    return Languages(tokens, before="target", directions=directions)


def languages_of_tags(tag_tokens: Mapping[str, str]) -> Languages | None:
    """Returns the languages of an imported model whose texts begin with tags such as `>>epo<<`."""
    tokens = {name: token for name, token in tag_tokens.items() if _SIGNS.fullmatch(token)}
    if not tokens:
        return None
    tokens = {code: tokens[name] for code, name in codes_of(tokens).items()}
    directions = tuple((None, code) for code in tokens)
    return Languages(tokens, before="target", directions=directions, is_optional=True)


def _bare(name):
    match = _SIGNS.fullmatch(name)
    return next(filter(None, match.groups())) if match else name


def _folded(code):
    return code.lower().replace("_", "-")


def _shown(direction):
    return "-".join(code or "any" for code in direction)


def _listed(names):
    names = [f"{name if isinstance(name, str) else _shown(name):.80}" for name in names]
    rest = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{', '.join(names[:_LISTED])}{rest}"
