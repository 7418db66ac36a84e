"""Former names of options. They work until the next minor release, and say so on stderr."""

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

from keras_transformer.errors import InputError, say
from keras_transformer.renamed import renaming

_MEMORY = {"--tmx-languages": "--languages"}
_RENAMED: Mapping[str, Mapping[str, str]] = {
    "translate": {"--format": "--document-format"},
    "evaluate": {"--save": "--output", **_MEMORY},
    "inspect": {"--corpus": "--samples"},
    "export": {"--verify-with": "--samples"},
    "clean": {"--source-language": "--from", "--target-language": "--to", **_MEMORY},
    "glossary": _MEMORY,
    "shortlist": _MEMORY,
}
# Second names, which are not shown and are not removed: programs rely on them.
_SPELLINGS = {"inspect": {"--source": "--text", "--target": "--translation"}}


def with_new_names(command: str, arguments: Iterable[str]) -> list[str]:
    """Returns a command's arguments with the present names of options; says each former name."""
    renamed, spellings = _RENAMED.get(command, {}), _SPELLINGS.get(command, {})
    texts, said, is_option = [], set(), True
    for text in arguments:
        name, equals, value = text.partition("=")
        is_option = is_option and text != "--"  # Behind it are files.
        if is_option and name in renamed and name not in said:
            say(renaming(name, renamed[name]))
            said.add(name)
        new_name = {**renamed, **spellings}.get(name, name) if is_option else name
        texts.append(new_name + equals + value)
    return texts


def add_former_files(command: Any, flag: str) -> None:
    """Adds the former name of `FILE`; its files are in the attribute of the flag's name."""
    command.add_argument(
        flag, nargs="+", action=_Files, default=argparse.SUPPRESS, help=argparse.SUPPRESS
    )


class _Files(argparse.Action):
    """Collects the files of a former option that may be given several times."""

    def __call__(self, parser, namespace, values, option_string=None):
        files = getattr(namespace, self.dest, [])
        if not files:
            say(renaming(option_string, "FILE"))
        setattr(namespace, self.dest, [*files, *values])


def add_former_corpora(command: Any) -> None:
    """Adds the former arguments of `shortlist`, `RUN --corpus FILE FILE`."""
    command.add_argument(
        "--corpus", nargs="+", action=_Corpora, default=argparse.SUPPRESS, help=argparse.SUPPRESS
    )


class _Corpora(argparse.Action):
    """Takes the argument before it for the run, which `--model` names now."""

    def __call__(self, parser, namespace, values, option_string=None):
        if not hasattr(namespace, self.dest):
            say(renaming("RUN --corpus FILE", "--model RUN FILE"))
        setattr(namespace, self.dest, [*getattr(namespace, self.dest, []), *values])
        for action in parser._actions:
            if action.dest == "model":
                action.required = False


def with_new_corpora(options: argparse.Namespace) -> None:
    """Moves the former arguments of `shortlist` into the attributes of the present ones."""
    if "corpus" in options:
        if options.model is not None or len(options.corpora) != 1:
            raise InputError("Give --model RUN and the files of the corpora, without --corpus.")
        (options.model,), options.corpora = options.corpora, options.corpus
