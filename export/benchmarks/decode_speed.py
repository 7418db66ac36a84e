"""Decoding speed beside CTranslate2: the same weights, sentences, steps and threads.

    pip install ".[peers]"
    python export/benchmarks/decode_speed.py

Base size, random weights, 32 sentences of 32 tokens, each forced to 32 steps. The two take turns;
a row gives medians of tokens per second, the median of the rounds' ratios, and the machine's own
matrix-product rate in the same minute.
"""

import argparse
import json
import statistics
import tempfile
import time

import ctranslate2
import keras
import numpy as np
import tensorflow as tf

from keras_transformer import Transformer
from keras_transformer.config import EOS_ID
from keras_transformer.decoding import beam_search, greedy_search
from keras_transformer.decoding.engine import least_rows
from keras_transformer.export.ctranslate2 import convert_to_ctranslate2

THREADS = 2


def ours(model, steps, beam_size):
    """A compiled search of exactly `steps` steps: no id ends a sentence."""

    @tf.function(jit_compile=True)
    def run(source_ids):
        limits = tf.fill([tf.shape(source_ids)[0]], steps)
        cache = model.start_decoding(source_ids, steps, beam_size)
        if beam_size == 1:
            return greedy_search(model.step, cache, limits, steps, end_id=-1)
        return beam_search(
            model.step, model.reorder, cache, limits, steps, beam_size, alpha=0.0, end_id=-1
        )

    return lambda ids: [np.asarray(each) for each in run(ids)]


def theirs(folder, steps, beam_size):
    """CTranslate2 forced to the same number of steps."""
    translator = ctranslate2.Translator(
        folder, device="cpu", compute_type="float32", inter_threads=1, intra_threads=THREADS
    )

    def run(sentences):
        results = translator.translate_batch(
            sentences,
            beam_size=beam_size,
            max_decoding_length=steps,
            min_decoding_length=steps,
            max_batch_size=len(sentences),
        )
        assert all(len(result.hypotheses[0]) == steps for result in results)

    return run


def matrix_rate():
    """GFLOP/s of a float32 matrix product."""
    size = 2048
    a = tf.random.normal((size, size))
    start = time.perf_counter()
    for _ in range(3):
        (a @ a).numpy()
    return 3 * 2 * size**3 / (time.perf_counter() - start) / 1e9


def seconds(function, *arguments):
    """Wall time of one call."""
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="transformer_base")
    parser.add_argument("--vocabulary-size", type=int, default=8000)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[32, 1])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    keras.utils.set_random_seed(1)
    model = Transformer.from_preset(options.preset, options.vocabulary_size)
    pieces = ["<pad>", "<s>", "</s>", "<unk>"]
    pieces += [f"p{i}" for i in range(len(pieces), options.vocabulary_size)]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        convert_to_ctranslate2(model, pieces, pieces, folder + "/model")
        for batch in options.batch_sizes:
            for beam_size in (1, 4):
                rows.append(compare(model, folder + "/model", pieces, batch, beam_size, options))
                print(json.dumps(rows[-1]), flush=True)


def compare(model, folder, pieces, batch, beam_size, options):
    """One row of the table."""
    rng = np.random.default_rng(2)
    ids = rng.integers(4, options.vocabulary_size, (batch, options.length)).astype("int32")
    ids[:, -1] = EOS_ID
    sentences = [[pieces[i] for i in row[:-1]] for row in ids]  # it adds the end itself
    run_ours = ours(model, options.length, beam_size)
    run_theirs = theirs(folder, options.length, beam_size)
    # As `ModelEngine` does: greedy search of one sentence goes beside a row of padding.
    source = tf.constant(np.pad(ids, ((0, max(0, least_rows(beam_size) - batch)), (0, 0))))
    run_ours(source), run_theirs(sentences)  # compiles; warms up
    times = [
        (seconds(run_ours, source), seconds(run_theirs, sentences)) for _ in range(options.rounds)
    ]
    tokens = batch * options.length
    return {
        "batch": batch,
        "beam_size": beam_size,
        "ours_tokens_per_second": round(tokens / statistics.median(a for a, _ in times)),
        "ctranslate2_tokens_per_second": round(tokens / statistics.median(b for _, b in times)),
        "ratio": round(statistics.median(b / a for a, b in times), 2),
        "matrix_product_gflops": round(matrix_rate()),
    }


if __name__ == "__main__":
    main()
