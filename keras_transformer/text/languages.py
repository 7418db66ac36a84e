"""Languages: codes such as `en` and `pt-BR`, English names, and the tokens of a model."""

import collections
import dataclasses
import functools
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from keras_transformer.base.errors import InputError, did_you_mean
from keras_transformer.base.files import write_output
from keras_transformer.base.options import STRICT, parse_options, received
from keras_transformer.base.reading import read_json
from keras_transformer.text.language_codes import (
    closest_codes,
    is_exact,
    is_known,
    main_name,
    related_codes,
    spellings_of,
    suggested_codes,
)
from keras_transformer.text.tags import language_in_tag, language_tag, without_signs

Side = Literal["source", "target"]

# Subtags of BCP 47. The first has one letter only in private codes, such as x-klingon.
_CODE = re.compile(r"([a-z]{2,8}|[ix](?=-))(-[a-z0-9]{1,8})*", re.IGNORECASE)
_LISTED = 12  # directions and codes that a message shows
_COMPARED = 100  # directions, and letters of a code, that a message compares with the known ones
_RELATED = 2  # codes of related languages that a message shows
_SIDES: tuple[Side, Side] = ("source", "target")
_ANY = ""  # source of a direction from any language


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


def check_known_pair(languages: str, name: str, where: str = "") -> None:
    """Raises `InputError` for a direction with a code of no language; see `is_known`.

    Args:
        languages: Both codes; see `language_pair`.
        name: Name of the option.
        where: Beginning of the message.
    """
    pair = language_pair(languages)
    near = [[code] if is_known(code) else suggested_codes(code) for code in pair]
    if all(map(is_known, pair)):
        return
    corrected = "-".join(codes[0] for codes in near if codes)
    advice = f" Did you mean `{corrected}`?" if all(near) else ""
    rule = f"{where}`{name}` must be two codes of languages, such as en-de"
    raise InputError(f"{rule}. Received: {received(languages)}.{advice}")


def _with_usual_letters(code):
    """Returns a code with its region in upper case, and its script in title case."""
    first, *subtags = code.lower().split("-")
    usual = [{2: part.upper(), 4: part.title()}.get(len(part), part) for part in subtags]
    return "-".join([first, *usual])


def language_name(code: str) -> str:
    """Returns the English name of a language, or its code if Unicode's list does not have it.

    >>> language_name("de"), language_name("pt-BR"), language_name("en-DE"), language_name("zz")
    ('German', 'Brazilian Portuguese', 'English (DE)', 'zz')
    >>> language_name("deu"), language_name("zho-Hant")
    ('German', 'Traditional Chinese')
    """
    from babel import Locale

    names, (first, _, subtags) = Locale("en").languages, code.partition("-")
    name = names.get(code.replace("-", "_")) or names.get(language_code(code).replace("-", "_"))
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

    name = without_signs(spelling)
    if not _CODE.fullmatch(name.replace("_", "-")):
        return name
    first, *subtags = _with_usual_letters(name.replace("_", "-")).split("-")
    first, *implied = get_global("language_aliases").get(first, first).split("_")
    subtags = subtags or implied
    usual = get_global("likely_subtags").get(first, first).split("_")
    return "-".join([first, *(subtag for subtag in subtags if subtag not in usual[1:2])])


def codes_of_sides(
    languages: "Languages | None", source: str | None, target: str | None
) -> tuple[str | None, str | None]:
    """Returns the codes of a source's and of its target's language, None where it is unknown.

    Args:
        languages: Languages of the model, None if they are unknown.
        source: Code or name that a caller gives, None without one.
        target: The same of the translation.
    """
    if languages is not None:
        source, target = languages.known_codes(source, target)
    codes = [None if name is None else language_code(name) for name in (source, target)]
    return codes[0], codes[1]


def codes_of(names: Iterable[str]) -> dict[str, str]:
    """Returns the names that a model gives its languages, by their codes.

    Two names of the same code, such as of two dialects, stay as they are.

    >>> codes_of(["deu_Latn", "prs_Arab", "pes_Arab"])
    {'de': 'deu_Latn', 'prs_Arab': 'prs_Arab', 'pes_Arab': 'pes_Arab'}
    """
    names, names_by_code = list(names), {}
    codes = list(map(language_code, names))
    counts = collections.Counter(codes)
    for name, code in zip(names, codes, strict=True):
        names_by_code[without_signs(name) if counts[code] > 1 else code] = name
    return names_by_code


