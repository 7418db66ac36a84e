"""The commands that make a run: `keras-transformer demo`, `train` and `import`."""

import argparse
import os

from keras_transformer.base.errors import InputError
from keras_transformer.base.imports import import_keras
from keras_transformer.base.reading import expanded_path
from keras_transformer.cli.arguments import add_options, option_values, sigterm_as_exit
from keras_transformer.runs.model_file import WEIGHT_DTYPES

# How often a training has weights in memory: with gradients and the optimizer's two slots, and the
# copy that is saved.
_FULL_COPIES, _LORA_COPIES = 5, 2
_SENTENCEPIECE = "SentencePiece file of a model of CTranslate2, or the source's and the target's; "
_SENTENCEPIECE += "default: those in its folder or in the folder above it"
_NAME = "a folder; an archive .zip, .tar.gz or .argosmodel, or its URL; "
_NAME += "ORGANIZATION/NAME[@REVISION] of Hugging Face; firefox:en-de[/tiny]; argos:en-de"
_SAMPLES = "source sentences that exports are verified with, one per line; default: built-in ones"

_DTYPE = f"dtype of the run's weights: {', '.join(WEIGHT_DTYPES)}; default: the model's own"


def _add_demo_options(command):
    output = "the folder to make; default: %(default)s"
    command.add_argument("--output", default="demo", metavar="DIR", help=output)
    command.add_argument("--overwrite", action="store_true", help="replace an earlier demo")


def _add_train_options(command):
    command.add_argument("recipe", metavar="RECIPE.yaml", help="names the texts and the options")
    command.add_argument("--output", required=True, metavar="RUN", help="the run folder to make")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="section.key=value",
        help="replace a value of the recipe; null: none, or else the default; may be given more "
        "than once",
    )
    command.add_argument("--resume", action="store_true", help="continue from the last checkpoint")
    command.add_argument(
        "--overwrite", action="store_true", help="replace an earlier run, and nothing else"
    )
    group = command.add_argument_group(
        "several hosts",
        "Run the same command on each host, with Keras' JAX backend; it uses all devices of each.",
    )
    group.add_argument(
        "--hosts",
        metavar="HOST:PORT,…",
        help="all hosts, in the same order on each; auto: from the launcher (Slurm, Open MPI, "
        "Kubernetes)",
    )
    group.add_argument(
        "--host-index", type=int, metavar="I", help="this host's place in --hosts, from 0"
    )


def _add_import_options(command):
    command.add_argument("folder", metavar="NAME", help=_NAME)
    group = command.add_mutually_exclusive_group(required=True)
    group.add_argument("--output", metavar="RUN", help="the run folder to make")
    group.add_argument(
        "--list", action="store_true", help="show the models of firefox: or argos: instead"
    )
    command.add_argument("--overwrite", action="store_true", help="replace an earlier run")
    add_options(
        command, ("samples", str, "FILE", _SAMPLES), ("dtype", WEIGHT_DTYPES, "DTYPE", _DTYPE)
    )
    command.add_argument(
        "--sentencepiece", nargs="+", metavar="FILE", help=_SENTENCEPIECE, default=argparse.SUPPRESS
    )


def _demo(options):
    from keras_transformer.cli.demo import run_demo

    print(run_demo(options.output, overwrite=options.overwrite))


def _train(options):
    try:
        open(options.recipe, "rb").close()
    except OSError as error:  # Keras takes seconds.
        reason = f"cannot read the recipe: {error.strerror}"
        raise InputError(f"{options.recipe}: {reason}.") from None
    if options.hosts is None and not options.resume:
        from keras_transformer.runs.run_folder import RESUME, RunFolder

        RunFolder(options.output).owned().check_replaceable(options.overwrite, RESUME)
    _expect_origin(options)
    import_keras()
    from keras_transformer.training import Recipe
    from keras_transformer.training.hosts import SINGLE_HOST, join_hosts
    from keras_transformer.training.loop import train

    host = SINGLE_HOST
    if options.hosts is not None:
        host = join_hosts(options.hosts, options.host_index)
    elif options.host_index is not None:
        raise InputError("--host-index needs --hosts.")
    resumed = options.output if options.resume else None
    with sigterm_as_exit():
        folder = train(
            Recipe.load(options.recipe, options.set, resumed),
            options.output,
            resume=options.resume,
            overwrite=options.overwrite,
            recipe_file=options.recipe,
            host=host,
        )
    if not host.index:
        print(folder.path)


def _expect_origin(options):
    """Prepares for the weights of `training.start_from`, before TensorFlow is imported."""
    from keras_transformer.runs.run_folder import RunFolder
    from keras_transformer.runs.sections import read_sections, section_of, set_value

    sections = read_sections(options.recipe)
    for override in options.set:
        set_value(sections, override)
    training = section_of(sections, "training", options.recipe)
    if isinstance(origin := training.get("start_from"), str):  # `Recipe` refuses other types.
        copies = _FULL_COPIES if training.get("lora_rank") is None else _LORA_COPIES
        RunFolder(expanded_path(origin)).check_memory("training that starts from it", copies)


def _import(options):
    if options.list:
        from keras_transformer.extras.importing.fetching import list_models

        print(*list_models(options.folder), sep="\n")
        return
    if not os.path.isdir(options.folder):
        from keras_transformer.extras.importing.fetching import check_name

        check_name(options.folder)  # NumPy takes a while.
    from keras_transformer.extras.importing.importing import import_run

    print(import_run(**option_values(options, "list")))


COMMANDS = {
    "demo": (_add_demo_options, _demo),
    "train": (_add_train_options, _train),
    "import": (_add_import_options, _import),
}
