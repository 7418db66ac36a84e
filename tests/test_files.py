import gzip
import io
import os
import threading

import pytest

from keras_transformer.errors import InputError
from keras_transformer.files import (
    check_writable,
    digest_of,
    is_terminal,
    read_lines,
    write_output,
    write_whole,
)


def write(path, content):
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", ["text.en", "text.en.gz"])
@pytest.mark.parametrize(
    "content, lines",
    [
        (b"a b\nc", ["a b", "c"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\r\n", ["a\r"]),  # A line end has one carriage return.
        (b"\na\n\n", ["", "a", ""]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        # U+2028, U+0085, form feed, vertical tab and a lone carriage return end no line.
        ("a\u2028b\u0085c\fd\ve\rf\n".encode(), ["a\u2028b\u0085c\fd\ve\rf"]),
    ],
)
def test_lines_end_at_newlines_alone(tmp_path, name, content, lines):
    assert read_lines(str(write(tmp_path / name, content))) == lines


@pytest.mark.parametrize(
    "content, line, byte",
    [
        (b"ok\nok\nbad \xff\n\xfe\n", 3, "0xff"),
        (b"ok\ncut \xc3", 2, "0xc3"),
        ("a\n".encode("utf-16"), 1, "0xff"),
    ],
)
def test_the_first_wrong_byte_is_named_with_its_line(tmp_path, content, line, byte):
    path = write(tmp_path / "text.de", content)
    with pytest.raises(InputError) as caught:
        read_lines(path)
    message = str(caught.value)
    assert message.startswith(f"{path}, line {line}: expected UTF-8")
    assert byte in message and "\n" not in message


def test_what_cannot_be_read_is_one_line_naming_the_file(tmp_path):
    whole = gzip.compress(b"line\n" * 1000)
    bad_checksum = whole[:-8] + bytes([whole[-8] ^ 255]) + whole[-7:]
    cases = {
        "missing": (None, "no such file"),
        "missing.gz": (None, "no such file"),
        "directory": (None, "directory"),
        "empty": (b"", "empty"),
        "empty.gz": (gzip.compress(b""), "empty"),
        "bom_alone": (b"\xef\xbb\xbf", "empty"),
        "plain.gz": (b"plain text\n", "whole gzip file"),
        "cut.gz": (whole[:-9], "whole gzip file"),
        "checksum.gz": (bad_checksum, "whole gzip file"),
        "garbled.gz": (whole[:12] + b"\xff" * 20 + whole[32:], "whole gzip file"),
    }
    (tmp_path / "directory").mkdir()
    for name, (content, expected) in cases.items():
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(InputError, match=expected) as caught:
            read_lines(path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_digest_is_of_the_names_and_contents_of_the_given_files(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text("a")
    second.write_text("b")
    both, one = digest_of(tmp_path), digest_of(tmp_path, [first])
    assert both != one
    second.write_text("c")
    assert digest_of(tmp_path) != both and digest_of(tmp_path, [first]) == one
    second.write_text("b")
    assert digest_of(tmp_path) == both
    renamed = first.rename(tmp_path / "other")
    assert digest_of(tmp_path, [renamed]) != one


def test_a_file_is_on_the_disk_before_it_has_its_name_and_the_name_before_the_call_ends(
    tmp_path, disk
):
    write_whole(tmp_path / "text", "a")
    file, folder = ((tmp_path / name).stat().st_ino for name in ("text", "."))
    assert disk == [("sync", file), ("rename", "text"), ("sync", folder)]


def test_an_output_goes_through_links_and_into_pipes(tmp_path):
    pipe, link, file = (tmp_path / name for name in ("pipe", "link", "file"))
    os.mkfifo(pipe)
    link.symlink_to(file)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    for path in pipe, link:
        check_writable(path)
        write_output(path, "a")
    reader.join(10)
    assert pipe.is_fifo() and read == ["a"]
    assert link.is_symlink() and file.read_text() == "a"
    for call in check_writable, lambda path: write_output(path, "a"):
        with pytest.raises(InputError, match="must not be empty. Received: ''"):
            call("")


def test_a_terminal_is_one():
    master, slave = os.openpty()
    with os.fdopen(slave, "w") as terminal:
        assert is_terminal(terminal)
    os.close(master)
    for other in (io.StringIO(), None, terminal):  # The last is closed.
        assert not is_terminal(other)
