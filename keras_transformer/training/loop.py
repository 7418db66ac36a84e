"""The training loop: the steps of a run in order, `model.fit`, and its callbacks."""

import contextlib
import os
import sys

import keras

from keras_transformer.base.errors import is_terminal, print_lines
from keras_transformer.base.memory import giving_back, is_large
from keras_transformer.engine.device import DevicePlan, device_plan
from keras_transformer.engine.scores import check_tokenizer
from keras_transformer.runs.run_folder import RunFolder
from keras_transformer.training import preparing
from keras_transformer.training.callbacks import (
    AveragedValidation,
    CommitEpoch,
    Compilation,
    EpochLine,
    EpochSeed,
    FiniteLoss,
    SampleTranslations,
    StartLine,
    Throughput,
    TranslationMetrics,
)
from keras_transformer.training.hosts import SINGLE_HOST, Host
from keras_transformer.training.recipe import Recipe
from keras_transformer.training.tensorboard import TensorBoard
from keras_transformer.training.training import Training, for_fit


def train(
    recipe: Recipe,
    output: str | os.PathLike,
    resume: bool = False,
    overwrite: bool = False,
    recipe_file: str | os.PathLike | None = None,
    host: Host = SINGLE_HOST,
    plan: DevicePlan | None = None,
    training_class: type[Training] = Training,
) -> RunFolder:
    """Trains the model of a recipe.

    Nothing is written before the data, the recipe and the vocabulary have passed their checks.

    Args:
        recipe: Recipe of the run.
        output: The run folder to make.
        resume: Whether to continue from the last complete checkpoint of `output`, with its
            tokenizers, optimizer, schedule and epoch. Without a checkpoint the run starts again,
            also in an empty folder. An interrupted run and its continuation give the same
            weights, history and metrics as an uninterrupted run.
        overwrite: Whether an existing run is replaced, if its folder holds nothing else.
        recipe_file: Path of the file of `recipe`, which is not overwritten.
        host: This host, of `join_hosts`. The first host writes `output`; to resume, all hosts must
            see it.
        plan: Shapes of batches where the recipe names none, and of searches; by default those that
            suit the device.
        training_class: Class of the training: a subclass may share a compiled model between runs.

    Returns:
        The `RunFolder`; on other hosts than the first, a temporary folder.

    Raises:
        InputError: A file, a size or the folder is invalid, or another process writes to the
            folder.
        TrainingError: The loss is NaN or infinite; the last good checkpoint and the best model
            remain. Or another host has ended.
    """
    check_tokenizer(recipe.data.bleu_tokenizer)
    recipe.check_files()
    with host.convert_peer_errors():
        folder = RunFolder(host.folder(output, resume))
        with folder.owned().locked():
            plan = plan or device_plan()
            if recipe.training.lora_rank is not None:
                folder.checkpoint_suffix = ".npz"
            # A process that was killed before the run was made leaves an empty folder empty.
            is_empty = folder.path.is_dir() and not any(folder.path.iterdir())
            if resume and not is_empty:
                prepared = preparing.resume(recipe, folder, host, plan)
            else:
                prepared = preparing.prepare(recipe, folder, host, plan, overwrite, recipe_file)
            training = training_class(prepared, folder, host, plan)
            training.begin()
            with _saying_how_to_resume(training):
                fit(training)
                training.average()
                training.finish()
            return folder


@contextlib.contextmanager
def _saying_how_to_resume(training):
    """Writes a line where Ctrl-C or SIGTERM ends a training."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        saved, epochs = training.folder.checkpoint_epochs(), training.recipe.training.epochs
        state = f"{saved[-1] if saved else 0} of {epochs} epochs are saved"
        advice = "To continue, give the same command with --resume"
        print_lines(f"\n{training.folder.path}: stopped; {state}. {advice}.")
        raise


def fit(training: Training) -> None:
    """Trains to the last epoch or until early stopping."""
    start, epochs = training.start_epoch, training.recipe.training.epochs
    if training.is_over():
        reason = f"{start} of {epochs} epochs are trained"
        if training.has_stopped():
            reason += " and `training.early_stopping_patience` is over"
        print_lines(
            f"{training.folder.path}: nothing was left to train: {reason}. To train longer, give "
            "a larger number: --set training.epochs=N"
        )
        return
    # Keras draws its progress bar on stdout, which is for results.
    with contextlib.redirect_stdout(sys.stderr), giving_back(is_large(training.model)):
        training.model.fit(
            for_fit(training.datasets["train"]),
            validation_data=for_fit(training.datasets["validation"]),
            epochs=epochs,
            initial_epoch=start,
            shuffle=False,  # `ParallelDataset` shuffles
            verbose=int(is_terminal(sys.stderr)),
            callbacks=callbacks_of(training),
        )


def callbacks_of(training: Training) -> list[keras.callbacks.Callback]:
    """Returns the callbacks of `fit`, in the order in which an epoch needs them."""
    options, has_bar = training.recipe.training, is_terminal(sys.stderr)
    compilation = Compilation(training, has_bar)
    callbacks = [
        EpochSeed(training),
        FiniteLoss(training),
        compilation,
        AveragedValidation(),
        Throughput(training),
    ]
    if options.start_from is not None and training.start_epoch == 0:
        callbacks.append(StartLine(training, compilation))
    if options.selects_by_translations or len(training.datasets) > 2:
        callbacks.append(TranslationMetrics(training))
    if not has_bar:
        callbacks.append(EpochLine(training))
    if options.sample_translations:
        callbacks.append(SampleTranslations(training))
    callbacks += [CommitEpoch(training), TensorBoard(training)]
    return callbacks  # Keras adds its bar at the end, which shows what callbacks add to the logs.
