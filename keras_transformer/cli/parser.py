"""The parser of a command: its options, `--set` for its rare options, and messages on mistakes."""

import argparse
import re
import sys
from collections.abc import Callable, Collection
from typing import Any, NoReturn

from keras_transformer.base.errors import did_you_mean

_OF_ALL_COMMANDS = {
    "--verbose": "also show TensorFlow's messages about the machine; with --help: rare options",
    "--no-compilation-cache": "compile again what an earlier command has compiled",
}
_SET = "--set "


class _Formatter(argparse.HelpFormatter):
    """Shows rare options only by their names, in the help of `--set`; `--verbose` shows all."""

    def add_argument(self, action: argparse.Action) -> None:
        if not _flag(action).startswith(_SET):
            super().add_argument(action)


class Parser(argparse.ArgumentParser):
    """A parser with the options of all commands; its subcommands have parsers of its class.

    A rare option is added as an option whose flag is `--set NAME`: one argument with a space, of
    which `--set NAME=VALUE` on the command line becomes `--set NAME` with its value.

    Args:
        options: Adds a command's options to its parser, once the command is the one to run; None
            for the parser of the whole command line.
        usual: Names of the options that are not rare; all of them by default.
        example: A command line, with which the help text begins.
        page: Page of `docs` about the command, with which the help text ends.
    """

    def __init__(
        self,
        options: Callable | None = None,
        usual: Collection[str] = (),
        example: str = "",
        page: str = "",
        **keywords: Any,
    ):
        super().__init__(formatter_class=_Formatter, **keywords)
        self._options, self._usual = options, usual
        self._example, self._page = example, page
        for flag, help in _OF_ALL_COMMANDS.items():
            shown = help if options is None else argparse.SUPPRESS
            self.add_argument(flag, action="store_true", default=argparse.SUPPRESS, help=shown)

    def is_rare(self, name: str) -> bool:
        """Returns whether an option is given with `--set`."""
        return bool(self._usual) and name not in self._usual

    def add_argument_group(self, *arguments: Any, **keywords: Any) -> Any:
        """Adds a group, which knows rare options, too."""
        group: Any = super().add_argument_group(*arguments, **keywords)
        group.is_rare = self.is_rare
        return group

    def error(self, message: str) -> NoReturn:
        """Ends with the mistake and the way to the options, without the usage of many lines."""
        self.exit(2, f"{self.prog}: error: {message}\nOptions: {self.prog} --help\n")

    def _check_value(self, action, value):
        """Ends with a value that an option does not have, and names the nearest one."""
        if action.option_strings and action.choices and value not in action.choices:
            rule = f"{action.option_strings[0]} must be one of {', '.join(action.choices)}"
            self.error(f"{rule}. Received: {value!r:.80}.{did_you_mean(value, action.choices)}")
        super()._check_value(action, value)

    def format_help(self) -> str:
        """Returns the help text, from an example to the page about the command."""
        text = super().format_help()
        if self._example:
            text = f"example: {self._example}\n\n{text}\npage: docs/{self._page}\n"
        return text

    def print_help(self, file: Any = None) -> None:
        """Prints the help text; raises `OSError` where argparse would ignore it."""
        (sys.stdout if file is None else file).write(self.format_help())

    def parse_known_args(self, args=None, *arguments, **keywords):
        """Adds the options of this command, then parses."""
        add, self._options = self._options, None
        args = sys.argv[1:] if args is None else args
        if add is not None:
            add(self)
            args = self._with_settings(args)
        parsed, remaining = super().parse_known_args(args, *arguments, **keywords)
        if "options_of_command" not in parsed:  # The parser of the whole command line is last.
            parsed.options_of_command = {
                action.dest: _flag(action) for action in self._actions if action.option_strings
            }
        return parsed, remaining

    def _with_settings(self, args):
        """Adds `--set`; returns arguments in which a name is a part of the flag before it.

        Ends with an unknown name, before argparse misses a required option because of it.
        """
        flags = [flag for action in self._actions for flag in action.option_strings]
        rare = sorted(flag.removeprefix(_SET) for flag in flags if flag.startswith(_SET))
        if "--verbose" in args:
            self.formatter_class = argparse.HelpFormatter
        if rare:
            help = "values as in a recipe: 5, true, null, [5, 7]; may be given more than once, the "
            help += "last value of a name counts. --help --verbose describes the names: "
            help += ", ".join(rare)
            group = self.add_argument_group("rare options")
            group.add_argument("--set", metavar="NAME=VALUE", default=argparse.SUPPRESS, help=help)
        args, remaining = [], iter(args)
        for argument in remaining:
            if argument == "--":
                return [*args, argument, *remaining]
            flag, is_whole, setting = argument.partition("=")
            name = flag[2:].replace("-", "_")
            if rare and flag == "--set":
                setting = setting if is_whole else next(remaining, "")
                name, equals, value = map(str.strip, setting.partition("="))
                if not equals:
                    self.error(f"--set must be NAME=VALUE. Received: {setting!r:.80}.")
                if name not in rare:
                    self.error(f"--set: unknown name {name!r:.80}.{self._nearest(name)}")
                argument = f"{_SET}{name}={value}"
            # A text with a space is a value; argparse takes beginnings of flags.
            elif flag[:2] == "--" and " " not in flag:
                if name in rare or not any(known.startswith(flag) for known in flags):
                    self.error(f"unknown option {flag:.80}.{self._nearest(name)}")
            args.append(argument)
        return args

    def _nearest(self, name):
        """Returns the end of a message about an unknown name, with the flag of the nearest."""
        forms = {}
        for action in self._actions:
            for flag in filter(lambda flag: flag[:2] == "--", action.option_strings):
                form = f"{flag}=VALUE" if flag.startswith(_SET) else flag
                forms[flag.removeprefix(_SET).removeprefix("--").replace("-", "_")] = form
                forms.setdefault(action.dest, form)
        return re.sub("`(.+?)`", lambda near: forms[near[1]], did_you_mean(name, forms))


def _flag(action):
    """Returns the first long flag of an option, nothing for a positional argument."""
    return next((flag for flag in action.option_strings if flag[:2] == "--"), "")
