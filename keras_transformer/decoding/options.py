"""How to decode: the options of `Translator.translate`, checked."""

import dataclasses
import math
from collections.abc import Mapping, Set

import numpy as np

from keras_transformer.config import PAD_ID
from keras_transformer.decoding.inputs import check_bool
from keras_transformer.errors import InputError, did_you_mean


@dataclasses.dataclass(frozen=True)
class DecodingOptions:
    """Options of a search. Only those marked with * are part of the compiled program.

    Attributes:
        beam_size*: Hypotheses that stay alive; 1 is greedy search.
        length_penalty: Exponent of the GNMT length penalty.
        coverage_penalty: Weight of the GNMT coverage penalty; 0 for none (* whether it is 0).
        num_groups*: Groups of a diverse beam search; must divide `beam_size`.
        diversity_penalty: What a group pays for a token that an earlier group just chose, nats.
        n_best*: Translations of each sentence: at most `beam_size`, or any number of samples.
        sampling*: Draw at random instead of searching; `beam_size` is then not looked at.
        temperature: What the logits are divided by in sampling, above 0.
        top_k: Sample from this many most probable tokens; 0 = all.
        top_p: Sample from the smallest set of most probable tokens with this probability.
        min_p: Sample from tokens at least this many times as probable as the best one.
        seed: Seed of each sentence's samples: an integer for all sentences, or one for each.
            The same sentence with the same seed gives the same samples in any batch.
        min_length: Fewest tokens of a translation, the end included.
        max_length: Most tokens, the end included; the engine's `max_target_length` by default.
        min_length_ratio: Fewest tokens, as a multiple of the source's.
        max_length_ratio: Most tokens, as a multiple of the source's, and 10 more; infinity = no
            such limit.
        banned_ids: Ids that are never chosen.
        logit_bias: A dict from id to what is added to its logit before choosing.
        no_repeat_ngram_size*: No n-gram of this many tokens occurs twice; 0 = off.
        attention_layer*: The decoder block whose attention to the source is the alignment and
            feeds the coverage penalty; negative counts from the last.
        attention_heads*: The heads whose mean is taken; all by default.
    """

    beam_size: int = 4
    length_penalty: float = 0.6
    coverage_penalty: float = 0.0
    num_groups: int = 1
    diversity_penalty: float = 0.5
    n_best: int = 1
    sampling: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | tuple = 0
    min_length: int = 0
    max_length: int | None = None
    min_length_ratio: float = 0.0
    max_length_ratio: float = 2.0
    banned_ids: tuple = ()
    logit_bias: Mapping | tuple = ()
    no_repeat_ngram_size: int = 0
    attention_layer: int = -1
    attention_heads: tuple | None = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _plain(getattr(self, field.name)))
        for name in ("banned_ids", "logit_bias"):
            if not isinstance(getattr(self, name), tuple):
                raise InputError(
                    f"`{name}` must be a collection of ids. Received: {getattr(self, name)!r}."
                )
        if not all(isinstance(each, tuple) and len(each) == 2 for each in self.logit_bias):
            raise InputError(
                f"`logit_bias` must be a dict of numbers. Received: {self.logit_bias!r}."
            )
        check_bool("sampling", self.sampling)
        for name, least in (("beam_size", 1), ("num_groups", 1), ("n_best", 1)):
            _check_integer(name, getattr(self, name), least, "a positive integer")
        for name in ("top_k", "min_length", "no_repeat_ngram_size"):
            _check_integer(name, getattr(self, name), 0, "an integer, 0 or more")
        if self.max_length is not None:
            _check_integer("max_length", self.max_length, 1, "a positive integer")
        for name in ("length_penalty", "coverage_penalty", "diversity_penalty"):
            _check_number(name, getattr(self, name), 0, math.inf, "a number, 0 or more")
        _check_number("min_length_ratio", self.min_length_ratio, 0, math.inf, "0 or more")
        if self.max_length_ratio != math.inf:
            _check_number("max_length_ratio", self.max_length_ratio, 0, math.inf, "0 or more")
        _check_number("temperature", self.temperature, 1e-6, math.inf, "a number above 0")
        _check_number("top_p", self.top_p, 1e-9, 1 + 1e-9, "above 0 and at most 1")
        _check_number("min_p", self.min_p, 0, 1 + 1e-9, "between 0 and 1")
        self._check_together()

    @classmethod
    def of(cls, **options):
        """Options by name, as callers give them.

        Raises:
            InputError: There is no option of a name, or a value is out of range.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in options:
            if name not in known:
                raise InputError(f"There is no option `{name}`.{did_you_mean(name, known)}")
        return cls(**options)

    def _check_together(self):
        if not self.sampling and self.n_best > self.beam_size:
            raise InputError(
                "`n_best` must be at most `beam_size`. "
                f"Received: n_best={self.n_best}, beam_size={self.beam_size}."
            )
        if self.beam_size % self.num_groups:
            raise InputError(
                "`num_groups` must divide `beam_size`. "
                f"Received: num_groups={self.num_groups}, beam_size={self.beam_size}."
            )
        for seed in self.seed if isinstance(self.seed, tuple) else (self.seed,):
            _check_integer("seed", seed, -(2**31), "an integer of 32 bits")

    @property
    def beams(self):
        """Hypotheses that go on at once for each sentence."""
        return self.n_best if self.sampling else self.beam_size

    @property
    def with_coverage(self):
        """Whether the search needs the attention of each step."""
        return self.coverage_penalty > 0 and self.beam_size > 1 and not self.sampling

    def check_ids(self, vocabulary_size):
        """Checks what depends on the model's target vocabulary."""
        for name, ids in (
            ("banned_ids", self.banned_ids),
            ("logit_bias", [each for each, _ in self.logit_bias]),
        ):
            for each in ids:
                if not _is_integer(each):
                    raise InputError(f"`{name}` must name ids, integers. Received: {each!r}.")
                if not PAD_ID <= each < vocabulary_size:
                    raise InputError(
                        f"`{name}` must name ids of the vocabulary, 0 to {vocabulary_size - 1}. "
                        f"Received: {each}."
                    )
        for each, bias in self.logit_bias:
            if not isinstance(bias, (int, float)) or not bias < 2.0**127:
                raise InputError(
                    f"`logit_bias` must give numbers. Received: {bias!r} for the id {each}."
                )

    def check_attention(self, num_layers, num_heads):
        """Checks what depends on the model's decoder."""
        layer = self.attention_layer
        if not _is_integer(layer) or not -num_layers <= layer < num_layers:
            raise InputError(
                f"`attention_layer` must be one of the {num_layers} decoder blocks, counted from "
                f"0. Received: attention_layer={layer!r}."
            )
        heads = self.attention_heads
        known = isinstance(heads, tuple) and all(
            _is_integer(head) and 0 <= head < num_heads for head in heads
        )
        if heads is not None and not (known and heads):
            raise InputError(
                f"`attention_heads` must be some of the {num_heads} heads, counted from 0. "
                f"Received: attention_heads={heads!r}."
            )


def _plain(value):
    """An option with tuples for other collections, and Python's numbers for NumPy's."""
    if isinstance(value, Mapping):
        value = value.items()
    if isinstance(value, (list, tuple, Set, np.ndarray)):
        return tuple(map(_plain, value))
    return value.item() if isinstance(value, np.generic) else value


def _is_integer(value):
    return isinstance(value, int) and not isinstance(value, bool)


def _check_integer(name, value, least, expected):
    if not _is_integer(value) or not least <= value < 2**31:
        expected += ", below 2**31" if _is_integer(value) and value > least else ""
        raise InputError(f"`{name}` must be {expected}. Received: {name}={value!r}.")


def _check_number(name, value, least, below, expected):
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # Beyond float32 it would become infinity in the program.
    if not number or not least <= value < min(below, 2.0**127):
        raise InputError(f"`{name}` must be {expected}. Received: {name}={value!r}.")
