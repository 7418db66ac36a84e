"""Encodings that files declare: names of the web's Encoding Standard, and Python's codecs for them.

Python knows more names. Some of its codecs, such as `punycode`, take a time that grows with the
square of the text, and others, such as `hex`, do not give text.
"""


def codec_of(label: str) -> str | None:
    """Returns the name of Python's codec for an encoding, None for a name that browsers ignore.

    UTF-16 is UTF-8, because such a declaration was read byte by byte, so that it is wrong.

    Reference: https://encoding.spec.whatwg.org/#names-and-labels

    >>> codec_of("ISO-8859-1"), codec_of("x-sjis"), codec_of("punycode")
    ('cp1252', 'cp932', None)
    """
    import webencodings  # Late: few files declare an encoding.

    encoding = webencodings.lookup(label)
    if encoding is None or encoding.name in ("replacement", "x-user-defined"):
        return None
    if encoding.name in ("utf-16le", "utf-16be"):
        return "utf-8"
    return "gb18030" if encoding.name == "gbk" else encoding.codec_info.name
