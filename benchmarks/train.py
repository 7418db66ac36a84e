"""Speed of training: one model, text and token budget with several trainers, side by side.

pip install ".[peers]"
python -m benchmarks.train --source train.en --target train.de --trainers ours bare torch
"""

import itertools
from collections.abc import Sequence

import keras
import numpy as np

from benchmarks import command_line, measure
from benchmarks.command_line import Report, log
from benchmarks.trainers import TRAINERS
from keras_transformer.data import ParallelDataset, encode_pairs, read_pairs
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
    """Non-padding tokens per second of each trainer, each at its best setting, interleaved.

    A round is the same number of batches of a token budget, from one corpus; each trainer batches
    in its own way. Figures are those of `measure.side_by_side`, and `real_tokens` of both sides and
    their share of all positions.

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
    chosen = measure.choose(trainers, TRAINERS, "trainers")
    measure.use_threads(threads)
    sizes = {"model_dim": model_dim, "num_heads": num_heads, "intermediate_dim": intermediate_dim}
    sizes |= {"num_encoder_layers": layers, "num_decoder_layers": layers}
    fields = {name: size for name, size in sizes.items() if size is not None}
    config = measure.config_of(preset, vocabulary_size, normalize_first=True, **fields)
    tokenizer = Tokenizer.train([source, target], vocabulary_size)
    texts = read_pairs(source, target)
    pairs, report = encode_pairs(*texts, tokenizer, tokenizer, max_length=max_length)
    log(str(report))
    trials, tokens, shares = {}, {}, {}
    for name, trainer in chosen.items():
        keras.utils.set_random_seed(1)
        dataset = ParallelDataset(pairs, batch_tokens, trainer.max_shapes, seed=1)
        one = trainer(config)
        calls = {measure.words(s): one.steps(dataset, steps, **s) for s in one.settings()}
        trials[name] = measure.at_its_best(calls)
        # Non-padding tokens of the batches, and all their positions.
        batches = list(itertools.islice(dataset.batches(0), steps))
        sides = [ids for (source_ids, _), labels, *_ in batches for ids in (source_ids, labels)]
        tokens[name], positions = (sum(map(count, sides)) for count in (np.count_nonzero, np.size))
        shares[name] = round(tokens[name] / positions, 4)
        log(f"{name}: {trials[name].setting}, loss {trials[name].result:.3f}")
    rows = measure.side_by_side(trials, rounds, tokens)
    for name, row in rows.items():
        row["setting"] += f", {chosen[name].precision}"
        row |= {"real_tokens": int(tokens[name]), "real_token_share": shares[name]}
    figures = {
        "source": str(source),
        "target": str(target),
        "batch_tokens": batch_tokens,
        "steps": steps,
        "longest_pair": int(pairs.lengths.max()),
        **measure.environment_info(config, rounds, threads, chosen),
        "trainers": rows,
    }
    columns = "rate", "ratio", "real_token_share", "setting"
    table = [{"trainer": name, **{key: row[key] for key in columns}} for name, row in rows.items()]
    what = measure.SIZES + (
        "; {steps} batches of {batch_tokens} positions per side, pairs of at most {longest_pair} "
        "tokens; rates in non-padding tokens/s."
    )
    return Report(figures, measure.report_table(table, figures, what))


def main(arguments: Sequence[str] | None = None) -> None:
    command_line.run(train, arguments=arguments)


if __name__ == "__main__":
    main()
