"""Writes what the package declares into the pages of the reference.

The command is `python docs/_ext/reference.py`, and a test says when a page is old.

It fills these blocks of `docs/reference/*.md`, up to their `<!-- end -->`:

    <!-- options: MODULE:CLASS -->           table of the options of a declared class
    <!-- command: NAME -->                   help of a command; without a name, all commands
    <!-- api: MODULE [NAME ...] -->          classes and functions, with their docstrings
"""

import argparse
import contextlib
import importlib
import inspect
import io
import pathlib
import re
import unittest.mock
from typing import Any

import keras
import yaml

from keras_transformer.cli import main as cli
from keras_transformer.options import expected, options_of

FOLDER = pathlib.Path(__file__).parents[1] / "reference"
_BLOCK = re.compile(r"^<!-- (options|command|api):([^\n]*?) ?-->\n.*?^<!-- end -->$", re.M | re.S)
_SECTION = re.compile(r"^(Args|Call arguments|Attributes|Returns|Raises|Example):$", re.M)
_OF_ALL = {"--help", "--verbose", "--no-compilation-cache"}  # shown once, with all commands


def table(heading: list[str], rows: list[list[str]]) -> str:
    """Returns a table in Markdown."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(' '.join(cell.split()) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    text = re.sub(r"(`[^`]*`)|<", lambda match: match[1] or r"\<", text)
    return text.replace("|", r"\|")


def options(name: str) -> str:
    """Options of a declared class `module:Class`: name, default, values, meaning."""
    module, _, class_name = name.partition(":")
    rows = []
    options_class = getattr(importlib.import_module(module), class_name)
    for option_name, option in options_of(options_class).items():
        default = "required"
        if "default" in option:
            default = yaml.safe_dump(option["default"], default_flow_style=True, width=1000)
            default = f"`{_cell(default.splitlines()[0])}`"
        values = "a section" if "$ref" in option else expected(option)
        meaning = option.get("description", "")
        rows.append([f"`{option_name}`", default, _cell(values), _cell(meaning)])
    return table(["option", "default", "values", "meaning"], rows)


def command(name: str) -> str:
    """Help of a command, the same with every version of argparse."""
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        with unittest.mock.patch.object(argparse.ArgumentParser, "format_help", _help_of):
            cli.run([*name.split(), "--help"])
    return shown.getvalue().strip()


def _help_of(parser: argparse.ArgumentParser) -> str:
    parts, own_rows = [], []
    for group in parser._action_groups:
        rows = [row for action in group._group_actions for row in _rows_of(action, parser)]
        if group in (parser._positionals, parser._optionals):
            own_rows += rows
        elif rows:
            parts += [group.description, table([group.title or "option", "meaning"], rows)]
    own = table(["option", "meaning"], own_rows) if own_rows else ""
    return "\n\n".join(filter(None, [parser.description, own, *parts]))


def _rows_of(action: argparse.Action, parser: argparse.ArgumentParser) -> list[list[str]]:
    if isinstance(action, argparse._SubParsersAction):
        return [[f"`{row.dest}`", _cell(row.help or "")] for row in action._choices_actions]
    if _OF_ALL & set(action.option_strings) and not parser._subparsers:
        return []
    meaning = parser._get_formatter()._expand_help(action) if action.help else ""
    if action.option_strings and action.required:
        meaning += "; required"
    return [[f"`{_cell(_usage_of(action))}`", _cell(meaning)]]


def _usage_of(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ", ".join(action.option_strings)
    value = action.metavar or "|".join(map(str, action.choices or ())) or action.dest.upper()
    values = [value] if isinstance(value, str) else value
    return " ".join([*action.option_strings, *values, *(["…"] if action.nargs == "+" else [])])


def api(names: str) -> str:
    """Public classes and functions of a module, or some of them."""
    module_name, *chosen = names.split()
    module = importlib.import_module(module_name)
    if not chosen:
        chosen = getattr(module, "__all__", None) or [
            name
            for name, value in vars(module).items()
            if getattr(value, "__module__", None) == module_name and not name.startswith("_")
        ]
    parts = []
    for name in chosen:
        value = getattr(module, name)
        if isinstance(value, type) or inspect.isroutine(value):
            parts += _documented(name, value, f"{module_name}.{name}")
    return "\n\n".join(parts)


def _documented(title: str, value: Any, path: str) -> list[str]:
    """Heading, signature and docstring of a class or function, and methods of a class."""
    parts = [f"### {title}", _signature(path, value), markdown_of(inspect.getdoc(value) or "")]
    for name, member in vars(value).items() if isinstance(value, type) else ():
        function = getattr(member, "fget", None) or getattr(member, "func", member)
        function = getattr(function, "__func__", function)
        if name.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
            continue
        doc = markdown_of(inspect.cleandoc(function.__doc__))
        is_value = function is not member and not isinstance(member, classmethod | staticmethod)
        parts.append(f"#### {title}.{name}")
        parts += [doc] if is_value else [_signature(name, function), doc]
    return parts


def _signature(name: str, value: Any) -> str:
    """A call with its arguments, in a fence."""
    is_keras = isinstance(value, type) and issubclass(value, keras.Operation | keras.Model)
    signature = inspect.signature(value.__init__ if is_keras else value)
    arguments, kinds = [], set()
    for argument in signature.parameters.values():
        if argument.name in ("self", "cls"):
            continue
        if argument.kind is argument.KEYWORD_ONLY and not kinds & {"*", argument.kind}:
            arguments.append("*")
        kinds.add("*" if argument.kind is argument.VAR_POSITIONAL else argument.kind)
        arguments.append(_argument(argument))
    returns = ""
    if not isinstance(value, type) and signature.return_annotation is not signature.empty:
        returns = f" -> {_type(signature.return_annotation)}"
    line = f"{name}({', '.join(arguments)}){returns}"
    if len(line) > 88:
        line = f"{name}(\n" + "".join(f"    {text},\n" for text in arguments) + f"){returns}"
    return f"```python\n{line}\n```"


def _argument(argument: inspect.Parameter) -> str:
    stars = {argument.VAR_POSITIONAL: "*", argument.VAR_KEYWORD: "**"}.get(argument.kind, "")
    text = stars + argument.name
    is_typed = argument.annotation is not argument.empty
    if is_typed:
        text += f": {_type(argument.annotation)}"
    if argument.default is argument.empty:
        return text
    default = repr(argument.default).replace("'", '"')
    if default.startswith("<") or len(default) > 40:  # An object, or a section with its options.
        default = "..."
    return f"{text} = {default}" if is_typed else f"{text}={default}"


def _type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])", "", text).replace("'", '"')


def markdown_of(doc: str) -> str:
    """Turns the sections of a docstring into lists and fences."""
    text, *sections = _SECTION.split(doc)
    parts = [text.strip()]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        lines = body.strip("\n").split("\n")
        # The section ends with the first line that is not indented.
        is_doctest = next(filter(None, lines), "").startswith(">>> ")
        end = next(
            (i for i, line in enumerate(lines) if line and line[0] != " " and not is_doctest),
            len(lines),
        )
        inside = inspect.cleandoc("\n" + "\n".join(lines[:end]))
        if title == "Example":
            shown = inside if inside.startswith(">>> ") else f"```python\n{inside}\n```"
        elif title == "Returns":
            shown = inside
        else:
            items = re.sub(r"^(?=[^ \n])", "- ", inside, flags=re.M)
            shown = re.sub(r"^- ([^:\n]+(?:,\s+\w+)*): ", _as_code, items, flags=re.M)
            shown = re.sub(r"^    ", "  ", shown, flags=re.M)
        parts += [
            f"**{'Arguments' if title == 'Args' else title}**",
            shown,
            "\n".join(lines[end:]).strip(),
        ]
    # Examples under no heading.
    parts = [
        re.sub(r"^>>> .*(?:\n.+)*", r"```python\n\g<0>\n```", part, flags=re.M) for part in parts
    ]
    return "\n\n".join(filter(None, parts))


def _as_code(match: re.Match) -> str:
    names = ", ".join(f"`{name.strip()}`" for name in match[1].split(","))
    return f"- {names}: "


def current(page: str) -> str:
    """Returns a page of the reference with its blocks filled."""
    makers = {"options": options, "command": command, "api": api}

    def filled(match):
        return f"<!-- {match[1]}:{match[2]} -->\n{makers[match[1]](match[2].strip())}\n<!-- end -->"

    return _BLOCK.sub(filled, page)


def main() -> None:
    """Fills all pages."""
    for path in sorted(FOLDER.glob("*.md")):
        page = path.read_text(encoding="utf-8")
        path.write_text(current(page), encoding="utf-8")


if __name__ == "__main__":
    main()
