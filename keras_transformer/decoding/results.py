"""From ids and scores to `Translation`s."""

import dataclasses

import numpy as np

from keras_transformer.config import PAD_ID
from keras_transformer.decoding.hypotheses import IMPOSSIBLE
from keras_transformer.decoding.translation import Translation


class Results:
    """Describes what a search found.

    Args:
        source_tokenizer: `Tokenizer` of the source side.
        target_tokenizer: `Tokenizer` of the target side.
    """

    def __init__(self, source_tokenizer, target_tokenizer):
        self._source_tokenizer = source_tokenizer
        self._target_tokenizer = target_tokenizer

    def best(self, hypotheses, source):
        """The best hypothesis of a sentence, with the others as its alternatives.

        Args:
            hypotheses: `Hypotheses` of one sentence, arrays without the batch's axis.
            source: A list of the source's ids.

        Returns:
            `Translation`.
        """
        ids = [_without_padding(row) for row in hypotheses.ids.tolist()]
        texts = self._target_tokenizer.detokenize(ids)
        best, *others = (
            self.one(text, float(score), by_token[: len(row)].tolist(), row, source)
            for text, score, by_token, row in zip(
                texts, hypotheses.scores, hypotheses.token_log_probabilities, ids, strict=True
            )
        )
        # Where fewer hypotheses exist than were asked for, the last places are empty.
        others = [each for each in others if each.score > IMPOSSIBLE / 2]
        return dataclasses.replace(best, alternatives=tuple(others))

    def one(self, text, score, by_token, ids, source):
        """One hypothesis.

        Args:
            text: A string.
            score: A float.
            by_token: A list of log-probabilities.
            ids: A list of as many ids.
            source: A list of the source's ids.

        Returns:
            `Translation`.
        """
        return Translation(
            text,
            score,
            float(np.sum(np.array(by_token, "float32"))),
            tokens=tuple(self._target_tokenizer.pieces_of(ids)),
            ids=tuple(ids),
            token_log_probabilities=tuple(by_token),
            source_tokens=tuple(self._source_tokenizer.pieces_of(source)),
        )


def _without_padding(ids):
    """What comes before the padding."""
    length = len(ids)
    while length and ids[length - 1] == PAD_ID:
        length -= 1
    return ids[:length]
