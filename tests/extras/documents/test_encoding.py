"""Encodings of documents: the bytes of a text that was not changed are the same."""

import pytest
from fakes import FakeEngine
from markup_engines import SayingEngine, unchanged

from keras_transformer import Translation, Translator
from keras_transformer.base.errors import InputError
from keras_transformer.extras.documents import translate_document


class Saying(FakeEngine):
    """Copies each text, or writes `said`."""

    def translate(self, texts, **options):
        self.texts = texts
        return [Translation(vars(self).get("said", text), 0.0) for text in texts]


GREETING = "Grüße\r\nan 犬 😀\n\n"


@pytest.mark.parametrize(
    "content",
    [
        *(GREETING.encode(codec) for codec in ("utf-8", "utf-8-sig", "utf-16")),
        b"\xfe\xff" + GREETING.encode("utf-16-be"),
    ],
)
def test_line_ends_and_marks_come_back_and_are_no_text(content):
    engine = Saying()
    assert translate_document(Translator(engine), content, ".txt") == content
    assert engine.texts == ["Grüße", "an 犬 😀"]


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
        translate_document(Translator(Saying()), content, ".txt", name="a.txt")


WORDS = {
    "cp1251": "две собаки",
    "cp932": "①匹の犬",  # The circled number is one of Microsoft's extensions.
    "cp949": "똠 두 마리",  # So is the first syllable.
    "cp874": "สุนัข",
    "gb18030": "两只狗 😀",
}
DECLARED = [
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
    ('<meta name="x" content="the charset=koi8-r"><meta charset=euc-kr>', "cp949"),
    ('<meta name=x content="<meta charset=koi8-r>">', "utf-8"),
    ("<meta content='text/html; charset=koi8-r'><meta data-charset=koi8-r>", "utf-8"),
    ("<title><meta charset=koi8-r></title><script>'<meta charset=koi8-r>'</script>", "utf-8"),
    ("<meta content='text/html;charset = \"cp1251\"' HTTP-EQUIV=Content-type>", "cp1251"),
    ("<meta/charset='windows-1251'/>", "cp1251"),
    ("<head translate=no><meta charset=windows-1251></head>", "cp1251"),
    # A mark at the beginning decides before a declaration.
    ("\ufeff<meta charset=koi8-r>", "utf-8"),
]


@pytest.mark.parametrize(("head", "codec"), DECLARED)
def test_a_page_is_read_as_it_declares(head, codec):
    words = WORDS.get(codec, "é")
    content, engine = f"{head}<p>{words}</p>".encode(codec), SayingEngine(unchanged)
    assert translate_document(Translator(engine), content, ".html").endswith(
        f"<p>{words}</p>".encode(codec)
    )
    assert words in engine.texts


def test_a_letter_that_the_charset_lacks_is_a_reference():
    engine = SayingEngine(lambda words: [("é", 0), ("犬", 0)])
    page = translate_document(Translator(engine), b"<meta charset=latin1><p>a", ".html")
    assert page.endswith("<p>é &#29356;".encode("latin-1"))


# `punycode` would take hours for a page of a megabyte. Browsers read no text in the last two.
NO_ENCODINGS = "klingon hex rot13 punycode idna utf-7 unicode_escape utf_8_sig".split()
NO_ENCODINGS += ["iso-2022-kr", "x-user-defined"]


@pytest.mark.parametrize("name", [*NO_ENCODINGS, "shift_jis"])
def test_a_page_that_cannot_be_read_as_it_declares_is_one_line(name):
    message = rf"a\.html: expected an encoding .*'{name}'"
    if name == "shift_jis":  # Python writes the same sign as 81 e0.
        message = "cp932. Received: it has several forms of a character"
    content = f"<meta charset={name}>".encode() + b"\x87\x90"
    with pytest.raises(InputError, match=message):
        translate_document(Translator(SayingEngine(unchanged)), content, ".html", name="a.html")
