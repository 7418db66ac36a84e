"""Prunes a run's attention heads by importance: BLEU over the heads, a smaller run, its speed.

pip install ".[plots]"
python -m benchmarks.pruning curve --model RUN --source FILE --reference FILE > pruning.json
python -m benchmarks.pruning prune --model RUN --order pruning.json --keep 24 --output PRUNED
python -m benchmarks.pruning compare RUN PRUNED --source FILE --reference FILE
"""

import contextlib
import dataclasses
import functools
import json
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from benchmarks import command_line
from benchmarks.command_line import Panel, Report, log, markdown
from keras_transformer import Translator
from keras_transformer.analysis import heads_off, prune_heads
from keras_transformer.analysis.attention import KINDS
from keras_transformer.analysis.heads import head_importance
from keras_transformer.data import read_pairs
from keras_transformer.engine import ModelEngine
from keras_transformer.errors import InputError
from keras_transformer.training import RunFolder, compile_model, evaluate
from keras_transformer.training.checkpoints import save_without_optimizer
from keras_transformer.training.corpus import Corpus
from keras_transformer.training.optimizer import schedule_of

_ONE_BY_ONE = 200  # sentences that are timed at least


def curve(
    model: str,
    source: str,
    reference: str,
    at_once: int = 4,
    beam_size: int | None = None,
    plot: str | None = None,
) -> Report:
    """BLEU as heads are removed by importance, without training in between.

    Importance is measured on the run's validation text, again after each round of removals.

    Args:
        model: Run directory.
        source: Text to translate after each round.
        reference: Its translation.
        at_once: Heads removed per round.
        beam_size: Beam size; by default the run's.
        plot: PNG file of BLEU over the heads that are left.
    """
    folder = RunFolder.existing(model)
    sources, references = read_pairs(source, reference)
    engine = _engine_of(folder)
    order = removal_order(engine.model, _datasets_of(folder)["validation"], at_once)
    search = _search_options(folder, beam_size)
    rows = bleu_of_removals(engine, order, at_once, sources, references, search)
    if plot is not None:
        points = {row["heads"]: row["bleu"] for row in rows}
        title = f"BLEU on {pathlib.Path(source).name}"
        command_line.plot(plot, Panel({"pruned": points}, "heads left", "BLEU", title))
    return Report(rows, markdown(rows))


