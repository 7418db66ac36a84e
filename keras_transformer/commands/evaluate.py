"""The command `keras-transformer evaluate`."""

import json

from keras_transformer.commands.arguments import add_decoding, add_model, given

_OWN = ("command", "model", "source", "reference", "save")


def add_command(commands):
    """Adds `evaluate` to the subparsers of the command line."""
    command = commands.add_parser(
        "evaluate",
        help="BLEU and chrF of a model's translations, as JSON",
        description="Translates a source file and scores it against a reference with sacreBLEU.",
    )
    add_model(command)
    command.add_argument("--source", required=True, metavar="FILE")
    command.add_argument("--reference", required=True, metavar="FILE")
    command.add_argument("--save", metavar="FILE", help="also write the translations there")
    add_decoding(command)
    command.set_defaults(command=_evaluate)


def _evaluate(options):
    from keras_transformer.pipeline import evaluate_model

    scores = evaluate_model(
        options.model,
        options.source,
        options.reference,
        save=options.save,
        **given(options, *_OWN),
    )
    print(json.dumps(scores, indent=2))
