import io
import threading

from keras_transformer.commands.line_reader import Line
from keras_transformer.commands.progress import Progress, size_left

LINES = [Line(1, "a", 25), Line(2, "b", 25)]


def test_the_bar_shows_sentences_their_rate_and_how_much_of_the_bytes_is_done():
    file, threads = io.StringIO(), threading.active_count()
    with Progress(100, file=file) as progress:
        progress.advance(LINES)
        assert " 50%|" in file.getvalue() and "2 sentences, " in file.getvalue()
        progress.advance(LINES)
    *_, last = file.getvalue().replace("\n", "").split("\r")
    assert last.startswith("100%|") and "4 sentences, " in last and last.endswith("<00:00]")
    assert threading.active_count() == threads


def test_without_a_size_it_counts():
    file = io.StringIO()
    with Progress(None, file=file) as progress:
        progress.advance(LINES)
    assert "2 sentences, " in file.getvalue()
    assert "%" not in file.getvalue() and "<" not in file.getvalue()


def test_without_a_bar_only_messages_are_written():
    file = io.StringIO()
    with Progress(100, shown=False, file=file) as progress:
        progress.advance(LINES)
        progress.clear()
        progress.log("Look out.")
    assert file.getvalue() == "keras-transformer: Look out.\n"


def test_the_bar_is_cleared_for_a_message_and_for_results_on_the_same_terminal():
    file = io.StringIO()
    with Progress(100, file=file, apart=False) as progress:
        for write in (lambda: progress.log("Look out."), progress.clear):
            progress.advance(LINES)
            before = len(file.getvalue())
            write()
            cleared = file.getvalue()[before:].split("keras")[0]
            assert cleared.startswith("\r") and cleared.endswith("\r") and not cleared.strip()


def test_only_a_regular_file_has_a_size_and_what_was_read_of_it_does_not_count(tmp_path, pipe):
    (tmp_path / "file").write_bytes(b"12345")
    with open(tmp_path / "file", "rb", buffering=0) as file:
        file.read(2)
        assert size_left(file) == 3
    assert size_left(pipe[0]) is None
    assert size_left(io.BytesIO(b"12345")) is None
