import io
import json
import sys
import threading
import tracemalloc
import warnings

import pytest
from fakes import FakeEngine

from keras_transformer import Translator
from keras_transformer.base.errors import InputError
from keras_transformer.cli.evaluate import score_lines
from keras_transformer.cli.formats import as_scored_json, as_text
from keras_transformer.cli.lines import Line, translate_lines, translated_lines
from keras_transformer.cli.progress import progress_bar
from keras_transformer.cli.translate import translate_incrementally


def translated(recorder, source, **options):
    output = io.StringIO()
    translate_lines(recorder, source, output, as_text, **options)
    return output.getvalue()


@pytest.mark.parametrize(
    ("batch_size", "sizes"),
    [(None, [1024, 1024, 452]), (300, [900, 900, 700]), (1025, [1025, 1025, 450])],
)
def test_lines_come_out_in_order_in_whole_batches_however_large(recorder, lines, batch_size, sizes):
    texts = [f"line {i}" for i in range(2500)]
    result = translated(recorder, lines(*texts), top_k=3, batch_size=batch_size)
    assert result.splitlines() == [text.upper() for text in texts]
    assert [len(texts) for texts in recorder.texts] == sizes
    assert recorder.checked == {"top_k": 3, "batch_size": batch_size}
    assert recorder.asked == [recorder.checked] * 3


def test_a_line_that_comes_alone_is_answered_before_the_next_one(recorder, pipe, in_background):
    stream, sink = pipe
    answered = threading.Semaphore(0)

    class Output(io.StringIO):
        def flush(self):
            answered.release()

    output = Output()
    thread = in_background(lambda: translate_lines(recorder, stream, output, as_text))
    for text in ("one", "two", "three"):
        sink.write(f"{text}\n".encode())
        assert answered.acquire(timeout=10)
        assert output.getvalue().endswith(f"{text.upper()}\n")
    sink.close()
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert recorder.texts == [["one"], ["two"], ["three"]]


def test_memory_does_not_grow_with_the_input(recorder):
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
            recorder.texts.clear()
            recorder.asked.clear()

    source, output, peaks = Repeating(), Counting(), []
    tracemalloc.start()
    try:
        for reads in (24, 120):  # 1.5 MB, then 7.5 MB
            source.reads = reads
            tracemalloc.reset_peak()
            translate_lines(recorder, source, output, as_text)
            peaks.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    assert output.lines == (24 + 120) * 128
    assert peaks[1] < 1.2 * peaks[0]


@pytest.mark.parametrize("name", ["check_options", "stream"])
def test_wrong_options_are_refused_before_anything_is_read(recorder, monkeypatch, name):
    def refuse(text=None, **options):
        raise InputError("`beam_size` must be positive.")

    monkeypatch.setattr(recorder, name, refuse)
    source = io.BytesIO(b"one\n")
    with pytest.raises(InputError, match="^`beam_size` must be positive"):
        if name == "stream":
            translate_incrementally(recorder, source, io.StringIO(), beam_size=0)
        else:
            translated(recorder, source, beam_size=0)
    assert source.tell() == 0


def test_a_line_at_fault_is_named_and_those_before_it_are_written(recorder, lines):
    texts = [f"line {i}" for i in range(1, 1500)]
    texts[1302] = "LONG"
    output = io.StringIO()
    with pytest.raises(InputError) as caught:
        translate_lines(recorder, lines(*texts), output, as_text)
    assert str(caught.value) == "stdin, line 1303: Too long. Received: 99 tokens: 'LONG'"
    assert output.getvalue().splitlines() == [text.upper() for text in texts[:1302]]


def test_the_bar_counts_what_is_written_and_is_cleared_for_it(recorder, lines, capsys):
    with progress_bar(10) as bar:
        translate_lines(recorder, lines("a", "b", "SPLIT"), sys.stdout, as_text, bar=bar)
    captured = capsys.readouterr()
    assert captured.out == "A\nB\nSPLIT\n"
    before, warned = captured.err.split("keras-transformer:")
    assert before.endswith("\r") and "100%|" in warned and "3 sentences, " in warned


def numbered(*numbers):
    return [Line(number, "x", 2) for number in numbers]


def collected(function, lines):
    """Numbers of lines that have results, the results, and the error after them."""
    pairs = []
    with pytest.raises(InputError) as caught:
        for done, results in translated_lines(function, lines, "f"):
            pairs += zip([line.number for line in done], results, strict=True)
    return pairs, str(caught.value)


