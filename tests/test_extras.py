"""The core knows no extra: each folder around it may be deleted, and what is left still runs.

Without an extra's folder, all commands outside of it show their help and run, `--format` offers
the formats that are there, and models of the other programs are imported.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from test_architecture import CORE, EXTRAS, MODULES, PACKAGE

TESTS = pathlib.Path(__file__).parent
# Commands read lines with `bulk`, and programs share `foreign`.
FOLDERS = [f"extras/{name}" for name in sorted(EXTRAS - {"bulk", "foreign"})]
FOLDERS += ["extras/importing/fetching", "export/litert"]
CORE_MODULES = sorted(
    name
    for name in MODULES
    if name.split(".")[1:2] and name.split(".")[1] in CORE and ".litert" not in name
)
# What a user loses with a folder: commands, export formats, and programs whose models are read.
COMMANDS = [
    "demo",
    "train",
    "import",
    "translate",
    "chat",
    "score",
    "evaluate",
    "inspect",
]
COMMANDS += ["export", "serve", "clean", "synthesize", "glossary", "shortlist"]
COMMANDS_OF = {
    "extras/analysis": ["inspect"],
    "extras/corpora": ["clean", "glossary", "shortlist"],
    "extras/importing": ["import"],
    "extras/foreign": ["import"],
    "extras/serving": ["serve"],
}
FORMAT_NAMES = ["saved_model", "litert", "web", "ctranslate2", "marian", "hugging_face", "argos"]
FORMATS_OF = {
    "extras/web": ["web"],
    "export/litert": ["litert", "web"],
    "extras/foreign": [],
    "extras/argos": ["argos"],
    "extras/ctranslate2": ["ctranslate2", "argos"],
    "extras/hugging_face": ["hugging_face"],
    "extras/marian": ["marian"],
}
MODELS = {
    "extras/marian": str(TESTS / "data" / "marian" / "opus"),
    "extras/ctranslate2": str(TESTS / "data" / "ctranslate2" / "old_v5_txt"),
}
# Tests of each part of the core, of which most import it all; names of files and of tests.
QUICK = """
layers/test_masks.py
layers/test_blocks.py::test_without_the_causal_mask_the_first_position_sees_the_last
models/test_config.py
models/test_every_model.py::test_the_output_shape_is_that_of_the_logits[transformer]
decoding/test_search_options.py::test_a_value_out_of_range_is_an_error_that_names_it
decoding/test_beam.py::test_two_beams_find_what_one_passes_by
decoding/test_selection.py::test_rows_of_each_sentence_are_its_own
engine/unit/test_scheduler.py::test_batches_that_are_decoded_at_once_change_nothing
training/unit/test_optimizer.py::test_averages_take_the_place_of_weights_and_give_it_back_bit_for_bit
training/test_recipe.py::test_null_removes_a_key_that_cannot_be_null
training/test_recipe.py::test_the_shipped_recipes_are_recipes_with_the_learning_rates_of_their_models
""".split()
# Each tree has a process of its own, a fork of one that has loaded the slow libraries. `tested` is
# the tree whose tests run.
PROGRAM = """
import contextlib, importlib, io, json, os, sys, traceback
import keras, pydantic, tensorflow, yaml

# An editable installation would find the folder that a tree lacks.
finders = {finder: getattr(finder, "__module__", "") for finder in sys.meta_path}
sys.meta_path[:] = [finder for finder in finders if "__editable__" not in finders[finder]]

def test(tree):
    import pytest
    from keras_transformer.cli.main import run
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as told:
        run(["export", "--help"])
    assert "--signatures" in told.getvalue()
    assert pytest.main(["-q", "-p", "no:cacheprovider", *(f"tests/{name}" for name in quick)]) == 0

# The exit code and the stdout of a command.
def output_of(*arguments):
    from keras_transformer.cli.main import run
    with contextlib.redirect_stdout(io.StringIO()) as told:
        try:
            code = run(arguments)
        except SystemExit as ended:
            code = ended.code
    return code, " ".join(told.getvalue().split())

# Every command outside of an extra shows its help, with the formats that are there.
def check_commands(folder):
    for command in set(commands) - set(commands_of.get(folder, ())):
        code, help = output_of(command, "--help")
        assert code == 0 and f"example: keras-transformer {command}" in help, command
    present = [name for name in formats if name not in formats_of.get(folder, ())]
    assert f"one of {', '.join(present)} --" in output_of("export", "--help")[1]

# `translate` writes the lines of stdin, `evaluate` scores the pairs of a table: an engine copies.
def check_engine(tree):
    from keras_transformer import Translation, Translator
    from keras_transformer.engine import Engine

    class Copy(Engine):
        def translate(self, texts, **options):
            return [Translation(text, 0.0) for text in texts]

    Translator.load = lambda path, **options: Translator(Copy())
    with open("pairs.tsv", "w") as file:
        file.write("two dogs play here\\ttwo dogs play here\\n")
    with open("lines.txt", "w") as file:
        file.write("two dogs play here\\n")
    with open("lines.txt") as sys.stdin:
        assert output_of("translate", "--model", tree) == (0, "two dogs play here")
    code, scores = output_of("evaluate", "--model", tree, "--source", "pairs.tsv")
    assert code == 0 and json.loads(scores)["bleu"] == 100.0

