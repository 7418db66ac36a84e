"""Speed of training: one model, text and token budget with several trainers, side by side.

pip install ".[peers]"
python -m benchmarks.train --source train.en --target train.de --trainers ours bare torch
"""

import itertools
import operator
import statistics
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from benchmarks import command_line, measure
from benchmarks.command_line import Report, log
from benchmarks.trainers import TRAINERS
from keras_transformer.data import ParallelDataset, encode_pairs, read_pairs
from keras_transformer.errors import InputError
from keras_transformer.ids import PAD_ID
from keras_transformer.text import Tokenizer

_MATRIX_SIZE = 1024


def train(
    source: str,
    target: str,
    preset: str = "transformer_tiny",
    layers: int | None = None,
    model_dim: int | None = None,
    num_heads: int | None = None,
    intermediate_dim: int | None = None,
    vocabulary_size: int = 8000,
    max_length: int = 40,
    batch_tokens: int = 4096,
    steps: int = 20,
    rounds: int = 3,
    threads: int = 2,
    trainers: Sequence[str] | None = None,
) -> Report:
    """Non-padding tokens per second of each trainer, each at its best setting, in turns.

    A round is the same number of batches of a token budget, from one corpus; each trainer batches
    in its own way. Each trainer's figures have the `setting`, the seconds of those `tried`,
    `real_tokens` of both sides and their share of all positions, the median `rate`, `ratio`: the
    median of the rounds' ratios of its time per token to the first trainer's, `gflops` that its
    tokens take (matrix products, forward and backward), and their `share` of the rate of a large
    product in the same precision, measured in the same rounds.

    Args:
        source: Source side of the corpus.
        target: Target side, aligned line by line.
        preset: Preset of the model's sizes.
        layers: Layers per side instead of the preset's.
        model_dim: Width instead of the preset's.
        num_heads: Heads instead of the preset's.
        intermediate_dim: Inner width instead of the preset's.
        vocabulary_size: Size of the vocabulary, learned from both sides.
        max_length: Longest side of a pair in tokens; longer pairs are skipped.
        batch_tokens: Positions of a batch on each side.
        steps: Batches per round.
        rounds: Timed rounds.
        threads: Largest number of threads of a trainer.
        trainers: Some of ours, bare (the compiled step without `fit`), keras_hub, torch, each also
            with _bfloat16; by default all that are installed.
    """
    measure.check_positive(steps=steps, rounds=rounds, batch_tokens=batch_tokens)
    chosen, absent = measure.choose(trainers, TRAINERS, "The trainers are")
    if not chosen:
        raise InputError(f"None of the trainers is installed. Received: trainers={trainers!r}.")
    measure.use_threads(threads)
    config = _config(preset, vocabulary_size, layers, model_dim, num_heads, intermediate_dim)
    tokenizer = Tokenizer.train([source, target], vocabulary_size)
    texts = read_pairs(source, target)
    pairs, report = encode_pairs(*texts, tokenizer, tokenizer, max_length=max_length)
    log(str(report))
    trials, work = {}, {}
    for name, trainer in chosen.items():
        keras.utils.set_random_seed(1)
        dataset = ParallelDataset(pairs, batch_tokens, trainer.max_shapes, seed=1)
        made = trainer(config)
        trials[name] = measure.at_its_best(
            {
                ", ".join(f"{key}={value}" for key, value in setting.items()) or "one": made.steps(
                    dataset, steps, **setting
                )
                for setting in made.settings()
            }
        )
        work[name] = _work(config, dataset, steps)
        log(f"{name}: {trials[name].setting}, loss {trials[name].result:.3f}")
    with_torch = any(trainer.package == "torch" for trainer in chosen.values())
    products = {
        f"{library} {precision}": call
        for precision in {trainer.precision for trainer in chosen.values()}
        for library, call in _products(precision, with_torch).items()
    }
    calls = {name: trial.call for name, trial in trials.items()} | products
    seconds = measure.in_turns(calls, rounds)
    rates = _product_rates({name: seconds[name] for name in products})
    report = {
        "source": str(source),
        "target": str(target),
        "batch_tokens": batch_tokens,
        "steps": steps,
        "longest_pair": int(pairs.lengths.max()),
        "matrix_product_gflops": {name: round(rate / 1e9, 1) for name, rate in rates.items()},
        **measure.environment_info(config, rounds, threads, chosen, absent),
        "trainers": _rows(chosen, trials, work, seconds, rates),
    }
    return Report(report, table(report))


