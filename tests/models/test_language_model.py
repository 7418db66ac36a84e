"""The decoder-only language model: continuations, scores; its formula: `test_effects`."""

import math

import numpy as np
import pytest
from decoding_oracles import FullPass, NumberTokenizer, check_equal
from naive_search import EOS, Rules, exhaustive_search, log_probability, penalty

from keras_transformer.base.errors import InputError
from keras_transformer.decoding.search import search
from keras_transformer.engine import ModelEngine
from keras_transformer.engine.programs import Compiled
from keras_transformer.models import LanguageModel
from keras_transformer.models.config import LanguageModelConfig


def small_model():
    """A random model of four words and the end, whose texts end at several lengths."""
    sizes = dict(vocabulary_size=7, model_dim=14, num_heads=2, intermediate_dim=11)
    model = LanguageModel(LanguageModelConfig(**sizes, num_decoder_layers=1))
    chance = np.random.default_rng(5)
    model.set_weights([0.5 * chance.normal(size=weight.shape) for weight in model.weights])
    return model


PROMPTS = np.array([[5, 6, 4, 2], [4, 2, 0, 0], [6, 6, 4, 2]], "int32")


def test_a_beam_as_wide_as_the_tree_finds_the_best_continuations():
    model, limit = small_model(), 5
    options = {"max_length_ratio": math.inf, "allow_unknown": True}
    options |= {"beam_size": 5 * 4**3, "length_penalty": 1.0, "n_best": 5, "max_length": limit}
    run = Compiled(
        model, lambda ids, prefix: search(model, ids, prefixes=prefix, **options), with_xla=False
    )
    prefixes = tuple(tuple(row[(row != 0) & (row != EOS)].tolist()) for row in PROMPTS)
    scorer = FullPass(model, PROMPTS, limit + 1)
    expected = exhaustive_search(scorer, [limit] * 3, 1.0, 5, Rules(prefixes=prefixes))
    check_equal(run(PROMPTS, np.where(PROMPTS == EOS, 0, PROMPTS)), expected)


@pytest.mark.tensorflow
def test_columns_of_padding_change_no_continuation():
    # A tenth of 16 tokens, 10, and the 15 of the prompt.
    model, source = small_model(), np.array([[5] * 15 + [2]], "int32")
    options = dict(beam_size=1, max_length=96, min_length=90, max_length_ratio=0.1)
    for more in (0, 80):
        padded = np.pad(source, ((0, 0), (0, more)))
        result = search(model, padded, prefixes=np.where(padded == EOS, 0, padded), **options)
        assert np.count_nonzero(np.asarray(result.ids)) == 26


def test_a_prompt_that_leaves_no_room_is_refused():
    model = small_model()
    with pytest.raises(ValueError, match="fewer tokens than `max_length`.* 3 tokens, max_length=3"):
        search(model, PROMPTS, max_length=3, prefixes=PROMPTS[:, :3])
    engine = ModelEngine(model, Numbers(), **SIZES)
    for refused in (engine.translate, lambda texts, **options: engine.stream(*texts, **options)):
        with pytest.raises(InputError, match="Text 1: .*at most 3 tokens.*Received: 4 tokens"):
            refused(["5 6 4"], max_length=3)


SIZES = dict(max_source_length=16, max_target_length=16, with_xla=False)


class Numbers(NumberTokenizer):
    vocabulary_size = 7


def test_a_score_is_of_the_target_after_its_source():
    model = small_model()
    engine = ModelEngine(model, Numbers(), **SIZES)
    sources, targets = ["5 6 4", "", "4", "6 4 6 5"], ["4 4", "5 6 6 4 4", "", "6"]
    scored = engine.score(sources, targets, length_penalty=1.0, batch_size=3)
    scorer = FullPass(model, np.zeros((1, 1), "int32"), 12)
    for source, target, ours in zip(sources, targets, scored, strict=True):
        prefix, ids = tuple(map(int, source.split())), (*map(int, target.split()), EOS)
        # The chain rule: of the whole text, less that of its beginning.
        whole = log_probability(scorer, 0, (*prefix, *ids))
        beginning = log_probability(scorer, 0, prefix) if prefix else 0.0
        expected = whole - beginning
        assert ours.ids == ids and ours.log_probability == pytest.approx(expected, abs=1e-4)
        assert ours.score == pytest.approx(expected / penalty(len(ids), 1.0), abs=1e-4)
    with pytest.raises(InputError, match="Text 2: .*16 tokens together. Received: 17 tokens"):
        engine.score(["4"] * 2, ["5", "5 " * 15])
