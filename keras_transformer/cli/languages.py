"""The command `keras-transformer languages`: what a model translates into what."""

import json
from typing import TYPE_CHECKING, Any

from keras_transformer.cli.arguments import add_model
from keras_transformer.errors import say

if TYPE_CHECKING:
    from keras_transformer.text.languages import Languages

_MAX_LISTED = 12  # targets in a line, where they are all other languages of the model


def _add_options(command):
    add_model(command)
    command.add_argument(
        "--json", action="store_true", help="write a list of objects: code, name, targets"
    )


def _languages(options):
    from keras_transformer.engine.opening import check_exists

    check_exists(options.model)  # Other imports take a while.
    from keras_transformer.export.manifest import languages_at

    languages = languages_at(options.model)
    if languages is None:
        advice = "name them with --languages when you export, or in the recipe's corpora"
        say(f"{options.model}: the languages of this model are unknown: {advice}.")
    rows = [] if languages is None else table(languages)
    if options.json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    for row in rows:
        targets = row["targets"]
        if len(targets) > _MAX_LISTED and len(targets) == len(rows) - 1:
            targets = ["all others"]
        print(row["code"] or "any", row["name"], " ".join(targets), sep="\t")


def table(languages: "Languages") -> list[dict[str, Any]]:
    """Returns the code, the English name and the codes of the targets of each language.

    A row whose code is None is any other language.
    """
    from keras_transformer.text.languages import language_name

    return [
        {
            "code": code,
            "name": "any language" if code is None else language_name(code),
            "targets": targets,
        }
        for code, targets in languages.targets.items()
    ]


COMMANDS = {"languages": (_add_options, _languages)}
