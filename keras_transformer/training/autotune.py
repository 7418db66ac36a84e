"""Some timed steps before a training: a forecast of its time and memory, and autotuning.

Autotuning chooses the precision, and XLA or not, by the tokens that a candidate trains a second.
"""

import collections
import dataclasses
import gc
import itertools
import math
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_transformer.data import ParallelDataset
from keras_transformer.errors import InputError
from keras_transformer.training.hosts import SINGLE_HOST, Host
from keras_transformer.training.recipe import Recipe

_SECONDS = 10.0  # of a forecast, or of all candidates; compilation not counted
_BATCHES = 8
# Another precision must gain more than the machine's noise.
_WORTH = 1.05
_BAR = 40  # characters of the longest bar of a histogram


def candidates(recipe: Recipe) -> list[Recipe]:
    """Returns the recipes that `auto` can stand for, the plainest first; itself without `auto`."""
    policy, compiled = recipe.training.dtype_policy, recipe.training.jit_compile
    policies = ["float32", "mixed_bfloat16"] if policy == "auto" else [policy]
    found = itertools.product(policies, [True, False] if compiled == "auto" else [compiled])
    return [_with(recipe, dtype_policy=each, jit_compile=is_jit) for each, is_jit in found]


def _with(recipe, **options):
    return dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, **options))


def resolve_auto(recipe: Recipe, begun: Recipe) -> Recipe:
    """Replaces `auto` by the values of `begun`, the recipe in the run folder."""
    keys = ("dtype_policy", "jit_compile")
    autos = [key for key in keys if getattr(recipe.training, key) == "auto"]
    return _with(recipe, **{key: getattr(begun.training, key) for key in autos})


def autotune(
    recipe: Recipe,
    make_model: Callable[[Recipe], keras.Model],
    dataset: ParallelDataset,
    host: Host = SINGLE_HOST,
) -> tuple[Recipe, dict[str, Any]]:
    """Returns the candidate that trains fastest on this machine.

    Args:
        recipe: Recipe; one without `auto` for `dtype_policy` or `jit_compile` is returned as it is.
        make_model: Takes a recipe without `auto`, returns its compiled model.
        dataset: Dataset whose commonest batch shape is timed.
        host: This host.

    Returns:
        The recipe without `auto`, and a dict fit for JSON: `tokens_per_second` of each candidate,
        real tokens as `history.csv` counts them, None where the loss was no number; the one
        `chosen`; `why`. The dict is empty without `auto`.

    Raises:
        InputError: There are several candidates, and several hosts.
    """
    named = {_name(each): each for each in candidates(recipe)}
    if len(named) == 1:
        return recipe, {}
    if host.count > 1:
        raise InputError(
            "`training.dtype_policy: auto` and `training.jit_compile: auto` are for one host: "
            f"several must choose alike. Received: {host.count} hosts."
        )
    batches, tokens = _batches(dataset)
    rates = {}
    for name, each in named.items():
        seconds = _seconds_a_step(make_model(each), batches, _SECONDS / len(named))
        rates[name] = None if seconds is None else round(tokens / seconds, 1)
        gc.collect()  # A model and its optimizer's state, before the next one's.
    chosen = plainest = next(iter(named))
    best = max(named, key=lambda name: rates[name] or 0.0)
    if (rates[best] or 0.0) > _WORTH * (rates[plainest] or 0.0):
        chosen = best
        why = f"{best} makes the most tokens a second"
    else:
        why = f"nothing is more than {_WORTH - 1:.0%} faster than {plainest}"
    return named[chosen], {"tokens_per_second": rates, "chosen": chosen, "why": why}


def _name(recipe):
    compiled = "with XLA" if recipe.training.jit_compile else "without XLA"
    return f"{recipe.training.dtype_policy} {compiled}"


def _batches(dataset):
    """Some batches of the commonest shape, and the mean of their real tokens."""
    first = list(itertools.islice(dataset.batches(0), 8 * _BATCHES))
    shapes = collections.Counter(labels.shape for _, labels, *_ in first)
    shape = shapes.most_common(1)[0][0]
    batches = [batch for batch in first if batch[1].shape == shape][:_BATCHES]
    return batches, float(np.mean([dataset.real_tokens_of(batch) for batch in batches]))


def _seconds_a_step(model, batches, budget):
    """The median of the steps that fit into `budget` seconds, two at least; None for a NaN loss.

    The first step, which compiles, does not count.
    """
    seconds: list[float] = []
    for batch in itertools.cycle(batches):
        start = time.perf_counter()
        loss = model.train_on_batch(*batch, return_dict=True)["loss"]
        seconds.append(time.perf_counter() - start)
        if not math.isfinite(loss):
            return None
        if len(seconds) > 2 and sum(seconds[1:]) + seconds[-1] > budget:
            return statistics.median(seconds[1:])


def forecast(model: keras.Model, dataset: ParallelDataset, epochs: int) -> list[str]:
    """Trains a new model for some steps and returns what the whole training would take.

    Args:
        model: Compiled model, whose weights change.
        dataset: Training set; its commonest batch shape is timed.
        epochs: Passes over it.

    Returns:
        Lines of text: a histogram of the lengths, the sizes, the time without validation, and the
        peak of memory in the timed steps.
    """
    lengths = [length for _, length in dataset.shapes]
    bucket_of = np.searchsorted(lengths, dataset.pairs.lengths)
    counts = np.bincount(bucket_of, minlength=len(lengths))
    batches, _ = _batches(dataset)
    seconds = _seconds_a_step(model, batches, _SECONDS) or math.nan
    minutes = epochs * dataset.steps_per_epoch * seconds / 60
    return [
        *(
            f"  up to {length:4d} tokens: {count:9,d} pairs, {rows:5d} a batch "
            + "#" * round(_BAR * count / max(counts))
            for (rows, length), count in zip(dataset.shapes, counts, strict=True)
        ),
        f"{model.count_params():,} parameters, {epochs} epochs of {dataset.steps_per_epoch:,} "
        f"steps, {dataset.real_token_share:.1%} real tokens",
        f"about {minutes:,.1f} minutes on this machine, {seconds:.3g} seconds a step",
        f"{_peak_memory() / 2**30:.1f} GiB of memory in these steps",
    ]


def _peak_memory():
    """Most bytes so far: on the first GPU, or in this process where there is none."""
    if keras.backend.backend() == "jax":
        import jax

        if found := jax.devices()[0].memory_stats():
            return found["peak_bytes_in_use"]
    else:
        import tensorflow as tf

        if tf.config.list_physical_devices("GPU"):
            return tf.config.experimental.get_memory_info("GPU:0")["peak"]
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # Linux counts in KiB.
