"""Forced-length decoding: every engine takes the same number of steps."""

import statistics

import keras
import numpy as np

from keras_transformer.benchmark.engines import choose_engines, versions
from keras_transformer.benchmark.measure import (
    MAX_POSITIONS,
    check_positive,
    in_turns,
    machine,
    matrix_product,
    multiply_adds,
    ratio,
    use_threads,
)
from keras_transformer.config import EOS_ID, UNK_ID, TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.models import Transformer

_MATRIX = "matrix product"


def benchmark_decode(
    preset="transformer_base",
    vocabulary_size=8000,
    length=32,
    steps=32,
    batch_sizes=(1, 8, 32),
    beam_sizes=(1, 4),
    rounds=5,
    threads=2,
    engines=None,
    model=None,
    log=None,
):
    """Tokens per second of each engine on random sentences.

    Args:
        preset: Sizes of the model, whose weights are random.
        vocabulary_size: Number of ids.
        length: Tokens of a source, its end included.
        steps: Tokens of a translation; no id ends a sentence.
        batch_sizes: Sentences of a call.
        beam_sizes: Hypotheses; 1 is greedy search.
        rounds: Calls of each engine in a row, in turns.
        threads: Threads of each engine.
        engines: Names, of `ours`, `litert`, `litert_int8`, `ctranslate2`,
            `ctranslate2_in_parts`, `ctranslate2_int8`, `keras_hub`; all by default.
        model: A `Transformer` to take instead of a preset.
        log: Function that is told the progress.

    Returns:
        A dict fit for JSON. A `ratio` is the median of the rounds' ratios of a peer's time to
        ours (without it, to that of the first engine, the `reference`); the share of the matrix
        product is that of our floating-point operations per second in the machine's own rate,
        measured in the same rounds.

    Raises:
        InputError: An option is out of range, or TensorFlow runs with other threads.
    """
    check_positive(length=length, steps=steps, rounds=rounds, vocabulary_size=vocabulary_size)
    check_positive(batch_sizes=batch_sizes, beam_sizes=beam_sizes)
    chosen, not_installed = choose_engines(engines)
    use_threads(threads)
    log = log or (lambda text: None)
    if model is None:
        model = random_model(preset, vocabulary_size)
    else:
        preset = None
    _check_sizes(model.config, length, steps)
    made = {}
    for name, engine in chosen.items():
        log(f"making {name}")
        made[name] = engine(model, threads)
    rows = []
    for batch in batch_sizes:
        source_ids = random_sentences(model.config.vocabulary_size, batch, length)
        for beam_size in beam_sizes:
            log(f"{batch} sentences, beam {beam_size}")
            rows.append(_row(model.config, made, source_ids, beam_size, steps, rounds))
    return {
        "benchmark": "decode",
        "preset": preset,
        "config": model.config.to_dict(),
        "length": length,
        "steps": steps,
        "rounds": rounds,
        "threads": threads,
        "machine": machine(),
        "versions": versions(chosen),
        "notes": {name: engine.note for name, engine in chosen.items()},
        "not_installed": not_installed,
        "reference": _reference(chosen),
        "rows": rows,
    }


def _reference(engines):
    """What the others are compared with: this package's search, or the first that was named."""
    return "ours" if "ours" in engines else next(iter(engines))


def random_model(preset, vocabulary_size):
    """A `Transformer` of a preset's sizes, always with the same weights."""
    keras.utils.set_random_seed(1)
    try:
        config = TransformerConfig.from_preset(preset, vocabulary_size)
    except ValueError as error:
        raise InputError(str(error)) from None
    return Transformer(config)


def _check_sizes(config, length, steps):
    most = config.max_length if config.positions == "learned" else MAX_POSITIONS
    for name, value in (("length", length), ("steps", steps)):
        if value > most:
            raise InputError(f"`{name}` must be at most {most}. Received: {name}={value}.")
    if config.vocabulary_size <= UNK_ID + 1:
        raise InputError(
            f"`vocabulary_size` must be more than {UNK_ID + 1}, the special ids. "
            f"Received: vocabulary_size={config.vocabulary_size}."
        )


def random_sentences(vocabulary_size, batch, length):
    """Source ids, a list for each sentence, always the same ones."""
    rng = np.random.default_rng(2)
    ids = rng.integers(UNK_ID + 1, vocabulary_size, (batch, length))
    ids[:, -1] = EOS_ID
    return ids.tolist()


def _row(config, engines, source_ids, beam_size, steps, rounds):
    calls = {}
    for name, engine in engines.items():
        calls[name] = lambda engine=engine: engine.translate(source_ids, beam_size, steps)
        # Compiles, warms up, and shows that the work is what it is said to be.
        lengths = {len(ids) for ids in calls[name]()}
        if lengths != {steps}:
            raise RuntimeError(f"{name} took {sorted(lengths)} steps where {steps} were asked for.")
    calls[_MATRIX], operations = matrix_product()
    calls[_MATRIX]()
    seconds = in_turns(calls, rounds)
    reference = _reference(engines)
    rates = [operations / each / 1e9 for each in seconds.pop(_MATRIX)]
    ours = seconds.get("ours")
    batch = len(source_ids)
    work = 2 * multiply_adds(config, batch, beam_size, len(source_ids[0]), steps) / 1e9
    return {
        "batch": batch,
        "beam_size": beam_size,
        "engines": {
            name: {
                "tokens_per_second": round(batch * steps / statistics.median(times), 1),
                "ratio": None if name == reference else ratio(seconds[reference], times),
                "seconds": [round(each, 6) for each in times],
            }
            for name, times in seconds.items()
        },
        "gigaflops": round(work, 3),
        "matrix_product_gflops_per_second": round(statistics.median(rates), 1),
        "ours_share_of_matrix_product": None
        if ours is None
        else round(
            statistics.median(work / each / rate for each, rate in zip(ours, rates, strict=True)),
            3,
        ),
    }
