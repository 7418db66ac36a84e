import json


def test_every_option_of_decoding_may_be_given(call, tmp_path):
    (tmp_path / "en").write_text("a b c d\n")
    (tmp_path / "de").write_text("A B C D\n")
    files = ["--source", str(tmp_path / "en"), "--reference", str(tmp_path / "de")]
    code, out, _, asked = call("evaluate", *files, "--long-input", "split", "--beam-size", "3")
    assert code == 0
    assert json.loads(out)["bleu"] == 100.0
    assert asked == [{"long_input": "split", "beam_size": 3}]
