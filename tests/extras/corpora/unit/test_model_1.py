"""IBM's Model 1 against its equations, in blocks of any size."""

import random

import pytest
from reference import model_1 as equations

from keras_transformer.extras.corpora import model_1 as module

SOURCE, TARGET = ["", *"abcdefgh"], ["", *"stuvwxyz"]


@pytest.mark.parametrize("block_links", [1, 20, 10**6])
@pytest.mark.parametrize("zeros_per_link", [0, 100])
def test_probabilities_are_those_of_the_equations(monkeypatch, block_links, zeros_per_link):
    monkeypatch.setattr(module, "_BLOCK_LINKS", block_links)
    monkeypatch.setattr(module, "_SPARSE", zeros_per_link)
    rng = random.Random(3)
    pairs = [
        (" ".join(rng.sample(SOURCE[1:], 3)), " ".join(rng.sample(TARGET[1:], rng.randrange(5))))
        for _ in range(23)
    ]
    sides = [
        module.Sentences.of([[0, *map(names.index, pair[side].split())] for pair in pairs])
        for side, names in enumerate((SOURCE, TARGET))
    ]
    shares, received, last = [], {}, -1
    for block in module.model_1(*sides, shares.append):
        assert block.sources[0] > last
        last = block.sources[-1]
        for source, target, probability, count in zip(*block, strict=True):
            names = SOURCE[source], TARGET[target]
            received[names] = probability
            both = (f" {text} " for pair in pairs for text in pair)
            both = zip(both, both, strict=True)
            assert count == sum(
                (not names[0] or names[0] in s) and (not names[1] or names[1] in t) for s, t in both
            )
    assert received == pytest.approx(equations(pairs), abs=1e-6)
    assert sum(shares) == pytest.approx(1)


def test_no_sentences_have_no_translations():
    assert list(module.model_1(*[module.Sentences.of([])] * 2)) == []
    (block,) = module.model_1(module.Sentences.of([[0]]), module.Sentences.of([[]]))
    assert [len(column) for column in block] == [0] * 4
