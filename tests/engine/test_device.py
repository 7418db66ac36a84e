"""One place decides what suits a device."""

import dataclasses

import pytest

from keras_transformer import Tokenizer, Transformer
from keras_transformer.base import memory
from keras_transformer.engine import ModelEngine
from keras_transformer.engine.device import (
    CPU,
    LARGE_MODEL_ON_CPU,
    accelerator,
    device_plan,
    search_bytes,
)
from keras_transformer.models.config import TransformerConfig


@pytest.mark.parametrize(
    "count, row_bytes, rows",
    # 64 bytes of a memory of 128 may be used.
    [
        (1, 1, 1),
        (2, 1, 16),
        (17, 0, 128),
        (1000, 0, 1024),
        (5000, 0, 2048),
        (1000, 4, 16),
        (9, 99, 1),
    ],
)
def test_a_search_has_as_many_rows_as_the_sentences_need_and_memory_holds(count, row_bytes, rows):
    assert accelerator(memory=128).rows_for(count, row_bytes) == rows


@pytest.mark.parametrize(
    "limit, chosen",
    # Of one more length 32 saves 4 · 32 columns, and 16 saves 2 · 48; 48 saves 1 · 16 + 6 · 16.
    [(None, [16, 32, 48, 64]), (4, [16, 32, 48, 64]), (2, [32, 64]), (1, [64])],
)
def test_few_lengths_are_those_with_the_least_padding(limit, chosen):
    plan = dataclasses.replace(CPU, search_lengths=limit)
    assert plan.lengths_for([64, 32, 32, 32, 32, 16, 16, 48]) == chosen


def test_a_sentence_needs_more_memory_with_more_hypotheses_and_tokens():
    config = TransformerConfig(101, 16, 2, 24, num_encoder_layers=1, num_decoder_layers=3)
    small = search_bytes(config, 1, 8, 16, is_half=True)
    # Keys and values of three layers, twice: 2 · 3 · 2 · 16 tokens · 16 · 2 bytes, and logits.
    assert small > 2 * 3 * 2 * 16 * 16 * 2 + 101 * 4
    for beams, columns, capacity, is_half in ((4, 8, 16, True), (1, 9, 16, True), (1, 8, 32, True)):
        assert search_bytes(config, beams, columns, capacity, is_half) > small
    assert search_bytes(config, 1, 8, 16, is_half=False) > small


FEW = [
    ({"beam_size": 1}, 64),
    ({"beam_size": 4}, 16),
    ({"beam_size": 64}, 1),
    ({"beam_size": 100}, 1),
]
FEW += [({"beam_size": 4, "sampling": True, "n_best": 8}, 8)]


@pytest.mark.parametrize("options, rows", FEW)
def test_a_large_model_is_searched_with_few_hypotheses_at_once(monkeypatch, options, rows):
    fields = {"model_dim": 8, "num_heads": 2, "intermediate_dim": 8}
    fields |= {"num_encoder_layers": 1, "num_decoder_layers": 1}
    tokenizer = Tokenizer.train_from_texts(["a man runs.", "two dogs sit."] * 9, vocabulary_size=20)
    model = Transformer(TransformerConfig(20, **fields))
    assert ModelEngine(model, tokenizer).plan is device_plan()
    monkeypatch.setattr(memory, "LARGE_MODEL_BYTES", 1)
    engine = ModelEngine(model, tokenizer, plan=None)
    assert engine.plan is LARGE_MODEL_ON_CPU
    assert engine._rows(engine.request(**options), 1000) == rows
    chosen = dataclasses.replace(device_plan(), workers=3)
    for plan in (chosen, CPU):  # A caller's plan comes first.
        assert ModelEngine(model, tokenizer, plan=plan).plan is plan
