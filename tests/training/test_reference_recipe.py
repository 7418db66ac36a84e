"""The commented recipe is the reference: its comments are what the options' declarations say."""

import pathlib
import re

import pytest
import yaml

from keras_transformer.declaration import expected, properties, schema_of
from keras_transformer.training import Recipe

REFERENCE = pathlib.Path(__file__).parents[2] / "training" / "recipes" / "multi30k_en_de.yaml"
SCHEMA = schema_of(Recipe)


def comments(section):
    """`{key: the comment above it, on one line}` of a section of the reference."""
    text = REFERENCE.read_text(encoding="utf-8")
    body = re.search(rf"^{section}:\n((?:  .*\n|\n)+)", text, re.MULTILINE).group(1)
    found, comment = {}, []
    for line in body.splitlines():
        if line.startswith("  # "):
            comment.append(line[4:])
        elif match := re.match(r"  (\w+):", line):
            found[match.group(1)] = " ".join(comment)
            comment = []
    return found


def comment_of(declared):
    """The comment that a declaration makes."""
    words = expected(declared)
    default = yaml.safe_dump(declared["default"], default_flow_style=True).split("\n")[0]
    return f"{declared['description']} {words[0].upper()}{words[1:]}. Default: {default}"


@pytest.mark.parametrize("section", ["data", "text", "training", "decoding"])
def test_a_comment_of_the_reference_says_what_the_option_is_declared_as(section):
    found = comments(section)
    for key, declared in properties(SCHEMA, section).items():
        if key in ("train", "validation"):
            continue
        assert found[key].endswith(comment_of(declared)), f"{section}.{key}: {comment_of(declared)}"
