"""Encodings of documents: the bytes of a text that was not changed are the same."""

import pytest

from keras_transformer.documents.encoding import decode
from keras_transformer.documents.html import declared_encoding
from keras_transformer.errors import InputError


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16"])
def test_line_ends_and_marks_come_back_and_are_no_text(codec):
    content = "Grüße\r\nan 犬 😀\n\n".encode(codec)
    text, encoding = decode(content, "a.txt")
    assert text == "Grüße\r\nan 犬 😀\n\n"
    assert encoding.encode(text) == content


def test_utf16_of_the_other_byte_order_is_read():
    content = b"\xfe\xff" + "Grüße".encode("utf-16-be")
    text, encoding = decode(content, "a.txt")
    assert (text, encoding.encode(text)) == ("Grüße", content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\nGrüße".encode("latin-1"), r"a\.txt, line 2: expected UTF-8 text.*0xfc at column 3"),
        ("Grüße".encode("utf-32"), r"a\.txt, line 1: expected UTF-8 text\. Received: UTF-32"),
        ("two dogs".encode("utf-16-le"), "Received: UTF-16LE"),
        (b"PK\x03\x04 a document", "a ZIP archive"),
        (b"\xff\xfea", "expected text in utf-16-le. Received: a wrong byte at 2"),
    ],
)
def test_another_encoding_is_one_line(content, message):
    with pytest.raises(InputError, match=message):
        decode(content, "a.txt")


@pytest.mark.parametrize(
    ("head", "codec"),
    [
        ('<meta charset="ISO-8859-1">', "cp1252"),  # as browsers read it
        ("<meta charset=windows-1251>", "cp1251"),
        ("<meta http-equiv='Content-Type' content='text/html; charset=shift_jis'>", "cp932"),
        ('<?xml version="1.0" encoding="EUC-KR"?>', "cp949"),
        # Names that browsers know, and Python does not.
        ("<meta charset=windows-949>", "cp949"),
        ("<meta charset=x-sjis>", "cp932"),
        ("<meta charset=x-cp1251>", "cp1251"),
        ("<meta charset=windows-31j>", "cp932"),
        ("<meta charset=dos-874>", "cp874"),
        ("<meta charset=x-mac-roman>", "mac_roman"),
        ("<meta charset=gbk>", "gb18030"),
        ("<meta charset=unicode-1-1-utf-8>", "utf-8"),
        # Whoever reads this name byte by byte reads no UTF-16.
        ("<meta charset=utf-16>", "utf-8"),
        ("<meta charset=UTF-16LE>", "utf-8"),
        ("<!-- <meta charset=koi8-r> --><META CHARSET=utf-8>", "utf-8"),
        ("<p>charset=koi8-r", "utf-8"),
        # Only a declaration decides, not text or code about one.
        ('<meta name="description" content="the charset=koi8-r"><meta charset=euc-kr>', "cp949"),
        ('<meta name=description content="<meta charset=koi8-r>">', "utf-8"),
        ("<meta content='text/html; charset=koi8-r'><meta data-charset=koi8-r>", "utf-8"),
        ("<title><meta charset=koi8-r></title><script>'<meta charset=koi8-r>'</script>", "utf-8"),
        ("<meta content='text/html;charset = \"cp1251\"' HTTP-EQUIV=Content-type>", "cp1251"),
        ("<meta/charset='windows-1251'/>", "cp1251"),
    ],
)
def test_a_page_is_read_as_it_declares(head, codec):
    words = {
        "cp1251": "две собаки",
        "cp932": "①匹の犬",  # The circled number is one of Microsoft's extensions.
        "cp949": "똠 두 마리",  # So is the first syllable.
        "cp874": "สุนัข",
        "gb18030": "两只狗 😀",
    }.get(codec, "«é»")
    content = f"{head}<p>{words}</p>".encode(codec)
    text, encoding = decode(content, "a.html", declared_encoding)
    assert text == f"{head}<p>{words}</p>"
    assert encoding.encode(text) == content


def test_a_byte_order_mark_decides_before_a_declaration():
    content = "\ufeff<meta charset=koi8-r>é".encode()
    assert decode(content, "a.html", declared_encoding)[0].endswith("é")


def test_a_letter_that_the_charset_lacks_is_a_reference():
    _, encoding = decode(b"<meta charset=latin1>", "a.html", declared_encoding)
    assert encoding.encode("é 犬") == "é &#29356;".encode("latin-1")


def test_a_character_of_several_forms_of_which_one_would_be_lost_is_an_error():
    content = b"<meta charset=shift_jis>\x87\x90"  # Python writes the same sign as 81 e0.
    with pytest.raises(InputError, match="cp932. Received: it has several forms of a character"):
        decode(content, "a.html", declared_encoding)


# `punycode` would take hours for a page of a megabyte. Browsers read no text in the last two.
NO_ENCODINGS = "klingon hex rot13 punycode idna utf-7 unicode_escape utf_8_sig".split()
NO_ENCODINGS += ["iso-2022-kr", "x-user-defined"]


@pytest.mark.parametrize("name", NO_ENCODINGS)
def test_a_name_that_is_no_encoding_of_text_in_the_encoding_standard_is_one_line(name):
    content = f"<meta charset={name}>".encode() + b"a" * 10
    with pytest.raises(InputError, match=rf"a\.html: expected an encoding .*'{name}'"):
        decode(content, "a.html", declared_encoding)
