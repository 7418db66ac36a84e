"""The parser of a command: its options, its settings for `--set`, and messages about mistakes."""

import argparse
import itertools
import re
import sys
from collections.abc import Callable, Collection
from typing import Any, NamedTuple, NoReturn

from keras_transformer.errors import did_you_mean

_OF_ALL_COMMANDS = {
    "--verbose": "also show TensorFlow's messages about the machine",
    "--no-compilation-cache": "compile again what an earlier command has compiled",
}


class Setting(NamedTuple):
    """A rare option, which a command takes as `--set name=value`.

    Attributes:
        read: Converts the text of a value; a wrong text is a `KeyError` or a `ValueError`.
        values: Description of the values.
        metavar: Name of a value in the reference.
        help: Meaning and default.
        title: Title of its group in the reference, None without a group.
    """

    read: Callable[[str], Any]
    values: str
    metavar: str
    help: str
    title: str | None


class Parser(argparse.ArgumentParser):
    """A parser with the options of all commands; its subcommands have parsers of its class.

    Args:
        options: Adds a command's options to its parser, once the command is the one to run; None
            for the parser of the whole command line.
        usual: Names of the options that are not settings; all of them by default.
        example: A command line, with which the help text begins.
        page: Page of `docs` about the command, with which the help text ends.

    Attributes:
        settings: Rare options by their names.
    """

    def __init__(
        self,
        options: Callable | None = None,
        usual: Collection[str] = (),
        example: str = "",
        page: str = "",
        **keywords: Any,
    ):
        super().__init__(**keywords)
        self.settings: dict[str, Setting] = {}
        self._options, self._usual = options, usual
        self._example, self._page = example, page
        for flag, help in _OF_ALL_COMMANDS.items():
            shown = help if options is None else argparse.SUPPRESS
            self.add_argument(flag, action="store_true", default=argparse.SUPPRESS, help=shown)

    def is_rare(self, name: str) -> bool:
        """Returns whether an option is a setting."""
        return bool(self._usual) and name not in self._usual

    def group(self, title: str | None) -> Any:
        """Returns the group of options with a title; without a title the parser itself."""
        titles = {group.title: group for group in self._action_groups}
        return self if title is None else titles.get(title) or self.add_argument_group(title)

    def error(self, message: str) -> NoReturn:
        """Ends with the mistake and the way to the options, without the usage of many lines."""
        self.exit(2, f"{self.prog}: error: {message}\nOptions: {self.prog} --help\n")

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
            if self.settings:
                self._add_set()
            self._check_names(args)
        parsed, remaining = super().parse_known_args(args, *arguments, **keywords)
        if "options_of_command" not in parsed:  # The parser of the whole command line is last.
            parsed.options_of_command = {
                **{action.dest: _flag(action) for action in self._actions if _flag(action)},
                **{name: f"--set {name}" for name in self.settings},
            }
        return parsed, remaining

    def _add_set(self):
        help = "values as in a recipe: 5, true, null, [5, 7]; may be given more than once, the "
        help += "last value of a name counts. docs/reference/commands.md describes the names: "
        help += ", ".join(sorted(self.settings))
        self.add_argument_group("rare options").add_argument(
            "--set", action=_Set, metavar="NAME=VALUE", default=argparse.SUPPRESS, help=help
        )

    def setting_of(self, text: str) -> tuple[str, Any]:
        """Returns name and value of `name=value`; ends with a mistake in it."""
        name, equals, value = map(str.strip, text.partition("="))
        if not equals:
            self.error(f"--set must be name=value. Received: {text!r:.80}.")
        if name not in self.settings:
            self.error(f"--set: unknown name {name!r:.80}.{self._nearest(name)}")
        setting = self.settings[name]
        try:
            return name, setting.read(value)
        except argparse.ArgumentTypeError as error:
            self.error(f"--set {name}: {error}")
        except (KeyError, ValueError):
            self.error(f"--set {name} must be {setting.values}. Received: {value!r:.80}.")

    def _check_names(self, args):
        """Ends with an unknown option, before argparse misses a required option because of it."""
        flags = [flag for action in self._actions for flag in action.option_strings]
        for argument in itertools.takewhile(lambda argument: argument != "--", args):
            flag = argument.partition("=")[0]
            if flag[:2] != "--" or " " in flag:  # A text with a space is a value.
                continue
            name = flag.removeprefix("--").replace("-", "_")
            is_known = any(known.startswith(flag) for known in flags)  # argparse takes beginnings.
            if name in self.settings or not is_known:
                self.error(f"unknown option {flag:.80}.{self._nearest(name)}")

    def _nearest(self, name):
        """Returns the end of a message about an unknown name, with the option's form."""
        forms = {name: f"--set {name}=VALUE" for name in self.settings}
        for action in self._actions:
            for flag in filter(lambda flag: flag[:2] == "--", action.option_strings):
                forms[flag[2:].replace("-", "_")] = flag
            if _flag(action):
                forms.setdefault(action.dest, _flag(action))
        return re.sub("`(.+?)`", lambda near: forms[near[1]], did_you_mean(name, forms))


def _flag(action):
    """Returns the first long name of an option, None for a positional argument."""
    return next((flag for flag in action.option_strings if flag[:2] == "--"), None)


class _Set(argparse.Action):
    """Gives a setting its value."""

    def __call__(self, parser, namespace, values, option_string=None):
        assert isinstance(parser, Parser) and isinstance(values, str)
        setattr(namespace, *parser.setting_of(values))
