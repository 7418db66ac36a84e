"""Options of decoding, declared once with range, meaning and default; imports no Keras."""

import dataclasses
import math
from collections.abc import Mapping, Sequence, Set

import numpy as np

from keras_transformer.config import PAD_ID
from keras_transformer.config.checks import check_divides
from keras_transformer.errors import InputError, did_you_mean
from keras_transformer.inputs import check_bool, check_integer, is_integer

LENGTH_MARGIN = 10  # tokens that a translation may have more than `max_length_ratio` gives


@dataclasses.dataclass(frozen=True)
class DecodingOptions:
    """Options of a search, and their defaults. Those marked with * are part of the program.

    Attributes:
        beam_size*: Hypotheses that stay alive; 1 is greedy search.
        length_penalty: Exponent of the GNMT length penalty.
        coverage_penalty: Weight of the GNMT coverage penalty; 0 for none. (* Whether it is 0, and
            else what it looks at, the attention below.)
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
        min_length: Fewest tokens of a translation, including EOS.
        max_length: Most tokens, including EOS; the engine's `max_target_length` by default.
        min_length_ratio: Fewest tokens, as a multiple of the source's.
        max_length_ratio: Most tokens, as a multiple of the source's, and 10 more; infinity for any.
        banned_ids: Ids that are never chosen.
        logit_bias: A dict from id to what is added to its logit before choosing.
        no_repeat_ngram_size*: No n-gram of this many tokens occurs twice; 0 = off.
        attention_layer: The decoder block whose attention to the source is the alignment and
            feeds the coverage penalty; negative counts from the last.
        attention_heads: The heads whose mean is taken; all by default.
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
    seed: int | tuple[int, ...] = 0
    min_length: int = 0
    max_length: int | None = None
    min_length_ratio: float = 0.0
    max_length_ratio: float = 2.0
    banned_ids: tuple[int, ...] = ()
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()
    no_repeat_ngram_size: int = 0
    attention_layer: int = -1
    attention_heads: tuple[int, ...] | None = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _plain(getattr(self, field.name)))
        for name in ("banned_ids", "logit_bias"):
            value = getattr(self, name)
            if not isinstance(value, tuple):
                raise InputError(f"`{name}` must be a collection of ids. Received: {value!r}.")
        if not all(isinstance(each, tuple) and len(each) == 2 for each in self.logit_bias):
            raise InputError(f"`logit_bias` must be a dict of numbers. Received: {value!r}.")
        check_bool("sampling", self.sampling)
        for name in ("beam_size", "num_groups", "n_best"):
            check_integer(name, getattr(self, name), 1)
        for name in ("top_k", "min_length", "no_repeat_ngram_size"):
            check_integer(name, getattr(self, name), 0)
        check_integer("max_length", self.resolve_max_length(1), 1)
        for name in ("length_penalty", "coverage_penalty", "diversity_penalty", "min_length_ratio"):
            _check_number(name, getattr(self, name), 0, math.inf, "a number, 0 or more")
        if self.max_length_ratio != math.inf:
            _check_number("max_length_ratio", self.max_length_ratio, 0, math.inf, "0 or more")
        _check_number("temperature", self.temperature, 1e-6, math.inf, "a number above 0")
        _check_number("top_p", self.top_p, 1e-9, 1 + 1e-9, "above 0 and at most 1")
        _check_number("min_p", self.min_p, 0, 1 + 1e-9, "between 0 and 1")
        if not self.sampling and self.n_best > self.beam_size:
            rule = "`n_best` must be at most `beam_size`."
            received = f"n_best={self.n_best}, beam_size={self.beam_size}"
            raise InputError(f"{rule} Received: {received}.")
        check_divides("num_groups", self.num_groups, "beam_size", self.beam_size)
        for seed in self.seed if isinstance(self.seed, tuple) else (self.seed,):
            check_integer("seed", seed, -(2**31))

    @classmethod
    def of(cls, **options) -> "DecodingOptions":
        """Options by name, as callers give them; an `InputError` where there is none of a name."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in options:
            if name not in known:
                raise InputError(f"There is no option `{name}`.{did_you_mean(name, known)}")
        return cls(**options)

    @property
    def beams(self) -> int:
        """Hypotheses that go on at once for each sentence."""
        return self.n_best if self.sampling else self.beam_size

    @property
    def with_coverage(self) -> bool:
        """True if the search needs the attention of each step."""
        return self.coverage_penalty > 0 and self.beam_size > 1 and not self.sampling

    def resolve_max_length(self, max_length: int) -> int:
        """Most tokens of a translation; `max_length` where the options name none."""
        return max_length if self.max_length is None else self.max_length

    @property
    def program_key(self) -> tuple:
        """Equal for options that share a compiled program; the others are arguments of it."""
        attention = (self.attention_layer, self.attention_heads) if self.with_coverage else ()
        sizes = self.beams, self.n_best, self.num_groups, self.no_repeat_ngram_size
        return self.sampling, *sizes, *attention

    def check_ids(self, vocabulary_size: int) -> None:
        """Checks what depends on the model's target vocabulary."""
        banned = (("banned_ids", each, 0.0) for each in self.banned_ids)
        biased = (("logit_bias", each, bias) for each, bias in dict(self.logit_bias).items())
        for name, each, bias in (*banned, *biased):
            if not is_integer(each) or not PAD_ID <= each < vocabulary_size:
                rule = f"must name ids of the vocabulary, integers from 0 to {vocabulary_size - 1}"
                raise InputError(f"`{name}` {rule}. Received: {each!r}.")
            if not isinstance(bias, (int, float)) or not bias < 2.0**127:
                received = f"{bias!r} for the id {each}"
                raise InputError(f"`logit_bias` must give numbers. Received: {received}.")

    def check_attention(self, heads_of_layers: Sequence[int]) -> None:
        """Checks what depends on the model's decoder, from the heads of each block."""
        layer, heads = self.attention_layer, self.attention_heads
        num_layers = len(heads_of_layers)
        if not num_layers:
            if self.with_coverage or (layer, heads) != (-1, None):
                rule = "`coverage_penalty`, `attention_layer` and `attention_heads` need attention"
                raise InputError(f"{rule}, which the model has none of.")
            return
        if not is_integer(layer) or not -num_layers <= layer < num_layers:
            rule = f"must be one of the {num_layers} decoder blocks, counted from 0"
            raise InputError(f"`attention_layer` {rule}. Received: attention_layer={layer!r}.")
        num_heads = heads_of_layers[layer]
        known = isinstance(heads, tuple) and all(
            is_integer(head) and 0 <= head < num_heads for head in heads
        )
        if heads is not None and not (known and heads):
            rule = f"must be some of the {num_heads} heads, counted from 0"
            raise InputError(f"`attention_heads` {rule}. Received: attention_heads={heads!r}.")


def _plain(value):  # tuples for other collections, Python's numbers for NumPy's
    if isinstance(value, Mapping):
        value = value.items()
    if isinstance(value, (list, tuple, Set, np.ndarray)):
        return tuple(map(_plain, value))
    return value.item() if isinstance(value, np.generic) else value


def _check_number(name, value, least, below, expected):
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # Beyond float32 it would become infinity in the program.
    if not number or not least <= value < min(below, 2.0**127):
        raise InputError(f"`{name}` must be {expected}. Received: {name}={value!r}.")
