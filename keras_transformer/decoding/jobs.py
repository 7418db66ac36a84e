"""Sentences to be searched, put into batches of few shapes."""

from typing import NamedTuple

import numpy as np

from keras_transformer.decoding.arguments import search_arguments
from keras_transformer.decoding.hypotheses import IMPOSSIBLE
from keras_transformer.decoding.shapes import bucket, length_buckets, pad, row_count
from keras_transformer.decoding.stages import Batch

_PREFIX_MULTIPLE = 16


class Job(NamedTuple):
    """A sentence to be searched.

    Attributes:
        key: What the caller knows it by.
        source: A list of ids, its end included.
        seed: An integer, for sampling.
        prefix: Ids that its translation must begin with.
    """

    key: object
    source: list
    seed: int
    prefix: tuple


def batches(jobs, options, batch_size, max_source_length, max_length, vocabulary_size):
    """Batches by falling length; all have the same number of rows.

    Args:
        jobs: A list of `Job`, not empty.
        options: `DecodingOptions`.
        batch_size: Most sentences of a batch.
        max_source_length: No source is longer.
        max_length: Most tokens of a translation, where the options name no other.
        vocabulary_size: Of the target side.

    Yields:
        `Batch`.
    """
    jobs = sorted(jobs, key=lambda job: len(job.source), reverse=True)
    rows = row_count(min(len(jobs), batch_size))
    buckets = length_buckets(max_source_length)
    longest_prefix = max(len(job.prefix) for job in jobs)
    prefix_columns = -(-longest_prefix // _PREFIX_MULTIPLE) * _PREFIX_MULTIPLE
    bias = _logit_bias(options, vocabulary_size)
    for start in range(0, len(jobs), batch_size):
        keys, sources, seeds, prefixes = zip(*jobs[start : start + batch_size], strict=True)
        padded = pad(sources, rows, bucket(len(sources[0]), buckets))
        arguments = search_arguments(
            options,
            padded,
            max_length,
            seeds=pad([seeds], 1, rows)[0] if options.sampling else None,
            prefixes=pad(prefixes, rows, prefix_columns) if prefix_columns else None,
            logit_bias=bias,
        )
        yield Batch(list(keys), arguments)


def _logit_bias(options, vocabulary_size):
    if not options.banned_ids and not options.logit_bias:
        return None
    bias = np.zeros(vocabulary_size, "float32")
    for each, value in options.logit_bias:
        bias[each] = max(value, IMPOSSIBLE)
    bias[list(options.banned_ids)] = IMPOSSIBLE
    return bias
