"""The engine of a language model continues lines with the tokens that the whole model prefers."""

import keras
import numpy as np
import pytest
from decoding_oracles import VOCABULARY, NumberTokenizer
from device_plans import ONE_GRAPH
from naive_search import BOS, EOS

from keras_transformer import Translator
from keras_transformer.engine import engine_of
from keras_transformer.models import model_of
from keras_transformer.models.config import LanguageModelConfig

PROMPTS = ["5 7 11", "13", "4 4 8 15 16", "9 12"]
LENGTH = 12


@pytest.fixture(scope="module")
def engine():
    sizes = dict(model_dim=14, num_heads=2, intermediate_dim=11, num_decoder_layers=1)
    model, chance = model_of(LanguageModelConfig(VOCABULARY, **sizes)), np.random.default_rng(0)
    model.set_weights([chance.normal(size=weight.shape) for weight in model.weights])
    tokenizer = NumberTokenizer()
    return engine_of(model, tokenizer, tokenizer, LENGTH, LENGTH, **ONE_GRAPH)


def log_probabilities(engine, ids):
    """Of each token of a line, given those before it: by the whole model, without a cache."""
    logits = keras.ops.convert_to_numpy(engine.model(np.array([[BOS, *ids[:-1]]])))[0]
    logits = logits.astype("float64")
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def test_a_line_goes_on_with_the_most_probable_tokens(engine):
    lines = Translator(engine).translate(PROMPTS, beam_size=1, length_penalty=0.0)
    for prompt, line in zip(PROMPTS, lines, strict=True):
        ids, start = [*line.ids], len(prompt.split())
        assert line.text.startswith(prompt)
        assert ids[:start] == [int(word) for word in prompt.split()]
        by_token = log_probabilities(engine, ids)
        chosen = by_token[np.arange(len(ids)), ids]
        assert chosen[start:].tolist() == pytest.approx(by_token[start:].max(axis=1).tolist())
        assert ids[-1] == EOS or len(ids) == LENGTH
        assert line.log_probability == pytest.approx(chosen.sum(), abs=1e-4)
        assert line.continuation_log_probability == pytest.approx(chosen[start:].sum(), abs=1e-4)


@pytest.mark.parametrize(("source", "target"), [("5 7", "11 9"), ("", "11 9 4"), ("13", "")])
def test_a_target_is_scored_after_its_source(engine, source, target):
    (scored,) = Translator(engine).score([source], [target])
    ids = [*map(int, f"{source} {target}".split()), EOS]
    by_token = log_probabilities(engine, ids)[np.arange(len(ids)), ids]
    expected = by_token[len(source.split()) :].sum()
    assert scored.log_probability == pytest.approx(expected, abs=1e-4)


def test_a_line_grows_to_its_translation(engine):
    translator = Translator(engine)
    *_, before, last = translator.stream(PROMPTS[0], beam_size=1)
    (line,) = translator.translate(PROMPTS[:1], beam_size=1)
    assert last == line.text and last.startswith(before) and before.startswith(PROMPTS[0])
