"""The C program of `export/c_client` on an export."""

import pathlib
import shutil
import subprocess
import sys

import pytest

HAS_TOOLS = shutil.which("cc") and shutil.which("make")
needs_tools = pytest.mark.skipif(not HAS_TOOLS, reason="needs a C compiler and make")
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, needs_tools]

SOURCE = pathlib.Path(__file__).parents[2] / "export" / "c_client"
TOO_LONG = "two dogs eats an apple near the river and " * 9000  # 378 kB


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """`client(*arguments, stdin=b"")`: the finished process."""
    folder = shutil.copytree(SOURCE, tmp_path_factory.mktemp("build") / "c_client")
    make = ["make", "-s", "-C", str(folder), f"PYTHON={sys.executable}"]
    subprocess.run([*make, "clean", "translate"], check=True, capture_output=True)
    done = subprocess.run([*make, "operations"], check=True, capture_output=True, text=True)
    library = done.stdout.strip()

    def client(*arguments, stdin=b"", operations=library):
        command = [folder / "translate", "--operations", operations, *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, timeout=120)

    return client


def test_it_translates_lines_as_the_export_does(client, report, served, texts):
    lines = [*texts[:4], "", TOO_LONG, "Grüße, 世界 😀\t\u3000", "\u3000", "\x01\x7f"]
    stdin = ("\ufeff" + "\n".join(lines)).encode()  # the last line without an end
    done = client(report.folder, "--batch", "3", stdin=stdin.replace(b"\n", b"\r\n", 1))
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode() == "".join(text + "\n" for text in served(lines)[0])


def save_model(folder, end):
    """Writes a SavedModel whose translation is the text, a line break and an end.

    Its signature `score` takes another input.
    """
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.string, name="text")])
    def translate(text):
        return {"translation": tf.strings.join([text, end], "\n")}

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.string, name="source")])
    def score(source):
        return {"score": tf.strings.length(source)}

    tf.saved_model.save(tf.Module(), folder, {"serving_default": translate, "score": score})


def test_a_line_break_in_a_translation_shifts_nothing(client, tmp_path):
    save_model(tmp_path, "one\r")
    done = client(str(tmp_path), stdin=b"a\n\nb\n")
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == b"a one \n one \nb one \n"


def test_the_highest_of_numbered_exports_is_used(client, tmp_path):
    for name in ("2", "10", "x11", "9x"):
        save_model(tmp_path / name, name)
    (tmp_path / "12").mkdir()  # an export that is being copied there
    done = client(f"{tmp_path}/", stdin=b"a\n")
    assert (done.returncode, done.stdout) == (0, b"a 10\n"), done.stderr.decode()


def test_mistakes_end_in_one_line_and_code_2(client, tmp_path):
    folder = str(tmp_path / "export")
    save_model(folder, "one")
    cases = [
        ([str(tmp_path / "nowhere")], str(tmp_path / "nowhere")),
        ([folder, "--signature", "bean"], "bean: the SavedModel has no such signature"),
        ([folder, "--signature", "score"], "text: the signature has no such input"),
        ([folder, "--batch", "0"], "--batch: expected 1 to"),
        ([folder, "--beam"], "--beam: expected"),
        ([], "arguments: expected the folder"),
    ]
    for arguments, message in cases:
        done = client(*arguments, stdin=b"a man\n")
        assert (done.returncode, done.stdout) == (2, b"")
        *_, last = done.stderr.decode().splitlines()
        assert last.startswith(f"translate: {message}"), last
    done = client(folder, operations=str(tmp_path / "none.so"))
    assert done.returncode == 2 and "none.so" in done.stderr.decode().splitlines()[-1]