class Direction(NamedTuple):
    """Tokens that a model reads because of a sentence's languages, besides the sentence's own.

    A `DirectionTable` has an array of ids instead of each id, and a graph a column of a batch.

    Attributes:
        source_prefix: Tokens, or their ids, before the source's tokens.
        source_suffix: Tokens or ids after the end of the source.
        target_prefix: Token or id that the decoder reads before the translation, or none.
        codes: Codes of the source's and the target's language, for an engine that reads text.
    """

    source_prefix: tuple = ()
    source_suffix: tuple = ()
    target_prefix: tuple = ()
    codes: tuple[str | None, str | None] = (None, None)

    @property
    def num_added(self) -> int:
        """Number of tokens around a source."""
        return len(self.source_prefix) + len(self.source_suffix)

    def source(self, ids: Sequence) -> list:
        """Returns what the encoder reads of a source's own ids."""
        return [*self.source_prefix, *ids, *self.source_suffix]

    def target(self, ids: Sequence) -> list:
        """Returns what the decoder reads of a target's own ids, after BOS."""
        return [*self.target_prefix, *ids]

    def of_source(self, values: Any) -> Any:
        """Returns the values of a source's own tokens, of a value for each token of `source`."""
        return values[len(self.source_prefix) : len(values) - len(self.source_suffix)]

    def of_target(self, values: Any) -> Any:
        """Returns the values of a target's own tokens, of a value for each token of `target`."""
        return values[len(self.target_prefix) :]

    def of_alignment(self, alignment: Any) -> Any:
        """Returns an alignment `(target, source)` without the tokens of languages; None of None."""
        if alignment is None or not (self.num_added or self.target_prefix):
            return alignment
        return self.of_source(self.of_target(alignment).T).T

    def to_ids(self, source_id: Callable[[str], int], target_id: Callable[[str], int]):
        """Returns the direction with ids instead of tokens, from functions of a token."""
        return Direction(
            tuple(map(source_id, self.source_prefix)),
            tuple(map(source_id, self.source_suffix)),
            tuple(map(target_id, self.target_prefix)),
            self.codes,
        )


