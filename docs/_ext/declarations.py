"""Directives that show what the package declares: options as tables, commands with their help."""

import contextlib
import importlib
import io
import os
import unittest.mock

import keras
import yaml
from docutils import nodes
from sphinx.util import inspect
from sphinx.util.docutils import SphinxDirective
from sphinx.util.inspect import stringify_signature

from keras_transformer.cli import main as cli
from keras_transformer.options import expected, options_of


def table(options_class: type) -> str:
    """Options of a class as a table in Markdown: name, default, values, meaning."""
    lines = ["| option | default | values | meaning |", "|---|---|---|---|"]
    for name, option in options_of(options_class).items():
        if "default" in option:
            default = yaml.safe_dump(option["default"], default_flow_style=True, width=1000)
            default = f"`{default.splitlines()[0]}`"
        else:
            default = "required"
        values = "a section" if "$ref" in option else expected(option)
        cells = (f"`{name}`", default, values, option.get("description", ""))
        lines.append(
            "| " + " | ".join(cell.replace("|", "\\|").replace("<", "\\<") for cell in cells) + " |"
        )
    return "\n".join(lines)


def help_of(command: str) -> str:
    """`--help` of a command, 90 columns wide."""
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        with unittest.mock.patch.dict(os.environ, COLUMNS="90"):
            cli.run([*command.split(), "--help"])
    return shown.getvalue()


class Declared(SphinxDirective):
    """Table of the options of `module:Class`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module, _, name = self.arguments[0].partition(":")
        options_class = getattr(importlib.import_module(module), name)
        return self.parse_text_to_nodes(table(options_class))


class Command(SphinxDirective):
    """Help of a command of `keras-transformer`; without an argument, that of the whole."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        text = help_of(" ".join(self.arguments))
        return [nodes.literal_block(text, text, language="text")]


def to_restructured_text(app, what, name, obj, options, lines: list[str]) -> None:
    """Turns Markdown of a docstring, in place: tables, programs that are only indented, bars."""
    changed: list[str] = []
    example: int | None = None  # Indentation of the `Example:` that the line is in.
    for number, line in enumerate(lines):
        before = lines[number - 1].lstrip() if number else ""
        after = next((text for text in lines[number + 1 :] if text.strip()), "")
        indentation = len(line) - len(line.lstrip())
        if example is not None and line.strip() and indentation <= example:
            example = None
        if line.lstrip().startswith("|--"):
            continue
        if line.lstrip().startswith("| "):
            if not before.startswith("|"):
                changed += [".. list-table::", "   :header-rows: 1", ""]
            for index, cell in enumerate(line.strip("| ").split(" | ")):
                changed.append(f"   {' ' if index else '*'} - {cell}")
            if not lines[number + 1].lstrip().startswith("|"):
                changed.append("")
        else:
            changed.append(" " * 4 * (example is not None) + line.replace("|", "\\|"))
        if line.strip() == "Example:" and not after.lstrip().startswith(">>>"):
            example = indentation
            changed += [" " * (indentation + 4) + ".. code-block:: python", ""]
    lines[:] = changed


def to_signature_of_init(app, what, name, obj, options, signature, returns):
    """Shows the arguments of `__init__`: those of Keras' `__new__` are anything."""
    if what == "class" and isinstance(obj, type) and issubclass(obj, keras.Operation):
        return stringify_signature(inspect.signature(obj.__init__, bound_method=True)), returns
    return None


def setup(app) -> dict:
    """Registers the directives."""
    app.add_directive("declared", Declared)
    app.add_directive("command", Command)
    # Before napoleon, which makes sections of the lines.
    app.connect("autodoc-process-docstring", to_restructured_text, priority=100)
    app.connect("autodoc-process-signature", to_signature_of_init)
    return {"parallel_read_safe": True}
