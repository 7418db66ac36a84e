import json

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
