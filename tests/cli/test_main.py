import io
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys

import pytest
from small_corpus import PAIRS, recipe_values, write_corpus, write_recipe

import keras_transformer
from keras_transformer import Tokenizer, Transformer, TransformerConfig
from keras_transformer.base.errors import TrainingError, VerificationError
from keras_transformer.base.files import OwnedFolder
from keras_transformer.base.imports import LEVEL
from keras_transformer.cli import main, train
from keras_transformer.cli.main import run
from keras_transformer.cli.parser import Parser
from keras_transformer.runs.model_file import save_model
from keras_transformer.training import Recipe, RunFolder

pytestmark = pytest.mark.tensorflow


def test_help_names_the_commands_that_exist_and_no_other(capsys):
    with pytest.raises(SystemExit) as caught:
        run(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    names = "demo train translate chat score evaluate export inspect serve".split()
    for name in names:
        assert re.search(rf"^    {name}( |$)", text, re.MULTILINE)
    assert "summarize" not in text


COMMANDS = [name for commands in main._COMMANDS.values() for name in commands]
MODULES = {name: module for module, commands in main._COMMANDS.items() for name in commands}
PAGES = pathlib.Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_begins_with_an_example_that_parses_and_ends_with_a_page_on_the_command(name, capsys):
    with pytest.raises(SystemExit):
        run([name, "--help"])
    first, *_, last = capsys.readouterr().out.splitlines()
    example = first.removeprefix("example: keras-transformer ")
    assert example.split()[0] == name
    main._parser().parse_args(shlex.split(re.sub(r" [<>].*", "", example)))
    page = PAGES.parent / last.removeprefix("page: ")
    text = page.read_text(encoding="utf-8")
    assert f"keras-transformer {name}" in text or f'cli("{name}' in text


def test_without_a_command_all_commands_are_shown_in_groups(capsys):
    assert run([]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.endswith("keras-transformer COMMAND --help")
    shown = [line.split()[0] for line in lines if line.startswith("  ")]
    assert sorted(shown) == sorted(COMMANDS)
    assert lines[1] == "make a model" and all(len(line) <= 100 for line in lines)


def test_the_version_is_shown(capsys):
    with pytest.raises(SystemExit) as caught:
        run(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"keras-transformer {keras_transformer.__version__}\n"


def help_of(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        run([*arguments])
    assert caught.value.code == 0
    return capsys.readouterr().out


def options_in(help):
    """Options that have a line of their own, without the usage's."""
    return set(re.findall(r"^  (?:-h, )?(--[\w-]+)", help, re.MULTILINE))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_short_and_has_every_option_with_a_flag_or_as_a_name_for_set(
    name, capsys, monkeypatch
):
    """Each option is there once; `everything` has them as a command without rare options would."""
    monkeypatch.setenv("COLUMNS", "80")
    help = help_of(capsys, name, "--help")
    assert len(help.splitlines()) < 85
    everything = Parser()
    main._add_command(MODULES[name], name, everything)
    flags = {action.dest: action.option_strings for action in everything._actions}
    names = re.findall(r"describes\s+the\s+names:(.*?)\n\n", help, re.DOTALL)
    rare = set(re.findall(r"\w+", " ".join(names)))
    assert rare <= flags.keys() and bool(rare) == (name in main._USUAL)
    assert set(main._USUAL.get(name, "").split()) <= flags.keys() - rare
    set_flag = {"--set"} if rare else set()
    usual = {forms[0] for dest, forms in flags.items() if forms and dest not in rare}
    shown = usual - {"-h", "--verbose", "--no-compilation-cache"} | {"--help"} | set_flag
    assert options_in(help) == shown
    described = help_of(capsys, name, "--help", "--verbose")
    assert set(re.findall(r"^  --set (\w+)(?![\w=.])", described, re.MULTILINE)) == rare


@pytest.mark.parametrize(
    ("arguments", "received", "help"),
    [
        (["frobnicate"], "unknown command 'frobnicate'.\n", "keras-transformer --help"),
        (["--verbose", "trnaslate"], "Did you mean `translate`?", "keras-transformer --help"),
        ("export --model x --output y --format foo".split(), "'foo'", "export --help"),
        ("translate --model x --batch-size many".split(), "'many'", "translate --help"),
        # Not "the following arguments are required: --model".
        (
            ["translate", "--modle=X"],
            "unknown option --modle. Did you mean --model?",
            "translate --help",
        ),
        (
            "translate --beams 3 --model x".split(),
            "unknown option --beams. Did you mean --beam-size?",
            "translate --help",
        ),
        (["train", "x.yaml", "--qqq"], "error: unknown option --qqq.\n", "train --help"),
    ],
    ids=["command", "misspelt", "format", "number", "required", "plural", "unlike"],
)
def test_an_unknown_command_option_or_value_is_two_lines_with_the_way_to_the_options(
    arguments, received, help, capsys
):
    with pytest.raises(SystemExit) as caught:
        run(arguments)
    assert caught.value.code == 2
    mistake, way = capsys.readouterr().err.splitlines()
    assert received in f"{mistake}\n" and way.endswith(help)


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "--model", "nowhere", "--output", "new", "--text", "--- two dogs"],
        ["translate", "--model", "nowhere", "--output", "new", "--", "--letter.txt"],
        ["inspect", "--mod", "nowhere"],
    ],
    ids=["text", "file", "beginning"],
)
def test_a_value_that_begins_as_an_option_is_none(arguments, capsys):
    assert run(arguments) == 2
    assert "nowhere: no such run or export folder" in capsys.readouterr().err


# Bad input: each a line that names the place and what was expected, exit code 2, nothing left.


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    write_corpus(folder / "corpus")
    write_recipe(folder / "recipe.yaml", recipe_values("corpus"))
    for name, file, content in (
        ("exported", "export.json", '{"format": "keras_transformer.ctranslate2"}'),
        ("foreign", "numbers.tflite", "TFL3"),
    ):
        (folder / name).mkdir()
        (folder / name / file).write_text(content)
    run_folder = RunFolder(folder / "run")
    tokenizer = Tokenizer.train_from_texts([text for pair in PAIRS for text in pair], 120)
    run_folder.create(Recipe.from_dict(recipe_values(folder)).to_dict(), (tokenizer, tokenizer), {})
    save_model(
        Transformer(TransformerConfig(120, 16, 2, 16, num_encoder_layers=1, num_decoder_layers=1)),
        run_folder.model_file,
    )
    return folder


@pytest.fixture
def workplace(prepared, tmp_path, monkeypatch):
    """A folder to work in, with a corpus, a recipe and a run."""
    workplace = shutil.copytree(prepared, tmp_path / "place")
    monkeypatch.chdir(workplace)
    return workplace


def everything(folder):
    paths = {path.relative_to(folder): path for path in folder.rglob("*")}
    return {name: path.read_bytes() if path.is_file() else None for name, path in paths.items()}


EXPORT = "export --format saved_model --output new --model"
TRAIN = "train recipe.yaml --output"
BAD_INPUTS = {
    "a missing corpus": (f"{TRAIN} new --set data.folder=nowhere", "nowhere/train.en"),
    "a key of the recipe that is called as an option": (
        f"{TRAIN} new --set training.output=5",
        "--set training.output: unknown key `output` in `training`.",
    ),
    "a folder of other files": (
        f"{TRAIN} corpus",
        "corpus: is not overwritten, because there is a file that this command did not make",
    ),
    "options of sampling without it": (
        "translate --model run --set top_k=1",
        "`--set top_k` needs `--sampling`: a search does not sample. Received: top_k=1.",
    ),
    "more results than beams": (
        "translate --model run --beam-size 2 --n-best 3",
        "`--n-best` must be at most `--beam-size`. Received: n_best=3, beam_size=2.",
    ),
    "a run to serve": (
        "serve --model run",
        "Export it first: keras-transformer export --model run --format saved_model --output DIR",
    ),
    "a missing reference": (
        "evaluate --model run --source corpus/train.en --reference no.de",
        "no.de",
    ),
    "no model to import": ("import no --output new", "no: no such folder or archive"),
    "no model to list": ("import corpus --list", "Only firefox: and argos: have a list."),
    "a model to import first": (
        "inspect --model A/opus-mt --text a --output new",
        "must become a run first: keras-transformer import A/opus-mt --output runs/opus-mt",
    ),
    "an export of no run": (f"{EXPORT} corpus", "not a run folder"),
    "an export of an export": (
        f"{EXPORT} exported",
        "exported: this is an export for ctranslate2, not a run. Give the run that it was made of.",
    ),
    "an inspection of an export": (
        "inspect --model exported",
        "exported: this is an export for ctranslate2, not a run.",
    ),
    "no run to resume": (
        f"{TRAIN} runs/nope --resume",
        "runs/nope: no such run folder. Leave `--resume` out to begin.",
    ),
    "a folder of another model for LiteRT": (
        "translate --model foreign",
        "foreign: neither a run folder (recipe.yaml) nor an export",
    ),
}


@pytest.mark.parametrize("case", BAD_INPUTS)
def test_bad_input_is_one_line_exit_code_2_and_leaves_nothing(case, workplace, capsys, monkeypatch):
    arguments, expected = BAD_INPUTS[case]
    before = everything(workplace)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"A dog.\n"), encoding="utf-8"))
    assert run(arguments.split()) == 2
    captured = capsys.readouterr()
    *_, last = captured.err.splitlines()
    assert last.startswith("keras-transformer: ")
    assert expected in last
    assert "Traceback" not in captured.err
    assert everything(workplace) == before


