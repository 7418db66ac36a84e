"""Places of tokens in the text that they were made from, or that was made from them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.text.vocabulary import SPACE


def positions_before(text: str) -> np.ndarray:
    """Returns for each offset in a text the number of characters before it, without spaces."""
    positions = np.zeros(len(text) + 1, int)
    np.cumsum(np.fromiter(map(str.isspace, text), bool, len(text)) ^ True, out=positions[1:])
    return positions


def token_spans(
    tokens: Sequence[str], text: str, tokenizer: Any = None, is_written: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Returns where each token begins and ends in a text, counted in characters without spaces.

    Args:
        tokens: Tokens, also unknown tokens and bytes.
        text: Their text. It may be longer than its tokens.
        tokenizer: `Tokenizer`, which knows what it has normalized. None if nothing is changed.
        is_written: Whether the model has written the tokens, and not read them.
    """
    pieces = [token.replace(SPACE, "") for token in tokens]
    characters = "".join(text.split())
    if tokenizer is None or characters.startswith("".join(pieces)):
        sizes = np.fromiter(map(len, pieces), int, len(pieces))
        ends = np.cumsum(sizes)
        return ends - sizes, ends
    written, spans = tokenizer.detokenized(tokens) if is_written else (text, tokenizer.spans(text))
    before = positions_before(written)
    # A long text may be read in parts, which have another token where a word is cut.
    last = (len(written), len(written))
    offsets = [*spans[: len(tokens)], *[last] * (len(tokens) - len(spans))]
    begins, ends = before[np.array(offsets, int).reshape(-1, 2)].T
    if before[-1] != len(characters) and is_written:  # A step has changed it, as to capitals.
        begins, ends = (side * len(characters) // max(before[-1], 1) for side in (begins, ends))
    return begins, ends
