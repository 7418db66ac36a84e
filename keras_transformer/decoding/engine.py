"""Text to text with a model in memory: tokenize, batch by length, search, detokenize."""

import math
import warnings

import numpy as np

from keras_transformer.config import PAD_ID
from keras_transformer.decoding.compiled import compile_for_ids
from keras_transformer.decoding.search import search
from keras_transformer.decoding.translation import Translation
from keras_transformer.errors import InputError

LENGTH_MULTIPLE = 16
"""Source lengths are padded to a multiple of this, so that XLA compiles few programs."""


class ModelEngine:
    """Translates with a `Transformer` and its tokenizers.

    Args:
        model: `Transformer`.
        source_tokenizer: `Tokenizer` of the source side.
        target_tokenizer: `Tokenizer` of the target side; the source's by default.
        max_source_length: Tokens of a source, its end included; what is longer is cut, with a
            warning.
        max_target_length: Most tokens of a translation.

    Raises:
        InputError: A tokenizer does not have the model's vocabulary.
    """

    def __init__(
        self,
        model,
        source_tokenizer,
        target_tokenizer=None,
        max_source_length=512,
        max_target_length=256,
    ):
        target_tokenizer = target_tokenizer or source_tokenizer
        for name, value in (
            ("max_source_length", max_source_length),
            ("max_target_length", max_target_length),
        ):
            if value < 2:
                raise InputError(f"`{name}` must be at least 2. Received: {name}={value!r}.")
        for side, tokenizer, size in (
            ("source", source_tokenizer, model.config.vocabulary_size),
            ("target", target_tokenizer, model.config.output_vocabulary_size),
        ):
            if tokenizer.vocabulary_size != size:
                raise InputError(
                    f"The {side} tokenizer has {tokenizer.vocabulary_size} ids, the model {size}: "
                    "they must come from the same run."
                )
        self.model = model
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self.max_source_length = max_source_length
        self.max_target_length = max_target_length
        if model.config.positions == "learned":
            # Not a length that the model has no position for.
            self.max_source_length = min(max_source_length, model.config.max_length)
            self.max_target_length = min(max_target_length, model.config.max_length)
        self._searches = {}

    def translate(self, texts, beam_size=4, length_penalty=0.6, n_best=1, batch_size=32):
        """Translates texts, in batches of similar length.

        Args:
            texts: A list of strings. A blank one is translated as the empty string.
            beam_size: Hypotheses that stay alive; 1 is greedy search.
            length_penalty: Exponent of the GNMT length penalty.
            n_best: Hypotheses for each sentence, at most `beam_size`.
            batch_size: Most sentences in one call of the compiled search.

        Returns:
            A list of `Translation`, in the order of `texts`.

        Raises:
            InputError: An option is out of range.
        """
        _check_options(texts, beam_size, length_penalty, n_best, batch_size)
        translations = [Translation("", 0.0)] * len(texts)
        places = [place for place, text in enumerate(texts) if text.strip()]
        ids = self._tokenize([texts[place] for place in places])
        run = self._search(beam_size, length_penalty, n_best)
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]), reverse=True)
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            padded = pad_to_few_shapes(
                [ids[i] for i in chosen], self.max_source_length, least_rows(beam_size)
            )
            hypotheses = run(padded)
            for i, translation in zip(chosen, self._texts(hypotheses, len(chosen)), strict=True):
                translations[places[i]] = translation
        return translations

    def _tokenize(self, texts):
        ids = self.source_tokenizer.tokenize(texts, add_eos=True)
        too_long = [i for i, each in enumerate(ids) if len(each) > self.max_source_length]
        if too_long:
            warnings.warn(
                f"{len(too_long)} of {len(ids)} texts are longer than "
                f"{self.max_source_length} tokens and were cut there.",
                stacklevel=3,
            )
        for i in too_long:
            ids[i] = [*ids[i][: self.max_source_length - 1], ids[i][-1]]
        return ids

    def _search(self, beam_size, length_penalty, n_best):
        key = (beam_size, length_penalty, n_best)
        if key not in self._searches:

            def run(source_ids):
                return search(
                    self.model,
                    source_ids,
                    beam_size=beam_size,
                    alpha=length_penalty,
                    n_best=n_best,
                    max_length=self.max_target_length,
                )

            self._searches[key] = compile_for_ids(self.model, run)
        return self._searches[key]

    def _texts(self, hypotheses, count):
        ids, log_probabilities, scores = (np.asarray(each)[:count] for each in hypotheses)
        for row in range(count):
            texts = self.target_tokenizer.detokenize(ids[row].tolist())
            best, *others = (
                Translation(text, float(score), float(log_probability))
                for text, score, log_probability in zip(
                    texts, scores[row], log_probabilities[row], strict=True
                )
            )
            yield Translation(best.text, best.score, best.log_probability, tuple(others))


def least_rows(beam_size):
    """Rows that a search should have at least.

    XLA compiles the products of a single row on a CPU to plain loops, half as fast as the
    library call that two rows get: greedy search of one sentence goes beside a row of padding.
    """
    return 2 if beam_size == 1 else 1


def pad_to_few_shapes(ids, max_length=None, min_rows=1):
    """Pads rows of ids to a power of two of rows and a multiple of 16 of columns.

    Args:
        ids: A list of lists of integers.
        max_length: No more columns than this, which is what a learned position table has.
        min_rows: No fewer rows than this.

    Returns:
        Int32 array.
    """
    rows = max(min_rows, 1 << max(len(ids) - 1, 0).bit_length())
    longest = max(len(each) for each in ids)
    columns = -(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    if max_length is not None:
        columns = min(columns, max_length)
    padded = np.full((rows, columns), PAD_ID, "int32")
    for row, each in enumerate(ids):
        padded[row, : len(each)] = each
    return padded


def _check_options(texts, beam_size, length_penalty, n_best, batch_size):
    if isinstance(texts, str):
        raise InputError("`texts` must be a list of strings. Received: one string.")
    for text in texts:
        if not isinstance(text, str):
            raise InputError(
                f"`texts` must be a list of strings. Received: one {type(text).__name__} in it."
            )
    for name, value in (("beam_size", beam_size), ("n_best", n_best), ("batch_size", batch_size)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"`{name}` must be a positive integer. Received: {name}={value!r}.")
    if n_best > beam_size:
        raise InputError(
            "`n_best` must be at most `beam_size`. "
            f"Received: n_best={n_best}, beam_size={beam_size}."
        )
    number = isinstance(length_penalty, (int, float)) and not isinstance(length_penalty, bool)
    if not number or not 0 <= length_penalty < math.inf:
        raise InputError(
            "`length_penalty` must be a number, 0 or more. "
            f"Received: length_penalty={length_penalty!r}."
        )
