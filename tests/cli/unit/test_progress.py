import io
import threading

from keras_transformer.cli.progress import advance, progress_bar, size_left


def test_the_bar_shows_sentences_their_rate_and_how_much_of_the_bytes_is_done(capsys):
    threads = threading.active_count()
    with progress_bar(100) as bar:
        advance(bar, 2, 50)
        shown = capsys.readouterr().err
        assert " 50%|" in shown and "2 sentences, " in shown
        advance(bar, 2, 50)
    *_, last = capsys.readouterr().err.replace("\n", "").split("\r")
    assert last.startswith("100%|") and "4 sentences, " in last and last.endswith("<00:00]")
    assert threading.active_count() == threads


def test_only_a_regular_file_has_a_size_and_what_was_read_of_it_does_not_count(tmp_path, pipe):
    (tmp_path / "file").write_bytes(b"12345")
    with open(tmp_path / "file", "rb", buffering=0) as file:
        file.read(2)
        assert size_left(file) == 3
    assert size_left(pipe[0]) is None
    assert size_left(io.BytesIO(b"12345")) is None
