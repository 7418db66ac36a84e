"""Shapes in the search's sources name axes that its legend explains."""

import pathlib
import re

from keras_transformer import decoding

FOLDER = pathlib.Path(decoding.__file__).parent
SHAPE = re.compile(
    r"(?:--> \[|: \[(?=batch)|[fF]loat32 [`\[(]+|[iI]nt32 [`\[(]+|[bB]ool [`\[(]+)([^\])]*)"
)


def axes(text):
    """The names of axes in the shapes of a source; numbers and `…` are none."""
    # A call such as `ops.cast(x, "int32") * (1 - y)` is no shape.
    comments = re.findall(r"#.*$|\"\"\".*?\"\"\"", text, flags=re.MULTILINE | re.DOTALL)
    for shape in SHAPE.findall("\n".join(comments)):
        yield from re.findall(r"[a-z_0-9]+(?: [*+] [a-z_0-9]+)?", shape)


def test_the_legend_explains_each_axis_of_the_search():
    legend = {
        name
        for line in re.findall(r"^- (`.*?):", decoding.__doc__, flags=re.MULTILINE)
        for name in re.findall(r"`([^`]+)`", line)
    }
    named = {
        path.name: {name for name in axes(path.read_text("utf-8")) if not name.isdigit()}
        for path in sorted(FOLDER.glob("*.py"))
    }
    assert {"batch", "beams", "vocabulary"} <= named["loop.py"] & legend
    assert {path: names - legend for path, names in named.items() if names - legend} == {}
    assert legend - set().union(*named.values()) == set()
