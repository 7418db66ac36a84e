import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap

import keras
import pytest
from small_corpus import PAIRS, recipe_values, write_corpus, write_recipe

from keras_transformer import Tokenizer, Transformer, TransformerConfig, export
from keras_transformer.cli import main as cli
from keras_transformer.cli.main import run
from keras_transformer.engine.run_folder import save_model
from keras_transformer.errors import VerificationError
from keras_transformer.training import Recipe, RunFolder

pytestmark = pytest.mark.tensorflow

SOURCES = [source for source, _ in PAIRS]
TARGETS = [target for _, target in PAIRS]


def give_stdin(monkeypatch, content):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))


def test_help_names_the_commands_that_exist_and_no_other(capsys):
    with pytest.raises(SystemExit) as caught:
        run(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    names = "demo train translate chat score evaluate export inspect serve".split()
    for name in names:
        assert re.search(rf"^    {name}( |$)", text, re.MULTILINE)
    assert "summarize" not in text


def test_progress_goes_to_stderr_and_the_result_to_stdout(tmp_path, capsys):
    corpus = write_corpus(tmp_path / "corpus")
    values = recipe_values(corpus, epochs=1, jit_compile=False)
    recipe = write_recipe(tmp_path / "recipe.yaml", values)
    assert run(["train", str(recipe), "--output", str(tmp_path / "run")]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{tmp_path / 'run'}\n"
    assert "32 of 32 pairs kept" in captured.err
    (epoch,) = [line for line in captured.err.splitlines() if line.startswith("epoch 1/1: loss ")]
    assert re.search(
        r"loss [\d.]+, val_loss [\d.]+, accuracy [\d.]+, [\d,]+ tokens/s, [\d.]+ s$", epoch
    )
    assert "\b" not in captured.err and "step" not in captured.err.split("real tokens")[1]


# Bad input: each a line that names the place and what was expected, exit code 2, nothing left.


def small_run(folder, vocabulary_size=120):
    run_folder = RunFolder(folder)
    tokenizer = Tokenizer.train_from_texts(SOURCES + TARGETS, 120)
    run_folder.create(Recipe.from_dict(recipe_values(folder)), (tokenizer, tokenizer), {})
    config = TransformerConfig(
        vocabulary_size,
        model_dim=16,
        num_heads=2,
        intermediate_dim=16,
        num_encoder_layers=1,
        num_decoder_layers=1,
    )
    save_model(Transformer(config), run_folder.model_file)
    return run_folder


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    write_corpus(folder / "corpus")
    write_recipe(folder / "recipe.yaml", recipe_values("corpus"))
    small_run(folder / "run")
    return folder


@pytest.fixture
def place(prepared, tmp_path, monkeypatch):
    """A folder to work in, with a corpus, a recipe and a run."""
    place = shutil.copytree(prepared, tmp_path / "place")
    monkeypatch.chdir(place)
    return place


def everything(folder):
    return {
        path.relative_to(folder): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


TRAIN = ["train", "recipe.yaml", "--output", "new"]
TRANSLATE = ["translate", "--model", "run"]
SCORE = ["score", "--model", "run", "--source", "corpus/train.en"]
EVALUATE = ["evaluate", "--model", "run", "--source", "corpus/train.en"]
EXPORT = ["export", "--model", "run", "--format", "saved_model", "--output", "new"]


def nothing(place):
    pass


def write(name, content):
    def prepare(place):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_bytes(content)

    return prepare


def truncate(name, size):
    def prepare(place):
        (place / name).write_bytes((place / name).read_bytes()[:size])

    return prepare


BAD_INPUTS = {
    "a missing recipe": (nothing, ["train", "no.yaml", "--output", "new"], "no.yaml: cannot read"),
    "a missing corpus": (nothing, [*TRAIN, "--set", "data.folder=nowhere"], "nowhere/train.en"),
    "unequal line counts": (
        write("corpus/train.de", b"eins\nzwei\n"),
        TRAIN,
        "32 lines",
    ),
    "Latin-1 text": (
        write("corpus/train.de", "Straße\n".encode("latin-1") * 32),
        TRAIN,
        "corpus/train.de, line 1",
    ),
    "only blank lines": (write("corpus/train.en", b"\n" * 32), TRAIN, "No sentence pair is left"),
    "a damaged gzip": (
        write("corpus/train.en.gz", gzip.compress(b"one\ntwo\n" * 99)[:-9]),
        [*TRAIN, "--set", "data.train.source=train.en.gz"],
        "train.en.gz",
    ),
    "an unknown key": (nothing, [*TRAIN, "--set", "training.epoch=1"], "Did you mean `epochs`?"),
    "too large a vocabulary": (
        nothing,
        [*TRAIN, "--set", "text.vocabulary_size=50000"],
        "too large",
    ),
    "too small a batch": (
        nothing,
        [*TRAIN, "--set", "training.batch_tokens=3"],
        "batch_tokens",
    ),
    "a run that exists": (nothing, ["train", "recipe.yaml", "--output", "run"], "exists already"),
    "a file where the run should go": (
        write("new", b"mine"),
        TRAIN,
        "new: the output must be a folder",
    ),
    "options of sampling without it": (
        nothing,
        [*TRANSLATE, "--top-k", "1"],
        "`--top-k` needs `--sampling`: a search does not sample. Received: --top-k 1.",
    ),
    "a folder of other files": (
        nothing,
        ["train", "recipe.yaml", "--output", "corpus"],
        "corpus: exists already and is not a run. Give another --output",
    ),
    "no validation set": (
        nothing,
        [*TRAIN, "--set", "data.validation={}"],
        "or set `data.hold_out_every: 50`",
    ),
    "a run to serve": (
        nothing,
        ["serve", "--model", "run"],
        "Export it first: keras-transformer export --model run --format saved_model --output DIR",
    ),
    "nothing to resume": (
        nothing,
        ["train", "recipe.yaml", "--output", "run", "--resume"],
        "run:",
    ),
    "broken YAML": (write("recipe.yaml", b"data: ["), TRAIN, "recipe.yaml, line 1: not valid YAML"),
    "a missing run": (nothing, ["translate", "--model", "no"], "no: no such"),
    "a folder that is no run": (nothing, ["translate", "--model", "corpus"], "neither a run"),
    "a run without a model": (
        lambda place: (place / "run" / "model.keras").unlink(),
        TRANSLATE,
        "model.keras: no such model",
    ),
    "a truncated model": (truncate("run/model.keras", 2000), TRANSLATE, "cannot be read"),
    "a model of another vocabulary": (
        lambda place: save_model(
            Transformer(TransformerConfig(77, 16, 2, 16, 1, 1)), place / "run" / "model.keras"
        ),
        TRANSLATE,
        "has 120 ids, the model 77",
    ),
    "a model of another kind": (
        lambda place: keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]).save(
            place / "run" / "model.keras"
        ),
        TRANSLATE,
        "expected one of Transformer, RecurrentTranslator",
    ),
    "Latin-1 on stdin": (nothing, TRANSLATE, "stdin, line 2: expected UTF-8"),
    "no beam": (nothing, [*TRANSLATE, "--beam-size", "0"], "`--beam-size` must be a positive"),
    "more results than beams": (
        nothing,
        [*TRANSLATE, "--beam-size", "2", "--n-best", "3"],
        "`--n-best` must be at most `--beam-size`. Received: --n-best 3, --beam-size 2.",
    ),
    "an id outside the vocabulary": (
        nothing,
        [*TRANSLATE, "--banned-ids", "5", "120"],
        "`--banned-ids` must name ids of the vocabulary, from 0 to 119. Received: 120.",
    ),
    "a stream of several hypotheses": (
        nothing,
        [*TRANSLATE, "--stream", "--beam-size", "2"],
        "Only one hypothesis can be streamed",
    ),
    "prefixes of fewer lines": (
        write("prefixes", b""),
        [*TRANSLATE, "--target-prefixes", "prefixes"],
        "prefixes: ends after line 0, but stdin has a line 1",
    ),
    "a missing target": (nothing, [*SCORE, "--target", "no.de"], "no.de"),
    "a target of another length": (
        write("short.de", b"eins\n"),
        [*SCORE, "--target", "short.de"],
        "train.en with 32 lines, short.de with 1 lines",
    ),
    "a missing reference": (nothing, [*EVALUATE, "--reference", "no.de"], "no.de"),
    "a reference of another length": (
        write("short.de", b"eins\n"),
        [*EVALUATE, "--reference", "short.de"],
        "short.de",
    ),
    "an export that exists": (write("new/mine.txt", b"mine"), EXPORT, "new"),
    "an export of no run": (
        nothing,
        ["export", "--model", "corpus", "--format", "saved_model", "--output", "new"],
        "not a run folder",
    ),
}


@pytest.mark.parametrize("case", BAD_INPUTS)
def test_bad_input_is_one_line_exit_code_2_and_leaves_nothing(case, place, capsys, monkeypatch):
    prepare, arguments, expected = BAD_INPUTS[case]
    prepare(place)
    before = everything(place)
    give_stdin(monkeypatch, b"A dog.\nStra\xdfe\n" if "stdin" in case else b"A dog.\n")
    assert run(arguments) == 2
    captured = capsys.readouterr()
    *_, last = captured.err.splitlines()
    assert last.startswith("keras-transformer: ")
    assert expected in last
    assert "Traceback" not in captured.err
    assert everything(place) == before


def test_an_export_that_fails_its_verification_is_one_line_and_exit_code_1(
    place, capsys, monkeypatch
):
    def fail(*arguments, **options):
        raise VerificationError("3 of 200 translations differ.")

    monkeypatch.setattr(export, "export_run", fail)
    assert run(EXPORT) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[-1] == "keras-transformer: 3 of 200 translations differ."


def test_the_installed_command_says_one_line_and_no_traceback(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "keras_transformer", "serve", "--model", "m", "--replicas", "0"],
        cwd=tmp_path,
        env={key: os.environ[key] for key in os.environ.keys() - {"TF_CPP_MIN_LOG_LEVEL"}},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("keras-transformer: `--replicas` must be a positive integer, or auto.")


def new_process(code, folder, stdin="", **environment):
    """What `python -c` did, without the level of messages that the tests run with."""
    inherited = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=folder,
        env={**inherited, **environment},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
    )


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


