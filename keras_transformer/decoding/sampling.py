"""Sampling: a token drawn from the model's probabilities at each step."""

from keras import ops

from keras_transformer.decoding.filters import sample
from keras_transformer.decoding.greedy import Greedy


class Sampling(Greedy):
    """Draws each token at random, `num_samples` times independently for each sentence.

    A sentence's samples depend on its own seed and nothing else: not on its batch-mates, their
    number, or the padding. All options but `num_samples` may be traced tensors; temperature, top-k,
    top-p and min-p may be `(batch,)`, a value for each sentence.

    Args:
        seeds: Int32 `(batch,)`.
        num_samples: Samples of each sentence.
        temperature: What the logits are divided by, above 0.
        top_k: Draw from this many most probable tokens; 0 = from all.
        top_p: Draw from the smallest set of most probable tokens of this probability.
        min_p: Draw from tokens that are at least this many times as probable as the best.
        length_penalty: Exponent of the length penalty, which changes the score alone.

    References: Holtzman et al. 2020 (arXiv:1904.09751) for top-p; Nguyen et al. 2024
    (arXiv:2407.01082) for min-p.
    """

    def __init__(
        self,
        seeds,
        num_samples=1,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        length_penalty=0.0,
    ):
        super().__init__(length_penalty)
        self.seeds = seeds
        self.beams = num_samples
        filters = dict(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        self.filters = {name: _of_each_sentence(value) for name, value in filters.items()}

    def pick(self, allowed, position):
        return sample(allowed, self.seeds, position, **self.filters)


def _of_each_sentence(value):
    """A value for each sentence broadcasts over its samples and the vocabulary."""
    return ops.reshape(value, (-1, 1, 1)) if len(getattr(value, "shape", ())) == 1 else value
