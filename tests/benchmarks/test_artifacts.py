import json
import pathlib

import pytest

from benchmarks import artifacts

pytestmark = pytest.mark.tensorflow


def test_an_export_is_made_once_and_a_start_is_a_median_of_processes(tmp_path, monkeypatch, capsys):
    lines = ["Zwei Hunde spielen im Schnee .", "Ein Mann fährt auf einem Fahrrad ."]
    for name in ("source", "reference"):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    calls, seconds = [], iter([9.0, 1.0, 3.0, 2.0] * 2)

    def call(*words, module="keras_transformer"):
        calls.append([str(word) for word in words])
        if words[0] == "export":
            folder = pathlib.Path(words[words.index("--output") + 1])
            folder.mkdir(parents=True)
            (folder / "model.tflite").write_bytes(bytes(250_000))
            (folder / "tokenizer.model").write_bytes(bytes(50_000))
            (folder / "tokenizer.json").write_bytes(bytes(10**6))  # for the browser

    def in_new_process(path, texts, beam_size):
        assert beam_size == 2 and texts == lines[: len(texts)]
        stages = dict.fromkeys(("process", "load", "first", "second"), next(seconds))
        rates = {"one by one": 1234.4, "text": 5678.6, "peak": 99.7}
        return {**stages, **rates, "texts": lines}

    monkeypatch.setattr(artifacts, "call", call)
    monkeypatch.setattr(artifacts, "in_new_process", in_new_process)
    command = ["--model", "run", "--work", str(tmp_path / "work"), "--beam-size", "2"]
    command += ["--source", str(tmp_path / "source"), "--reference", str(tmp_path / "reference")]
    for exports in (1, 0):
        calls.clear()
        artifacts.main([*command, "--formats", "LiteRT int8"])
        captured = capsys.readouterr()
        (row,) = json.loads(captured.out)
        assert sum(words[0] == "export" for words in calls) == exports
        assert (row["export s"] is not None) == bool(exports)
        assert row["MB"] == 0.3 and row["BLEU"] == 100
        assert "| 1234 | 5679 | 100 | 2.0 | 2.0 | 2.0 | 2.0 |" in captured.err
