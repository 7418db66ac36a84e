"""Streams that the shell has closed, or that take no byte: results, messages and exit codes."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
from small_corpus import write_corpus

ROOT = pathlib.Path(__file__).parents[2]
needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")

# An engine that warns, as a library would, and a library that writes to descriptor 2.
TRANSLATE = """
import contextlib, os, signal, sys, warnings
from keras_transformer import Translation, Translator
from keras_transformer.cli import main as cli

class Engine:
    labels = turns = None
    reads_sources, long_inputs, lines_at_once = True, ("refuse", "split"), 1024
    engine = property(lambda self: self)

    def check_options(self, **options):
        pass

    def translate(self, texts, **options):
        opened = open("opened", "w")
        warnings.warn("a message", UserWarning)
        with contextlib.suppress(OSError):
            os.write(2, b"a line of a library")
        return [Translation(text.upper(), 0.0) for text in texts]

Translator.load = lambda path: Engine()
signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell's background jobs ignore it.
sys.exit(cli.run(["translate", "--model", "m"]))
"""


@pytest.fixture
def shell(tmp_path):
    """`shell(line)` runs a line, with the functions `transformer` and `translate`."""

    def shell(line):
        (tmp_path / "translate.py").write_text(TRANSLATE)
        functions = 'transformer() { "$PYTHON" -m keras_transformer "$@"; }\n'
        functions += 'translate() { "$PYTHON" translate.py; }\n'
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHON": sys.executable}
        command, options = ["sh", "-c", functions + line], {"env": environment, "timeout": 300}
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, **options)

    shell.folder = tmp_path
    return shell


@needs_full
@pytest.mark.parametrize(
    "command", ["transformer", "transformer translate", "export PYTHONUNBUFFERED=1; transformer"]
)
def test_a_help_text_that_is_lost_is_an_error(command, shell):
    done = shell(f"{command} --help >/dev/full")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line == "keras-transformer: cannot write: No space left on device."


@pytest.mark.parametrize("stderr", ["&-", pytest.param("/dev/full", marks=needs_full)])
def test_messages_that_nobody_reads_change_neither_the_result_nor_the_exit_code(stderr, shell):
    done = shell(f"printf 'a\\nb\\n' | translate 2>{stderr}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "A\nB\n", "")
    assert (shell.folder / "opened").read_text() == ""
    # A mistake in a file, and one in the options.
    for mistake in ("train no.yaml --output new", "translate --modle m"):
        assert shell(f"transformer {mistake} 2>{stderr}").returncode == 2


def test_a_result_without_a_place_is_refused_before_the_work_begins(shell):
    done = shell("printf 'a\\n' | translate >&-")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("keras-transformer: stdout is closed")
    assert not (shell.folder / "opened").exists()
    assert shell("translate >&- 2>&- <&-").returncode == 2


@needs_full
def test_a_result_that_cannot_be_written_is_one_line(shell):
    done = shell("printf 'a\\n' | translate >/dev/full")
    assert done.returncode == 2
    *_, line = done.stderr.splitlines()
    assert line == "keras-transformer: cannot write: No space left on device."


def test_a_file_that_cannot_be_written_is_named_in_one_line(shell):
    write_corpus(shell.folder / "corpus")
    clean = "transformer clean corpus/train.en corpus/train.de --processes 1 --output out"
    # Files of 512 bytes; modules that Python compiles now would be cut off, too.
    done = shell(f"export PYTHONDONTWRITEBYTECODE=1; ulimit -f 1; {clean}")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    name = re.match("keras-transformer: (.+): cannot be written: File too large.", done.stderr)[1]
    assert name in ("out/train.en", "out/train.de") and not (shell.folder / "out").exists()


def test_a_closed_stdin_concerns_only_commands_that_read_it(shell):
    done = shell("translate <&-")
    assert done.returncode == 2 and "stdin is closed" in done.stderr
    write_corpus(shell.folder / "corpus")
    learn = "transformer glossary corpus/train.en corpus/train.de"
    expected = shell(learn)
    assert expected.returncode == 0 and "girl\tMädchen\n" in expected.stdout
    done = shell(f"{learn} <&- 2>&-")
    assert (done.returncode, done.stdout) == (0, expected.stdout)


def test_ctrl_c_between_two_lines_ends_the_command_quietly(shell):
    translate = "mkfifo in; \"$PYTHON\" translate.py <in >out & exec 3>in; printf 'a\\n' >&3"
    # The answer comes although stdin is still open.
    done = shell(f"{translate}; until [ -s out ]; do sleep 0.1; done; kill -INT $!; wait $!")
    assert done.returncode == 130 and (shell.folder / "out").read_text() == "A\n"
    assert done.stderr.splitlines()[-1].endswith("keras-transformer: interrupted")
    assert "Traceback" not in done.stderr


def test_a_reader_that_leaves_early_ends_the_command_quietly(shell):
    done = shell("{ yes a | translate; echo $? >code; } | head -1")
    assert (done.stdout, (shell.folder / "code").read_text()) == ("A\n", "141\n")
    assert "Traceback" not in done.stderr and "Broken" not in done.stderr