COMMANDS_OF_PATHS = [
    "train recipe.yaml --output PATH",
    "train recipe.yaml --output new --set training.start_from=PATH",
    "train PATH --output new",
    "import PATH --output new",
    "import corpus --output PATH",
    "clean corpus/train.tsv --output PATH",
    "demo --output PATH",
    "serve --model PATH",
    "export --model PATH --format litert --output new",
    "score --model PATH --source corpus/train.en --target corpus/train.de",
    "evaluate --model PATH --source corpus/train.en --reference corpus/train.de",
]
# Also with a good path two of the commands end with 2, for another reason.
WRONG_PATH = "must have a name|no such|not a run|[Nn]either|directory|too long|names? of|one model"


@pytest.mark.parametrize("command", COMMANDS_OF_PATHS)
@pytest.mark.parametrize("path", ["n" * 300, "a/" + "n" * 300, "/" + "n" * 5000, "/"])
def test_a_path_that_nothing_can_have_is_one_line(command, path, workplace, capsys):
    before = everything(workplace)
    assert run(command.replace("PATH", path).split()) == 2
    *progress, line = capsys.readouterr().err.splitlines()
    assert re.search(rf"^keras-transformer: \S*{path[:99]}.*({WRONG_PATH})", line)
    assert all("reading" in x for x in progress)
    assert everything(workplace) == before


