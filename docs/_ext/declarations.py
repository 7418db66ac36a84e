"""Directives that show what the package declares: options as tables, commands with their help."""

import contextlib
import importlib
import io
import os
import unittest.mock

import yaml
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from keras_transformer import cli
from keras_transformer.declaration import expected, properties, schema_of


def table(declared: type) -> str:
    """Options of a declared class as a table in Markdown: name, default, values, meaning."""
    lines = ["| option | default | values | meaning |", "|---|---|---|---|"]
    for name, option in properties(schema_of(declared)).items():
        if "default" in option:
            default = yaml.safe_dump(option["default"], default_flow_style=True, width=1000)
            default = f"`{default.splitlines()[0]}`"
        else:
            default = "required"
        values = "a section" if "$ref" in option else expected(option)
        cells = (f"`{name}`", default, values, option.get("description", ""))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
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
        declared = getattr(importlib.import_module(module), name)
        return self.parse_text_to_nodes(table(declared))


class Command(SphinxDirective):
    """Help of a command of `keras-transformer`; without an argument, that of the whole."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        text = help_of(" ".join(self.arguments))
        return [nodes.literal_block(text, text, language="text")]


def to_restructured_text(app, what, name, obj, options, lines: list[str]) -> None:
    """Turns Markdown of a docstring, in place: a table is shown as it stands, bars are bars."""
    changed: list[str] = []
    for number, line in enumerate(lines):
        is_table = line.lstrip().startswith("| ") or line.lstrip().startswith("|--")
        if is_table and not lines[number - 1].lstrip().startswith("|"):
            changed += ["::", ""]
        changed.append("    " + line if is_table else line.replace("|", "\\|"))
        if is_table and not "".join(lines[number + 1 : number + 2]).lstrip().startswith("|"):
            changed.append("")
    lines[:] = changed


def setup(app) -> dict:
    """Registers the directives."""
    app.add_directive("declared", Declared)
    app.add_directive("command", Command)
    # Before napoleon, which makes sections of the lines.
    app.connect("autodoc-process-docstring", to_restructured_text, priority=100)
    return {"parallel_read_safe": True}
