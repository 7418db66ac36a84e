"""What commands take on large models, and what a page translates beside Python."""

import json
import sys

import pytest
from test_readme import parsed

from benchmarks import large, web
from keras_transformer import Translation, Translator

# A program that takes a second, 300 MB here and in a process of its own, and writes a file.
TAKES = """
import pathlib, subprocess, sys, time
block = bytearray(b"x" * 150_000_000)
words = sys.argv[1:]
if words:
    subprocess.Popen([sys.executable, *sys.orig_argv[1:3]])
    folder = pathlib.Path(words[words.index("--output") + 1])
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text("max_target_length: 7" + " " * 5_000_000)
time.sleep(1)
"""


def test_a_table_of_commands_on_a_model(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(large, "PROGRAM", [sys.executable, "-c", TAKES])
    words = "--shape toy --dtype float16 --commands import lora"
    large.main(["--work", str(tmp_path), *words.split()])
    report = json.loads(capsys.readouterr().out)
    assert [row["command"] for row in report["rows"]] == ["import", "lora"]
    size = (tmp_path / "model-toy" / "model.safetensors").stat().st_size
    assert report["weights"] == pytest.approx(size / 2e9)
    for row in report["rows"]:
        assert 1 <= row["seconds"] < 60 and 0.3 < row["peak, GB"] < 0.7 and row["MB"] == 5
        assert row["× weights"] == pytest.approx(row["peak, GB"] / report["weights"], rel=0.01)


def test_the_commands_are_those_of_the_package():
    names = {name: f"{name}-file" for name in ("model", "run", "out", "text", "recipe")}
    for command in large.COMMANDS.values():
        parsed("keras-transformer", command.format(dtype="float16", **names).split())


@pytest.mark.tensorflow
def test_translations_in_the_browser_are_counted_beside_pythons(tmp_path, monkeypatch, capsys):
    sources = ["one two", "three four five", "six", "seven"]
    (tmp_path / "source").write_text("".join(line + "\n" for line in sources))

    class Upper:
        def translate(self, texts, beam_size, threads, long_input):
            assert (threads, long_input) == (1, "split")
            return [Translation(text.upper(), -float(beam_size)) for text in texts]

    def page(texts, together):
        scores = [-1.0, -1.25, -1.0, -1.0]
        return {"1": dict(texts=texts, together=together, scores=scores, tokens=8, ms=[500, 250])}

    texts = [text.upper() for text in sources]
    online = page([*texts[:3], "OTHER"], [*texts[:3], "THIRD"])
    offline = page(["LOST", *texts[1:3], "OTHER"], texts)
    monkeypatch.setattr(web, "_visit", lambda folder, script: (online, offline, {"bytes": 7}))
    monkeypatch.setattr(Translator, "load", lambda folder: Upper())
    web.main(["--artifact", "export", "--source", str(tmp_path / "source")])
    report = json.loads(capsys.readouterr().out)
    row = report["beam_size=1"]
    assert report["bytes"] == 7 and row["sentences"] == 4
    counts = row["equal_to_python"], row["equal_offline"], row["equal_in_batches"]
    assert counts == (3, 3, 3)
    assert row["score_difference"] == pytest.approx({"mean": 0.25 / 3, "largest": 0.25})
    assert [different["source"] for different in row["different"]] == ["seven"]
    # Seven words and eight tokens in half a second.
    assert row["words_per_second"]["browser"] == {"one by one": 14, "in fours": 28}
    assert (row["tokens_per_second"], row["ms_per_sentence"]) == (16, 125)
