"""What all programs share: options made of functions, JSON and tables as results, plots."""

import argparse
import inspect
import json
import os
import pathlib
import re
import subprocess
import sys
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from keras_transformer.base.compilation_cache import enable_compilation_cache
from keras_transformer.base.errors import InputError, require


class Report(NamedTuple):
    """Result of a program.

    Attributes:
        figures: Anything that JSON can hold.
        table: The figures as text to read.
    """

    figures: Any
    table: str = ""


def run(
    *functions: Callable[..., Any],
    arguments: Sequence[str] | None = None,
    default: Callable[..., Any] | None = None,
) -> None:
    """Calls one of a program's functions with the options of the command line.

    Each parameter is an option: its annotation is the type, its line under `Args:` the help. A
    positional-only parameter is a positional argument. The function returns a `Report`, or only
    the figures. They go to stdout as JSON; the table goes to stderr.

    Args:
        *functions: The program's commands. A single command is not named on the command line.
        arguments: Words of the command line; by default those of this process.
        default: The command to call if the first word names none.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    module = sys.modules[functions[0].__module__]
    program = f"python -m benchmarks.{pathlib.Path(str(module.__file__)).stem}"
    about = str(module.__doc__).splitlines()[0]
    parser = argparse.ArgumentParser(prog=program, description=about)
    if len(functions) == 1:
        _add_options(parser, functions[0])
    else:
        commands = parser.add_subparsers(required=True, metavar="COMMAND")
        by_name = {function.__name__.replace("_", "-"): function for function in functions}
        for name, function in by_name.items():
            about = str(inspect.getdoc(function)).splitlines()[0]
            prog = program if function is default else f"{program} {name}"
            command = commands.add_parser(name, help=about, description=about, prog=prog)
            _add_options(command, function)
            if function is default and (words or [""])[0] not in (*by_name, "-h", "--help"):
                words.insert(0, name)
    options = vars(parser.parse_args(words))
    function = options.pop("function")
    parameters = inspect.signature(function).parameters.values()
    positional = [options.pop(p.name) for p in parameters if p.kind is p.POSITIONAL_ONLY]
    enable_compilation_cache()
    try:
        result = function(*positional, **options)
        report = result if isinstance(result, Report) else Report(result)
        if report.table:
            log(report.table)
        print(json.dumps(report.figures, indent=2, ensure_ascii=False))
    except InputError as error:
        parser.error(str(error))


def _add_options(parser, function):
    """Adds the parameters of a function."""
    helps = dict(
        re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", inspect.getdoc(function), re.MULTILINE)
    )
    for name, parameter in inspect.signature(function).parameters.items():
        options = _type_options(parameter.annotation)
        options["help"] = " ".join(helps[name].replace("%", "%%").split())
        if parameter.default is not parameter.empty:
            options["default"] = default = parameter.default
            if default not in (None, False, ()):
                shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
                options["help"] = f"{options['help'].rstrip('.')}; default: {shown}"
        if parameter.kind is parameter.POSITIONAL_ONLY:
            parser.add_argument(name, **options)
        else:
            options["required"] = parameter.default is parameter.empty
            parser.add_argument("--" + name.replace("_", "-"), **options)
    parser.set_defaults(function=function)


def _type_options(annotation):
    """Keywords of `add_argument` for `bool`, `Sequence[int]`, `str | None`, `Literal[...]`, …"""
    if annotation is bool:
        return {"action": "store_true"}
    if isinstance(annotation, types.UnionType):
        (annotation,) = (kind for kind in typing.get_args(annotation) if kind is not type(None))
    if typing.get_origin(annotation) is Sequence:
        return {"nargs": "+", **_type_options(*typing.get_args(annotation))}
    if typing.get_origin(annotation) is Literal:
        return {"choices": typing.get_args(annotation)}
    return {"type": annotation}


def call(
    *words: object,
    module: str | None = "keras_transformer",
    text: str | None = None,
    stdout: Any = subprocess.PIPE,
) -> str:
    """Runs Python in a new process, a module by default, and returns what it writes to stdout.

    Args:
        *words: Arguments.
        module: Module to run; None if the words are Python's own options.
        text: Text for stdin.
        stdout: File for stdout, instead of the returned text.
    """
    command = [sys.executable, *(["-m", module] if module else []), *map(str, words)]
    done = subprocess.run(command, input=text, stdout=stdout, text=True)
    if done.returncode:
        name = f"{module} {words[0]}" if module else "A process"
        raise InputError(f"{name} failed with exit code {done.returncode}; see its messages.")
    return done.stdout


def log(text: object) -> None:
    """Writes a line to stderr."""
    print(text, file=sys.stderr, flush=True)


def markdown(rows: Sequence[Mapping[str, object]]) -> str:
    """Returns a table with the keys of the first row as heading; None is a dash."""
    cells = [["–" if cell is None else str(cell) for cell in row.values()] for row in rows]
    heading, *lines = (f"| {' | '.join(row)} |" for row in (map(str, rows[0]), *cells))
    return "\n".join([heading, "|" + "---|" * len(rows[0]), *lines])


class Panel(NamedTuple):
    """One panel of a plot.

    Attributes:
        lines: Points by label, from x to y.
        mark: Place on the x axis of a dotted line.
        logarithmic: True for logarithmic axes.
    """

    lines: Mapping[str, Mapping[Any, float]]
    xlabel: str
    ylabel: str
    title: str = ""
    mark: float | None = None
    logarithmic: bool = False


def plot(path: str | os.PathLike, *panels: Panel, rows: int = 1) -> None:
    """Draws panels, column by column, to a PNG or SVG file; no window system is needed."""
    columns = len(panels) // rows
    size = (6.4, 4.0) if len(panels) == 1 else (4.0 * columns, 3.4 * rows)
    figure = _figure(size)
    axes = figure.subplots(rows, columns, squeeze=False).T.flat
    for axis, panel in zip(axes, panels, strict=True):
        for label, points in panel.lines.items():
            axis.plot(list(points), list(points.values()), marker=".", label=label)
        if panel.logarithmic:
            axis.loglog()
            axis.set_xscale("log", base=2)
        if panel.mark is not None:
            axis.axvline(panel.mark, color="gray", linestyle=":")
        axis.set(xlabel=panel.xlabel, ylabel=panel.ylabel, title=panel.title)
        axis.grid(alpha=0.3)
    figure.axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=100)


class Bars(NamedTuple):
    """One panel of horizontal bars.

    Attributes:
        values: Values by label, from top to bottom.
        others: Labels of other libraries, whose bars are gray.
    """

    values: Mapping[str, float]
    title: str
    xlabel: str
    others: Collection[str] = ()


def plot_bars(path: str | os.PathLike, *panels: Bars, columns: int = 2) -> None:
    """Draws panels, row by row, to a PNG or SVG file, with each value at the end of its bar."""
    rows = [panels[start : start + columns] for start in range(0, len(panels), columns)]
    counts = [max(len(panel.values) for panel in row) for row in rows]
    figure = _figure((4.5 * columns, 0.26 * sum(counts) + len(rows)))
    grid = figure.add_gridspec(len(rows), columns, height_ratios=counts)
    for place, panel in enumerate(panels):
        axis = figure.add_subplot(grid[place])
        colors = ["#9aa5b1" if label in panel.others else "#0b6e99" for label in panel.values]
        bars = axis.barh(list(panel.values), list(panel.values.values()), color=colors)
        labels = [f"{n:,.0f}" if n >= 100 else f"{n:.3g}" for n in panel.values.values()]
        axis.bar_label(bars, labels, padding=3, fontsize=8)
        axis.margins(x=0.15)
        axis.spines[["top", "right"]].set_visible(False)
        # All panels of a row have bars of one height.
        axis.set(ylim=(counts[place // columns] - 0.4, -0.6), xlabel=panel.xlabel)
        axis.set_title(panel.title, fontsize=10)
    figure.savefig(path, dpi=100)


def _figure(size):
    matplotlib = require("matplotlib.figure", "Matplotlib", "plots")
    return matplotlib.Figure(figsize=size, layout="constrained")