FAILURES = [(f"{EXPORT} run", "export.export_run", VerificationError("3 of 200 differ."))]
FAILURES += [(f"{TRAIN} new", "training.loop.train", TrainingError("the loss is nan in epoch 3."))]


@pytest.mark.parametrize(("command", "function", "error"), FAILURES)
def test_work_that_fails_is_one_line_and_exit_code_1(
    workplace, capsys, monkeypatch, command, function, error
):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr(f"keras_transformer.{function}", fail)
    assert run(command.split()) == 1
    assert capsys.readouterr() == ("", f"keras-transformer: {error}\n")


@pytest.mark.parametrize(("command", "function", "error"), FAILURES)
def test_sigterm_ends_a_command_in_order_and_leaves_nothing(
    workplace, monkeypatch, command, function, error
):
    def work(_, output, *arguments, **options):
        with OwnedFolder(output).staged():
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()

    def unhandled(*_):
        raise AssertionError("The command leaves SIGTERM to its caller.")

    monkeypatch.setattr(f"keras_transformer.{function}", work)
    before, content = signal.signal(signal.SIGTERM, unhandled), everything(workplace)
    try:
        with pytest.raises(SystemExit) as ended:
            run(command.split())
        assert signal.getsignal(signal.SIGTERM) is unhandled
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 143 and everything(workplace) == content


def new_process(folder, *arguments, stdin=""):
    """What Python did, without the level of messages that the tests run with."""
    environment = {key: os.environ[key] for key in os.environ.keys() - {LEVEL}}
    options = {"input": stdin, "capture_output": True, "text": True, "timeout": 300}
    return subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, **options)


