"""The parts that need no GPU."""

from test_readme import parsed

from benchmarks import gpu
from benchmarks.gpu import Results, outcomes, report_table, step_flops
from benchmarks.gpu_real import commands
from keras_transformer import TransformerConfig


def test_the_program_takes_the_words_of_each_command(tmp_path):
    words_of = commands(tmp_path, ["--set", "training.epochs=30"])
    options = {name: parsed("keras-transformer", words) for name, words in words_of.items()}
    outputs = [options[name].output for name in ("train", "train again, one epoch")]
    assert [options["export"].model, options["evaluate again"].model] == outputs[:1] * 2
    assert outputs[1] != outputs[0] and options["train again, one epoch"].set[-1].endswith("=1")


def test_operations_of_a_step_are_those_of_its_products():
    config = TransformerConfig(5, 2, 1, 3, num_encoder_layers=1, num_decoder_layers=2)
    # For one position of each side, with one key: four projections 2x2, the feed-forward 2x3 and
    # 3x2, a score and a sum of 2 each: 16 + 12 + 4. A decoder block has two attentions:
    # 32 + 12 + 8. Logits: 10. Each multiplication has its addition, and the backward pass takes two
    # forward passes.
    assert step_flops(config, rows=1, length=1) == 6 * (32 + 2 * 52 + 10)
    # With seven keys scores and sums are seven times as many.
    positions = 3 * 7
    assert step_flops(config, rows=3, length=7) == 6 * positions * (28 + 28 + 2 * (44 + 56) + 10)


def test_a_part_that_fails_or_takes_too_long_leaves_one_line(tmp_path):
    results = Results(tmp_path)
    results.add("training", rate=7)
    gpu._run(results, "training", ["timeit", "-n1", "-r1", "import time; time.sleep(60)"], 0.3)
    gpu._run(results, "decoding", ["no_such_module"], 60)
    training, decoding = results.read().values()
    seconds = {"process_seconds": training.pop("process_seconds")}
    assert seconds["process_seconds"] < 30
    assert training == {"rate": 7, "error": "stopped after 0.3 s: no output"}
    assert decoding["error"].startswith("exit code 1: ")
    assert decoding["error"].endswith("No module named no_such_module")
    results.add("training", rate=8)  # In the file at once; other figures stay.
    assert Results(tmp_path).read()["training"] == {**training, "rate": 8} | seconds


def test_the_parts_end_within_eight_minutes():
    assert max(gpu.SECONDS.values()) < gpu.ALL_SECONDS < 480


def test_figures_of_some_parts_are_tables_without_the_others():
    conditions = {"conditions": {"device": "a card"}}
    assert report_table(conditions) == "a card, rates in tokens/s"
    real = {"train": {"seconds": 61.5}, "training": {"epochs": 3}, "bleu": 31.25, "error": "x"}
    real["same_weights"] = {"ours, beam 1": {"first": 9.0, "later": 0.5}, "transformers": "none"}
    row = {"note": "n", "compile_seconds": 40.0, "seconds": [], "rate": 7.0}
    table = report_table({**conditions, "real": real, "levers": {"levers": {"rbg": row}}})
    for line in ("| train | 61.5 |", "| BLEU | 31.25 |", "| ours, beam 1, later calls | 0.5 |"):
        assert line in table
    assert "| rbg | 7.0 | – | – | 40.0 | n |" in table


def test_outcomes_of_tests_that_were_stopped_are_counted():
    text = """\
[gw0] [  1%] PASSED tests/a.py::test_one[x y]
tests/a.py::test_two
[gw11] [ 50%] FAILED tests/a.py::test_two
[gw1] [100%] SKIPPED tests/b.py::test_three
[gw1] [100%] ERROR tests/b.py::test_four
FAILED tests/a.py::test_two - assert False
[gw1] [100%] PASSED tests/b.py::test_four
tests/c.py::test_five"""
    failed = ["tests/a.py::test_two", "tests/b.py::test_four"]
    assert outcomes(text) == {"passed": 2, "skipped": 1, "failed": failed}
    assert outcomes("no tests") == {"passed": 0, "skipped": 0, "failed": []}
