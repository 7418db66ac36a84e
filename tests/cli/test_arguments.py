import argparse
import dataclasses
import importlib
import math
import re

import pytest

from keras_transformer.bulk.options import BulkOptions
from keras_transformer.cli import main as cli
from keras_transformer.cli.arguments import add_decoding, option_values
from keras_transformer.cli.parser import Parser
from keras_transformer.corpora.cleaning import CleanOptions
from keras_transformer.decoding import DecodingOptions
from keras_transformer.formats import FORMATS
from keras_transformer.options import options_of
from keras_transformer.serving.server_options import LocalOptions, ServerOptions

EVERY = {"beam_size": ("6", 6), "length_penalty": ("0.9", 0.9), "early_stopping": ("false", False)}
EVERY |= {"sampling": ("true", True), "temperature": ("0.8", 0.8), "top_k": ("40", 40)}
EVERY |= {"top_p": ("0.95", 0.95), "seed": ("-11", -11), "min_length": ("2", 2)}
EVERY |= {"max_length": ("70", 70), "min_length_ratio": ("0.5", 0.5)}
EVERY |= {"max_length_ratio": ("infinity", math.inf), "banned_ids": ("[5, 7]", [5, 7])}
EVERY |= {"allow_unknown": ("true", True), "logit_bias": ("[5=-2.5, 7=1]", {5: -2.5, 7: 1.0})}
EVERY |= {"no_repeat_ngram_size": ("3", 3), "length_normalization": ("marian", "marian")}
EVERY |= {"word_penalty": ("0.25", 0.25), "batch_size": ("16", 16)}
EVERY |= {"long_input": ("split", "split"), "shortlist": ("true", True)}


def parsed(*arguments, usual=()):
    """Options of decoding; without `usual`, each has a flag."""
    parser = Parser(add_decoding, usual)
    (options, _) = parser.parse_known_args(arguments)
    return option_values(options, "options_of_command")


def test_every_field_of_the_decoding_options_is_an_option():
    fields = {field.name for field in dataclasses.fields(DecodingOptions)}
    # How many translations are written is the command's own.
    assert fields - {"n_best"} == set(EVERY) - {"batch_size", "long_input"}


@pytest.mark.parametrize("name", EVERY)
def test_an_option_that_is_given_is_the_librarys(name):
    text, value = EVERY[name]
    assert parsed("--set", f"{name}={text}", usual=["tag"]) == {name: value}
    flag = ("--no-" if value is False else "--") + name.replace("_", "-")
    assert parsed(flag, *text.split() * (text not in ("true", "false"))) == {name: value}


def test_help_says_what_the_library_declares(capsys):
    with pytest.raises(SystemExit):
        parsed("--help")
    text = " ".join(capsys.readouterr().out.split())
    for name, schema in options_of(DecodingOptions).items():
        assert schema["description"].rstrip(".") in text or name == "n_best"
    assert "; default: 1.0 " in text and "; default: the run's " in text


EXPORTS = tuple(format.load("options") for format in FORMATS.values())
CLASSES = {"clean": (CleanOptions,), "export": EXPORTS, "serve": (ServerOptions, LocalOptions)}
OTHERS = (DecodingOptions, BulkOptions)
NEEDED = {ServerOptions: {"model": "m"}, DecodingOptions: {"sampling": True}}
MODULES = {name: module for module, commands in cli._COMMANDS.items() for name in commands}
# What a help names before a colon: a value and its meaning, also at the end of the default.
NAMED = (r"(?:^|[;.,:] )([\w.-]+): ", r"default: ([\w.-]+)$", r"such as ([\w-]+(?: [A-Z]\w+)*)")
# Rules of `clean` before what an option does, and other words before a colon or after "such as".
WORDS = {"length", "ratio", "punctuation", "script", "language", "default", "where", "Chinese"}
WORDS |= {"section.key=value", "back-translation"}


def parser_of(command, usual=()):
    """The parser of a command without required options; without `usual`, each has a flag."""
    parser = Parser(usual=usual, exit_on_error=False)
    module = importlib.import_module(f"keras_transformer.cli.{MODULES[command]}")
    add_options, _ = module.COMMANDS[command]
    add_options(parser)
    for action in parser._actions:
        action.required = False
    for group in parser._mutually_exclusive_groups:
        group.required = False
    parser._actions = [action for action in parser._actions if action.option_strings]
    return parser


def named_values(action):
    help = (action.help or "").replace("%%", "%").replace("%(default)s", str(action.default))
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    words = [word for pattern in NAMED for word in re.findall(pattern, help)]
    values = {*words, *(action.choices or ()), *filter(str.islower, metavar.split("|"))} - WORDS
    if action.dest == "length_normalization":
        values.add("length")
    return sorted(values)


def check_taken(command, name, value):
    """Fails unless a class of the command's options takes the value, if a class has the option."""
    for options_class in CLASSES.get(command, OTHERS):
        if name in options_of(options_class):
            assert options_class(**NEEDED.get(options_class, {}), **{name: value})


@pytest.mark.parametrize("command", MODULES)
def test_every_value_that_a_help_names_is_taken(command):
    parser = parser_of(command)
    for action in parser._actions:
        for text in named_values(action):
            values = parser.parse_args([action.option_strings[0], *text.split()])
            check_taken(command, action.dest, getattr(values, action.dest))


HAN = ["Han", "Hiragana"]