@pytest.mark.parametrize("bad", [[1], [4], [7], [5, 3]])  # The longest is looked at first.
def test_the_first_line_at_fault_is_found_and_those_before_it_are_worked_on_once(bad):
    worked = []

    def function(lines):
        numbers = [line.number for line in lines]
        for number in bad:
            if number in numbers:
                raise InputError("Too long. Received: 99 tokens.", numbers.index(number))
        worked.extend(numbers)
        return [-number for number in numbers]

    pairs, error = collected(function, numbered(1, 2, 3, 4, 5, 6, 7))
    expected = list(range(1, min(bad)))
    assert pairs == [(number, -number) for number in expected]
    assert worked == expected
    assert error == f"f, line {min(bad)}: Too long. Received: 99 tokens."


def test_an_error_without_an_index_names_all_lines():
    def function(lines):
        raise InputError("No memory.")

    assert collected(function, numbered(3, 4)) == ([], "f, lines 3 to 4: No memory.")


@pytest.mark.parametrize("action", ["default", "ignore", "error"])
def test_warnings_are_logged_with_their_lines_each_time_whatever_python_does(capsys, action):
    warnings.simplefilter(action)  # as `python -W` does

    def function(lines):
        warnings.warn("two\nlines", stacklevel=2)
        return lines

    for lines in (numbered(3, 4), numbered(5)):
        assert list(translated_lines(function, lines, "stdin")) == [(lines, lines)]
    shown = capsys.readouterr().err.splitlines()
    places = ("lines 3 to 4", "line 5")
    assert shown == [f"keras-transformer: stdin, {place}: two lines" for place in places]


def test_a_line_is_written_token_by_token(recorder, lines):
    seen = []

    class Output(io.StringIO):
        def flush(self):
            seen.append(self.getvalue())

    translate_incrementally(recorder, lines("a b", "", "c"), Output(), sampling=True)
    assert seen == ["A", "A B", "A B\n", "A B\n\n", "A B\n\nC", "A B\n\nC\n"]
    assert recorder.asked[-1] == {"sampling": True}


LETTER = "  Dear Ann.  We came!\r\n\r\n\t12:30 \n \nA\u2028 b\u2028"


@pytest.mark.parametrize("incrementally", [False, True])
def test_white_space_and_ends_of_lines_stay(incrementally):
    class Engine(FakeEngine):
        def stream(self, text, **options):
            words = text.upper().split(" ")
            return iter([" ".join(words[: count + 1]) for count, _ in enumerate(words)])

    engine = Engine(manifest={"split_sentences": True, "copy_symbols": True})
    engine.capabilities = frozenset({"translate", "stream"})
    output, source = io.StringIO(newline=""), io.BytesIO(LETTER.encode())
    if incrementally:
        translate_incrementally(Translator(engine), source, output)
    else:
        translate_lines(Translator(engine), source, output, as_text)
    # A break inside a line becomes a space, so that a line stays a line.
    written = "  DEAR ANN.  WE CAME!\r\n\r\n\t12:30 \n \nA  B\u2028\n"
    assert output.getvalue() == written


def test_text_that_changes_is_written_again_on_a_terminal(lines):
    class Changing:
        def stream(self, text):
            return iter(["Ab", "Abx", "Ab cd", "Ab cde"])

    output = io.StringIO()
    translate_incrementally(Changing(), lines("a"), output, rewrite=True)
    assert output.getvalue() == "Abx\r\x1b[KAb cde\n"


def test_each_incremental_translation_has_its_prefix_and_its_number(recorder, lines, tmp_path):
    path = tmp_path / "prefixes"
    path.write_text("x\n\nz\n")
    output = io.StringIO()
    with pytest.raises(InputError, match="^stdin, line 3: Too long. Received: 99 tokens: 'LONG'$"):
        translate_incrementally(recorder, lines("a", "b", "LONG"), output, target_prefixes=path)
    assert output.getvalue() == "xA\nB\n"


def test_each_pair_is_a_json_object_and_one_of_too_many_tokens_has_no_score(
    recorder, tmp_path, capsys
):
    paths, output = [tmp_path / "source", tmp_path / "target"], io.StringIO()
    for path, text in zip(paths, ["a b\nc\nd\n", "Ä B\nC\nLONG\n"], strict=True):
        path.write_text(text, encoding="utf-8")
    with progress_bar() as bar:
        score_lines(recorder, *paths, output, as_scored_json, bar=bar, alignment=True)
    first, second, third = map(json.loads, output.getvalue().splitlines())
    assert (first["source"], first["target"], first["alignment"]) == ("a b", "Ä B", [[0.1235]])
    assert (second["line"], second["target"]) == (2, "C")
    assert (third["line"], third["log_probability"]) == (3, None)
    told = capsys.readouterr().err
    assert "3 sentences" in told and "1 of 3 pairs have no score. Line 3: At most 9 tok" in told