def _config(preset, vocabulary_size, layers, *sizes):
    names = "model_dim", "num_heads", "intermediate_dim"
    fields = {name: size for name, size in zip(names, sizes, strict=True) if size is not None}
    if layers is not None:
        fields |= {"num_encoder_layers": layers, "num_decoder_layers": layers}
    return measure.config_of(preset, vocabulary_size, normalize_first=True, **fields)


def _work(config, dataset, steps):
    """Real tokens of the batches, all their positions, and the operations that they take."""
    tokens = positions = operations = 0
    for (source_ids, _), labels in itertools.islice(dataset.batches(0), steps):
        lengths = [np.count_nonzero(ids != PAD_ID, axis=1) for ids in (source_ids, labels)]
        tokens += int(np.sum(lengths))
        positions += source_ids.size + labels.size
        # Forwards, and twice as much backwards; a multiplication and an addition each.
        operations += 3 * 2 * int(np.sum(measure.multiply_adds(config, *lengths)))
    return tokens, positions, operations


def _products(precision, with_torch):
    """A large product in each library."""
    ones = keras.ops.ones((_MATRIX_SIZE, _MATRIX_SIZE), precision)
    calls = {"tensorflow": lambda: float(keras.ops.cast(keras.ops.matmul(ones, ones)[0, 0], float))}
    if with_torch:
        import torch

        other = torch.ones(_MATRIX_SIZE, _MATRIX_SIZE, dtype=getattr(torch, precision))
        calls["torch"] = lambda: float((other @ other)[0, 0])
    return calls


def _product_rates(seconds):
    """Operations a second in each precision, of the faster library."""
    rates = {}
    for name, times in seconds.items():
        precision = name.split()[1]
        rate = 2 * _MATRIX_SIZE**3 / statistics.median(times)
        rates[precision] = max(rate, rates.get(precision, 0.0))
    return rates


def _rows(chosen, trials, work, seconds, rates):
    found, reference = {}, next(iter(chosen))
    a_token = {
        name: [each / work[name][0] for each in times]
        for name, times in seconds.items()
        if name in work
    }
    for name, trainer in chosen.items():
        tokens, positions, operations = work[name]
        median = statistics.median(seconds[name])
        ratios = map(operator.truediv, a_token[name], a_token[reference])
        found[name] = {
            "setting": trials[name].setting,
            "precision": trainer.precision,
            "real_tokens": tokens,
            "real_token_share": round(tokens / positions, 4),
            "rate": round(tokens / median, 1),
            "ratio": round(statistics.median(ratios), 3),
            "gflops": round(operations / median / 1e9, 2),
            "share": round(operations / median / rates[trainer.precision], 4),
            "seconds": [round(each, 4) for each in seconds[name]],
            "tried": trials[name].tried,
        }
    return found


def table(report: dict[str, Any]) -> str:
    """Returns a report as a table with its conditions."""
    rows = [
        {
            "trainer": name,
            "real tokens/s": f"{figures['rate']:,.0f}",
            "ratio": f"{figures['ratio']:.2f}",
            "real tokens": f"{figures['real_token_share']:.1%}",
            "of the product's rate": f"{figures['share']:.1%}",
            "setting": f"{figures['setting']}, {figures['precision']}",
        }
        for name, figures in report["trainers"].items()
    ]
    sizes = (
        "{num_encoder_layers}+{num_decoder_layers} layers of {model_dim}/{intermediate_dim}, "
        "vocabulary {vocabulary_size}"
    ).format(**report["config"])
    products = ", ".join(
        f"{rate:,.0f} GFLOP/s in {name}" for name, rate in report["matrix_product_gflops"].items()
    )
    what = (
        f"{sizes}; {{steps}} batches of {{batch_tokens}} positions a side, pairs of at most "
        f"{{longest_pair}} tokens. A product of {_MATRIX_SIZE}³: {products}."
    )
    return measure.report_table(rows, report, what)


def main(arguments: Sequence[str] | None = None) -> None:
    command_line.run(train, arguments=arguments)


if __name__ == "__main__":
    main()
