"""Sentences become batches of few shapes, in falling length."""

import numpy as np
import pytest

from keras_transformer.decoding import DecodingOptions
from keras_transformer.decoding.jobs import Job, batches

LENGTHS = (3, 17, 5, 40, 11, 2, 19)
JOBS = [Job(f"s{i}", [7 + i] * length, 100 + i, ()) for i, length in enumerate(LENGTHS)]


def made(jobs=JOBS, batch_size=3, **options):
    return list(batches(jobs, DecodingOptions(**options), batch_size, 50, 29, 13))


def test_batches_go_by_falling_length_and_are_padded_to_few_shapes():
    found = made()
    assert [batch.keys for batch in found] == [["s3", "s6", "s1"], ["s4", "s2", "s0"], ["s5"]]
    # 40 tokens go into 48 columns, 11 and 2 into 16; 3 sentences into 4 rows, the last one too.
    assert [batch.arguments.source_ids.shape for batch in found] == [(4, 48), (4, 16), (4, 16)]
    assert found[0].arguments.source_ids[1].tolist() == [13] * 19 + [0] * 29
    assert not found[0].arguments.source_ids[3].any()
    assert not found[2].arguments.source_ids[1:].any()


def test_seeds_go_with_their_sentences():
    first, second, third = made(sampling=True, beam_size=1)
    assert first.arguments.seeds.tolist() == [103, 106, 101, 0]
    assert third.arguments.seeds.tolist() == [105, 0, 0, 0]
    assert all(batch.arguments.seeds is None for batch in made())


def test_prefixes_go_with_their_sentences_in_a_multiple_of_16_columns():
    jobs = [
        job._replace(prefix=(5,) * (17 if job.key == "s2" else i % 2)) for i, job in enumerate(JOBS)
    ]
    first, second, third = made(jobs)
    assert {batch.arguments.prefixes.shape for batch in (first, second, third)} == {(4, 32)}
    # s4, s2 and s0, and a row of padding.
    assert np.count_nonzero(second.arguments.prefixes, axis=1).tolist() == [0, 17, 0, 0]
    assert np.count_nonzero(first.arguments.prefixes, axis=1).tolist() == [1, 0, 1, 0]
    assert made()[0].arguments.prefixes is None


def test_a_bias_and_banned_ids_become_one_row_over_the_vocabulary():
    batch = made(banned_ids=(4, 6), logit_bias=((5, 1.5), (6, 2.0), (7, float("-inf"))))[0]
    bias = batch.arguments.logit_bias
    assert bias.shape == (13,)
    assert bias[5] == 1.5
    assert (bias[[4, 6, 7]] < -1e29).all() and np.isfinite(bias).all()
    assert not bias[[0, 1, 2, 3, 8, 9, 10, 11, 12]].any()
    assert made()[0].arguments.logit_bias is None


@pytest.mark.parametrize("count, rows", [(1, 1), (2, 2), (3, 4), (7, 8)])
def test_rows_are_a_power_of_two_of_the_sentences_there_are(count, rows):
    (batch,) = made(JOBS[:count], batch_size=64)
    assert len(batch.arguments.source_ids) == rows
