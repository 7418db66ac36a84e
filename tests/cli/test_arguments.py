import dataclasses
import importlib
import math
import pathlib
import re

import pytest

from keras_transformer.base.errors import InputError
from keras_transformer.base.options import options_of
from keras_transformer.cli import main as cli
from keras_transformer.cli.arguments import add_decoding, option_values
from keras_transformer.cli.parser import Parser
from keras_transformer.decoding import DecodingOptions
from keras_transformer.extras.bulk.options import BulkOptions
from keras_transformer.extras.corpora.cleaning import CleanOptions
from keras_transformer.extras.serving.server_options import LocalOptions, ServerOptions
from keras_transformer.formats import FORMATS

EVERY = {"beam_size": ("6", 6), "length_penalty": ("0.9", 0.9), "early_stopping": ("false", False)}
EVERY |= {"sampling": ("true", True), "temperature": ("0.8", 0.8), "top_k": ("40", 40)}
EVERY |= {"top_p": ("0.95", 0.95), "seed": ("-11", -11), "min_length": ("2", 2)}
EVERY |= {"max_length": ("70", 70), "min_length_ratio": ("0.5", 0.5)}
EVERY |= {"max_length_ratio": ("infinity", math.inf), "banned_ids": ("[5, 7]", [5, 7])}
EVERY |= {"allow_unknown": ("true", True), "logit_bias": ("[5=-2.5, 7=1]", {5: -2.5, 7: 1.0})}
EVERY |= {"no_repeat_ngram_size": ("3", 3), "length_normalization": ("marian", "marian")}
EVERY |= {"word_penalty": ("0.25", 0.25), "batch_size": ("16", 16)}
EVERY |= {"long_input": ("truncate", "truncate"), "shortlist": ("true", True)}


EVERY |= {"source_language": ("en", "en"), "target_language": ("de", "de"), "tag": ("bt", "bt")}
EVERY |= {"split_sentences": ("true", True), "keep_case": ("true", True)}
EVERY |= {"markup": ("html", "html"), "glossary": ("terms.tsv", "terms.tsv")}
EVERY |= {"glossary_by": ("constraints", "constraints")}


def parsed(*arguments, usual=()):
    """Options of decoding; without `usual`, each has a flag."""
    parser = Parser(add_decoding, usual)
    (options, _) = parser.parse_known_args(arguments)
    return option_values(options, "options_of_command")


def test_every_field_of_the_decoding_options_is_an_option():
    fields = {field.name for field in dataclasses.fields(DecodingOptions)}
    # How many translations are written is the command's own.
    assert fields - {"n_best"} <= EVERY.keys()


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


EXPORTS = tuple(format.options() for format in FORMATS.values())
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


