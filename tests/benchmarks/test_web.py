import json
import types

import pytest

from benchmarks import web
from keras_transformer import Translation, Translator

pytestmark = pytest.mark.tensorflow


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


def test_the_page_is_measured_beside_bergamots(tmp_path, monkeypatch, capsys):
    (tmp_path / "source").write_text("one two\nthree\n")
    for name in ("export/model.tflite", "model/model.bin", "model/vocab.spm", "model/lex.bin"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("seven b")
    (tmp_path / "npm" / "node_modules" / web._BERGAMOT).mkdir(parents=True)
    answer = {
        "together": {"page": [500, 100, 200], "bergamot": [300, 400, 900]},
        "singly": {"page": [50, 40, 80], "bergamot": [25, 25, 20]},
        "texts": {"page": ["a", "b"], "bergamot": ["a", "c"]},
    }
    asked = ["/", "/page/model.tflite", "/model/lex.bin", "/registry.json", "/model/lex.bin"]
    monkeypatch.setattr(web, "_run_script", lambda browser, script: answer)
    monkeypatch.setattr(web, "_page_memory", lambda browser: next(memory))
    memory = iter([100, 130, 100, 150])
    server = types.SimpleNamespace(asked=asked)
    monkeypatch.setattr(web, "_in_browser", lambda root, function: function(None, server))
    folders = [f"--{name}={tmp_path / name}" for name in ("model", "npm", "source")]
    web.main(["bergamot", "--artifact", str(tmp_path / "export"), "--singly", "1", *folders])
    report = json.loads(capsys.readouterr().out)
    # Medians: three words in 0.2 and 0.4 s, and two words in 0.05 and 0.025 s.
    rates = [
        report[name][kind]["words_per_second"]
        for kind in ("together", "singly")
        for name in ("page", "bergamot")
    ]
    assert rates == [15, 8, 40, 80]
    assert report["ratio"] == {"together": 2, "singly": 0.5}
    assert [report[name]["bytes"] for name in ("page", "bergamot")] == [14, 14]
    assert [report[name]["memory_megabytes"] for name in ("page", "bergamot")] == [30, 50]
    assert (report["sentences"], report["equal_texts"]) == (2, 1)
    (tmp_path / "model" / "lex.2.bin").touch()
    with pytest.raises(SystemExit):
        web.main(["bergamot", "--artifact", str(tmp_path / "export"), *folders])
    assert "one lex*.bin. Received: 2 in" in capsys.readouterr().err
