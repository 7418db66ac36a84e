"""From a recipe to a run folder, through `model.fit`."""

import contextlib
import hashlib
import math
import os
import pathlib
import sys

import keras

from keras_transformer.data import ParallelDataset, encode_pairs, read_pairs
from keras_transformer.decoding import ModelEngine
from keras_transformer.errors import InputError
from keras_transformer.files import check_own, is_terminal
from keras_transformer.losses import SmoothedCrossEntropy
from keras_transformer.metrics import Perplexity, TokenAccuracy, TokenLoss
from keras_transformer.models import Transformer
from keras_transformer.schedules import TransformerSchedule
from keras_transformer.text import Tokenizer
from keras_transformer.training import callbacks as run_callbacks
from keras_transformer.training.recipe import Recipe, TrainingSection
from keras_transformer.training.run_folder import RunFolder, load_model

# What a resumed run may change: the rest lies in the checkpoint, or would end in other weights
# than those of an unbroken run.
_FREE_ON_RESUME = {
    "epochs",
    "early_stopping_patience",
    "keep_checkpoints",
    "sample_translations",
    # What the texts are is compared, not where they are.
    "folder",
    "train",
    "validation",
}


def train(
    recipe: Recipe,
    output: str | os.PathLike,
    resume: bool = False,
    overwrite: bool = False,
    verbose: bool = True,
    recipe_file: str | os.PathLike | None = None,
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

    Returns:
        The `RunFolder`.

    Raises:
        InputError: A file, a size or the folder is not what it must be.
        TrainingError: The loss is infinite or no number. The last good checkpoint and the best
            model stay.
    """
    folder = RunFolder(output)
    if resume:
        _check_resumed(recipe, folder)
    else:
        _check_folder(recipe, folder, overwrite, recipe_file)
    texts = {part: _read(recipe, part) for part in ("train", "validation")}
    digests = {part: _digests(text) for part, text in texts.items()}
    if resume:
        _check_texts(recipe, folder, digests)
    tokenizers = folder.tokenizers() if resume else _train_tokenizers(recipe, texts["train"])
    datasets, reports = _datasets(recipe, texts, tokenizers)
    for part, report in reports.items():
        _say(f"{part}: {report}")
    dataset = datasets["train"]
    _say(
        f"{dataset.steps_per_epoch} steps an epoch, shapes {dataset.shapes}, "
        f"{dataset.real_token_share:.1%} real tokens"
    )
    model, epoch = _model(recipe, folder, tokenizers, resume)
    _say(f"{model.count_params():,} parameters")
    if resume:
        folder.write_recipe(recipe)
        folder.settle(epoch, recipe.training.keep_checkpoints)
    else:
        folder.clear()
        folder.create(recipe, tokenizers, digests)
    _fit(recipe, folder, model, epoch, tokenizers, datasets, texts, verbose)
    _write_metrics(folder, dataset, reports)
    return folder


def _fit(recipe, folder, model, epoch, tokenizers, datasets, texts, verbose):
    """Trains from `epoch` to the end, if it has not been reached."""
    history = run_callbacks.History(folder, folder.history())
    stopping = run_callbacks.EarlyStopping(history.rows, recipe.training.early_stopping_patience)
    if epoch >= recipe.training.epochs or stopping.has_stopped():
        return
    # Keras draws its progress bar on stdout, which is for results.
    with contextlib.redirect_stdout(sys.stderr):
        model.fit(
            datasets["train"].to_tf_dataset(),
            validation_data=datasets["validation"].to_tf_dataset(),
            epochs=recipe.training.epochs,
            initial_epoch=epoch,
            shuffle=False,  # `ParallelDataset` shuffles
            verbose=1 if verbose and is_terminal(sys.stderr) else 0,
            callbacks=_callbacks(
                recipe,
                folder,
                model,
                tokenizers,
                datasets["train"],
                texts,
                history,
                stopping,
                verbose,
            ),
        )


def compile_model(model: Transformer, training: TrainingSection) -> None:
    """`model.compile` as `training`, a `TrainingSection`, says.

    Args:
        model: `Transformer`.
        training: `TrainingSection`.
    """
    optimizer = keras.optimizers.Adam(
        TransformerSchedule(
            model.config.model_dim, training.warmup_steps, training.learning_rate_scale
        ),
        beta_1=0.9,
        beta_2=training.adam_beta_2,
        epsilon=1e-9,
        global_clipnorm=training.clip_norm,
        use_ema=training.ema_momentum is not None,
        ema_momentum=training.ema_momentum or 0.0,
    )
    model.compile(
        optimizer=optimizer,
        loss=SmoothedCrossEntropy(training.label_smoothing),
        metrics=[TokenLoss(training.label_smoothing), TokenAccuracy(), Perplexity()],
        jit_compile=training.jit_compile,
    )


def _check_resumed(recipe, folder):
    before, now = RunFolder.existing(folder.path).recipe().to_dict(), recipe.to_dict()
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
    inputs = {} if recipe_file is None else {"the recipe": pathlib.Path(recipe_file)}
    for part in ("train", "validation"):
        for side, file in zip(("source", "target"), _files(recipe, part), strict=True):
            if file is not None:
                inputs[f"`data.{part}.{side}`"] = file
    for name, file in inputs.items():
        if file.resolve().is_relative_to(folder.path.resolve()):
            raise InputError(
                f"{folder.path}: is not overwritten, because {name} is in it: {file}. "
                "Give another --output."
            )
    check_own(folder.path, folder.owner())


def _digests(texts):
    digests = {}
    for side, lines in zip(("source", "target"), texts, strict=True):
        digest = hashlib.sha256()
        for line in lines:
            digest.update(line.encode("utf-8") + b"\n")
        digests[side] = digest.hexdigest()
    return digests


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
                files = " and ".join(str(file) for file in _files(recipe, part) if file)
                raise InputError(
                    f"{folder.path}: cannot be resumed with other texts than it was begun with. "
                    f"Received: another {side} side of `data.{part}`, {files}."
                )


def _files(recipe, part):
    """The source's and the target's file; None for the second if both are in the first."""
    base = pathlib.Path(recipe.data.folder)
    files = getattr(recipe.data, part)
    return base / files.source, None if files.target is None else base / files.target


def _read(recipe, part):
    return read_pairs(*_files(recipe, part))


def _train_tokenizers(recipe, texts):
    text = recipe.text
    options = dict(
        byte_fallback=text.byte_fallback,
        split_digits=text.split_digits,
        character_coverage=text.character_coverage,
        normalization=text.normalization,
    )
    sources, targets = texts
    if text.joint:
        joint = Tokenizer.train_from_texts(sources + targets, text.vocabulary_size, **options)
        return joint, joint
    target_size = text.target_vocabulary_size or text.vocabulary_size
    return (
        Tokenizer.train_from_texts(sources, text.vocabulary_size, **options),
        Tokenizer.train_from_texts(targets, target_size, **options),
    )


def _datasets(recipe, texts, tokenizers):
    datasets, reports = {}, {}
    data, training = recipe.data, recipe.training
    for part, (sources, targets) in texts.items():
        pairs, reports[part] = encode_pairs(
            sources,
            targets,
            *tokenizers,
            max_length=data.max_length,
            max_length_ratio=data.max_length_ratio,
            drop_duplicates=data.drop_duplicates and part == "train",
        )
        datasets[part] = ParallelDataset(
            pairs,
            batch_tokens=training.batch_tokens,
            # Each shape costs seconds of compilation, more than padding costs on a small set.
            max_shapes=training.max_shapes if part == "train" else min(4, training.max_shapes),
            shuffle=part == "train",
            seed=training.seed,
        )
    return datasets, reports


def _model(recipe, folder, tokenizers, resume):
    """The compiled model, and how many epochs it has seen."""
    if resume and folder.checkpoint_epochs():
        return _last_checkpoint(folder)
    source, target = tokenizers
    keras.utils.set_random_seed(recipe.training.seed)
    target_size = None if source == target else target.vocabulary_size
    model = Transformer(
        recipe.model_config(source.vocabulary_size, target_size),
        dtype=recipe.training.dtype_policy,
    )
    compile_model(model, recipe.training)
    return model, 0


def _last_checkpoint(folder):
    """The model of the newest checkpoint that is whole, and its epoch."""
    rows = len(folder.history())
    for epoch in reversed(folder.checkpoint_epochs()):
        file = folder.checkpoint_file(epoch)
        try:
            if epoch > rows:
                raise InputError(f"{file}: its epoch is not in {folder.history_file.name}.")
            return load_model(file, compile=True), epoch
        except InputError as error:
            _say(f"{error} Trying the checkpoint before it.")
    raise InputError(f"{folder.checkpoints}: there is no whole checkpoint to resume from.")


def _callbacks(recipe, folder, model, tokenizers, dataset, texts, history, stopping, verbose):
    training = recipe.training
    chosen = [
        run_callbacks.EpochSeed(dataset, training.seed),
        run_callbacks.FiniteLoss(),
        run_callbacks.AveragedValidation(),
        run_callbacks.Throughput(dataset.real_tokens),
        history,
        run_callbacks.TensorBoard(folder, history.rows),
    ]
    if verbose and not is_terminal(sys.stderr):
        chosen.append(run_callbacks.EpochLine())
    if training.sample_translations and verbose:
        count = training.sample_translations
        sources, references = (side[:count] for side in texts["validation"])
        limits = recipe.decoding.max_source_length, recipe.decoding.max_target_length
        engine = ModelEngine(model, *tokenizers, *limits)
        chosen.append(run_callbacks.SampleTranslations(folder, engine, sources, references))
    chosen += [
        run_callbacks.BestModel(folder, history.rows),
        stopping,
        run_callbacks.Checkpoints(folder, training.keep_checkpoints),
    ]
    return chosen


def _write_metrics(folder, dataset, reports):
    history = folder.history()
    best = run_callbacks.best_row(history)
    perplexity = best["val_perplexity"]
    folder.write_metrics(
        {
            "best_epoch": int(best["epoch"]),
            "best_validation_loss": best["val_loss"],
            "best_validation_perplexity": perplexity if math.isfinite(perplexity) else None,
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
    )


def _say(text):
    print(text, file=sys.stderr, flush=True)