# What a command calls with its options, and arguments that it needs.
PAIR = ["texts", "texts"]
CALLED = {
    "translate": (None, []),
    "synthesize": (None, []),
    "evaluate": (None, ["--source", "texts", "--reference", "texts"]),
    "score": (None, ["--source", "texts", "--target", "texts"]),
    "serve": ("keras_transformer.extras.serving.serve_here", []),
    "clean": (
        "keras_transformer.extras.corpora.cleaning.clean_corpora",
        [*PAIR, "--output", "out"],
    ),
    "glossary": ("keras_transformer.extras.corpora.learn_terms.learn_terms", PAIR),
    "translate FILE": (
        "keras_transformer.extras.bulk.corpus.translate_corpus",
        ["texts", "--output", "out", "--engine", "ray"],
    ),
    "synthesize FILE": (
        "keras_transformer.extras.bulk.corpus.translate_corpus",
        ["texts", "--output", "out", "--engine", "ray"],
    ),
    **{
        f"export {format}": (
            "keras_transformer.export.export_run",
            ["--output", "out", "--format", format],
        )
        for format in FORMATS
    },
}
# Texts of options whose text is not one of their type's.
TEXTS = {name: text.strip("[]").replace(",", "") for name, (text, _) in EVERY.items()}
TEXTS |= {"languages": "en-de", "signatures": "beam", "package_version": "1.1"}
TEXTS |= {"warm_up_signatures": "beam", "without": "copy", "source_scripts": "Latin"}
TEXTS |= {"target_scripts": "Latin"}
OF_ALL = {"model", "help", "verbose", "no_compilation_cache", "set"}
OF_FILES = {"chunk_lines", "threads", "workers", "ray_address"}
# What a command does itself with its options: files, beginnings of the names of tests.
LINES, PAIRS, RAY = "cli/test_translate.py", "cli/test_evaluate.py", "cli/test_serve.py"
DOCUMENTS, CLEANING = "cli/test_documents.py", "extras/corpora/test_cleaning.py"
REPORT, MEMORY = "extras/analysis/test_report.py", "extras/corpora/test_translation_memory.py"
OF_TABLES = {"header languages inline_tags": (CLEANING, "the_command_pairs_files_and_passes")}
OWN = {
    "demo": {"output overwrite": ("cli/test_demo.py", "an_earlier_demo_is_removed")},
    "train": {
        "recipe output": ("cli/test_train.py", "the_recipe_and_the_options_reach"),
        "resume": ("training/test_effects.py", "a_resumed_training_is"),
        "overwrite": ("training/test_train.py", "a_folder_with_anything_but_a_run_is_left"),
        "hosts host_index": ("training/test_hosts.py", "several_hosts_on_tensorflow"),
    },
    "import": {
        "folder output samples": ("extras/importing/test_importing.py", "the_command_makes_a_run"),
        "list": (
            "extras/importing/fetching/test_registries.py",
            "the_lists_are_shown_without_a_run",
        ),
        "overwrite": (
            "extras/importing/test_importing.py",
            "an_import_that_fails_leaves_what_was_there",
        ),
        "dtype": (
            "extras/importing/test_importing.py",
            "a_run_has_the_models_dtype_or_the_chosen_one",
        ),
        "sentencepiece": ("extras/ctranslate2/test_reader.py", "files_may_be_named"),
    },
    "translate": {
        "target_prefixes": (LINES, "prefixes_come_from_their_file"),
        "json alignment": (LINES, "json_is_an_object_a_line"),
        "stream": (LINES, "stream_asks_for_one_line_after_the_other"),
        "progress": (LINES, "a_bar_is_shown_on_a_terminal"),
        "bilingual": ("cli/test_bilingual.py", "lines_are_pairs"),
        "files output": (DOCUMENTS, "one_file_is_translated_into_a_file"),
        "document_kind": (DOCUMENTS, "a_file_of_an_unknown_kind"),
        "wrapped": (DOCUMENTS, "wrapped_lines_of_a_file_are_one_text"),
        "engine": (RAY, "bulk_options_go_with_the_ray_engine_alone"),
    },
    "chat": {
        "beam_size max_length temperature top_k top_p seed": (
            "cli/test_chat.py",
            "replies_are_drawn_with_the_options_given",
        )
    },
    "score": {
        "source target tsv": (PAIRS, "pairs_of_too_many_tokens_have_null"),
        "progress": ("cli/unit/test_line_stream.py", "each_pair_is_a_json_object"),
    },
    "evaluate": {
        "source reference languages": (PAIRS, "a_translation_memory_has_both_sides"),
        "header inline_tags": (MEMORY, "commands_read_a_memory"),
        "perplexity": ("engine/test_evaluation.py", "long_lines_are_scored_in_windows"),
        "tokenize": (PAIRS, "the_tokenizer_of_bleu_may_be_chosen"),
        "save": ("engine/test_evaluation.py", "translations_are_saved_and_scored"),
    },
    "inspect": {
        "source output beam_size without_heads": ("cli/test_learned_run.py", "a_run_explains"),
        "target corpus other_positions": (REPORT, "heads_are_measured_on_the_runs_samples"),
        "source_language target_language": (REPORT, "a_sentence_of_a_model_of_several"),
        "overwrite": (REPORT, "heads_are_measured_on_the_runs_samples"),
    },
    "export": {
        "format output overwrite json verify_with": ("cli/test_export.py", "options_of_a_format"),
    },
    "serve": {},
    "clean": {
        "corpora held_out overwrite output": (CLEANING, "the_command_pairs_files_and_passes"),
        "json": (CLEANING, "the_command_ends_with_the_summary"),
        "progress": ("extras/corpora/test_learn_shortlist.py", "a_run_learns_from_texts"),
        **OF_TABLES,
    },
    "synthesize": {
        "files output back n_best": ("cli/test_synthesize.py", "each_hypothesis_is_a_pair"),
        "engine": (RAY, "bulk_options_go_with_the_ray_engine_alone"),
    },
    "glossary": {
        "corpora": ("extras/corpora/test_learn_terms.py", "the_command_glossary"),
        **OF_TABLES,
    },
    "shortlist": {
        "corpora progress": (
            "extras/corpora/test_learn_shortlist.py",
            "training_and_the_command_make",
        ),
        **OF_TABLES,
    },
}


