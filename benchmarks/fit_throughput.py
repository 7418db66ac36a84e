"""Cost of `model.fit` beside the bare compiled step, in real tokens per second.

    python -m benchmarks.fit_throughput PATH/TO/multi30k

Both run one model on the batches of one epoch: `fit` with the data pipeline, the
metrics and the progress bar; the bare step on batches that lie ready in memory, with nothing but
forward pass, loss, gradients and Adam, compiled by XLA. They take turns; the ratio is the median
of the rounds'. Real tokens are those of both sides that are not padding.
"""

import argparse
import contextlib
import json
import pathlib
import statistics
import sys
import time

import keras
import tensorflow as tf

from keras_transformer import Tokenizer, Transformer
from keras_transformer.data import ParallelDataset, encode_pairs, read_pairs
from keras_transformer.training import compile_model
from keras_transformer.training.recipe import TrainingSection


def bare_step(model):
    """One step of training and nothing else."""
    spec = tf.TensorSpec((None, None), tf.int32)

    @tf.function(input_signature=[spec] * 3, jit_compile=True, autograph=False)
    def step(source_ids, target_in_ids, target_out_ids):
        with tf.GradientTape() as tape:
            logits = model((source_ids, target_in_ids), training=True)
            loss = model.loss(target_out_ids, logits)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply(gradients, model.trainable_variables)
        return loss

    return step


def bare_epoch(step, batches):
    """Seconds for all batches."""
    start = time.perf_counter()
    for batch in batches:
        loss = step(*batch)
    float(loss)
    return time.perf_counter() - start


class EpochClock(keras.callbacks.Callback):
    """Seconds of an epoch: data, steps, metrics and progress; not what `fit` does once a run."""

    def on_epoch_begin(self, epoch, logs=None):
        self.start = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.seconds = time.perf_counter() - self.start


def fit_epoch(model, dataset):
    """Seconds for one epoch of `fit`."""
    clock = EpochClock()
    with contextlib.redirect_stdout(sys.stderr):
        model.fit(dataset, verbose=1, shuffle=False, callbacks=[clock])
    return clock.seconds


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fit_throughput", description=__doc__.splitlines()[0]
    )
    parser.add_argument("folder", type=pathlib.Path, help="with train.en and train.de")
    parser.add_argument("--preset", default="transformer_tiny")
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60, help="steps a round")
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(2)
    keras.utils.set_random_seed(1)
    files = [options.folder / "train.en", options.folder / "train.de"]
    tokenizer = Tokenizer.train(files, 8000)
    pairs, _ = encode_pairs(*read_pairs(*files), tokenizer, tokenizer)
    dataset = ParallelDataset(pairs, batch_tokens=options.batch_tokens)
    model = Transformer.from_preset(options.preset, 8000, normalize_first=True)
    compile_model(model, TrainingSection())
    model.optimizer.build(model.trainable_variables)

    ready = []
    for (source_ids, target_in_ids), target_out_ids in dataset.batches(epoch=0):
        ready.append([tf.constant(x) for x in (source_ids, target_in_ids, target_out_ids)])
    ready = ready[: options.steps]
    real = sum(int(tf.math.count_nonzero(x)) for batch in ready for x in (batch[0], batch[2]))

    def same_epoch():
        dataset.epoch = 0
        return dataset.to_tf_dataset().take(len(ready))

    step = bare_step(model)
    bare_epoch(step, ready), fit_epoch(model, same_epoch())  # compile every shape
    times = [
        (fit_epoch(model, same_epoch()), bare_epoch(step, ready)) for _ in range(options.rounds)
    ]
    print(
        json.dumps(
            {
                "shapes": dataset.shapes,
                "real_token_share": round(dataset.real_token_share, 4),
                "fit_tokens_per_second": round(real / statistics.median(a for a, _ in times)),
                "bare_tokens_per_second": round(real / statistics.median(b for _, b in times)),
                "ratio": round(statistics.median(b / a for a, b in times), 3),
            }
        )
    )


if __name__ == "__main__":
    main()
