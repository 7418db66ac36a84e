import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.tensorflow

EXPORT = Path(__file__).parents[3] / "export"
LINES = ["a man", "", "two dogs", "a girl runs"]

# Nothing but LiteRT and SentencePiece may be there.
ALONE = """
import runpy, sys
for name in ("tensorflow", "keras", "keras_transformer", "tensorflow_text"):
    sys.modules[name] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(("search", "beam_size"), [("greedy", 1), ("beam", 3)])
def test_the_example_translates_without_this_package(litert_report, engine, search, beam_size):
    program = EXPORT / "litert" / "translate.py"
    assert len(program.read_text(encoding="utf-8").splitlines()) <= 60
    command = [sys.executable, "-P", "-c", ALONE, program, litert_report.folder]
    done = subprocess.run(
        [*map(str, command), "--search", search, "--batch-size", "2"],
        input="".join(line + "\n" for line in LINES).encode(),
        env={**os.environ, "PYTHONUTF8": "1"},
        capture_output=True,
        check=True,
    )
    live = engine.translate(LINES, beam_size, 0.8)
    assert done.stdout.decode("utf-8") == "".join(each.text + "\n" for each in live)


@pytest.fixture(scope="module")
def program(load_program):
    return load_program("export/artifact_table.py")


def test_the_table_measures_the_translations_of_the_artifact(program, litert_report, engine):
    lines = [line for line in LINES if line] * 2
    figures = program.measure("LiteRT float32", litert_report.folder, lines, "1x2")
    live = [each.text for each in engine.translate(lines, 3, 0.8)]
    assert figures["texts"] == live
    assert figures["texts_1"] == live
    json.dumps(figures)
    names = ("load_seconds", "first_sentence_seconds", "seconds_1", "seconds_32", "peak_megabytes")
    assert all(figures[name] > 0 for name in names)


def test_the_table_counts_the_files_that_translate(program, litert_report):
    names = {path.name for path in program.files_of("LiteRT int8", litert_report.folder)}
    assert names == {"model_ids.tflite", "tokenizer.model"}


def test_the_table_is_markdown(program):
    row = {
        "artifact": "LiteRT int8",
        "megabytes": 3.14,
        "bleu": 35.678,
        "tokens_per_second_1": 1234,
        "setting_1": "1x2",
        "tokens_per_second_32": 5678,
        "setting_32": "2x1",
        "peak_megabytes": 99,
        "load_seconds": 0.05,
        "first_sentence_seconds": 0.012,
    }
    *_, last = program.table([row])
    assert last == "| LiteRT int8 | 3.1 | 35.68 | 1,234 (1x2) | 5,678 (2x1) | 99 | 0.05 | 0.01 |"
