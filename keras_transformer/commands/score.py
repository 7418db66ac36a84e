"""The command `keras-transformer score`."""

import sys

from keras_transformer.commands.arguments import add_model, add_progress, add_scoring, given

_OWN = ("command", "model", "source", "target", "progress")


def add_command(commands):
    """Adds `score` to the subparsers of the command line."""
    command = commands.add_parser(
        "score",
        help="how probable a model holds given translations, as JSON lines",
        description="Writes a JSON object for each pair of two aligned files: the probability of "
        "the target, and of each of its tokens.",
    )
    add_model(command, "a run folder")
    command.add_argument("--source", required=True, metavar="FILE")
    command.add_argument("--target", required=True, metavar="FILE", help="aligned line by line")
    add_scoring(command)
    add_progress(command)
    command.set_defaults(command=_score)


def _score(options):
    from keras_transformer.commands.line_stream import score_lines
    from keras_transformer.commands.progress import Progress
    from keras_transformer.files import is_terminal
    from keras_transformer.translator import Translator

    translator = Translator.load(options.model)
    shown = is_terminal(sys.stderr) if options.progress is None else options.progress
    with Progress(None, shown, apart=not is_terminal(sys.stdout)) as progress:
        score_lines(
            translator,
            options.source,
            options.target,
            sys.stdout,
            progress=progress,
            **given(options, *_OWN),
        )
