"""Placeholders: numbered tokens that replace text that is not translated."""

import collections
import zlib

import regex

from keras_transformer.text.folding import fold
from keras_transformer.text.patterns import ITEM, ITEM_OR_NUMBER, MARKUP_TAG
from keras_transformer.text.symbols import Placeholders, symbol

_IN_TRAINING = {
    numbers: regex.compile(f"{MARKUP_TAG}|{pattern.pattern}", regex.V1)
    for numbers, pattern in ((False, ITEM), (True, ITEM_OR_NUMBER))
}


def with_placeholders(source: str, target: str, placeholders: Placeholders) -> tuple[str, str]:
    """Replaces by placeholders what both sides of a training pair have in common.

    These are URLs, e-mail addresses, fields and tags that occur equally often on both sides, except
    for differences that readers do not see; see `fold`. Their first number depends on the text, so
    that all tokens are learned. Further items stay unchanged.

    >>> with_placeholders("Ask a@b.org, {me}.", "Fragen Sie a@b.org, {me}.", Placeholders(1))
    ('Ask <ph_1>, {me}.', 'Fragen Sie <ph_1>, {me}.')
    """
    count, numbers = placeholders
    first = zlib.crc32(source.encode())
    pattern = _IN_TRAINING[numbers]
    source_items, target_items = (
        collections.Counter(fold(item).text for item in pattern.findall(side))
        for side in (source, target)
    )
    common_occurrences = [
        (item, number)
        for item, occurrences in source_items.items()
        if occurrences == target_items[item]
        for number in range(occurrences)
    ]
    symbol_of_occurrence = {
        occurrence: symbol((first + i) % count + 1)
        for i, occurrence in enumerate(common_occurrences[:count])
    }

    def replaced(text):
        occurrences: collections.Counter[str] = collections.Counter()

        def replace(match):
            item = fold(match[0]).text
            occurrences[item] += 1
            return symbol_of_occurrence.get((item, occurrences[item] - 1), match[0])

        return pattern.sub(replace, text)

    return replaced(source), replaced(target)
