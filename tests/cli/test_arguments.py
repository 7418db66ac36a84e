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
    texts = [] if text in ("true", "false") else text.strip("[]").split(", ")
    assert parsed(flag, *texts) == {name: value}


def test_a_rare_option_is_not_taken_as_the_beginning_of_another(capsys):
    with pytest.raises(SystemExit):
        parsed("--max-length", "5", usual=["max_length_ratio"])
    assert "Did you mean --set max_length=VALUE?" in capsys.readouterr().err


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


def parser_of(command):
    """The parser of a command, which has its options, without required options and files."""

    def add(parser):
        add_options, _ = module.COMMANDS[command]
        add_options(parser)
        for action in parser._actions:
            action.required = False
        for group in parser._mutually_exclusive_groups:
            group.required = False

    module = importlib.import_module(f"keras_transformer.cli.{MODULES[command]}")
    return Parser(add, cli._USUAL.get(command, "").split())


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
            assert options_class(**{**NEEDED.get(options_class, {}), name: value})


@pytest.mark.parametrize("command", MODULES)
def test_every_value_that_a_help_names_is_taken(command):
    parser = parser_of(command)
    parser.parse_known_args([])  # adds the options
    for action in parser._actions:
        flag = action.option_strings[-1] if action.option_strings else ""
        for text in named_values(action):
            is_rare = flag.startswith("--set ")
            values = parser.parse_args([f"{flag}={text}"] if is_rare else [flag, *text.split()])
            check_taken(command, action.dest, getattr(values, action.dest))


HAN, RULES = ["Han", "Hiragana"], ["copy", "urls", "length"]
TAKEN = [
    # Flags
    ("clean", ["--processes", "null"], {"processes": None}),
    ("clean", ["--from", "null"], {"source_language": None}),
    (
        "clean",
        ["--without", "copy", "--without", "length", "urls"],
        {"without": ["copy", "length", "urls"]},
    ),
    ("clean", ["--held-out", "[a,b].en"], {"held_out": ["[a,b].en"]}),
    ("export", ["--source-lengths", "8", "16"], {"source_lengths": [8, 16]}),
    ("export", ["--languages", "null"], {"languages": None}),
    ("serve", ["--version", "null"], {"version": None}),
    ("translate", ["--max-length", "null"], {"max_length": None}),
    ("synthesize", ["--threads", "null"], {"threads": None}),
    # Rare options, read by their types
    ("clean", ["--set", "max_ratio=null"], {"max_ratio": None}),
    ("clean", ["--set=max_ratio=2.5"], {"max_ratio": 2.5}),
    ("clean", ["--set", "source_scripts=null"], {"source_scripts": None}),
    ("clean", ["--set", "source_scripts=Latin"], {"source_scripts": ["Latin"]}),
    ("clean", ["--set", "target_scripts=[Han, Hiragana]"], {"target_scripts": HAN}),
    ("clean", ["--set", "target_scripts=Han,Hiragana"], {"target_scripts": HAN}),
    ("clean", ["--set", "escapes=keep"], {"escapes": "keep"}),
    ("export", ["--set", "max_length_ratio=null"], {"max_length_ratio": None}),
    ("export", ["--set", "n_best=null"], {"n_best": None}),
    ("export", ["--set", "package_version=1.10"], {"package_version": "1.10"}),
    ("serve", ["--set", "warm_up_signatures=a,b"], {"warm_up_signatures": "a,b"}),
    ("serve", ["--set", "batch_timeout=4"], {"batch_timeout": 4.0}),
    ("evaluate", ["--set", "tag=2024", "--set", "markup=html"], {"tag": "2024", "markup": "html"}),
    ("evaluate", ["--set", "max_length_ratio=infinity"], {"max_length_ratio": math.inf}),
    ("synthesize", ["--set", "split_sentences=true"], {"split_sentences": True}),
    ("synthesize", ["--set", "ray_address=null"], {"ray_address": None}),
    ("translate", ["--set", "target_prefixes=[a=b].txt"], {"target_prefixes": "[a=b].txt"}),
    ("translate", ["--set", "alignment=true"], {"alignment": True}),
    ("translate", ["--set", " seed = -3 "], {"seed": -3}),
    # The last value counts, also of a list.
    ("translate", ["--set", "seed=3", "--set", "seed=4"], {"seed": 4}),
    ("translate", ["--set", "banned_ids=5", "--set", "banned_ids=[7]"], {"banned_ids": [7]}),
    ("translate", ["--set", "banned_ids=[]"], {"banned_ids": []}),
    ("translate", ["--set", "seed=3", "--", "--set", "x"], {"seed": 3, "files": ["--set", "x"]}),
]


@pytest.mark.parametrize(("command", "arguments", "values"), TAKEN)
def test_values_are_read_as_in_recipes(command, arguments, values):
    (options, _) = parser_of(command).parse_known_args(arguments)
    assert vars(options).items() >= values.items()
    for name, value in values.items():
        check_taken(command, name, value)


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("clean", "--processes 2.5", "argument --processes: invalid int value: '2.5'"),
        ("translate", "--set", "--set must be NAME=VALUE. Received: ''."),
        ("translate", "--set seed", "--set must be NAME=VALUE. Received: 'seed'."),
        ("translate", "--set =5", "--set: unknown name ''."),
        ("translate", "--set sede=5", "unknown name 'sede'. Did you mean --set seed=VALUE?"),
        ("translate", "--set word=1", "'word'. Did you mean --set word_penalty=VALUE?"),
        # An option has one form.
        ("translate", "--set beam_size=5", "unknown name 'beam_size'. Did you mean --beam-size?"),
        ("evaluate", "--set source_language=en", "'source_language'. Did you mean --from?"),
        ("evaluate", "--top-k 5", "unknown option --top-k. Did you mean --set top_k=VALUE?"),
        ("serve", "--max-answers=3", "--max-answers. Did you mean --set max_answer_bytes=VALUE?"),
        ("chat", "--set seed=5", "unknown option --set."),
        ("translate", "--set seed=2.5", "argument --set seed: invalid int value: '2.5'"),
        ("translate", "--set seed=null", "argument --set seed: invalid int value: 'null'"),
        ("translate", "--set seed=", "argument --set seed: invalid int value: ''"),
        ("evaluate", "--set max_length_ratio=two", "invalid float value: 'two'"),
        ("evaluate", "--set logit_bias=5:1", "expected an id and a number, as in 5=-2.5"),
        ("evaluate", "--set banned_ids=[5,x]", "argument --set banned_ids: invalid int value"),
        ("translate", "--set long_input=cut", "argument --set long_input: invalid choice: 'cut'"),
        ("translate", "--set keep_case=yes", "invalid true or false value: 'yes'"),
        ("clean", "--set max_ratio=none", "argument --set max_ratio: invalid float value: 'none'"),
        ("clean", "--set min_characters=null", "invalid int value: 'null'"),
    ],
)
def test_a_mistake_in_an_option_is_named_with_its_form(command, arguments, message, capsys):
    with pytest.raises(SystemExit) as caught:
        parser_of(command).parse_known_args(arguments.split())
    assert caught.value.code == 2
    line, way = capsys.readouterr().err.splitlines()
    assert message in line and way.endswith(" --help")