@pytest.mark.parametrize("command", MODULES)
def test_every_option_of_a_command_has_an_effect_that_a_test_shows(command):
    parser = parser_of(command)
    parser.parse_known_args([])
    handed_on = set()
    for name in CALLED:
        if name.partition(" ")[0] == command:
            handed_on.update(names_handed_on(name, parser))
    own = {option for names in OWN[command] for option in names.split()}
    assert {action.dest for action in parser._actions} - OF_ALL == handed_on | own
    for file, test in OWN[command].values():
        source = pathlib.Path(__file__).parents[1].joinpath(file).read_text(encoding="utf-8")
        assert f"def test_{test}" in source, test


def names_handed_on(name, parser):
    """Options that `CALLED` receives: all except the command's own."""
    command, _, format = name.partition(" ")
    names = {action.dest for action in parser._actions} - OF_ALL
    names -= {option for names in OWN[command] for option in names.split()}
    if format in FORMATS:
        return names & {field.name for field in dataclasses.fields(FORMATS[format].options())}
    if format == "FILE":
        return names - {"n_best"} if command == "translate" else names
    return names - OF_FILES if command in ("translate", "synthesize") else names


def given(action):
    """Arguments that give an option a value other than its default, and the value."""
    flag, kind = action.option_strings[0], action.type or str
    text = {"int": "3", "float": "2.5"}.get(kind.__name__, "x")
    text = TEXTS.get(action.dest) or (action.choices[-1] if action.choices else text)
    value = True if action.nargs == 0 else kind(text)
    value = EVERY[action.dest][1] if action.dest in EVERY else value
    if flag.startswith("--set "):
        return ["--set", f"{action.dest}={text}"], value
    if action.nargs == 0:
        return [action.option_strings[-1] if text == "false" else flag], value
    return [flag, *text.split()], value


@pytest.mark.parametrize("name", CALLED)
def test_every_option_that_a_command_hands_on_arrives(name, call, monkeypatch):
    (called, needed), received = CALLED[name], []
    pathlib.Path("texts").write_text("A B C D\n")
    if called is not None:

        def record(*values, **options):
            of_values = (vars(value) for value in values if hasattr(value, "__dict__"))
            received.append(dict(options, **{k: v for one in of_values for k, v in one.items()}))
            raise InputError("enough")

        monkeypatch.setattr(called, record)
    command = name.partition(" ")[0]
    parser = parser_of(command)
    parser.parse_known_args([])
    names = names_handed_on(name, parser)
    for action in parser._actions:
        if action.dest in names:
            arguments, value = given(action)
            arguments = [command, *needed, *arguments]
            if any(one.dest == "model" for one in parser._actions):
                received += call(*arguments)[3]
            else:
                cli.run(arguments)
            assert received.pop()[action.dest] in (value, (value,), [value]), arguments


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
        (
            "translate",
            "--set long_input=cut",
            "--set long_input must be one of refuse, split, truncate. Received: 'cut'.",
        ),
        ("export", "--format savedmodel", "Received: 'savedmodel'. Did you mean `saved_model`?"),
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
