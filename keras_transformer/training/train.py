"""From a recipe to a run folder, through `model.fit`."""

import contextlib
import functools
import itertools
import math
import os
import pathlib
import sys
from typing import Any

import keras
import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.files import is_terminal, write_whole
from keras_transformer.losses import RDropCrossEntropy, SmoothedCrossEntropy
from keras_transformer.metrics import Perplexity, TokenAccuracy, TokenLoss
from keras_transformer.models import model_of
from keras_transformer.schedules import TransformerSchedule
from keras_transformer.training import callbacks as run_callbacks
from keras_transformer.training.attention_images import AttentionImages, check_plots
from keras_transformer.training.corpus import (
    make_datasets,
    text_digests,
    text_files,
    texts_of,
    train_tokenizers,
)
from keras_transformer.training.forecast import forecast, lines
from keras_transformer.training.hosts import ALONE, Host
from keras_transformer.training.recipe import Recipe, TrainingSection
from keras_transformer.training.report import report as report_of
from keras_transformer.training.run_folder import (
    RunFolder,
    averaged_epochs,
    best_row,
    epoch_and_step,
    load_model,
)
from keras_transformer.training.tensorboard import TensorBoard
from keras_transformer.training.trial import as_begun, fastest_way, ways
from keras_transformer.training.within_epoch import Place, StepCheckpoints

# What a resumed run may change: the rest lies in the checkpoint, or would end in other weights
# than those of an unbroken run.
_FREE_ON_RESUME = {
    "epochs",
    "early_stopping_patience",
    "checkpoint_every_minutes",
    "keep_checkpoints",
    "sample_translations",
    "attention_images",
    "weight_histograms",
    # What the texts are is compared, not where they are.
    "folder",
    "cache",
    "train",
    "validation",
}
# Of validation, for BLEU after each epoch.
_BLEU_SENTENCES = 2000
_PROMPT_WORDS = 3


def train(
    recipe: Recipe,
    output: str | os.PathLike,
    resume: bool = False,
    overwrite: bool = False,
    verbose: bool = True,
    recipe_file: str | os.PathLike | None = None,
    dry_run: bool = False,
    host: Host = ALONE,
) -> RunFolder:
    """Trains as a recipe says.

    Nothing is written before the data, the recipe and the vocabulary have been found good.

    Args:
        recipe: `Recipe`.
        output: The run folder to make.
        resume: Go on from the last whole checkpoint of `output` with its tokenizers, optimizer,
            schedule and epoch, or from the start if it has none yet. Wherever a run was
            interrupted, it and its continuation give the weights, history and metrics of one
            unbroken run.
        overwrite: Replace a run that is there, if nothing else is in its folder.
        verbose: Whether to show a progress bar, or a line an epoch where stderr is no terminal,
            and samples.
        recipe_file: Path of the file that `recipe` comes from, which is then not overwritten.
        dry_run: Whether to say what the training would take (`forecast.lines`), and stop before
            anything is written.
        host: Of several hosts this one, of `join_hosts`. The first one writes `output`; to resume,
            all must see it.

    Returns:
        The `RunFolder`; of another host than the first, one of its own.

    Raises:
        InputError: A file, a size or the folder is not what it must be.
        TrainingError: The loss is infinite or no number. The last good checkpoint and the best
            model stay. Or another host has ended.
    """
    if recipe.training.attention_images:
        check_plots()
    with host.errors_of_others():
        folder = RunFolder(host.folder(output, resume))
        return _train(recipe, folder, resume, overwrite, verbose, recipe_file, dry_run, host)


