"""Arguments that several commands have. One that is not given leaves no trace: `given`."""

import argparse
import math

# Written here once more, as those of the library are read with Keras; a test compares them.
_DEFAULTS = {
    "coverage_penalty": 0.0,
    "num_groups": 1,
    "diversity_penalty": 0.5,
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "seed": 0,
    "min_length": 0,
    "min_length_ratio": 0.0,
    "max_length_ratio": 2.0,
    "no_repeat_ngram_size": 0,
    "attention_layer": -1,
}
_LONG_INPUT = ("refuse", "split", "truncate")


def add_model(command, help="a run or export folder"):
    """Adds `--model`."""
    command.add_argument("--model", required=True, metavar="DIR", help=help)


def add_decoding(command):
    """Adds every option of `Translator.translate` that concerns how texts are decoded."""
    group = command.add_argument_group("search")
    of_run = "default: the run's"
    _add(group, "beam_size", int, "N", f"hypotheses that stay alive, 1 is greedy; {of_run}")
    _add(
        group, "length_penalty", float, "A", f"exponent of the length penalty, 0 is none; {of_run}"
    )
    _add(group, "coverage_penalty", float, "B", "weight of the coverage penalty, 0 is none")
    _add(group, "num_groups", int, "N", "groups of a diverse beam search")
    _add(group, "diversity_penalty", float, "D", "cost of a token that another group chose")
    _add_batch_size(group)

    group = command.add_argument_group("sampling")
    group.add_argument(
        "--sampling",
        action="store_true",
        default=argparse.SUPPRESS,
        help="draw at random instead of searching",
    )
    _add(group, "temperature", float, "T", "what logits are divided by")
    _add(group, "top_k", int, "K", "sample from the K most probable tokens, 0 is all")
    _add(group, "top_p", float, "P", "sample from the most probable tokens that sum up to P")
    _add(group, "min_p", float, "P", "sample from tokens P times as probable as the best")
    _add(group, "seed", int, "N", "seed of each sentence's samples")

    group = command.add_argument_group("lengths")
    _add(group, "min_length", int, "N", "fewest tokens of a translation, the end included")
    _add(group, "max_length", int, "N", "most tokens, the end included", "the run's")
    _add(group, "min_length_ratio", float, "R", "fewest tokens, times the source's")
    _add(group, "max_length_ratio", _ratio, "R", "most tokens, times the source's; or none")
    group.add_argument(
        "--long-input",
        choices=_LONG_INPUT,
        default=argparse.SUPPRESS,
        help="what happens to a line of too many tokens; default: refuse",
    )

    group = command.add_argument_group("constraints")
    _add(group, "banned_ids", int, "ID", "ids that are never chosen", "none", several=True)
    _add(group, "logit_bias", _bias, "ID=X", "what is added to a logit", "nothing", several=True)
    _add(group, "no_repeat_ngram_size", int, "N", "no N tokens occur twice, 0 is off")

    group = command.add_argument_group("attention, for --alignment and the coverage penalty")
    add_attention(group)


def add_attention(group):
    """Adds the options that say which attention is the alignment."""
    _add(group, "attention_layer", int, "I", "decoder block, negative counts from the last")
    _add(group, "attention_heads", int, "I", "heads whose mean is taken", "all", several=True)


def add_scoring(command):
    """Adds every option of `Translator.score`."""
    _add(
        command, "length_penalty", float, "A", "exponent of the length penalty; default: the run's"
    )
    _add_batch_size(command)
    add_alignment(command)
    add_attention(command)


def add_alignment(group):
    """Adds `--alignment`."""
    group.add_argument(
        "--alignment",
        action="store_true",
        default=argparse.SUPPRESS,
        help="what each token attended to in the source, rows of 4 digits in the JSON",
    )


def add_progress(group):
    """Adds `--progress` and `--no-progress`."""
    group.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="a bar on stderr; default: where that is a terminal and stdin is none",
    )


def given(options, *without):
    """The options that were given and that are the library's, as a dict.

    Args:
        options: What the parser returned.
        *without: Names of those that are the command's own.
    """
    values = {key: value for key, value in vars(options).items() if key not in without}
    if "logit_bias" in values:
        values["logit_bias"] = dict(values["logit_bias"])
    return values


def _add(group, name, type, metavar, help, default=None, several=False):
    if default is None and "default:" not in help:
        default = _DEFAULTS[name]
    group.add_argument(
        "--" + name.replace("_", "-"),
        type=type,
        metavar=metavar,
        help=help if default is None else f"{help}; default: {default}",
        default=argparse.SUPPRESS,
        **({"nargs": "+", "action": "extend"} if several else {}),
    )


def _add_batch_size(group):
    group.add_argument(
        "--batch-size",
        type=int,
        default=argparse.SUPPRESS,
        metavar="N",
        help="sentences that are decoded together; default: 32",
    )


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