@dataclasses.dataclass(frozen=True)
class Languages:
    """Directions that a model translates, and the tokens that tell it the direction.

    A model of one direction has no tokens: it only checks codes.

    Attributes:
        tokens: Tokens of the vocabulary by the codes of their languages.
        source_prefix: Side whose token precedes the tokens of a source, None for no token.
        source_suffix: Side whose token follows the end of a source.
        target_prefix: Side whose token the decoder reads before a translation.
        directions: Pairs of a source's and a target's code; the source None is any language.
            Without a list: all pairs of two languages with tokens.
        is_optional: Whether a text may be translated without naming a language, because texts
            themselves may begin with a token.

    Example:

    >>> languages = Languages({"de": "<to_de>", "en": "<to_en>"}, source_prefix="target")
    >>> languages.tokens_of(None, "de")
    Direction(source_prefix=('<to_de>',), source_suffix=(), target_prefix=(), codes=('en', 'de'))
    """

    tokens: Mapping[str, str] = dataclasses.field(default_factory=dict)
    source_prefix: Side | None = None
    source_suffix: Side | None = None
    target_prefix: Side | None = None
    directions: tuple[tuple[str | None, str], ...] = ()
    is_optional: bool = False
    __pydantic_config__ = STRICT  # An unknown key of a file is an error.

    def __post_init__(self):
        pairs = self.directions or itertools.permutations(self.tokens, 2)
        object.__setattr__(self, "directions", tuple(map(tuple, pairs)))
        for index, side in enumerate(_SIDES):
            if side in self.sides:
                for code in dict.fromkeys(pair[index] for pair in self.directions):
                    if code not in self.tokens:
                        rule = f"Each {side} language must have a token"
                        name = "any language" if code is None else f"{code:.80}"
                        raise InputError(f"{rule}. Received: {name} without a token.")
        if self.tokens and not self.directions:
            rule = "A model with tokens of languages must have a direction"
            raise InputError(f"{rule}. Received: tokens of {', '.join(self.tokens):.80}.")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "") -> "Languages":
        """Makes languages of `to_dict`'s result; raises `InputError` for other values."""
        return parse_options(cls, values, where)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Languages":
        """Reads the file of `save`; raises `InputError` if it is missing or invalid."""
        values = read_json(path, noun="the languages of a model")
        return cls.from_dict(values, f"{path}: ")

    def save(self, path: str | os.PathLike) -> None:
        """Writes a JSON object with the fields, without those that have their default."""
        write_output(path, (json.dumps(self.to_dict(), indent=2) + "\n").encode("utf-8"))

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields that differ from their defaults, as JSON has them."""
        names = [field.name for field in dataclasses.fields(self)]
        values = {name: getattr(self, name) for name in names if getattr(self, name)}
        count = len(self.tokens)
        is_all = len(self.directions) == count * (count - 1)  # of many tokens there are many pairs
        if is_all and self.directions == Languages(self.tokens).directions:
            values.pop("directions", None)
        return values

    @property
    def num_added(self) -> int:
        """Number of tokens that a direction adds to a source."""
        return (self.source_prefix is not None) + (self.source_suffix is not None)

    @property
    def sides(self) -> tuple[Side | None, Side | None, Side | None]:
        """Sides whose tokens are the source prefix, the source suffix and the target prefix."""
        return self.source_prefix, self.source_suffix, self.target_prefix

    def are_tags_of(self, tokenizer: Any) -> bool:
        """Returns whether the texts of a tokenizer may begin with each of the tokens."""
        return {*self.tokens.values()} <= {*tokenizer.tag_tokens.values()}

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the options that a text needs: the languages whose tokens the model reads."""
        sides = ("source", "target") if self.tokens and not self.is_optional else ()
        return tuple(f"{side}_language" for side in sides if side in self.sides)

    @property
    def names(self) -> dict[str, str]:
        """Codes of the languages by their names: the codes, and tokens without their signs."""
        return {without_signs(token): code for code, token in self.tokens.items()} | {
            code: code for code in self.codes
        }

    @property
    def spellings(self) -> dict[str, str]:
        """Codes by all their spellings in lower case with hyphens, for a program with a table."""
        return spellings_of(self.tokens) | self._codes_by_name

    @functools.cached_property
    def codes(self) -> tuple[str, ...]:
        """Codes of all languages that are named, in the order of the directions."""
        return tuple(dict.fromkeys(filter(None, itertools.chain(*self.directions))))

    @property
    def targets(self) -> dict[str | None, list[str]]:
        """Codes of the targets by the code of their source, None for any source.

        A language that is only a target has no targets.

        >>> Languages(directions=(("en", "de"), ("en", "fr"))).targets
        {'en': ['de', 'fr'], 'de': [], 'fr': []}
        """
        targets: dict[str | None, list[str]] = {source: [] for source, _ in self.directions}
        for source, target in self.directions:
            targets[source].append(target)
        return targets | {code: [] for code in self.codes if code not in targets}

    @property
    def only_direction(self) -> tuple[str, str] | None:
        """Codes of the source and the target of a model of one direction, None for other models."""
        (source, target), *others = self.directions or ((None, ""),)
        return None if source is None or others else (source, target)

    def direction(
        self, source: str | None = None, target: str | None = None
    ) -> tuple[str | None, str | None]:
        """Returns the codes of the direction that is meant.

        A code may be left out where only one language is possible, or where no token needs it. A
        code that the model lacks stands for the nearest one, see `closest_codes`.

        Args:
            source: Code, or the model's own name of a language; None if it is not given.
            target: Code or name of the target language, or None.

        Raises:
            InputError: The model lacks the language or the direction, or another code is needed.
        """
        if source is None and target is None and self.is_optional:
            return None, None
        sources = self._codes_for("source", source)
        targets = self._codes_for("target", target)
        ranks = itertools.product(range(len(sources)), range(len(targets)))
        for first, second in sorted(ranks, key=sum):  # The nearest codes that are a direction.
            if pairs := self._fitting(sources[first], targets[second]):
                return self._chosen(pairs, sources[first], targets[second])
        rule = f"The model must have the direction: {_listed(self.directions)}"
        received_pair = _shown((sources[0], targets[0]))
        near = [*self._fitting(sources[0], None), *self._fitting(None, targets[0])]
        nearest = _did_you_mean(received_pair, tuple(map(_shown, near[:_COMPARED])))
        raise InputError(f"{rule}. Received: {received_pair}.{nearest}")

    def _chosen(self, pairs, *codes):
        """Returns the codes of a direction, of which some may be None."""
        chosen = []
        for index, (side, code) in enumerate(zip(_SIDES, codes, strict=True)):
            possible = dict.fromkeys(pair[index] for pair in pairs)
            if code is None and side in self.sides and len(possible) > 1:
                rule = f"`{side}_language` must be one of {_listed(possible)}"
                raise InputError(f"{rule}. Received: None. Name the language of the {side}.")
            chosen.append(code if code or len(possible) > 1 else next(iter(possible)))
        return chosen[0], chosen[1]

    def known_codes(
        self, source: str | None = None, target: str | None = None
    ) -> tuple[str | None, str | None]:
        """Returns the codes of `direction`, as far as they are known, without its errors.

        >>> Languages(directions=(("en", "tr"), ("de", "tr"))).known_codes("en")
        ('en', 'tr')
        """
        try:
            return self.direction(source, target)
        except InputError:  # A text may name its language itself.
            return source, target

    def tokens_of(self, source: str | None, target: str | None) -> Direction:
        """Returns a direction with its tokens; takes the arguments of `direction`."""
        codes = self.direction(source, target)
        of_sides = {
            "source": self.tokens.get(codes[0] or ""),
            "target": self.tokens.get(codes[1] or ""),
        }
        prefix, suffix, target_prefix = (
            (token,) if (token := of_sides.get(side or "")) else () for side in self.sides
        )
        return Direction(prefix, suffix, target_prefix, codes)

    def table(
        self, source_id: Callable[[str], int], target_id: Callable[[str], int]
    ) -> "DirectionTable":
        """Returns the ids of all tokens by the names of their languages.

        Args:
            source_id: Returns the id of a token in the source's vocabulary.
            target_id: Returns the id of a token in the target's vocabulary.
        """
        codes = {name: code for name, code in self.spellings.items() if code in self.tokens}

        def column(side, id_of):
            if side is None:
                return ()
            ids = {code: id_of(token) for code, token in self.tokens.items()}
            return ([ids[code] for code in codes.values()],)

        source_prefix, source_suffix, target_prefix = self.sides
        ids = Direction(
            column(source_prefix, source_id),
            column(source_suffix, source_id),
            column(target_prefix, target_id),
        )
        return DirectionTable([*codes], ids)

    def approximations(
        self, source: str | None = None, target: str | None = None
    ) -> list[tuple[str, str]]:
        """Returns each code that is not exactly a code of the model, and the model's code for it.

        Takes the arguments of `direction`.

        >>> Languages(directions=(("en", "pt"),)).approximations("eng", "pt-BR")
        [('pt-BR', 'pt')]
        """
        pairs = zip((source, target), self.direction(source, target), strict=True)
        return [
            (spelling, code)
            for spelling, code in pairs
            if spelling is not None and code is not None
            if code not in self._known(spelling) and not is_exact(without_signs(spelling), code)
        ]

    def has(self, source: str, target: str) -> bool:
        """Returns whether the model has a direction; takes the arguments of `direction`."""
        try:
            self.direction(source, target)
        except InputError:
            return False
        return True

    def check_named(self, named: tuple[str, str]) -> None:
        """Raises `InputError` if the model lacks a direction that `languages` names.

        Other regions than the model's are taken, as `direction` takes them.
        """
        if not self.has(*named):
            rule = f"`languages` must be a direction of the model: {_listed(self.directions)}"
            raise InputError(f"{rule}. Received: {_shown(named)}.")

    def closest(self, spelling: str) -> list[str]:
        """Returns the model's codes that a code or name may stand for, the nearest first."""
        codes = [*self._known(spelling), *closest_codes(without_signs(spelling), self.codes)]
        return list(dict.fromkeys(codes))

    def _codes_for(self, side, spelling):
        """Returns the codes that a spelling may stand for, the nearest first."""
        if spelling is None:
            return [None]
        name = f"{side}_language"
        if not isinstance(spelling, str):
            raise InputError(f"`{name}` must be a code. Received: {received(spelling)}.")
        possible = self._possible[side]
        codes = self.closest(spelling)
        if not codes and None in possible:  # any language
            codes = [language_code(spelling)]
        if codes:
            return codes
        rule = f"`{name}` must be one of {_listed(possible)}"
        nearest = nearest_codes(spelling, filter(None, possible))
        nearest = nearest or _did_you_mean(spelling[:_COMPARED], tuple(self._codes_by_name))
        raise InputError(f"{rule}. Received: {received(spelling)}.{nearest}")

    def _known(self, spelling):
        """Returns the code that a spelling names exactly, in a list."""
        names = spelling, without_signs(spelling)
        known = (self._codes_by_name.get(_folded(name)) for name in names)
        return [code for code in known if code is not None][:1]

    def _fitting(self, source, target):
        """Returns the directions from a source to a target, None for all."""
        known = self._directions_by_codes
        open_pairs = () if source is None else known.get((_ANY, target), ())
        return [*known.get((source, target), ()), *open_pairs]

    # Of NLLB's 202 languages there are 40,602 directions.
    @functools.cached_property
    def _directions_by_codes(self):
        """Directions by both codes, and by each with None for the other."""
        pairs: dict[tuple[str | None, str | None], list] = {}
        for source, target in self.directions:
            for key in itertools.product((source or _ANY, None), (target, None)):
                pairs.setdefault(key, []).append((source, target))
        return pairs

    @functools.cached_property
    def _possible(self):
        sides = zip(*self.directions, strict=True) if self.directions else ((), ())
        return {side: dict.fromkeys(codes) for side, codes in zip(_SIDES, sides, strict=True)}

    @functools.cached_property
    def _codes_by_name(self):
        return {_folded(name): code for name, code in self.names.items()}