def _train(recipe, folder, resume, overwrite, verbose, recipe_file, dry_run, host):
    if resume:
        recipe = as_begun(recipe, RunFolder.existing(folder.path).recipe())
        _check_resumed(recipe, folder)
    else:
        _check_folder(recipe, folder, overwrite, recipe_file)
    digests = text_digests(recipe)
    if resume:
        _check_texts(recipe, folder, digests)
    start = folder if resume else _start(recipe)
    tokenizers = train_tokenizers(recipe) if start is None else start.tokenizers()
    datasets, reports = make_datasets(recipe, tokenizers, digests, host)
    for part, report in reports.items():
        _say(f"{part}: {report}")
    dataset = datasets["train"]
    _say(
        f"{dataset.steps_per_epoch} steps an epoch, shapes {dataset.shapes}, "
        f"{dataset.real_token_share:.1%} real tokens"
    )
    make = functools.partial(_new_model, tokenizers=tokenizers)
    recipe, way = (ways(recipe)[0], {}) if dry_run else fastest_way(recipe, make, dataset, host)
    if way:
        _say(f"trains in {way['chosen']}: {way['why']}, {way['tokens_per_second']} tokens/s")
    model, epoch, place = _model(recipe, folder, tokenizers, resume)
    if dry_run:
        found = forecast(model.config, model.count_params(), dataset, recipe.training)
        for line in lines(found):
            _say(line)
        return folder
    _say(f"{model.count_params():,} parameters")
    if resume:
        folder.write_recipe(recipe)
        folder.settle(epoch, recipe.training)
    else:
        folder.clear()
        folder.create(recipe, tokenizers, digests)
        if way:
            folder.write_metrics({"way": way})
    engine = host.engine(model, *tokenizers, **recipe.engine_options)
    texts = list(itertools.islice(texts_of(recipe, "validation"), _BLEU_SENTENCES))
    if not recipe.with_sources:  # Samples go on from a few words.
        texts = [(" ".join(text.split()[:_PROMPT_WORDS]), text) for _, text in texts]
    bleu = run_callbacks.ValidationBleu(engine, *map(list, zip(*texts, strict=True)))
    fit = functools.partial(_fit, recipe, folder, model, bleu, datasets, verbose, host)
    if place is not None:
        fit(epoch, place)
        epoch += 1
    fit(epoch)
    average = _average(recipe.training, folder, model, datasets["validation"], bleu)
    metrics = _metrics(recipe.training, folder, dataset, reports, average)
    folder.write_metrics(metrics)
    write_whole(folder.report_file, report_of(folder, recipe.training, metrics))
    return folder


def _fit(recipe, folder, model, bleu, datasets, verbose, host, epoch, place=None):
    """Trains from `epoch` to the end, if it has not been reached; or from a place to its end."""
    history = run_callbacks.History(folder, folder.history())
    stopping = run_callbacks.EarlyStopping(history.rows, recipe.training)
    if epoch >= recipe.training.epochs or stopping.has_stopped():
        return
    common = recipe, folder, bleu, datasets["train"], history, stopping, verbose, host
    kept = [] if place is None else [run_callbacks.WeightsOfTheLastStep()]
    # Keras draws its progress bar on stdout, which is for results.
    with contextlib.redirect_stdout(sys.stderr):
        model.fit(
            _for_fit(datasets["train"], 0 if place is None else place.step),
            validation_data=_for_fit(datasets["validation"]),
            epochs=recipe.training.epochs if place is None else epoch + 1,
            initial_epoch=epoch,
            shuffle=False,  # `ParallelDataset` shuffles
            verbose=1 if verbose and is_terminal(sys.stderr) else 0,
            callbacks=[*_callbacks(*common, place), *kept],
        )


def _for_fit(dataset, start=0):
    if keras.backend.backend() == "tensorflow":
        return dataset.to_tf_dataset(start)  # batches are made ahead, and the step is traced once
    return dataset.to_py_dataset(start)


def _average(training, folder, model, validation, bleu):
    """What `metrics.json` says of the average of some epochs, which takes the best one's place.

    The model's weights are the average's afterwards.
    """
    rows = folder.history()
    epochs = averaged_epochs(rows, training)
    if len(epochs) < 2:
        return {}
    total = [np.zeros(each.shape) for each in model.weights]  # float64
    for epoch in epochs:
        weights = load_model(folder.candidate_file(epoch), compile=False).get_weights()
        total = [so_far + each for so_far, each in zip(total, weights, strict=True)]
    model.set_weights([each / len(epochs) for each in total])
    found = {"epoch": 0.0}
    logs = model.evaluate(_for_fit(validation), verbose=0, return_dict=True)
    found |= {f"val_{key}": float(value) for key, value in logs.items()}
    if training.select_by == "bleu":
        found["val_bleu"] = bleu.bleu()
    is_best = best_row([*rows, found], training.select_by) is found
    if is_best:
        run_callbacks.save_without_optimizer(model, folder.model_file)
    values = {key: found[key] for key in ("val_loss", "val_bleu") if key in found}
    return {"average": {"epochs": epochs, **values, "is_the_best_model": is_best}}