def test_help_and_mistakes_load_no_slow_library(tmp_path):
    commands = ["--help", "train --help", "translate --help", "serve --help"]
    mistakes = ["translate --modle run", "nonsense", "train wrong.yaml --output new"]
    mistakes += ["evaluate --model no --source a --reference b", "import no --output new"]
    mistakes += ["export --model no --format litert --output new"]
    mistakes += ["inspect --model no --source a --output new"]
    words = [command.split() for command in commands + mistakes]
    done = new_process(AS_COMMANDS, tmp_path, stdin=json.dumps(words))
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    assert results == [[0, []]] * len(commands) + [[2, []]] * len(mistakes)


IMPORT_TENSORFLOW = """
    import os, sys
    from keras_transformer.cli import main as cli
    from keras_transformer.cli import train
    def load(*arguments, **options):
        from keras_transformer.quiet import import_tensorflow
        tensorflow = import_tensorflow()
        {then}
    train._demo = load
    sys.argv = ["keras-transformer", {arguments}]
    sys.exit(cli.run())
"""


def test_verbose_stands_before_a_command_or_after_it():
    for place in (["--verbose", "demo"], ["demo", "--verbose"]):
        assert cli._parser().parse_args(place).verbose


def test_tensorflow_speaks_with_verbose(tmp_path):
    then = "tensorflow.config.list_physical_devices(); os.write(2, b'ours')"
    code = IMPORT_TENSORFLOW.format(arguments='"demo", "--verbose"', then=then)
    done = new_process(code, tmp_path)
    assert done.returncode == 0
    assert "cpu_feature_guard" in done.stderr and done.stderr.endswith("ours")


COMMAND = """
    import sys
    from keras_transformer.cli import main as cli
    code = cli.run({arguments})
    assert not [each for each in sys.meta_path if "keras" in type(each).__module__]
    assert "tensorflow" in sys.modules
    sys.exit(code)
"""


def test_a_translation_writes_nothing_to_a_stderr_that_is_no_terminal(place):
    arguments = ["translate", "--model", "run", "--beam-size", "1", "--max-length", "3"]
    code = COMMAND.format(arguments=arguments)
    done = new_process(code, place, stdin="A dog.\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1


def test_messages_of_a_tensorflow_that_does_not_load_are_shown(tmp_path):
    broken = "import os; os.write(2, b'a reason\\n'); raise ImportError('no such symbol')"
    (tmp_path / "tensorflow.py").write_text(broken.replace("\\\\", "\\"))
    code = IMPORT_TENSORFLOW.format(arguments='"demo"', then="pass")
    done = new_process(code, tmp_path)
    assert done.returncode != 0
    assert "a reason" in done.stderr and "no such symbol" in done.stderr
