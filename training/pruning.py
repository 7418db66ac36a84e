"""Prunes a run's attention heads by importance, plots BLEU, and writes a smaller run.

    pip install ".[plots]"
    python training/pruning.py --model RUN --source FILE --reference FILE \
        --json pruning.json --plot pruning.png
    python training/pruning.py … --order pruning.json --keep 24 --epochs 5 --output PRUNED
    python training/pruning.py … --pruned PRUNED

Importance is measured on the run's validation text, again after each round of removals. Without
`--output` the text is translated after each round. With `--output` half of the heads, or `--keep`,
remain. The smaller model is trained for `--epochs` on the run's training text and written as a run.
Its learning rate rises for a tenth of the steps to where the first training ended, and falls to
zero. `--pruned` names an earlier output: both runs translate the text interleaved, with
`--batch-sizes`, and BLEU and seconds are compared. The result is JSON on stdout.
"""

import argparse
import contextlib
import dataclasses
import functools
import json
import pathlib
import sys
import time

import keras
import numpy as np

from keras_transformer import Translator
from keras_transformer.analysis import heads_off, prune_heads
from keras_transformer.analysis.attention import KINDS
from keras_transformer.analysis.heads import head_importance
from keras_transformer.data import read_pairs
from keras_transformer.engine import ModelEngine
from keras_transformer.errors import missing_package
from keras_transformer.files import write_output
from keras_transformer.training import RunFolder, compile_model, evaluate
from keras_transformer.training.checkpoints import save_without_optimizer
from keras_transformer.training.corpus import Corpus
from keras_transformer.training.optimizer import schedule_of

_ONE_BY_ONE = 200  # sentences that are timed at least


def removal_order(model, dataset, at_once):
    """Names of heads, the least important first, all but the last of each layer.

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
        print(f"{len(order)} of {most} heads ordered", file=sys.stderr, flush=True)
    return order


def curve(engine, order, at_once, sources, references, search):
    """A dict for each number of heads: `heads`, `bleu`, and the heads that went `without`."""
    counts = [sum(engine.model.config.heads_of(kind)) for kind in KINDS]
    rows, start = [], 0
    for end in range(0, len(order) + at_once, at_once):
        with heads_off(engine.model, order[:end]):
            found = engine.translate(sources, **search)
        bleu = evaluate([each.text for each in found], references)["bleu"]
        gone = order[start:end]
        rows.append({"heads": sum(counts) - min(end, len(order)), "bleu": bleu, "without": gone})
        print(rows[-1], file=sys.stderr, flush=True)
        start = end
    return rows


def plot(rows, path, title):
    """BLEU over the heads that are left."""
    try:
        import matplotlib
    except ImportError as error:
        raise SystemExit(missing_package("Matplotlib", "matplotlib", "plots")) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 4.0), layout="constrained")
    axes.plot([row["heads"] for row in rows], [row["bleu"] for row in rows], marker="o")
    axes.set(xlabel="heads left", ylabel="BLEU", title=title, ylim=(0, None))
    axes.invert_xaxis()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def falling_rate(model, recipe, steps_per_epoch, epochs):
    """Grows for a tenth of the steps to the recipe's last rate, and falls to zero as a cosine."""
    training, steps = recipe.training, steps_per_epoch * epochs
    last = schedule_of(training, model.config.model_dim)(steps_per_epoch * training.epochs)
    growing = steps // 10
    return keras.optimizers.schedules.CosineDecay(
        0.0, steps - growing, warmup_target=float(last), warmup_steps=growing
    )


def write_pruned(folder, model, names, epochs, output):
    """The run folder of a model without these heads, trained for some epochs more."""
    new, recipe = RunFolder(output), folder.recipe()
    check = functools.partial(new.check_replaceable, False, {})
    check()
    pruned = prune_heads(model, names)
    if epochs:
        tokenizers = folder.tokenizers()
        datasets, _ = Corpus(recipe, tokenizers).datasets(tokenizers)
        dataset = datasets["train"]
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


