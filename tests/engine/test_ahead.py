import re
import threading

import pytest

from keras_transformer.engine.ahead import Ahead, Program


def test_programs_compile_at_once_and_each_line_tells_how_many_are_left():
    lines, gates = [], [threading.Event() for _ in range(3)]
    ahead, begun = Ahead(lines.append), threading.Barrier(4, timeout=30)

    def compile_after(gate):
        begun.wait()
        assert gate.wait(30)

    for number, gate in enumerate(gates):
        ahead.add(Program(f"program {number}", lambda gate=gate: compile_after(gate)))
    begun.wait()  # All three have begun, and none has ended.
    assert lines == []
    for number in (1, 0, 2):
        gates[number].set()
        ahead.wait(f"program {number}")
    ahead.wait()
    ahead.wait("another")
    told = [re.sub(r"\d+\.\d", "S", line) for line in lines]
    assert told == [
        "compiled program 1 in S s; 2 programs are left",
        "compiled program 0 in S s; 1 program is left",
        "compiled program 2 in S s",
    ]


def test_a_program_that_does_not_compile_is_left_to_its_call():
    lines = []
    ahead = Ahead(lines.append)

    def fail():
        raise RuntimeError("too large")

    ahead.add(Program("one", fail))
    ahead.wait()
    assert len(lines) == 1


@pytest.mark.parametrize("error", [OSError("no space"), SystemExit(2)])
@pytest.mark.parametrize("fails", ["compile", "tell"])
def test_a_wait_ends_whatever_fails(fails, error):
    def fail(*_):
        raise error

    ahead = Ahead(fail if fails == "tell" else lambda line: None)
    ahead.add(Program("one", fail if fails == "compile" else lambda: None))
    waiting = threading.Thread(target=ahead.wait, daemon=True)
    waiting.start()
    waiting.join(5)
    assert not waiting.is_alive()
