"""Speed of training: one model, text and token budget with several trainers, side by side.

pip install ".[peers]"
python -m benchmarks.train --source train.en --target train.de --trainers ours bare torch
"""

import itertools
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
from keras_transformer.text import Tokenizer


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
    median of the rounds' ratios of its time per token to the first trainer's.

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
    trials, counts = {}, {}
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
        # Non-padding tokens of the batches, and all their positions.
        batches = list(itertools.islice(dataset.batches(0), steps))
        sides = [ids for (source_ids, _), labels, *_ in batches for ids in (source_ids, labels)]
        counts[name] = [sum(map(count, sides)) for count in (np.count_nonzero, np.size)]
        log(f"{name}: {trials[name].setting}, loss {trials[name].result:.3f}")
    seconds = measure.in_turns({name: trial.call for name, trial in trials.items()}, rounds)
    reference, rows = next(iter(chosen)), {}
    for name, trainer in chosen.items():
        (tokens, positions), (reference_tokens, _) = counts[name], counts[reference]
        pairs_of_times = zip(seconds[name], seconds[reference], strict=True)
        ratios = [(own / tokens) / (first / reference_tokens) for own, first in pairs_of_times]
        rows[name] = {
            "setting": f"{trials[name].setting}, {trainer.precision}",
            "real_tokens": int(tokens),
            "real_token_share": round(tokens / positions, 4),
            "rate": round(tokens / statistics.median(seconds[name]), 1),
            "ratio": round(statistics.median(ratios), 3),
            "seconds": [round(time, 4) for time in seconds[name]],
            "tried": trials[name].tried,
        }
    figures = {
        "source": str(source),
        "target": str(target),
        "batch_tokens": batch_tokens,
        "steps": steps,
        "longest_pair": int(pairs.lengths.max()),
        **measure.environment_info(config, rounds, threads, chosen, absent),
        "trainers": rows,
    }
    return Report(figures, table(figures))


def _config(preset, vocabulary_size, layers, *sizes):
    names = "model_dim", "num_heads", "intermediate_dim"
    fields = {name: size for name, size in zip(names, sizes, strict=True) if size is not None}
    if layers is not None:
        fields |= {"num_encoder_layers": layers, "num_decoder_layers": layers}
    return measure.config_of(preset, vocabulary_size, normalize_first=True, **fields)


def table(report: dict[str, Any]) -> str:
    """Returns a report as a table with its conditions."""
    rows = [
        {
            "trainer": name,
            "real tokens/s": f"{figures['rate']:,.0f}",
            "ratio": f"{figures['ratio']:.2f}",
            "real tokens": f"{figures['real_token_share']:.1%}",
            "setting": figures["setting"],
        }
        for name, figures in report["trainers"].items()
    ]
    sizes = (
        "{num_encoder_layers}+{num_decoder_layers} layers of {model_dim}/{intermediate_dim}, "
        "vocabulary {vocabulary_size}"
    ).format(**report["config"])
    what = (
        f"{sizes}; {{steps}} batches of {{batch_tokens}} positions per side, pairs of at most "
        "{longest_pair} tokens."
    )
    return measure.report_table(rows, report, what)


def main(arguments: Sequence[str] | None = None) -> None:
    command_line.run(train, arguments=arguments)


if __name__ == "__main__":
    main()