def compile_model(model: keras.Model, training: TrainingSection) -> None:
    """`model.compile` as `training`, a `TrainingSection`, says."""
    several = training.accumulation_steps
    rate = model.config.model_dim, training.warmup_steps, training.learning_rate_scale, several
    optimizer = run_callbacks.MeasuredAdam(
        TransformerSchedule(*rate),
        beta_1=0.9,
        beta_2=training.adam_beta_2,
        epsilon=1e-9,
        global_clipnorm=training.clip_norm,
        use_ema=training.ema_momentum is not None,
        # Keras averages at each batch, also where the weights have not changed.
        ema_momentum=(training.ema_momentum or 0.0) ** (1 / several),
        gradient_accumulation_steps=several if several > 1 else None,
    )
    smoothing, ignored = training.label_smoothing, model.config.ignore_id
    options: dict[str, Any] = {"label_smoothing": smoothing, "ignore_id": ignored}
    options["reduction"] = "sum" if several > 1 else "sum_over_batch_size"
    model.compile(
        optimizer=optimizer,
        loss=(
            SmoothedCrossEntropy(**options)
            if training.r_drop is None
            else RDropCrossEntropy(training.r_drop, **options)
        ),
        metrics=[TokenLoss(smoothing, ignored), TokenAccuracy(ignored), Perplexity(ignored)],
        jit_compile=training.jit_compile,
    )


def _check_resumed(recipe, folder):
    before, now = folder.recipe().to_dict(), recipe.to_dict()
    free = _FREE_ON_RESUME - ({"train", "validation"} if folder.digests() is None else set())
    for section in ("data", "text", "model", "training"):
        for key in before[section].keys() | now[section].keys():
            same = before[section].get(key) == now[section].get(key)
            if not same and key not in free:
                raise InputError(
                    f"{folder.path}: cannot be resumed with another `{section}.{key}` than it "
                    f"was begun with. Received: {now[section].get(key)!r} instead of "
                    f"{before[section].get(key)!r}."
                )
    # The best model gets its place after the first checkpoint.
    if folder.model_file.exists() and not folder.checkpoint_epochs():
        raise InputError(f"{folder.path}: there is no checkpoint to resume from.")


def _check_folder(recipe, folder, overwrite, recipe_file):
    if folder.path.exists() and not folder.path.is_dir():
        raise InputError(f"{folder.path}: the output must be a folder. Received: a file.")
    if not folder.path.is_dir() or not any(folder.path.iterdir()):
        return
    if not overwrite:
        raise InputError(
            f"{folder.path}: exists already. Give --resume to go on with it, --overwrite to "
            "replace it, or another --output."
        )
    inputs = {"the recipe": recipe_file, "`training.start_from`": recipe.training.start_from}
    for part in ("train", "validation"):
        for side, file in zip(("source", "target"), text_files(recipe, part), strict=True):
            inputs[f"`data.{part}.{side}`"] = file
    for name, file in inputs.items():
        if file and pathlib.Path(file).resolve().is_relative_to(folder.path.resolve()):
            raise InputError(
                f"{folder.path}: is not overwritten, because {name} is in it: {file}. "
                "Give another --output."
            )
    folder.owned().check()


def _check_texts(recipe, folder, digests):
    before = folder.digests()
    if before is None:
        _say(
            f"{folder.path}: was begun by version 0.1, which noted no digests of the texts: "
            "whether they have changed is not checked."
        )
        return
    for part, sides in digests.items():
        for side, digest in sides.items():
            if before.get(part, {}).get(side) != digest:
                files = " and ".join(str(file) for file in text_files(recipe, part) if file)
                raise InputError(
                    f"{folder.path}: cannot be resumed with other texts than it was begun with. "
                    f"Received: another {side} side of `data.{part}`, {files}."
                )


def _model(recipe, folder, tokenizers, resume):
    """The compiled model, how many epochs it has seen, and its `Place` within the next or None."""
    if resume and (folder.checkpoint_epochs() or folder.step_files()):
        return _last_checkpoint(folder)
    return _new_model(recipe, tokenizers), 0, None


