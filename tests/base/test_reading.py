import bz2
import codecs
import gzip
import json
import lzma
import sys
import zipfile

import numpy as np
import pytest

from keras_transformer.base import reading
from keras_transformer.base.errors import InputError
from keras_transformer.base.files import FORMAT_VERSION
from keras_transformer.base.reading import (
    decode_line,
    digest_of,
    iterate_lines,
    one_line,
    read_arrays,
    read_json,
    read_lines,
)
from keras_transformer.export.manifest import has_labels, opened_export, read_manifest
from keras_transformer.runs.run_folder import RunFolder
from keras_transformer.text import Labels
from keras_transformer.text.languages import Languages

COMPRESS = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}


def compressed(content, ending):
    if ending == ".zst":
        zstandard = pytest.importorskip("zstandard", reason="comes with the extra [zstd]")
        return zstandard.ZstdCompressor().compress(content)
    return COMPRESS.get(ending, bytes)(content)


def write(path, content):
    path.write_bytes(compressed(content, path.suffix))
    return path


FORMATS = {".gz": "gzip", ".xz": "xz", ".bz2": "bzip2", ".zst": "Zstandard"}


LINE_ENDS = [(b"a b\nc", ["a b", "c"]), (b"a\r\nb\r\n", ["a", "b"])]
LINE_ENDS += [(b"a\r\r\n", ["a\r"])]  # A line end has one carriage return.
LINE_ENDS += [(b"\na\n\n", ["", "a", ""]), (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"])]
# U+2028, U+0085, form feed, vertical tab and a lone carriage return end no line.
LINE_ENDS += [("a\u2028b\u0085c\fd\ve\rf\n".encode(), ["a\u2028b\u0085c\fd\ve\rf"])]


@pytest.mark.parametrize("name", ["text.en", *(f"text.en{ending}" for ending in FORMATS)])
@pytest.mark.parametrize("content, lines", LINE_ENDS)
def test_lines_end_at_newlines_alone(tmp_path, name, content, lines):
    assert read_lines(str(write(tmp_path / name, content))) == lines


WRONG_BYTES = [(b"ok\nok\nbad \xff\n\xfe\n", 3, "0xff"), (b"ok\ncut \xc3", 2, "0xc3")]
# A letter of UTF-8 beside the wrong byte, and many bytes beyond ASCII: not Western Europe.
WRONG_BYTES += [("schön ".encode() + b"sch\xf6n\n", 1, "0xf6 at column 11.")]
WRONG_BYTES += [("привет\n".encode("windows-1251"), 1, "0xef at column 1.")]


@pytest.mark.parametrize("content, line, byte", WRONG_BYTES)
def test_the_first_wrong_byte_is_named_with_its_line(tmp_path, content, line, byte):
    path = write(tmp_path / "text.de", content)
    with pytest.raises(InputError) as caught:
        read_lines(path)
    message = str(caught.value)
    assert message.startswith(f"{path}, line {line}: expected UTF-8")
    assert byte in message and "\n" not in message


LATIN_1 = "byte 0xf6 at column 4, as in Latin-1", "WINDOWS-1252"
ENCODINGS = [("Hund\nschön\n".encode("latin-1"), 2, *LATIN_1)]
ENCODINGS += [("Hund\nschön – so\n".encode("windows-1252"), 2, *LATIN_1)]
for name in ("utf-16", "utf-32"):  # The byte order mark says the order.
    ENCODINGS += [("Ein Hund\n".encode(name), 1, name.upper(), name.upper())]
ENCODINGS += [(codecs.BOM_UTF16_BE + "Два\n".encode("utf-16-be"), 1, "UTF-16", "UTF-16")]
for name in ("UTF-16LE", "UTF-16BE"):  # valid UTF-8, with zeros
    ENCODINGS += [("“Ein” Hund\nb\n".encode(name), 1, name, name)]
    ENCODINGS += [("Ein Hund\nb\n".encode(name), 1, name, name)]


MANY_LINES = [("Hund\n" * 900 + "schön\n" * 10, 901)]
MANY_LINES += [("Hund\n" * 990 + "schön\n" * 10, 991), ("Hund\n" * 991 + "schön\n" * 10, None)]
MANY_LINES += [("schön\n" * 9, 1), ("schön\n" * 9 + "Hund\n", None), ("привет\n" * 10, 1)]


@pytest.mark.parametrize("content, line", MANY_LINES)
def test_a_lenient_reader_refuses_a_file_in_another_encoding(tmp_path, content, line):
    encoding = "windows-1251" if "п" in content else "latin-1"
    path = write(tmp_path / "text.de", content.encode(encoding))
    if line is None:
        assert len(list(iterate_lines(path, errors="replace"))) == content.count("\n")
    else:
        with pytest.raises(InputError, match=f"line {line}: expected UTF-8"):
            list(iterate_lines(path, errors="replace"))
    # Lines of UTF-8 beside those that are not: single lines are damaged.
    write(path, content.encode(encoding) + "schön\n".encode())
    assert len(list(iterate_lines(path, errors="replace"))) == content.count("\n") + 1


@pytest.mark.parametrize("errors", ["strict", "replace"])
@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("content, line, received, encoding", ENCODINGS)
def test_another_encoding_is_named_with_its_conversion(
    tmp_path, content, line, received, encoding, ending, errors
):
    path = write(tmp_path / f"text.de{ending}", content)
    if errors == "replace" and line > 1:
        assert list(iterate_lines(path, errors=errors))[line - 1].startswith("sch\ufffdn")
        return
    with pytest.raises(InputError) as caught:
        list(iterate_lines(path, errors=errors))
    conversion = f"Convert the text with `iconv -f {encoding} -t UTF-8`."
    rule = f"{path}, line {line}: expected UTF-8 text."
    assert str(caught.value) == f"{rule} Received: {received}. {conversion}"


@pytest.mark.parametrize("errors", ["strict", "replace"])
def test_a_spreadsheet_itself_is_named_with_its_conversion(tmp_path, errors):
    with zipfile.ZipFile(tmp_path / "pairs.xlsx", "w") as file:
        file.writestr("xl/workbook.xml", "<workbook/>")
    with pytest.raises(InputError, match=r"line 1: .* ZIP archive. Save a spreadsheet .* as CSV"):
        list(iterate_lines(tmp_path / "pairs.xlsx", errors=errors))


NO_OTHER_ENCODING = ["a\0b", "\0", "\0\0\0\0", "a", "", "Ünïcödé", "\0a"]


@pytest.mark.parametrize("text", NO_OTHER_ENCODING)
def test_a_first_line_of_utf8_with_zeros_is_no_other_encoding(text):
    assert decode_line(text.encode() + b"\n", 1, "stdin") == text


LINES = [("a b", "a b"), (" a \t", " a \t"), ("a\r\n\nb\x0cc", "a  b c"), ("\na\r\n ", "a ")]
LINES += [("", ""), ("\n", ""), (" \u2028", " \u2028"), ("\u2028a\u2028b\u2028", "\u2028a b\u2028")]


@pytest.mark.parametrize(("text", "line"), LINES)
def test_a_text_becomes_one_line_with_its_outer_white_space(text, line):
    assert one_line(text) == line


@pytest.mark.parametrize("ending", FORMATS)
def test_a_compressed_file_is_read_whole(tmp_path, ending):
    # Two parts, as of parallel programs, of which the second is longer than any buffer.
    lines = ["one", "two", *(f"{number} {number**9}" for number in range(9_999))]
    parts = b"one\ntw", "\n".join(["o", *lines[2:]]).encode()
    path = tmp_path / f"text{ending}"
    path.write_bytes(b"".join(compressed(part, ending) for part in parts))
    assert read_lines(path) == lines


def test_a_zstandard_file_has_frames_without_text_and_needs_a_package(tmp_path, monkeypatch):
    skippable = b"\x50\x2a\x4d\x18\x03\0\0\0abc"
    path = tmp_path / "text.zst"
    path.write_bytes(skippable + compressed(b"one\n", ".zst") + skippable)
    assert read_lines(path) == ["one"]
    monkeypatch.setitem(sys.modules, "zstandard", None)
    message = r"Zstandard, for .*text.zst, .*package zstandard\): pip install "
    with pytest.raises(InputError, match=message):
        read_lines(path)


@pytest.mark.parametrize("ending", ["", *FORMATS])
def test_what_cannot_be_read_is_one_line_naming_the_file(tmp_path, ending):
    format, whole = f"whole {FORMATS.get(ending)} file", compressed(b"line\n" * 1000, ending)
    cases = {"directory": (None, "directory"), f"missing{ending}": (None, "no such file")}
    for name, content in (("empty", b""), ("bom_alone", b"\xef\xbb\xbf")):
        cases[f"{name}{ending}"] = compressed(content, ending), "empty"
    if ending:
        cases |= {
            f"plain{ending}": (b"plain text\n", format),
            f"cut{ending}": (whole[:-9], format),
            f"cut_in_two{ending}": (whole[: len(whole) // 2], format),
            f"second_part_cut{ending}": (whole + whole[:-3], format),
            f"garbled{ending}": (whole[:12] + b"\xff" * 20 + whole[32:], format),
        }
    if ending == ".gz":
        bad_checksum = whole[:-8] + bytes([whole[-8] ^ 255]) + whole[-7:]
        cases["checksum.gz"] = (bad_checksum, format)
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


def test_an_npz_file_that_would_fill_the_memory_is_refused_before_it_is_unpacked(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(reading, "_FREE_BYTES", 100_000)
    path = tmp_path / "model.npz"
    arrays = {"a": np.zeros(90_000, "int8"), "b": np.zeros(90_000, "int8")}
    np.savez_compressed(path, **arrays)  # about 500 bytes, which may have 110,000
    with pytest.raises(InputError, match="model.npz: must be at most 20 times as large unpacked"):
        read_arrays(path)
    np.savez(path, **arrays)
    assert {name: array.size for name, array in read_arrays(path).items()} == dict.fromkeys(
        "ab", 90_000
    )


def test_a_manifest_without_a_checksum_is_a_damaged_export(tmp_path):
    manifest = {"format": "keras_transformer.litert", "files": {"a": {"bytes": 3}}}
    manifest["format_version"] = FORMAT_VERSION
    (tmp_path / "export.json").write_text(json.dumps(manifest))
    (tmp_path / "a").write_text("abc")
    with pytest.raises(InputError, match="damaged. Received: a is not the file that was exported"):
        with opened_export(tmp_path, ["litert"], {}, "an export"):
            pass


def test_json_is_an_object_its_pairs_or_a_list(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"ä": 1, "b": [2], "ä": 3}')
    assert read_json(path) == {"ä": 3, "b": [2]}
    assert read_json(path, tuple) == (("ä", 1), ("b", [2]), ("ä", 3))
    path.write_text("[1, {}]")
    assert read_json(path, list) == [1, {}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b"", "expected the names of a model. Received: "),
        (b"[1]", r"expected the names of a model. Received: \[1\]"),
        (b'{"a": "\xff"}', "line 1: expected UTF-8 text"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    ],
)
def test_another_content_of_a_json_file_is_one_line(tmp_path, content, message):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=f"^{path}.*{message}") as caught:
        read_json(path, noun="the names of a model")
    assert "\n" not in str(caught.value)


def test_json_of_any_depth_is_one_line(tmp_path):
    for name in ("languages.json", "labels.json", "export.json", "metrics.json"):
        (tmp_path / name).write_text("[" * 100_000)
    for read in (
        lambda: Languages.load(tmp_path / "languages.json"),
        lambda: Labels.load(tmp_path / "labels.json"),
        lambda: read_manifest(tmp_path, ["litert"], {}, "an export"),
        lambda: RunFolder(tmp_path).metrics(),
    ):
        with pytest.raises(InputError) as caught:
            read()
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
    assert not has_labels(tmp_path)
