"""Arguments that several commands have. One that is not given leaves no trace: `given`."""

import argparse
import ast
import math
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Kind = Callable | list[Callable] | tuple[str, ...]
"""The type of an option's value; `[type]` takes several, a tuple holds all that there are."""
Row = tuple[str, Kind | None, str | None, str]
"""An option: name, type (None is a switch), metavar and help."""


class Declared(NamedTuple):
    """An option of the library, as its class declares it."""

    default: Any
    meaning: str


def declared_options(path: str, class_name: str) -> dict[str, Declared]:
    """The fields of a class of options of this package, read from its source.

    To import the options of decoding takes Keras' seconds, those of the server pydantic's 0.2 s:
    `--help` waits for neither, and still says what they declare.

    Args:
        path: The module's place in the package.
        class_name: The class in it; a field's value is its default, which the docstring explains,
            or a call with the default and the meaning.
    """
    source = (pathlib.Path(__file__).parents[1] / path).read_text(encoding="utf-8")
    nodes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    (declaring,) = [node for node in nodes if node.name == class_name]
    text = (ast.get_docstring(declaring) or "") + "\n"
    meanings = dict(re.findall(r"^    (\w+)\*?: (.*\n(?:     +.*\n)*)", text, re.MULTILINE))
    found = {}
    for field in declaring.body:
        if isinstance(field, ast.AnnAssign) and field.value is not None:
            name, value = ast.unparse(field.target), field.value
            values = value.args[:2] if isinstance(value, ast.Call) else [value]
            default, meaning, *_ = [*map(_evaluated, values), meanings.get(name, "")]
            found[name] = Declared(default, " ".join(meaning.split()).split(" (*")[0].rstrip("."))
    return found


def _evaluated(node):
    return eval(compile(ast.Expression(node), "<declaration>", "eval"), {"__builtins__": {}})


def add_declared(
    command: Any,
    declared: Mapping[str, Declared],
    groups: Mapping[str, str],
    kinds: Mapping[str, tuple[Kind, str]] | None = None,
    defaults: Mapping[str, str] | None = None,
) -> None:
    """Adds options of the library to a command.

    Args:
        command: The command's parser.
        declared: Of `declared_options`.
        groups: The title of each group in `--help`, under the option that it begins with.
        kinds: Types that the default does not tell, with their metavar.
        defaults: What is said instead of some defaults.
    """
    kinds, defaults, group = kinds or {}, defaults or {}, command
    for name, (default, meaning) in declared.items():
        if name in groups:
            group = command.add_argument_group(groups[name])
        plain = str if default is None else type(default)
        metavar = {str: "TEXT", int: "N"}.get(plain, "X")
        kind, metavar = kinds.get(name, (plain, metavar))
        said = defaults.get(name, default)
        end = "" if said is None else f"; default: {said}"
        help = (meaning + end).replace("%", "%%")
        add_options(group, (name, None if kind is bool else kind, metavar, help))


def add_options(group: Any, *rows: Row) -> None:
    """Adds options to a parser or a group of one."""
    for name, kind, metavar, meaning in rows:
        flag = "--" + name.replace("_", "-")
        default: dict[str, Any] = {"default": argparse.SUPPRESS}
        if kind is None:
            group.add_argument(flag, action="store_true", help=meaning, **default)
            continue
        if isinstance(kind, list):
            (kind,) = kind
            default |= {"nargs": "+", "action": "extend"}
        default |= {"choices": kind} if isinstance(kind, tuple) else {"type": kind}
        group.add_argument(flag, metavar=metavar, help=meaning, **default)


def _ratio(text):
    try:
        return math.inf if text == "none" else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number or none, not {text!r}") from None


def _bias(text):
    name, _, value = text.partition("=")
    try:
        return int(name), float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected an id and a number, as in 5=-2.5, not {text!r}"
        ) from None


_OF_RUN = "the run's"
_DEFAULTS = {"beam_size": _OF_RUN, "length_penalty": _OF_RUN, "max_length": _OF_RUN}
_DEFAULTS |= {"banned_ids": "none", "logit_bias": "none", "attention_heads": "all"}
_KINDS: dict[str, tuple[Kind, str]] = {
    "max_length": (int, "N"),
    "max_length_ratio": (_ratio, "X|none"),
    "banned_ids": ([int], "ID"),
    "logit_bias": ([_bias], "ID=X"),
    "attention_heads": ([int], "I"),
}
_GROUPS = {
    "beam_size": "search",
    "sampling": "sampling",
    "min_length": "lengths",
    "banned_ids": "constraints",
    "attention_layer": "attention, for --alignment and the coverage penalty",
}
_BATCH_SIZE = ("batch_size", int, "N", "sentences that are decoded together; default: 32")
_TOO_LONG = "what happens to a line of too many tokens (a conversation is not split; it loses its "
_TOO_LONG += "oldest turns where it is truncated); default: refuse"
_LONG_INPUT = ("long_input", ("refuse", "split", "truncate"), None, _TOO_LONG)
_ROWS = "what each token attended to in the source, rows of 4 digits in the JSON"
ALIGNMENT = ("alignment", None, None, _ROWS)


def _decoding_options():
    return declared_options("options.py", "DecodingOptions")


def add_model(command: Any, help: str = "a run or export folder") -> None:
    """Adds `--model`."""
    command.add_argument("--model", required=True, metavar="DIR", help=help)


def add_decoding(command: Any) -> None:
    """Adds every option of `Translator.translate` that concerns how texts are decoded."""
    declared = _decoding_options()
    del declared["n_best"]  # How many translations are written is a command's own.
    add_declared(command, declared, _GROUPS, _KINDS, {**_DEFAULTS, "sampling": "search"})
    add_options(command.add_argument_group("texts"), _BATCH_SIZE, _LONG_INPUT)


def add_sampling(command: Any, *names: str, **defaults: str) -> None:
    """Adds some options of decoding, with what is said of some defaults."""
    declared = {name: each for name, each in _decoding_options().items() if name in names}
    add_declared(command, declared, {}, _KINDS, {**_DEFAULTS, **defaults})


def add_scoring(command: Any) -> None:
    """Adds every option of `Translator.score`."""
    add_sampling(command, "length_penalty", "attention_layer", "attention_heads")
    add_options(command, _BATCH_SIZE, ALIGNMENT)


def add_progress(group: Any) -> None:
    """Adds `--progress` and `--no-progress`."""
    group.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="a bar on stderr; default: where that is a terminal and stdin is none",
    )


def given(options: argparse.Namespace, *own: str) -> dict[str, Any]:
    """The options that were given and that are the library's, without the command's `own`."""
    values = {key: value for key, value in vars(options).items() if key not in ("command", *own)}
    if "logit_bias" in values:
        values["logit_bias"] = dict(values["logit_bias"])
    return values
