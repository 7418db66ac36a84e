"""From a recipe to a run folder, through `model.fit`."""

import contextlib
import pathlib
import shutil
import sys

import keras

from keras_transformer.data import ParallelDataset, encode_pairs, read_pairs
from keras_transformer.decoding import ModelEngine
from keras_transformer.errors import InputError
from keras_transformer.losses import SmoothedCrossEntropy
from keras_transformer.metrics import Perplexity, TokenAccuracy, TokenLoss
from keras_transformer.models import Transformer
from keras_transformer.schedules import TransformerSchedule
from keras_transformer.streaming.progress import is_terminal
from keras_transformer.text import Tokenizer
from keras_transformer.training import callbacks as run_callbacks
from keras_transformer.training.run_folder import RunFolder, load_model

# What a resumed run may change: the rest lies in the checkpoint, or would end in other weights
# than those of an unbroken run.
_FREE_ON_RESUME = {
    "epochs",
    "early_stopping_patience",
    "keep_checkpoints",
    "sample_translations",
}


def train(recipe, output, resume=False, overwrite=False, verbose=True):
    """Trains as a recipe says.

    Nothing is written before the data, the recipe and the vocabulary have been found good.

    Args:
        recipe: `Recipe`.
        output: The run folder to make.
        resume: Go on from the last checkpoint of `output` with its tokenizers, optimizer,
            schedule and epoch. An interrupted run and its continuation give the same weights as
            one unbroken run.
        overwrite: Replace a run that is there.
        verbose: Whether to show a progress bar, or a line an epoch where stderr is no terminal,
            and samples.

    Returns:
        The `RunFolder`.

    Raises:
        InputError: A file, a size or the folder is not what it must be.
    """
    folder = RunFolder(output)
    _check_folder(recipe, folder, resume, overwrite)
    keras.utils.set_random_seed(recipe.training.seed)
    texts = {part: _read(recipe, part) for part in ("train", "validation")}
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
    if not resume:
        if folder.path.exists():
            shutil.rmtree(folder.path)
        folder.create(recipe, tokenizers)
    else:
        folder.write_recipe(recipe)
    history = folder.history()[:epoch]
    # Keras draws its progress bar on stdout, which is for results.
    with contextlib.redirect_stdout(sys.stderr):
        model.fit(
            dataset.to_tf_dataset(),
            validation_data=datasets["validation"].to_tf_dataset(),
            epochs=recipe.training.epochs,
            initial_epoch=epoch,
            shuffle=False,  # `ParallelDataset` shuffles
            verbose=1 if verbose and is_terminal(sys.stderr) else 0,
            callbacks=_callbacks(
                recipe, folder, model, tokenizers, dataset, texts, history, verbose
            ),
        )
    _write_metrics(folder, dataset, reports)
    return folder


def compile_model(model, training):
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


def _check_folder(recipe, folder, resume, overwrite):
    if resume:
        before, now = RunFolder.existing(folder.path).recipe().to_dict(), recipe.to_dict()
        for section in ("text", "model", "training"):
            for key in before[section].keys() | now[section].keys():
                same = before[section].get(key) == now[section].get(key)
                if not same and key not in _FREE_ON_RESUME:
                    raise InputError(
                        f"{folder.path}: cannot be resumed with another `{section}.{key}` than it "
                        f"was begun with. Received: {now[section].get(key)!r} instead of "
                        f"{before[section].get(key)!r}."
                    )
        if not folder.checkpoint_epochs():
            raise InputError(f"{folder.path}: there is no checkpoint to resume from.")
        return
    occupied = folder.path.exists() and (not folder.path.is_dir() or any(folder.path.iterdir()))
    if occupied and not overwrite:
        raise InputError(
            f"{folder.path}: exists already. Give --resume to go on with it, --overwrite to "
            "replace it, or another --output."
        )
    if occupied and not folder.recipe_file.is_file():
        raise InputError(f"{folder.path}: is not a run folder, so it is not overwritten.")


def _read(recipe, part):
    base = pathlib.Path(recipe.data.folder)
    files = getattr(recipe.data, part)
    target = None if files.target is None else base / files.target
    return read_pairs(base / files.source, target)


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
    source, target = tokenizers
    if resume:
        epoch = folder.checkpoint_epochs()[-1]
        return load_model(folder.checkpoint_file(epoch), compile=True), epoch
    target_size = None if source == target else target.vocabulary_size
    model = Transformer(
        recipe.model_config(source.vocabulary_size, target_size),
        dtype=recipe.training.dtype_policy,
    )
    compile_model(model, recipe.training)
    return model, 0


def _callbacks(recipe, folder, model, tokenizers, dataset, texts, history, verbose):
    training = recipe.training
    chosen = [
        run_callbacks.EpochSeed(dataset, training.seed),
        run_callbacks.Throughput(dataset.real_tokens),
        run_callbacks.Checkpoints(folder, training.keep_checkpoints),
    ]
    if training.ema_momentum is not None:
        chosen.append(keras.callbacks.SwapEMAWeights(swap_on_epoch=True))
    best = min((row["val_loss"] for row in history), default=float("inf"))
    chosen += [
        run_callbacks.BestModel(folder, best),
        run_callbacks.History(folder, history),
        run_callbacks.TensorBoard(folder),
    ]
    if verbose and not is_terminal(sys.stderr):
        chosen.append(run_callbacks.EpochLine())
    if training.sample_translations and verbose:
        count = training.sample_translations
        sources, references = (side[:count] for side in texts["validation"])
        limits = recipe.decoding.max_source_length, recipe.decoding.max_target_length
        engine = ModelEngine(model, *tokenizers, *limits)
        chosen.append(run_callbacks.SampleTranslations(folder, engine, sources, references))
    if training.early_stopping_patience is not None:
        chosen.append(
            keras.callbacks.EarlyStopping(
                "val_loss", mode="min", patience=training.early_stopping_patience
            )
        )
    return chosen


def _write_metrics(folder, dataset, reports):
    history = folder.history()
    best = min(history, key=lambda row: row["val_loss"])
    folder.write_metrics(
        {
            "best_epoch": int(best["epoch"]),
            "best_validation_loss": best["val_loss"],
            "best_validation_perplexity": best["val_perplexity"],
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