# A translation memory is training data only with the folder that reads it.
def check_memory():
    from keras_transformer.cli.main import run
    with open("recipe.yaml", "w") as file:
        file.write("data: {train: {source: memory.tmx, languages: en-de}}\\n")
    with contextlib.redirect_stderr(io.StringIO()) as told:
        assert run(["train", "recipe.yaml", "--output", "run"]) == 2
    (line,) = told.getvalue().splitlines()
    assert "needs the folder keras_transformer/extras/corpora: install" in line

# Without LiteRT's folder a file of it is one line, and so are the formats that write one.
def check_litert():
    from keras_transformer.cli.main import run
    from keras_transformer.base.errors import InputError
    from keras_transformer.export import exporter_of
    needed = "needs the folder keras_transformer/export/litert: install keras-transformer-nmt"
    for name in formats_of["export/litert"]:
        try:
            exporter_of(name)
        except InputError as error:
            assert needed in str(error)
        else:
            raise AssertionError(name)
    os.mkdir("exported")
    open("exported/model.tflite", "w").close()
    with contextlib.redirect_stderr(io.StringIO()) as told:
        assert run(["translate", "--model", "exported"]) == 2
    (line,) = told.getvalue().splitlines()
    assert needed in line

# HTML and placeholders are asked for in vain, in one line.
def check_markup():
    from keras_transformer.cli.main import run
    with open("lines.txt") as sys.stdin, contextlib.redirect_stderr(io.StringIO()) as told:
        assert run(["translate", "--model", "run", "--markup", "html"]) == 2
    (line,) = told.getvalue().splitlines()
    assert "needs the folder keras_transformer/extras/markup: install keras-transformer-nmt" in line

# A whole document is asked for in vain, in one line; `check_engine` has translated lines.
def check_documents(tree):
    from keras_transformer.cli.main import run
    with open("page.html", "w") as file:
        file.write("<!doctype html><p>two dogs</p>")
    for arguments in ["lines.txt"], ["--markup", "html"]:
        with open("page.html") as sys.stdin, contextlib.redirect_stderr(io.StringIO()) as told:
            assert run(["translate", "--model", tree, *arguments]) == 2
        (line,) = told.getvalue().splitlines()
        needed = "needs the folder keras_transformer/extras/documents: install"
        assert needed in line

# Models of the other programs are read, and a folder becomes a run without downloads.
def check_import(folder, tree):
    from pathlib import Path
    from keras_transformer.extras.importing.importing import read_model
    for program in models.keys() - {folder}:
        assert read_model(Path(models[program])).tensors
    if folder == "extras/importing/fetching":
        run = f"{tree}/run"
        assert output_of("import", models["extras/marian"], "--output", run) == (0, run)

trees, modules, quick, *tables = map(json.loads, sys.argv[1:])
commands, commands_of, formats, formats_of, models = tables
statuses = {}
for folder, tree in trees.items():
    if not (child := os.fork()):
        sys.path.insert(0, tree)
        try:
            os.chdir(tree)
            if folder == "tested":
                test(tree)
            else:
                check_commands(folder)
                if folder == "export/litert":
                    check_litert()
                check_engine(tree)
            if folder == "extras/corpora":
                check_memory()
            if folder == "extras/documents":
                check_documents(tree)
            if folder == "extras/markup":
                check_markup()
            if folder in {*models, "extras/argos", "extras/importing/fetching"}:
                check_import(folder, tree)
            for name in modules:
                importlib.import_module(name)
            assert sys.modules[name].__file__.startswith(tree)
        except BaseException:
            traceback.print_exc()
            sys.stdout.flush()
            os._exit(1)
        os._exit(0)
    statuses[folder] = os.waitpid(child, 0)[1]
print(json.dumps(statuses))
"""


def copy_without(folders, parent):
    """The parent of a copy of the package that lacks some folders."""
    copy = parent / PACKAGE.name
    shutil.copytree(PACKAGE, copy)  # with the bytecode, which no process would write
    for folder in folders:
        shutil.rmtree(copy / folder)
    return parent


@pytest.fixture(scope="module")
def statuses(tmp_path_factory):
    """The exit status of each tree's process, and what all of them say."""
    base = tmp_path_factory.mktemp("trees")
    trees = {name: copy_without([name], base / name.replace("/", "-")) for name in FOLDERS}
    trees["tested"] = tested = copy_without(["extras"], base / "tested")
    shutil.copytree(TESTS, tested / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(TESTS.parent / "pyproject.toml", tested)
    shutil.copytree(TESTS.parent / "training", tested / "training")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
    arguments = (
        json.dumps({name: str(tree) for name, tree in trees.items()}),
        *map(json.dumps, (CORE_MODULES, QUICK)),
        *map(json.dumps, (COMMANDS, COMMANDS_OF, FORMAT_NAMES, FORMATS_OF, MODELS)),
    )
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, env=environment, cwd=base, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), (done.stdout + done.stderr)[-5000:]


@pytest.mark.parametrize("name", QUICK)
def test_the_cores_quick_tests_have_their_names(name):
    file, _, test = name.partition("::")
    assert f"def {test.partition('[')[0]}" in (TESTS / file).read_text("utf-8")


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize("folder", FOLDERS)
def test_what_is_left_runs_without_the_folder(statuses, folder):
    assert statuses[0][folder] == 0, statuses[1]


@pytest.mark.slow
@pytest.mark.tensorflow
def test_the_cores_quick_tests_pass_without_any_extra(statuses):
    assert statuses[0]["tested"] == 0, statuses[1]
