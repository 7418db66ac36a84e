"""Table of what trains where: backend, devices, precision, with XLA or without, all tried.

    python -m benchmarks.support_table

Each row trains a small model for three steps in a process of its own, on processor cores that stand
for devices. A Markdown table on stdout.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys

POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")
# Two devices: rows of a batch on each, as the backend does it.
ROWS = (
    ("tensorflow", "one"),
    ("tensorflow", "MirroredStrategy"),
    ("tensorflow", "MultiWorkerMirroredStrategy"),
    ("jax", "one"),
    ("jax", "DataParallel"),
)
WAYS = tuple(itertools.product(POLICIES, (True, False)))


def batches():
    """A data set of three batches of 4 rows."""
    from keras_transformer.data import EncodedPairs, ParallelDataset

    rows = [[4 + (row + column) % 20 for column in range(5)] for row in range(12)]
    pairs = EncodedPairs.from_lists([[*row, 2] for row in rows], rows)
    return ParallelDataset(pairs, shapes=[(4, 8)])


def scope(devices):
    """The context that a model for these devices is made in."""
    import contextlib

    import keras

    if devices == "one":
        return contextlib.nullcontext()
    if keras.backend.backend() == "jax":
        return keras.distribution.DataParallel(auto_shard_dataset=False).scope()
    import tensorflow as tf

    cpus = tf.config.list_logical_devices("CPU")
    if devices == "MirroredStrategy":
        return tf.distribute.MirroredStrategy([cpu.name for cpu in cpus]).scope()
    return tf.distribute.MultiWorkerMirroredStrategy().scope()


def attempt(devices, policy, compiled):
    """Trains for three steps; what came of it, in a few words."""
    import keras
    import numpy as np

    from keras_transformer import Transformer, TransformerConfig
    from keras_transformer.training import compile_model
    from keras_transformer.training.recipe import TrainingSection

    sizes = dict(model_dim=16, num_heads=2, intermediate_dim=16)
    config = TransformerConfig(24, **sizes, num_encoder_layers=1, num_decoder_layers=1)
    try:
        with scope(devices):
            model = Transformer(config, dtype=policy)
            compile_model(model, TrainingSection(jit_compile=compiled))
            data = batches()
            on_tensorflow = keras.backend.backend() == "tensorflow"
            data = data.to_tf_dataset() if on_tensorflow else data.to_py_dataset()
            losses = model.fit(data, verbose=0, shuffle=False, epochs=2).history["loss"]
    except Exception as error:  # Whatever it is, it is what the table is for.
        lines = [line for line in str(error).splitlines() if line.strip()] or [""]
        return f"{type(error).__name__}: {lines[0].strip():.100}"
    return "yes" if np.isfinite(losses).all() else "the loss is no number"


def row(backend, devices):
    """`attempt` of each way in a process of its own."""
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    if backend == "jax" and devices != "one":
        environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    command = [sys.executable, "-m", "benchmarks.support_table", "--devices", devices]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or [""])[-1]
        return [f"{last:.100}"] * len(WAYS)
    return json.loads(ended.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.support_table", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--devices", help="one row, as JSON, on the backend of this process")
    devices = parser.parse_args().devices
    if devices is not None:
        import tensorflow as tf

        if devices == "MirroredStrategy":
            cpu = tf.config.list_physical_devices("CPU")[0]
            two = [tf.config.LogicalDeviceConfiguration()] * 2
            tf.config.set_logical_device_configuration(cpu, two)
        print(json.dumps([attempt(devices, *way) for way in WAYS]))
        return
    heading = [f"{policy}{', XLA' * compiled}" for policy, compiled in WAYS]
    print("| backend | devices |", " | ".join(heading), "|")
    print("|", " | ".join(["---"] * (2 + len(WAYS))), "|")
    for backend, devices in ROWS:
        found = " | ".join(each.replace("|", "/") for each in row(backend, devices))
        print(f"| {backend} | {devices} | {found} |", flush=True)


if __name__ == "__main__":
    main()
