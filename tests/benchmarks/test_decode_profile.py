import json
import sys

import pytest

from benchmarks import decode_profile
from keras_transformer import TransformerConfig

pytestmark = pytest.mark.tensorflow


def test_multiply_adds_are_those_counted_by_hand():
    config = TransformerConfig(
        13,
        model_dim=6,
        num_heads=2,
        intermediate_dim=5,
        num_encoder_layers=2,
        num_decoder_layers=3,
        target_vocabulary_size=7,
        tie_embeddings="none",
    )
    # A product of [n, k] and [k, m] is n · k · m. Two heads of width 3, a source of 11 tokens.
    encoder_block = (
        4 * 11 * 6 * 6  # query, key, value, output
        + 2 * (11 * 3 * 11)  # scores of each head
        + 2 * (11 * 11 * 3)  # weighted sums of each head
        + 11 * 6 * 5
        + 11 * 5 * 6
    )
    memory = 2 * 11 * 6 * 6
    step_without_past = (
        4 * 6 * 6  # self-attention: query, key, value, output
        + 2 * 6 * 6  # cross-attention: query, output
        + 2 * (3 * 11)  # its scores
        + 2 * (11 * 3)  # its weighted sums
        + 6 * 5
        + 5 * 6
    )
    past = [2 * (3 * t) + 2 * (t * 3) for t in (1, 2)]  # scores and weighted sums, two steps
    decoder_block = 2 * step_without_past + sum(past)
    logits = 2 * 6 * 7
    expected = 5 * (2 * encoder_block + 3 * memory + 4 * (3 * decoder_block + logits))
    assert decode_profile.multiply_adds(config, 5, 4, source_length=11, steps=2) == expected


@pytest.mark.slow
def test_the_profile_of_a_search_adds_up(monkeypatch, capsys):
    arguments = ["--preset", "transformer_tiny", "--vocabulary-size", "29", "--beam-size", "1"]
    monkeypatch.setattr(sys, "argv", ["decode_profile.py", *arguments, "--batch-size", "2"])
    monkeypatch.setattr(decode_profile, "STEPS", 3)
    monkeypatch.setattr(decode_profile, "MATRIX_SIZE", 67)
    decode_profile.main()
    report = json.loads(capsys.readouterr().out)
    spent = sum(each["milliseconds"] for each in report["operations"].values())
    total = report["thread_milliseconds"]
    assert total["of_all_threads"] == pytest.approx(2 * report["milliseconds_watched"], abs=0.2)
    assert total["not_in_an_operation"] == pytest.approx(total["of_all_threads"] - spent, abs=1)
    assert 0 < spent < total["of_all_threads"]
    # At each of 3 steps 4 blocks have at least 4 products of their own, and the logits one.
    products = sum(
        each["times"] for name, each in report["operations"].items() if name in ("MatMul", "dot")
    )
    assert products >= 3 * (4 * 4 + 1)
    config = TransformerConfig.from_preset("transformer_tiny", 29)
    work = 2 * decode_profile.multiply_adds(config, 2, 1, decode_profile.LENGTH, 3) / 1e9
    rates = [work / report["milliseconds"] * 1e3, report["matrix_product_gflops_per_second"]]
    assert report["share_of_matrix_product"] == pytest.approx(rates[0] / rates[1], rel=0.1)
