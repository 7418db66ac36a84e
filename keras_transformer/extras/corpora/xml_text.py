"""Decodes XML files as programs really write them, block by block."""

import codecs
import re
import secrets
from collections.abc import Iterator
from typing import Any

from keras_transformer.base.errors import InputError
from keras_transformer.base.options import received
from keras_transformer.text.charsets import codec_of

FORBIDDEN = f"\U0010fffd{secrets.token_hex(8)}\U0010fffd"
"""Replaces a character that XML forbids; random, so that no text has it."""

_BLOCK_BYTES = 1 << 16  # bytes that are decoded at once
# UTF-32's byte order mark begins with UTF-16's, so it comes first.
_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
_DECLARATION = re.compile(r"\s*<\?xml\s[^>]*>")
_NAME = re.compile(rb"\s*<\?xml\s[^>]*?encoding\s*=\s*[\"']([^\"'>]*)")
_ADVICE = "Convert the file with `iconv -f ENCODING -t UTF-8`, and name UTF-8 in its first line."
_MAX_REFERENCE = 40  # characters of a reference, so that one that ends in the next block is found
_SUSPECT = re.compile(
    "[\0-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]"
    rf"|&#(?:x([0-9a-fA-F]{{1,{_MAX_REFERENCE}}})|([0-9]{{1,{_MAX_REFERENCE}}}));"
)


def xml_blocks(file: Any, path: str) -> Iterator[str]:
    """Yields the text of an XML file in blocks, without its declaration.

    The byte order mark decides the encoding, otherwise the declaration, otherwise UTF-8.
    Characters that XML forbids, and references to them, become `FORBIDDEN`.

    Args:
        file: The open file of bytes.
        path: Its path, for messages.

    Raises:
        InputError: The encoding is unknown, or a byte does not belong to it.
    """
    block = file.read(_BLOCK_BYTES)
    encoding, mark_size = _encoding(block, path)
    decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")  # Java writes surrogates.
    block, line, rest, is_first = block[mark_size:], 1, "", True
    while True:
        try:
            text = rest + decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            before = error.object[: error.start].decode(encoding, "ignore")
            line += (rest + before).count("\n")
            reason = f"not well-formed {encoding}, byte 0x{error.object[error.start]:02x}"
            rule = f"{path}, line {line}: expected well-formed XML. Received: {reason}"
            raise InputError(f"{rule}. {_ADVICE}") from None
        if is_first and (declaration := _DECLARATION.match(text)):
            text = "\n" * declaration[0].count("\n") + text[declaration.end() :]
        is_first = False
        rest = ""
        begin = text.rfind("&", max(len(text) - _MAX_REFERENCE, 0))
        if block and begin >= 0 and ";" not in text[begin:]:
            text, rest = text[:begin], text[begin:]
        line += text.count("\n")
        yield _SUSPECT.sub(_checked, text)
        if not block:
            return
        block = file.read(_BLOCK_BYTES)


def _encoding(block, path):
    """Returns the encoding of a file's first block, and the size of its byte order mark."""
    for mark, name in _MARKS.items():
        if block.startswith(mark):
            return name, len(mark)
    beginning = block[:64]
    for name in ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be"):
        if beginning.decode(name, "ignore").lstrip().startswith("<"):
            return name, 0
    match = _NAME.match(block)
    name = "utf-8" if match is None else match[1].decode("ascii", "replace").strip()
    # .NET writes `utf-16` into a file that it then writes in UTF-8.
    is_wide = name.lower().startswith(("utf-16", "utf-32", "ucs-", "unicode"))
    encoding = "utf-8" if is_wide else codec_of(name)
    if encoding is None:
        rule = f"{path}, line 1: expected an encoding such as UTF-8. Received: {received(name)}"
        raise InputError(f"{rule}. {_ADVICE}")
    return encoding, 0


def _checked(match):
    """Returns a reference to a character that XML allows as it is, and otherwise `FORBIDDEN`."""
    hexadecimal, decimal = match.groups()
    if hexadecimal is None and decimal is None:
        return FORBIDDEN
    code = int(hexadecimal, 16) if decimal is None else int(decimal)
    is_allowed = code < 0x110000 and (code in (9, 10, 13) or not _SUSPECT.match(chr(code)))
    return match[0] if is_allowed else FORBIDDEN
