"""The program `export/decode_profile.py`."""

import json
import sys

import pytest

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def program(load_program):
    return load_program("export/decode_profile.py")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("MatMul_96.9", "MatMul"),
        ("MatMul.7", "MatMul"),
        ("dot.12", "dot"),
        ("while", "while"),
        ("bitcast_dynamic-update-slice_fusion.3", "bitcast_dynamic-update-slice_fusion"),
    ],
)
def test_operations_that_differ_by_numbers_are_of_one_kind(program, name, expected):
    assert program.kind(name) == expected


def test_only_operations_count_and_none_of_them_twice(program):
    xplane_pb2 = pytest.importorskip("tensorflow.tsl.profiler.protobuf.xplane_pb2")
    space = xplane_pb2.XSpace()
    plane = space.planes.add()
    plane.stat_metadata[5].name = "hlo_op"
    line = plane.lines.add()
    events = (
        ("while.3", 9, True),
        ("dot.1", 2, True),
        ("dot_2.1", 3, True),
        ("tanh", 1, True),
        ("a function of Python", 11, False),
    )
    for number, (name, milliseconds, is_operation) in enumerate(events):
        plane.event_metadata[number].name = name
        event = line.events.add(metadata_id=number, duration_ps=milliseconds * 10**9)
        if is_operation:
            event.stats.add(metadata_id=5)
    milliseconds, counts = program.operations(space)
    assert milliseconds == {"dot": 5, "tanh": 1}
    assert counts == {"dot": 2, "tanh": 1}


def test_the_profile_of_a_search_adds_up(program, monkeypatch, capsys):
    arguments = ["--preset", "transformer_tiny", "--vocabulary-size", "29", "--beam-size", "1"]
    monkeypatch.setattr(sys, "argv", ["decode_profile.py", *arguments, "--batch-size", "2"])
    monkeypatch.setattr(program, "STEPS", 3)
    program.main()
    report = json.loads(capsys.readouterr().out)
    spent = sum(each["milliseconds"] for each in report["operations"].values())
    total = report["thread_milliseconds"]
    assert total["of_all_threads"] == pytest.approx(2 * report["milliseconds_watched"], abs=0.2)
    assert total["not_in_an_operation"] == pytest.approx(total["of_all_threads"] - spent, abs=1)
    assert 0 < spent < total["of_all_threads"]
    # At each of 3 steps 4 blocks have at least 4 products of their own, and the logits one.
    products = sum(
        each["times"] for name, each in report["operations"].items() if name in ("MatMul", "dot")
    )
    assert products >= 3 * (4 * 4 + 1)
    assert report["matrix_product_gflops_per_second"] > 0


def test_a_text_is_translated_as_it_stands_but_for_blank_lines(program, monkeypatch, tmp_path):
    asked = []

    class Live:
        def translate(self, texts, **options):
            asked.append((texts, options))

    monkeypatch.setattr(program.Translator, "load", lambda run: asked.append(run) or Live())
    (tmp_path / "text").write_text("a man\n\ntwo dogs\n")
    program.text("run", tmp_path / "text", 7, 3)()
    assert asked == ["run", (["a man", "two dogs"], {"beam_size": 3, "batch_size": 7})]


def test_a_run_goes_with_a_text(program, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["decode_profile.py", "--model", "run"])
    with pytest.raises(SystemExit):
        program.main()
    assert "--model and --source go together" in capsys.readouterr().err