# The process loads nothing slow, so that the next command finds it as the first one did.
AS_COMMANDS = """
import json, sys
from keras_transformer.cli.main import main
results = []
for arguments in json.loads(sys.stdin.read()):
    sys.argv = ["/bin/keras-transformer", *arguments]
    try:
        main()
    except SystemExit as end:
        heavy = {"tensorflow", "keras", "numpy", "ray", "yaml", "sentencepiece"}
        results.append([end.code or 0, sorted(heavy & set(sys.modules))])
print(json.dumps(results))
"""


@pytest.mark.slow
def test_help_and_mistakes_load_no_slow_library(tmp_path):
    commands = ["--help", "train --help", "translate --help", "serve --help"]
    mistakes = ["translate --modle run", "nonsense", "train wrong.yaml --output new"]
    mistakes += ["evaluate --model no --source a --reference b", "import no --output new"]
    mistakes += ["export --model no --format litert --output new"]
    mistakes += ["inspect --model no --text a --output new"]
    words = [command.split() for command in commands + mistakes]
    done = new_process(tmp_path, "-c", AS_COMMANDS, stdin=json.dumps(words))
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    assert results == [[0, []]] * len(commands) + [[2, []]] * len(mistakes)


LOADED = """
import sys
from keras_transformer.cli.main import main
try:
    main(["translate", "--help"])
except SystemExit:
    modules = "train translate evaluate export serve corpora".split()
    print([name for name in modules if f"keras_transformer.cli.{name}" in sys.modules])
"""


def test_a_command_loads_no_other_command(tmp_path):
    done = new_process(tmp_path, "-c", LOADED)
    assert done.stdout.splitlines()[-1] == "['translate']", done.stderr


INTERRUPTED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # A background job ignores it.
module = sys.argv[1]
class Finder:
    def find_spec(name, path, target=None):
        if name == module:
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                if "hidden" in sys.argv:
                    raise ValueError from None  # as pydantic does
                raise
sys.meta_path.insert(0, Finder)
sys.argv = ["keras-transformer", "translate", "--help", *sys.argv[2:]]
from keras_transformer.__main__ import start
start()
"""


@pytest.mark.parametrize(
    "arguments",
    ["cli.main", "base.errors", "cli.translate", "decoding.ranking", "cli.translate hidden"],
)
def test_an_interrupted_start_is_one_line(tmp_path, arguments):
    module, *options = arguments.split()
    done = new_process(tmp_path, "-c", INTERRUPTED, f"keras_transformer.{module}", *options)
    interrupted = "keras-transformer: interrupted\n"
    assert (done.returncode, done.stdout, done.stderr) == (130, "", interrupted)


@pytest.mark.parametrize("arguments", [["--verbose", "demo"], ["demo", "--verbose"], ["demo"]])
def test_tensorflow_speaks_with_verbose_before_a_command_or_after_it(arguments, monkeypatch):
    monkeypatch.setenv(LEVEL, "3")  # so that it is put back
    monkeypatch.delenv(LEVEL)
    levels = []
    add_options, _ = train.COMMANDS["demo"]
    demo = add_options, lambda options: levels.append(os.environ.get(LEVEL))
    monkeypatch.setitem(train.COMMANDS, "demo", demo)
    assert run(arguments) == 0
    assert (levels == ["0"]) == ("--verbose" in arguments)


COMMAND = """
import sys
from keras_transformer.cli import main as cli
code = cli.run(["translate", "--model", "run", "--beam-size", "1", "--max-length", "3"])
assert not [each for each in sys.meta_path if "keras" in type(each).__module__]
assert "tensorflow" in sys.modules
sys.exit(code)
"""


CACHE_COMPLAINT = re.compile("InitializeLog|XlaSerializedCacheEntry|Compiled cluster using XLA")


@pytest.mark.slow
def test_a_translation_writes_nothing_to_a_stderr_that_is_no_terminal(workplace):
    done = new_process(workplace, "-c", COMMAND, stdin="A dog.\n")
    # TensorFlow 2.20 itself complains about each program that it reads from the cache.
    lines = [line for line in done.stderr.splitlines() if not CACHE_COMPLAINT.search(line)]
    assert (done.returncode, lines) == (0, [])
    assert len(done.stdout.splitlines()) == 1
