import io
import threading
import tracemalloc

import pytest

from keras_transformer.errors import InputError
from keras_transformer.streaming import Progress, translate_lines


def translated(translator, source, **options):
    output = io.StringIO()
    translate_lines(translator, source, output, **options)
    return output.getvalue()


def test_a_line_comes_out_for_each_that_goes_in_and_in_its_order(translator, lines):
    texts = [f"line {i}" for i in range(2500)]
    result = translated(translator, lines(*texts), top_k=3)
    assert result.splitlines() == [text.upper() for text in texts]
    # The first call looks at the options.
    assert [len(call) for call in translator.calls] == [0, 1024, 1024, 452]
    assert translator.options == [{"beam_size": 4, "top_k": 3}] * 4


def test_nothing_comes_out_of_nothing(translator, lines):
    assert translated(translator, lines()) == ""


def test_a_line_that_comes_alone_is_answered_before_the_next_one(translator, pipe, in_background):
    stream, sink = pipe
    answered = threading.Semaphore(0)

    class Output(io.StringIO):
        def flush(self):
            answered.release()

    output = Output()
    thread = in_background(lambda: translate_lines(translator, stream, output))
    for text in ("one", "two", "three"):
        sink.write(f"{text}\n".encode())
        assert answered.acquire(timeout=10)
        assert output.getvalue().endswith(f"{text.upper()}\n")
    sink.close()
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert translator.calls == [[], ["one"], ["two"], ["three"]]


def test_memory_does_not_grow_with_the_input(translator):
    content = (b"x" * 499 + b"\n") * 128

    class Repeating(io.BytesIO):
        reads = 0

        def read1(self, size):
            self.reads -= 1
            return content if self.reads >= 0 else b""

    class Counting:
        lines = 0

        def write(self, text):
            self.lines += text.count("\n")

        def flush(self):
            translator.calls.clear()
            translator.options.clear()

    source, output, peaks = Repeating(), Counting(), []
    tracemalloc.start()
    try:
        for reads in (24, 120):  # 1.5 MB, then 7.5 MB
            source.reads = reads
            tracemalloc.reset_peak()
            translate_lines(translator, source, output)
            peaks.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    assert output.lines == (24 + 120) * 128
    assert peaks[1] < 1.2 * peaks[0]


def test_wrong_options_are_told_before_anything_is_read(translator):
    source = io.BytesIO(b"one\n")
    with pytest.raises(InputError, match="^`beam_size` must be positive"):
        translated(translator, source, beam_size=0)
    assert source.tell() == 0


def test_a_line_at_fault_is_named_and_those_before_it_are_written(translator, lines):
    texts = [f"line {i}" for i in range(1, 1500)]
    texts[1302] = "LONG"
    output = io.StringIO()
    with pytest.raises(InputError) as caught:
        translate_lines(translator, lines(*texts), output)
    assert str(caught.value) == "stdin, line 1303: Too long. Received: 99 tokens: 'LONG'"
    assert output.getvalue().splitlines() == [text.upper() for text in texts[:1302]]


def test_prefixes_stay_with_their_lines(translator, lines, tmp_path):
    texts = [f"line {i}" for i in range(1100)]
    path = tmp_path / "prefixes"
    path.write_text("".join(f"{i}: \n" for i in range(1100)))
    result = translated(translator, lines(*texts), target_prefixes=path)
    assert result.splitlines() == [f"{i}: {text.upper()}" for i, text in enumerate(texts)]


def test_what_the_engine_warns_of_is_one_line_beside_the_result(translator, lines):
    told = io.StringIO()
    with Progress(shown=False, file=told) as progress:
        result = translated(translator, lines("a", "SPLIT"), progress=progress)
    assert result == "A\nSPLIT\n"
    assert told.getvalue() == ("keras-transformer: stdin, lines 1 to 2: 1 of 2 texts was split.\n")


def test_the_bar_counts_what_is_written(translator, lines):
    told = io.StringIO()
    with Progress(4, file=told) as progress:
        translated(translator, lines("a", "b"), progress=progress)
    assert "100%|" in told.getvalue() and "2 sentences, " in told.getvalue()


@pytest.mark.parametrize(
    ("form", "start"), [("list", "0 ||| A ||| -1.5000\n"), ("json", '{"line": 1, "source": "a"')]
)
def test_other_forms(translator, lines, form, start):
    assert translated(translator, lines("a", "b"), form=form).startswith(start)
