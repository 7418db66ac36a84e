"""Languages of texts: their probabilities, also among the languages of a server."""

import collections
import re
from collections.abc import Iterable, Sequence

from keras_transformer.text.elements import find_tags
from keras_transformer.text.identification import language_identifier
from keras_transformer.text.language_codes import closest_codes

_HAN = re.compile("[\u3400-\u9fff]")


def language_shares(texts: Sequence[str]) -> list[tuple[str, float]]:
    """Returns languages and their probabilities, the most probable first.

    Raises:
        InputError: The package that detects is not installed.
    """
    identifier = language_identifier("for detection,")
    if not any(map(has_words, texts)):
        return [("en", 0.0)]
    text = "\n".join(map(_without_tags, texts))
    return [
        (f"zh-{_chinese_script(text)}" if code == "zh" else code, share)
        for code, share in identifier.rank(text)
    ]


def shares_among(
    shares: Iterable[tuple[str, float]], codes: Iterable[str]
) -> list[tuple[str, float]]:
    """Returns some languages with their shares of the probability, the most probable first."""
    own_shares = dict.fromkeys(codes, 0.0)
    for language, share in shares:
        # A text in another script is still in the language.
        same = (code for code in codes if primary(code) == primary(language))
        for code in [*closest_codes(language, codes), *same][:1]:
            own_shares[code] += share
    total = sum(own_shares.values()) or 1.0
    ranked = sorted(own_shares, key=lambda code: own_shares[code], reverse=True)
    return [(code, own_shares[code] / total) for code in ranked]


def _without_tags(text):
    """Returns a text without the names of elements and attributes, which are English."""
    tags = find_tags(text)
    stops = [0, *(tag.stop for tag in tags)]
    starts = [*(tag.start for tag in tags), len(text)]
    return " ".join(text[stop:start] for stop, start in zip(stops, starts, strict=True))


def _chinese_script(text):
    """Returns the script of most characters that only one script has: `Hans` or `Hant`.

    The character sets of China and of Taiwan have the characters of one script each, and those that
    both scripts share.
    """
    counts = collections.Counter[str]()
    for character, count in collections.Counter(_HAN.findall(text)).items():
        scripts = [
            script
            for script, encoding in (("Hans", "gb2312"), ("Hant", "big5"))
            if character.encode(encoding, "ignore")
        ]
        if len(scripts) == 1:
            counts[scripts[0]] += count
    return "Hant" if counts["Hant"] > counts["Hans"] else "Hans"


def has_words(text: str) -> bool:
    """Returns whether a text has letters or digits."""
    return any(map(str.isalnum, text))


def primary(code: str) -> str:
    """Returns the language of a code, without its script and region."""
    return code.partition("-")[0]
