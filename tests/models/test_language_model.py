"""The decoder-only language model: against NumPy, its cache, and what it may see."""

import math

import numpy as np
import pytest
from decoding_oracles import FullPass, NumberTokenizer, check_equal
from keras import ops
from model_oracles import outputs_of
from naive_search import EOS, Rules, exhaustive_search, log_probability, penalty
from reference import float64, weights_of

from keras_transformer.decoding.search import search
from keras_transformer.engine import ModelEngine
from keras_transformer.engine.programs import Compiled
from keras_transformer.errors import InputError
from keras_transformer.models import LanguageModel
from keras_transformer.models.config import LanguageModelConfig

VOCABULARY, WIDTH = 23, 14
NO_SOURCE = np.array([[2], [2]])
IDS = np.array([[1, 13, 17, 19, 5], [1, 22, 7, 0, 0]])
VARIANTS = {
    "post_norm": dict(),
    "pre_norm, untied": dict(normalize_first=True, tie_embeddings="none"),
    "learned": dict(positions="learned", max_length=11),
}
EACH = pytest.mark.parametrize(
    ("variant", "policy", "tolerance"),
    [(variant, "float32", 1e-5) for variant in VARIANTS]
    + [("pre_norm, untied", "mixed_bfloat16", 5e-2)],
)


def model_of(randomize, variant="post_norm", policy="float32"):
    sizes = dict(vocabulary_size=VOCABULARY, model_dim=WIDTH, num_heads=2, intermediate_dim=11)
    config = LanguageModelConfig(**sizes, num_decoder_layers=2, **VARIANTS[variant])
    return randomize(LanguageModel(config, dtype=policy))


def close(actual, expected, tolerance):
    scale = np.abs(float64(expected)).max()
    np.testing.assert_allclose(float64(actual), float64(expected), atol=tolerance * scale, rtol=0)


@EACH
def test_it_equals_the_numpy_oracle(randomize, variant, policy, tolerance):
    model = model_of(randomize, variant, policy)
    expected = outputs_of(weights_of(model), model.config, IDS)
    real = IDS != 0
    close(float64(model(IDS))[real], expected[real], 2 * tolerance)


@EACH
def test_steps_batch_mates_and_padding_change_nothing(rng, randomize, variant, policy, tolerance):
    model, beams, length = model_of(randomize, variant, policy), 3, 5
    cache = model.start_decoding(NO_SOURCE, length, beams)
    histories = np.zeros((2, beams, length), int)
    received = np.zeros((2, beams, length, VOCABULARY))
    for t in range(length):
        histories[:, :, t] = rng.integers(1, VOCABULARY, (2, beams))
        newest = ops.convert_to_tensor(histories[:, :, t], "int32")
        received[:, :, t], cache = model.step(newest, cache)
        if t + 1 < length:
            parents = rng.integers(0, beams, (2, beams))
            cache = model.reorder(cache, ops.convert_to_tensor(parents, "int32"))
            rows = np.arange(2)[:, None]
            histories, received = histories[rows, parents], received[rows, parents]
    for row in range(2):
        for beam in range(beams):  # Each hypothesis alone.
            (full,) = model(histories[row : row + 1, beam])
            close(received[row, beam], full, tolerance)
    alone = model(IDS[1:, :3])
    close(float64(model(IDS))[1, :3], float64(alone)[0], tolerance)


def small_model():
    """A random model of four words and the end, whose texts end at several lengths."""
    sizes = dict(vocabulary_size=7, model_dim=WIDTH, num_heads=2, intermediate_dim=11)
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
def test_columns_of_padding_change_no_continuation(randomize):
    # A tenth of 16 tokens, 10, and the 15 of the prompt.
    model, source = model_of(randomize), np.array([[5] * 15 + [2]], "int32")
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
