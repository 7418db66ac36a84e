"""YAML with the numbers of its version 1.2, and errors of one line."""

import re
from typing import Any


class NotYAML(Exception):
    """The line, where it is known, and the problem."""


def parse_yaml(text: str) -> Any:
    """The value of a YAML text, with `1e-3` a number as in YAML 1.2 and not a text as in 1.1."""
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    number = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "cannot be read"
        raise NotYAML(f"{line}: not valid YAML: {problem}") from None
    except (ValueError, RecursionError) as error:  # As for 2026-99-99, or 5,000 brackets.
        raise NotYAML(f": not valid YAML: {error}") from None