def _new_model(recipe, tokenizers):
    source, target = tokenizers
    keras.utils.set_random_seed(recipe.training.seed)
    target_size = None if source == target else target.vocabulary_size
    config = recipe.model_config(source.vocabulary_size, target_size, source.turn_id)
    model = model_of(config, dtype=recipe.training.dtype_policy)
    compile_model(model, recipe.training)
    if (start := _start(recipe)) is not None:
        begun = start.model()
        fields = [each.to_dict().items() for each in (begun.config, config)]
        one, other = ({k: v for k, v in each if "dropout" not in k} for each in fields)
        if one != other:
            raise InputError(f"{start.path}: its model is not the one that the recipe describes.")
        model.set_weights(begun.get_weights())
    return model


def _start(recipe):
    """The run that this one goes on from with other texts, if any."""
    if recipe.training.start_from is None:
        return None
    start = RunFolder.existing(recipe.training.start_from)
    for name in ("kind", "text"):
        if getattr(start.recipe(), name) != getattr(recipe, name):
            raise InputError(f"{start.path}: its `{name}` is not that of the recipe.")
    return start


def _last_checkpoint(folder):
    """The same of the newest checkpoint that is whole."""
    files = [*map(folder.checkpoint_file, folder.checkpoint_epochs())]
    # A step after so many epochs comes after their own checkpoint.
    files = sorted([*files, *folder.step_files()], key=epoch_and_step)
    rows = len(folder.history())
    for file in reversed(files):
        try:
            place = Place.load(file) if file in folder.step_files() else None
            epoch = int(file.stem.split("-")[1])
            if epoch > rows:
                raise InputError(f"{file}: its epoch is not in {folder.history_file.name}.")
            return load_model(file, compile=True), epoch, place
        except InputError as error:
            _say(f"{error} Trying the checkpoint before it.")
    raise InputError(f"{folder.checkpoints}: there is no whole checkpoint to resume from.")


def _callbacks(recipe, folder, bleu, dataset, history, stopping, verbose, host, place):
    training = recipe.training
    chosen = [
        run_callbacks.EpochSeed(dataset, training.seed),
        run_callbacks.FiniteLoss(folder, dataset, place),
        run_callbacks.AveragedValidation(),
        run_callbacks.Throughput(dataset.real_tokens, place),
        *([bleu] if training.select_by == "bleu" else []),
        history,
        TensorBoard(folder, recipe, 1 - dataset.real_token_share, history.rows),
    ]
    if place is not None or training.checkpoint_every_minutes is not None:
        chosen.append(StepCheckpoints(folder, training.checkpoint_every_minutes, place, host))
    if verbose and not is_terminal(sys.stderr):
        chosen.append(run_callbacks.EpochLine())
    if training.sample_translations and verbose:
        count = training.sample_translations
        samples = bleu.sources[:count], bleu.references[:count]
        chosen.append(run_callbacks.SampleTranslations(folder, bleu.engine, *samples))
    if training.attention_images:
        pair = bleu.sources[0], bleu.references[0]
        chosen.append(AttentionImages(folder, bleu.engine, *pair, training.attention_images))
    chosen += [
        run_callbacks.BestModel(folder, history.rows, training),
        stopping,
        run_callbacks.Checkpoints(folder, training),
    ]
    return chosen


def _metrics(training, folder, dataset, reports, average):
    history = folder.history()
    best = best_row(history, training.select_by)
    perplexity = best["val_perplexity"]
    return {
        "best_epoch": int(best["epoch"]),
        "best_validation_loss": best["val_loss"],
        "best_validation_perplexity": perplexity if math.isfinite(perplexity) else None,
        **({"best_validation_bleu": best["val_bleu"]} if "val_bleu" in best else {}),
        **average,
        **{key: value for key, value in folder.metrics().items() if key == "way"},
        "epochs": int(history[-1]["epoch"]),
        "training_minutes": round(sum(row["seconds"] for row in history) / 60, 2),
        "steps_per_epoch": dataset.steps_per_epoch,
        "shapes": [list(shape) for shape in dataset.shapes],
        "real_token_share": round(dataset.real_token_share, 4),
        "pairs": {
            part: {
                "total": report.total,
                "kept": report.kept,
                "dropped": {why: drop.count for why, drop in report.dropped.items()},
            }
            for part, report in reports.items()
        },
    }


def _say(text):
    print(text, file=sys.stderr, flush=True)
