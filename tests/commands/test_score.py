import json


def test_pairs_and_options_reach_the_translator(call, tmp_path):
    (tmp_path / "en").write_text("a\nb\n")
    (tmp_path / "de").write_text("A\nB\n")
    files = ["--source", str(tmp_path / "en"), "--target", str(tmp_path / "de")]
    options = ["--length-penalty", "1", "--alignment", "--attention-layer", "0"]
    code, out, err, asked = call("score", *files, *options, "--attention-heads", "1", "2")
    assert (code, err) == (0, "")
    assert [json.loads(line)["target"] for line in out.splitlines()] == ["A", "B"]
    assert asked[-1] == {
        "batch_size": 32,
        "length_penalty": 1.0,
        "alignment": True,
        "attention_layer": 0,
        "attention_heads": [1, 2],
    }


def test_a_file_that_is_not_there_is_named(call, tmp_path):
    code, out, err, _ = call("score", "--source", "no.en", "--target", "no.de")
    assert (code, out) == (2, "")
    assert err.startswith("keras-transformer: no.en: no such file")