@pytest.mark.parametrize(
    ("command", "text", "value"),
    [
        ("clean", "--max-ratio null", None),
        ("clean", "--max-ratio 2.5", 2.5),
        ("clean", "--processes null", None),
        ("clean", "--from null", None),
        ("clean", "--source-scripts null", None),
        ("clean", "--source-scripts [Latin]", ["Latin"]),
        ("clean", "--target-scripts [Han, Hiragana]", HAN),
        ("clean", "--target-scripts [Han,Hiragana]", HAN),
        ("clean", "--target-scripts Han Hiragana", HAN),
        ("clean", "--without copy --without length,ratio", ["copy", "length", "ratio"]),
        ("export", "--max-length-ratio null", None),
        ("export", "--source-lengths null", None),
        ("export", "--source-lengths [8, 16]", [8, 16]),
        ("export", "--n-best null", None),
        ("export", "--languages null", None),
        ("serve", "--replicas auto", "auto"),
        ("serve", "--version null", None),
        ("translate", "--max-length null", None),
        ("translate", "--max-length-ratio infinity", math.inf),
        ("synthesize", "--threads null", None),
        ("synthesize", "--banned-ids [5, 7]", [5, 7]),
        # Files are taken as they are.
        ("clean", "--held-out [a,b].en", ["[a,b].en"]),
    ],
)
def test_lists_and_null_are_read_as_in_recipes(command, text, value):
    flag, *_ = text.split()
    parser = parser_of(command)
    (name,) = (action.dest for action in parser._actions if flag in action.option_strings)
    values = parser.parse_args(text.split())
    assert getattr(values, name) == value
    check_taken(command, name, value)


@pytest.mark.parametrize("text", ["--max-ratio none", "--processes 2.5", "--min-characters null"])
def test_a_value_that_no_help_names_is_an_error(text):
    with pytest.raises(argparse.ArgumentError, match="invalid (float|int) value"):
        parser_of("clean").parse_args(text.split())


SETTINGS = {
    ("translate", "seed=3"): {"seed": 3},
    ("translate", "top_k = 5"): {"top_k": 5},
    ("translate", "seed=3 seed=4"): {"seed": 4},
    ("translate", "banned_ids=5 banned_ids=[7,8]"): {"banned_ids": [7, 8]},
    ("translate", "banned_ids=[]"): {"banned_ids": []},
    ("translate", "alignment=true keep_case=false"): {"alignment": True, "keep_case": False},
    ("translate", "target_prefixes=[a=b].txt"): {"target_prefixes": "[a=b].txt"},
    ("translate", "ray_address=null chunk_lines=9"): {"ray_address": None, "chunk_lines": 9},
    ("evaluate", "markup=html tag=2024"): {"markup": "html", "tag": "2024"},
    ("evaluate", "max_length=null max_length_ratio=1e-3"): {
        "max_length": None,
        "max_length_ratio": 0.001,
    },
    ("export", "max_length_ratio=null npm=1"): {"max_length_ratio": None, "npm": "1"},
    ("export", "package_version=1.10"): {"package_version": "1.10"},
    ("serve", "warm_up_signatures=a,b batch_timeout=4"): {
        "warm_up_signatures": "a,b",
        "batch_timeout": 4.0,
    },
    ("clean", "max_ratio=null escapes=keep"): {"max_ratio": None, "escapes": "keep"},
    ("synthesize", "split_sentences=true"): {"split_sentences": True},
}


def settings_of(command, texts):
    """What the command's parser makes of settings, with its own choice of usual options."""
    parser = parser_of(command, cli._USUAL[command].split())
    return dict(map(parser.setting_of, texts))


@pytest.mark.parametrize(("command", "texts"), SETTINGS)
def test_a_setting_is_read_by_its_type(command, texts):
    texts = ["top_k = 5"] if " = " in texts else texts.split()
    values = SETTINGS[command, " ".join(texts)]
    assert settings_of(command, texts) == values
    for name, value in values.items():
        check_taken(command, name, value)


@pytest.mark.parametrize(
    ("command", "text", "message"),
    [
        ("translate", "seed", "--set must be name=value. Received: 'seed'."),
        ("translate", "=5", "--set: unknown name ''."),
        ("translate", "sede=5", "--set: unknown name 'sede'. Did you mean --set seed=VALUE?"),
        ("translate", "word=1", "unknown name 'word'. Did you mean --set word_penalty=VALUE?"),
        # An option with a flag is taken in one form only.
        ("translate", "beam_size=5", "unknown name 'beam_size'. Did you mean --beam-size?"),
        ("evaluate", "source_language=en", "'source_language'. Did you mean --from?"),
        ("translate", "seed=2.5", "seed must be an integer of at least -2**31 and below 2**31, or"),
        ("translate", "seed=null", "Received: 'null'."),
        ("translate", "max_length_ratio=two", "a number of at least 0 and below 2**127, or inf"),
        ("translate", "logit_bias=5:1", "logit_bias: expected an id and a number, as in 5=-2.5"),
        ("translate", "banned_ids=[5,x]", "banned_ids must be a list of integers. Received: '[5"),
        ("translate", "long_input=cut", "must be one of refuse, split, truncate. Received: 'cut'."),
        ("translate", "keep_case=yes", "keep_case must be one of true, false. Received: 'yes'."),
        ("clean", "max_ratio=", "max_ratio must be a number of at least 1, or null. Received: ''."),
        ("export", "n_best=all", "n_best must be a positive integer"),
        ("serve", "max_queue=many", "max_queue must be a positive integer. Received: 'many'."),
        (
            "synthesize",
            "chunk_lines=2.5",
            "chunk_lines must be a positive integer.",
        ),
    ],
)
def test_a_mistake_in_a_setting_is_named_with_what_was_expected(command, text, message, capsys):
    with pytest.raises(SystemExit) as caught:
        settings_of(command, [text])
    assert caught.value.code == 2
    line, way = capsys.readouterr().err.splitlines()
    assert message in line and way.endswith(" --help")
