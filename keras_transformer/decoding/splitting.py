"""Splitting a text that is too long for the model at the ends of its sentences."""

import itertools
import re

from keras_transformer.errors import InputError

_CLOSING = r"\"'”’»›)\]}」』）】》〉〕］"
_SENTENCE_END = re.compile(
    # The look-behind: a long run of dots is tried once, not once for each of its dots. German
    # closes a quotation with what opens one elsewhere, French after a space that does not break.
    rf"(?<![.!?…])[.!?…]++[{_CLOSING}“‘«‹]*+(?:[\u00a0\u202f][»›])?(?=\s)"
    rf"|[。！？][。！？.!?…]*[{_CLOSING}]*"
    r"|[\n\r\v\f\x85\u2028\u2029]"
)
_SHOWN_CHARACTERS = 40


def split_text(text, fits):
    """Splits a text at the ends of its sentences into as few pieces as possible.

    A sentence ends at `.`, `!`, `?` or `…` before a space, at `。`, `！` or `？`, each with the
    quotes and brackets that close after it, and at a line break. A point after an abbreviation
    counts as an end. Pieces are filled one after the other, which gives the fewest where every
    part of a text that fits also fits.

    Args:
        text: A string.
        fits: `fits(piece) -> bool`. Each piece returned has been accepted by it.

    Returns:
        A list of strings: the text without the space around and between the pieces, none of
        them blank. Of a blank text there are none; a text that fits is one piece.

    Raises:
        InputError: A single sentence does not fit.

    >>> split_text("One. Two! Three?", lambda piece: len(piece) <= 9)
    ['One. Two!', 'Three?']
    """
    whole = text.strip()
    if not whole:
        return []
    if fits(whole):
        return [whole]
    ends = [match.end() for match in _SENTENCE_END.finditer(whole)]
    pieces, piece, start = [], "", 0
    for sentence_start, end in itertools.pairwise([0, *ends, len(whole)]):
        sentence = whole[sentence_start:end].strip()
        if not sentence:
            continue
        longer = whole[start:end].strip()
        if piece and fits(longer):
            piece = longer
            continue
        if not fits(sentence):
            raise InputError(
                "Each sentence must fit by itself: texts are split only at . ! ? … 。 ！ ？ and at "
                f"line breaks. Received: a sentence of {len(sentence)} characters that begins with "
                f"{sentence[:_SHOWN_CHARACTERS]!r}."
            )
        if piece:
            pieces.append(piece)
        piece, start = sentence, sentence_start
    return [*pieces, piece]