class DirectionTable(NamedTuple):
    """Directions as arrays, for a graph and a page, which cannot compare codes.

    Attributes:
        names: Spellings of languages in lower case with hyphens.
        ids: A direction that has instead of each token an array of ids, one for each name. The
            field of `Languages` with the same name says whether the source's or the target's name
            chooses the id.
    """

    names: list[str]
    ids: Direction


def languages_of_directions(directions: Iterable[tuple[str, str]]) -> Languages | None:
    """Returns the languages of a new model, None without directions.

    A model of several target languages has tokens such as `>>de<<` before its sources. Two codes of
    one language, such as `en` and `eng`, are the first of them.
    """
    pairs, first = list(directions), dict[str, str]()
    codes_by_name = collections.defaultdict(list)
    for code in dict.fromkeys(itertools.chain(*pairs)):
        near = codes_by_name[main_name(code)]
        first[code] = next((known for known in near if is_exact(code, known)), code)
        near.append(first[code])
    directions = tuple(dict.fromkeys((first[source], first[target]) for source, target in pairs))
    tokens = {target: language_tag(target.lower()) for _, target in directions}
    if len(tokens) < 2:
        return Languages(directions=directions) if directions else None
    return Languages(tokens, source_prefix="target", directions=directions)


def named_directions(
    languages: Languages | None, named: tuple[str, str] | None
) -> list[tuple[str | None, str]]:
    """Returns the directions of a model, for programs and people that choose one of them.

    Args:
        languages: Languages of the model, None if they are unknown.
        named: Codes of a source and a target that a user gives, None if none are given. They name
            the direction of a model of one direction, or the source that is any language.

    Raises:
        InputError: The model lacks the named direction.
    """
    directions = [] if languages is None else list(languages.directions)
    if named is None:
        return directions
    if languages is not None:
        languages.check_named(named)
    if languages is None or not (languages.tokens or directions[1:]):
        return [named]
    return [(source or named[0], target) for source, target in directions]


