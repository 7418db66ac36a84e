import json

import pytest

from benchmarks import loader

pytestmark = pytest.mark.tensorflow


def test_the_loader_reads_all_pairs_of_three_corpora(tmp_path, capsys):
    command = ["read", "--lines", "7000", "--folder", str(tmp_path), "--corpora", "3"]
    loader.main([*command, "--batches", "3"])
    report = json.loads(capsys.readouterr().out)
    sizes = [len((tmp_path / f"train{i}.a").read_text().splitlines()) for i in ("", 1, 2)]
    assert sizes == [1000, 2000, 4000]
    # A sentence has at least three tokens and an end on both sides.
    assert 0 < report["pairs"] <= 7000 and report["non_padding_tokens"] > 8 * report["pairs"]
    imports, last = report["peak_gib"]["imports"], report["peak_gib"]["epoch 2"]
    assert 0.05 < imports["held"] <= last["held"] <= last["resident"]
    assert report["pairs_per_second"] > 0


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("options", [["--sample", "5000", "--held-out"], []])
def test_the_start_of_a_new_and_of_a_resumed_run_is_timed(tmp_path, capsys, options):
    loader.main(["start", "--lines", "3000", "--folder", str(tmp_path), *options])
    report = json.loads(capsys.readouterr().out)
    held_out = 60 if options else 0
    assert 0 < report["pairs"] <= 3000 - held_out
    seconds = report["seconds"]
    assert 0 < seconds["sentencepiece"] <= seconds["new"] and 0 <= seconds["resumed"]
