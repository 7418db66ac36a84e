"""Encodings of documents: bytes to text, and a translation back to the same encoding."""

import codecs
from collections.abc import Callable
from typing import NamedTuple

from keras_transformer.base.errors import InputError
from keras_transformer.base.reading import decode_line, not_utf8
from keras_transformer.text.charsets import codec_of

_UTF32 = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)  # The first begins with a mark of UTF-16.
_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}


class Encoding(NamedTuple):
    """An encoding of a document.

    Attributes:
        name: Name of Python's codec.
        mark: Byte order mark at the beginning, which may be empty.
    """

    name: str
    mark: bytes = b""

    def encode(self, text: str) -> bytes:
        """Returns the bytes of a text; what the encoding lacks becomes a reference of HTML."""
        return self.mark + text.encode(self.name, "xmlcharrefreplace")


def decode(
    content: bytes, name: str, declared_name: Callable[[bytes], str | None] = lambda content: None
) -> tuple[str, Encoding]:
    """Decodes a document in UTF-8, in UTF-16 with a byte order mark, or as it declares.

    Args:
        content: Bytes of the document.
        name: Its name in messages.
        declared_name: Function of the content that returns the encoding which it names, or None.

    Returns:
        The text, without a byte order mark, and the encoding that gives the same bytes again.

    Raises:
        InputError: The content has another encoding, or is damaged.
    """
    if content.startswith(_UTF32):
        raise not_utf8(content.partition(b"\n")[0], 1, name)
    for mark, codec in _MARKS.items():
        if content.startswith(mark):
            return _decoded(content, name, Encoding(codec, mark)), Encoding(codec, mark)
    encoding = Encoding(_codec(declared_name(content), name))
    return _decoded(content, name, encoding), encoding


def _codec(declared_name, name):
    """Returns the name of the codec of a declared encoding, which None means to be UTF-8."""
    if declared_name is None:
        return "utf-8"
    if (codec := codec_of(declared_name)) is None:
        rule = f"{name}: expected an encoding of the web, such as utf-8 or windows-1252"
        raise InputError(f"{rule}. Received: {declared_name!r}.")
    return codec


def _decoded(content, name, encoding):
    if encoding.name == "utf-8":
        decode_line(content.partition(b"\n")[0], 1, name)  # UTF-16 without a mark is no UTF-8.
    content = content[len(encoding.mark) :]
    try:
        text = content.decode(encoding.name)
        if text.encode(encoding.name) == content:
            return text
        problem = "it has several forms of a character, of which one would be lost"
    except UnicodeDecodeError as error:
        if encoding.name == "utf-8":
            number = content.count(b"\n", 0, error.start) + 1
            line = content.split(b"\n", number)[number - 1]
            raise not_utf8(line, number, name) from None
        problem = f"a wrong byte at {error.start + len(encoding.mark)}"
    raise InputError(f"{name}: expected text in {encoding.name}. Received: {problem}.")