def languages_of_pair(source: str, target: str) -> Languages | None:
    """Returns the languages of a model of one direction, None unless both codes are languages.

    A family of languages, such as `gem`, is not a language.

    >>> languages_of_pair("eng", "pt_br").directions
    (('en', 'pt-BR'),)
    >>> languages_of_pair("gem", "en"), languages_of_pair("en", "xx")
    (None, None)
    """
    from babel.core import get_global

    if not all(map(is_known, (source, target))):
        return None
    source, target = map(language_code, (source, target))
    with_script = get_global("likely_subtags")
    if any(code.partition("-")[0] not in with_script for code in (source, target)):
        return None
    return Languages(directions=((source, target),))


def languages_of_tags(tag_tokens: Mapping[str, str]) -> Languages | None:
    """Returns the languages of an imported model whose texts begin with tags such as `>>epo<<`."""
    tokens = {name: token for name, token in tag_tokens.items() if language_in_tag(token)}
    if not tokens:
        return None
    tokens = {code: tokens[name] for code, name in codes_of(tokens).items()}
    directions = tuple((None, code) for code in tokens)
    return Languages(tokens, source_prefix="target", directions=directions, is_optional=True)


def nearest_codes(spelling: str, codes: Iterable[str]) -> str:
    """Returns the end of a message about an unknown language: ` Did you mean …?`, or nothing.

    `related_codes` gives the named codes.

    >>> nearest_codes("sr-Latn", ["en", "sr"])
    ' Did you mean `sr`?'
    """
    related = related_codes(without_signs(spelling), codes)
    names = " or ".join(f"`{code}`" for code in related[:_RELATED])
    return f" Did you mean {names}?" if names else ""


# A server meets the same mistake in many batches.
@functools.lru_cache(maxsize=256)
def _did_you_mean(name, known_names):
    return did_you_mean(name, known_names)


def _folded(code):
    return code.lower().replace("_", "-")


def _shown(direction):
    return "-".join(code or "any" for code in direction)


def _listed(names):
    names = [f"{name if isinstance(name, str) else _shown(name):.80}" for name in names]
    rest = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{', '.join(names[:_LISTED])}{rest}"