def prune(
    model: str,
    output: str,
    order: str | None = None,
    keep: int | None = None,
    epochs: int = 0,
    at_once: int = 4,
) -> dict[str, Any]:
    """Writes a smaller run without the least important heads.

    The learning rate of its training rises for a tenth of the steps to where the first training
    ended, and falls to zero.

    Args:
        model: Run directory.
        output: Run directory to make.
        order: JSON of `curve` whose order of heads is used; by default importance is measured.
        keep: Number of heads that remain; by default half of them.
        epochs: Epochs of training after pruning, on the run's training text.
        at_once: Heads ordered per measurement of importance.
    """
    folder = RunFolder.existing(model)
    whole = folder.model()
    if order is not None:
        rows = json.loads(pathlib.Path(order).read_text(encoding="utf-8"))
        names = [name for row in rows for name in row["without"]]
    else:
        names = removal_order(whole, _datasets_of(folder)["validation"], at_once)
    total = sum(sum(whole.config.heads_of(kind)) for kind in KINDS)
    least = total - len(names)  # Each layer keeps a head.
    kept = max(total // 2, least) if keep is None else keep
    if not least <= kept <= total:
        raise InputError(f"--keep must be from {least} to {total} heads. Received: {kept}.")
    with RunFolder(output).owned().locked():
        return write_pruned(folder, whole, names[: total - kept], epochs, output)


def compare(
    models: Sequence[str],
    /,
    source: str,
    reference: str,
    beam_size: int | None = None,
    rounds: int = 5,
    batch_sizes: Sequence[int] = (32, 1),
) -> dict[str, Any]:
    """BLEU and seconds of a run and of its smaller run, whose translations are interleaved.

    Args:
        models: The two run directories.
        source: Text to translate.
        reference: Its translation.
        beam_size: Beam size; by default that of the first run.
        rounds: Timed rounds.
        batch_sizes: Sentences per batch; with few sentences per batch a part of the text is timed.
    """
    if len(models) != 2:
        raise InputError(f"Give two run directories. Received: {', '.join(models)}.")
    sources, references = read_pairs(source, reference)
    search = _search_options(RunFolder.existing(models[0]), beam_size)
    translators = [Translator.load(path) for path in models]
    translations = [translator.translate(sources, **search) for translator in translators]
    result: dict[str, Any] = {
        "bleu": [evaluate([row.text for row in rows], references)["bleu"] for rows in translations],
        "tokens": [sum(len(row.ids) for row in rows) for rows in translations],
    }
    for size in batch_sizes:
        # One by one takes long: a part of the text tells as much.
        timed = sources[: max(_ONE_BY_ONE, len(sources) * min(size, 32) // 32)]
        options = {"batch_size": size, **search}
        seconds: list[list[float]] = [[] for _ in translators]
        for number in range(rounds + 1):
            for translator, seconds_of_run in zip(translators, seconds, strict=True):
                start = time.perf_counter()
                translator.translate(timed, **options)
                if number:  # The first round also compiles.
                    seconds_of_run.append(round(time.perf_counter() - start, 3))
        ratio = round(float(np.median(np.divide(seconds[0], seconds[1]))), 3)
        result[f"batch_size={size}"] = {
            "sentences": len(timed),
            "seconds": seconds,
            "times_as_fast": ratio,
        }
    return result


def removal_order(model, dataset, at_once):
    """Returns names of heads, the least important first, without the last of each layer.

    The importance is divided by its norm over the layer, as Michel et al. 2019 do.
    """
    counts = {kind: model.config.heads_of(kind) for kind in KINDS}
    order = []
    most = sum(sum(heads) - len(heads) for heads in counts.values())
    while len(order) < most:
        with heads_off(model, order):
            batches = [
                head_importance(model, source, target)
                for (source, _), target in dataset.batches(epoch=0)
            ]
        candidates = []
        for kind, batch in zip(KINDS, zip(*batches, strict=True), strict=True):
            layers = np.concatenate(batch).mean(0)  # --> [layers, heads]
            for layer, (heads, count) in enumerate(zip(layers, counts[kind], strict=True)):
                heads = heads[:count]  # Others are NaN, and so is 0 / 0.
                heads = heads / (np.linalg.norm(heads) or 1.0)
                left = [f"{kind}.{layer}.{head}" for head in range(count)]
                scored = zip(heads.tolist(), left, strict=True)
                # The most important one stays.
                candidates += sorted(each for each in scored if each[1] not in order)[:-1]
        order += [name for _, name in sorted(candidates)[: min(at_once, most - len(order))]]
        log(f"{len(order)} of {most} heads ordered")
    return order


def bleu_of_removals(engine, order, at_once, sources, references, search):
    """Returns a dict per number of heads: `heads`, `bleu`, and the heads it goes `without`."""
    counts = [sum(engine.model.config.heads_of(kind)) for kind in KINDS]
    rows, start = [], 0
    for end in range(0, len(order) + at_once, at_once):
        with heads_off(engine.model, order[:end]):
            translations = engine.translate(sources, **search)
        bleu = evaluate([row.text for row in translations], references)["bleu"]
        gone = order[start:end]
        rows.append({"heads": sum(counts) - min(end, len(order)), "bleu": bleu, "without": gone})
        log(rows[-1])
        start = end
    return rows


def falling_rate(model, recipe, steps_per_epoch, epochs):
    """Returns a rate that rises to the recipe's last one, then falls to 0 as a cosine."""
    training, steps = recipe.training, steps_per_epoch * epochs
    last = schedule_of(training, model.config.model_dim)(steps_per_epoch * training.epochs)
    growing = steps // 10
    return keras.optimizers.schedules.CosineDecay(
        0.0, steps - growing, warmup_target=float(last), warmup_steps=growing
    )


def write_pruned(folder, model, names, epochs, output):
    """Writes the run of a model without these heads, trained for some more epochs."""
    new, recipe = RunFolder(output), folder.recipe()
    check = functools.partial(new.check_replaceable, False, {})
    check()
    pruned = prune_heads(model, names)
    if epochs:
        dataset = _datasets_of(folder)["train"]
        on_tensorflow = keras.backend.backend() == "tensorflow"
        # No average of the weights: at its end the rate is nothing, and they stand still.
        compile_model(pruned, dataclasses.replace(recipe.training, ema_momentum=None))
        pruned.optimizer.learning_rate = falling_rate(
            model, recipe, dataset.steps_per_epoch, epochs
        )
        with contextlib.redirect_stdout(sys.stderr):
            pruned.fit(
                dataset.to_tf_dataset() if on_tensorflow else dataset.to_py_dataset(),
                epochs=epochs,
                shuffle=False,
                verbose=2,
            )
    counts = {f"{kind}_heads": list(pruned.config.heads_of(kind)) for kind in KINDS}
    heads = {name: heads for name, heads in counts.items() if heads}
    recipe = dataclasses.replace(recipe, model={**recipe.model, **heads})
    with new.replaced(check) as made:
        made.create(recipe, folder.tokenizers(), folder.digests())
        save_without_optimizer(pruned, made.model_file)
    return {"heads": heads, "parameters": [model.count_params(), pruned.count_params()]}


def _engine_of(folder):
    decoding = folder.recipe().decoding
    limits = decoding.max_source_length, decoding.max_target_length
    return ModelEngine(folder.model(), *folder.tokenizers(), *limits)


def _datasets_of(folder):
    tokenizers = folder.tokenizers()
    return Corpus(folder.recipe(), tokenizers).datasets(tokenizers)[0]


def _search_options(folder, beam_size):
    decoding = folder.recipe().decoding
    return {
        "beam_size": decoding.beam_size if beam_size is None else beam_size,
        "length_penalty": decoding.length_penalty,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    command_line.run(curve, prune, compare, arguments=arguments)


if __name__ == "__main__":
    main()