def compare(paths, sources, references, search, rounds, batch_sizes):
    """BLEU of runs, and lists of the seconds of their interleaved translations."""
    translators = [Translator.load(path) for path in paths]
    texts = [each.translate(sources, **search) for each in translators]
    bleu = [evaluate([each.text for each in found], references)["bleu"] for found in texts]
    result = {"bleu": bleu, "tokens": [sum(len(each.ids) for each in found) for found in texts]}
    for size in batch_sizes:
        # One by one takes long: a part of the text tells as much.
        chosen = sources[: max(_ONE_BY_ONE, len(sources) * min(size, 32) // 32)]
        calls = [
            functools.partial(each.translate, chosen, batch_size=size, **search)
            for each in translators
        ]
        for call in calls:
            call()  # This compiles.
        seconds = [[] for _ in calls]
        for _ in range(rounds):
            for call, own in zip(calls, seconds, strict=True):
                start = time.perf_counter()
                call()
                own.append(round(time.perf_counter() - start, 3))
        ratio = round(float(np.median(np.divide(*seconds))), 3)
        timed = {"sentences": len(chosen), "seconds": seconds, "times_as_fast": ratio}
        result[f"batch_size={size}"] = timed
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, metavar="RUN")
    parser.add_argument("--source", required=True, metavar="FILE")
    parser.add_argument("--reference", required=True, metavar="FILE")
    parser.add_argument(
        "--at-once",
        type=int,
        default=4,
        metavar="N",
        help="heads removed per round; default: %(default)s",
    )
    parser.add_argument("--beam-size", type=int, metavar="N", help="default: the run's")
    parser.add_argument(
        "--order", metavar="FILE.json", help="an earlier --json whose order of heads is used"
    )
    parser.add_argument("--json", metavar="FILE.json", help="write the result there, too")
    parser.add_argument("--plot", metavar="FILE.png")
    parser.add_argument("--output", metavar="DIR", help="the smaller run to make")
    parser.add_argument(
        "--keep", type=int, metavar="N", help="number of heads that remain; default: half"
    )
    parser.add_argument(
        "--epochs",
        type=int,
        default=0,
        metavar="N",
        help="epochs of training after pruning; default: %(default)s",
    )
    parser.add_argument("--pruned", metavar="DIR", help="only compare with this earlier --output")
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        metavar="N",
        help="rounds of the comparison; default: %(default)s",
    )
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[32, 1], metavar="N")
    options = parser.parse_args()
    folder = RunFolder.existing(options.model)
    recipe = folder.recipe()
    sources, references = read_pairs(options.source, options.reference)
    decoding = recipe.decoding
    search = {"beam_size": options.beam_size or decoding.beam_size}
    search["length_penalty"] = decoding.length_penalty
    comparison = sources, references, search, options.rounds, options.batch_sizes
    if options.pruned:
        return finish(compare((options.model, options.pruned), *comparison), options.json)
    limits = decoding.max_source_length, decoding.max_target_length
    engine = ModelEngine(folder.model(), *folder.tokenizers(), *limits)
    if options.order:
        rows = json.loads(pathlib.Path(options.order).read_text(encoding="utf-8"))
        order = [name for row in rows for name in row["without"]]
    else:
        tokenizers = folder.tokenizers()
        datasets, _ = Corpus(recipe, tokenizers).datasets(tokenizers)
        order = removal_order(engine.model, datasets["validation"], options.at_once)
    if options.output is None:
        result = curve(engine, order, options.at_once, sources, references, search)
        if options.plot:
            plot(result, options.plot, f"BLEU on {pathlib.Path(options.source).name}")
    else:
        total = sum(sum(engine.model.config.heads_of(kind)) for kind in KINDS)
        names = order[: total - (options.keep or total // 2)]
        with RunFolder(options.output).owned().locked():
            result = write_pruned(folder, engine.model, names, options.epochs, options.output)
        result |= compare((options.model, options.output), *comparison)
    finish(result, options.json)


def finish(result, path):
    """Prints the figures, and writes them where that is asked for."""
    text = json.dumps(result, indent=1)
    print(text)
    if path:
        write_output(path, text + "\n")


if __name__ == "__main__":
    main()
