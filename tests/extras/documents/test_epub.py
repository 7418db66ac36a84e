"""E-books: pages are translated, and all else in the archive stays."""

import io
import struct
import time
import tracemalloc
import zipfile
from xml.etree import ElementTree

import pytest
from markup_engines import SayingEngine, in_order, unchanged

from keras_transformer import Translator
from keras_transformer.base.errors import InputError
from keras_transformer.extras.documents import epub, translate_document
from keras_transformer.extras.documents.translating import decoded
from keras_transformer.text.languages import Languages

ROOTFILE = '<rootfile full-path="{}" media-type="application/oebps-package+xml"/>'
CONTAINER = f"""<?xml version="1.0"?>
<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container" version="1.0"><rootfiles>
{ROOTFILE.format("OEBPS/content.opf")}
<rootfile full-path="other.pdf" media-type="application/pdf"/></rootfiles></container>"""
XHTML, NCX = "application/xhtml+xml", "application/x-dtbncx+xml"
PACKAGE = """<?xml version="1.0" encoding="utf-8"?>
<package xmlns="http://www.idpf.org/2007/opf" version="3.0" xml:lang="en"><metadata>
<dc:title>Two dogs</dc:title><!-- <dc:language>en</dc:language> -->
<dc:language id="l"> en-GB </dc:language><dc:language>fr</dc:language>
<dc:language> en </dc:language><meta property="x">two</meta></metadata>
<manifest><item id="n" href="n&amp;v.xhtml" media-type="application/xhtml+xml" properties="nav"/>
<item id="a" href="text/a%20b.xhtml" media-type="application/xhtml+xml"/>
<opf:item id="c" href="../cover.xhtml" media-type="application/xhtml+xml"/>
<item id="t" href="toc.ncx" media-type="application/x-dtbncx+xml"/>
<item id="p" href="page.xhtml" media-type="text/plain"/>
<item id="i" href="i.png" media-type="image/png"/></manifest>
<spine toc="t"><itemref idref="a"/></spine></package>"""
PAGE = """<?xml version="1.0" encoding="utf-8"?><!DOCTYPE html>
<html xmlns="http://www.w3.org/1999/xhtml" lang="en" xml:lang="en"><head><title/>
<link rel="stylesheet" href="s.css"/><script src="two.js"/></head>
<body><p id="p1"><a id="a"/>two &lt;b&gt; <b>dogs</b>&#160;play<br/>it</p>
<p title="two &quot;&lt; dogs">three</p></body></html>"""
UPPER = PAGE.replace("two &lt;b&gt;", "TWO &lt;B&gt;").replace(
    "dogs</b>&#160;play", "DOGS</b> PLAY"
)
UPPER = UPPER.replace("<br/>it", "<br/>IT").replace("&lt; dogs", "&lt; DOGS")
UPPER = UPPER.replace('"two &quot;', '"TWO &quot;').replace("three", "THREE")
UPPER = UPPER.replace('lang="en"', 'lang="pt"')
TOC = """<?xml version="1.0"?><!DOCTYPE ncx PUBLIC "-//NISO//DTD ncx 2005-1//EN" "ncx.dtd">
<ncx version="2005-1"><head><meta name="dtb:uid" content="two"/></head>
<docTitle><text>Two dogs</text></docTitle><docAuthor><text>Ann</text></docAuthor><navMap>
<navPoint id="two"><navLabel><text>two &amp; a</text></navLabel><content src="a.xhtml"/>
<navPoint><navLabel><text>three</text></navLabel></navPoint></navPoint></navMap></ncx>"""
NAV = '<html><body><nav epub:type="toc"><ol><li><a href="a">two</a></li></ol></nav></body></html>'
DATE = (2001, 2, 3, 4, 5, 6)
FILES = {
    "mimetype": "application/epub+zip",
    "META-INF/container.xml": CONTAINER,
    "OEBPS/": "",
    "OEBPS/content.opf": PACKAGE,
    "OEBPS/text/a b.xhtml": PAGE,
    "OEBPS/n&v.xhtml": NAV,
    "cover.xhtml": "<html><body><p>two</p></body></html>",
    "OEBPS/toc.ncx": TOC,
    "OEBPS/page.xhtml": "<p>two</p>",
    "OEBPS/unlisted.xhtml": "<p>two</p>",
    "OEBPS/i.png": bytes(range(256)) * 9,
    "../é.txt": "two",
}
EXPECTED = FILES | {
    "OEBPS/content.opf": PACKAGE.replace(" en-GB </dc", "pt</dc").replace(
        "\n<dc:language> en <", "\n<dc:language>pt<"
    ),
    "OEBPS/text/a b.xhtml": UPPER,
    "OEBPS/n&v.xhtml": NAV.replace("two", "TWO"),
    "cover.xhtml": FILES["cover.xhtml"].replace("two", "TWO"),
    "OEBPS/toc.ncx": TOC.replace("two &amp; a", "TWO &amp; A").replace("three", "THREE"),
}


def packed(files):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.comment = b"a comment"
        for number, (name, content) in enumerate(files.items()):
            info = zipfile.ZipInfo(name, (*DATE[:5], 2 * number))
            info.external_attr, info.comment = 0o640 << 16, b"of an entry"
            kind = zipfile.ZIP_STORED if number % 3 == 0 else zipfile.ZIP_DEFLATED
            archive.writestr(info, content, kind)
    return file.getvalue()


def with_flags(content, change):
    """Changes the flags of all entries."""
    content = bytearray(content)
    for signature, offset in ((b"PK\1\2", 8), (b"PK\3\4", 6)):
        place = content.find(signature)
        while place >= 0:
            (flags,) = struct.unpack_from("<H", content, place + offset)
            struct.pack_into("<H", content, place + offset, change(flags))
            place = content.find(signature, place + 1)
    return bytes(content)


def changed(**contents):
    return packed({**FILES, **contents})


BOOK = packed(FILES)
FIELDS = "filename date_time compress_type external_attr comment extra".split()


def properties(content):
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        rows = [[getattr(info, name) for name in FIELDS] for info in archive.infolist()]
        return rows, archive.comment


def contents(content):
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def encoded(files):
    return {
        name: content if isinstance(content, bytes) else content.encode()
        for name, content in files.items()
    }


def translated(content, say=in_order, pair=("en", "pt"), **options):
    engine = SayingEngine(say)
    engine.languages = Languages(directions=(pair,))
    return translate_document(Translator(engine), content, "book.epub", "book.epub", **options)


def test_pages_and_tables_of_contents_are_translated_and_other_entries_stay():
    book = translated(BOOK)
    assert contents(book) == encoded(EXPECTED)
    for name, content in contents(book).items():
        if name.startswith("OEBPS/text"):
            ElementTree.fromstring(content)  # It is still XML.


def test_entries_keep_their_order_names_dates_and_compression():
    assert properties(translated(BOOK)) == properties(BOOK)
    # As programs that look at the first bytes need it.
    assert translated(BOOK)[30:58] == BOOK[30:58] == b"mimetypeapplication/epub+zip"


def test_a_book_of_words_that_are_copied_stays():
    same = {**FILES, "OEBPS/text/a b.xhtml": PAGE.replace("&#160;", " ")}
    with pytest.warns(UserWarning, match=r"^book\.epub: nothing was found"):
        assert contents(translated(packed(same), unchanged, ("en", "en-GB"))).keys() == FILES.keys()


@pytest.mark.parametrize("target", ["of pirates", None])
def test_a_book_whose_new_language_is_unknown_keeps_its_languages(target):
    book = contents(translated(BOOK, pair=("en", target or "x y")))
    assert book["OEBPS/content.opf"].decode() == PACKAGE
    assert b'lang=""' in book["OEBPS/text/a b.xhtml"]  # As HTML defines an unknown language.


def test_pages_of_all_packages_of_a_book_are_translated():
    other = CONTAINER.replace("</rootfiles>", f"{ROOTFILE.format('b.opf')}</rootfiles>")
    item = f'<item href="OEBPS/unlisted.xhtml" media-type="{XHTML}"/>'
    book = contents(translated(changed(**{"META-INF/container.xml": other, "b.opf": item})))
    assert book["OEBPS/unlisted.xhtml"] == b"<p>TWO</p>"
    assert book["cover.xhtml"].decode() == EXPECTED["cover.xhtml"]


def test_each_page_has_its_own_encoding():
    page = '<?xml version="1.0" encoding="{}"?><html><p>é two</p></html>'
    latin, wide = (
        page.format("iso-8859-1").encode("latin-1"),
        page.format("utf-16").encode("utf-16"),
    )
    files = {"OEBPS/text/a b.xhtml": latin, "cover.xhtml": wide}
    book = contents(translated(changed(**files)))
    for (name, content), codec in zip(files.items(), ("latin-1", "utf-16"), strict=True):
        expected = content.decode(codec).replace("é two", "É TWO")
        assert book[name].decode(codec) == expected and book[name][:2] == content[:2]


def test_names_in_utf8_are_read_even_if_no_flag_says_so():
    name = "é.xhtml"
    files = {
        **FILES,
        "OEBPS/content.opf": PACKAGE.replace("../cover", "../%C3%A9"),
        name: "<p>two</p>",
    }
    book = with_flags(packed(files), lambda flags: 0)
    assert contents(translated(book))[name] == b"<p>TWO</p>"


ENCRYPTION = '<encryption><EncryptedData><CipherData><enc:CipherReference URI="{}"/></CipherData>'


def encrypted(uri):
    return changed(**{"META-INF/encryption.xml": ENCRYPTION.format(uri)})


def test_a_book_whose_fonts_are_encrypted_is_translated():
    path, book = "META-INF/encryption.xml", encrypted("OEBPS/f.ttf")
    assert contents(translated(book)) == encoded(EXPECTED) | {path: contents(book)[path]}


def without(name):
    return packed({path: content for path, content in FILES.items() if path != name})


def twice():
    file = io.BytesIO(BOOK)
    with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("cover.xhtml", "<p>other</p>")
    return file.getvalue()


def in_bzip2():
    file = io.BytesIO(BOOK)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("b", b"a" * 99, zipfile.ZIP_BZIP2)
    return file.getvalue()


ZIP = "^book.epub: expected an EPUB, which is a zip archive. Received: "
REFUSED = {
    "no archive": (b"two dogs", ZIP + "File is not a zip file.$"),
    "an empty file": (b"", ZIP),
    "the first half": (BOOK[: len(BOOK) // 2], ZIP),
    "a changed byte": (
        BOOK.replace(b"<body><p>two", b"<body><p>six"),
        ZIP + "Bad CRC-32",
    ),
    "bytes lost in the middle": (BOOK[:400] + BOOK[500:], ZIP),
    "a password": (with_flags(BOOK, lambda flags: flags | 1), ZIP + "'mimetype', encrypted.$"),
    "an entry twice": (twice(), ZIP + "'cover.xhtml', twice.$"),
    "a compression that EPUB lacks": (in_bzip2(), ZIP + "'b', neither stored nor deflated.$"),
    "no container": (
        without("META-INF/container.xml"),
        "^book.epub: expected an EPUB with META-INF/container.xml. Received: an archive without it",
    ),
    "no package": (without("OEBPS/content.opf"), "^book.epub: expected an EPUB with OEBPS/content"),
    "no package named": (
        changed(**{"META-INF/container.xml": CONTAINER.replace("package+xml", "x")}),
        "^book.epub: expected a package in META-INF/container.xml. Received: none.$",
    ),
    "a page that is no text": (
        changed(**{"cover.xhtml": b"<p>\xff</p>"}),
        "^book.epub, cover.xhtml, line 1: expected UTF-8",
    ),
}
DRM = "^book.epub: expected a book without DRM. Received: OEBPS/.*, which is encrypted.$"
for uri in ("OEBPS/text/a%20b.xhtml", "OEBPS/text/../toc.ncx"):
    REFUSED[f"encrypted {uri}"] = encrypted(uri), DRM


@pytest.mark.parametrize("case", REFUSED)
def test_a_book_that_cannot_be_read_is_refused_in_one_line(case):
    content, message = REFUSED[case]
    with pytest.raises(InputError, match=message) as raised:
        translated(content)
    assert "\n" not in str(raised.value)


def test_pages_that_the_archive_lacks_are_told_once_and_the_others_are_translated():
    items = f'<item href="b.xhtml" media-type="{XHTML}"/><item href="../c" media-type="{NCX}"/>'
    package = PACKAGE.replace("<manifest>", "<manifest>" + items)
    rule = r"^book\.epub: listed pages that the archive lacks: 2, such as OEBPS/b\.xhtml$"
    with pytest.warns(UserWarning, match=rule) as caught:
        book = contents(translated(changed(**{"OEBPS/content.opf": package})))
    assert len(caught) == 1
    assert book["cover.xhtml"].decode() == EXPECTED["cover.xhtml"]


def test_a_book_that_grows_too_large_is_refused_whatever_its_headers_say(monkeypatch):
    monkeypatch.setattr(epub, "_MAX_BYTES", 1 << 20)
    rule = r"^book\.epub: expected entries of at most 1 MiB together\. Received: more\.$"
    parts = {f"bomb{number}": bytes(400_000) for number in range(3)}
    with pytest.raises(InputError, match=rule):
        translated(changed(**parts))
    translated(changed(bomb=bytes(900_000)))
    # A header that says a hundred bytes.
    book = changed(bomb=bytes(5_000_000)).replace(struct.pack("<L", 5_000_000), b"d\0\0\0")
    with pytest.raises(InputError, match="Bad CRC-32|at most 1 MiB"):
        translated(book)


def test_no_more_of_a_book_that_grows_too_large_is_unpacked_than_it_may_have(monkeypatch):
    monkeypatch.setattr(epub, "_MAX_BYTES", 1 << 20)
    book = changed(bomb=bytes(50_000_000))
    tracemalloc.start()
    with pytest.raises(InputError, match="at most 1 MiB"):
        translated(book)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000_000


def test_entities_that_a_file_declares_are_not_expanded():
    declared = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 99}">' for n in range(1, 9))
    bomb = f'<!DOCTYPE a [<!ENTITY e0 "two"><!ENTITY x SYSTEM "/etc/passwd">{declared}]>'
    files = {
        "META-INF/container.xml": CONTAINER.replace("<container", bomb + "<container", 1),
        "OEBPS/content.opf": PACKAGE.replace("<package", bomb + "<package", 1).replace(
            'properties="nav"', 'properties="&e8;&x;"'
        ),
        "cover.xhtml": bomb + "<html><p>&e8; &x; two</p></html>",
    }
    book = contents(translated(changed(**files)))
    assert book["cover.xhtml"].endswith(b"TWO</p></html>") and len(book["cover.xhtml"]) < 10_000
    assert book["OEBPS/content.opf"].count(b"&e8;&x;") == 1


def test_a_page_that_is_listed_twice_is_translated_once():
    item = '<item href="../cover.xhtml" media-type="application/xhtml+xml"/>'
    package = PACKAGE.replace("</manifest>", f"{item * 2}</manifest>")
    book = translated(changed(**{"OEBPS/content.opf": package}))
    assert contents(book)["cover.xhtml"].decode() == EXPECTED["cover.xhtml"]


def test_a_book_twice_as_long_costs_twice_as_much():
    def seconds(count):
        names = [f"OEBPS/{number}.xhtml" for number in range(count)]
        items = "".join(f'<item href="{name[6:]}" media-type="{XHTML}"/>' for name in names)
        labels = "<navLabel><text>12</text></navLabel>" * count
        files = dict.fromkeys(names, "<p>12</p>")
        files["OEBPS/content.opf"] = PACKAGE.replace("<manifest>", "<manifest>" + items)
        files["OEBPS/toc.ncx"] = TOC.replace("<navMap>", "<navMap>" + labels)
        content, started = changed(**files), time.process_time()
        assert len(epub.Epub(content, epub.Settings()).texts) == 2 * count + 5
        return time.process_time() - started

    seconds(10)
    few, many = min(seconds(200) for _ in range(3)), seconds(1600)
    assert many < 8 * 4 * few  # Quadratic, it would be 64 times as much.


def test_pairs_of_a_book_are_the_blocks_of_all_its_pages_as_people_read_them():
    pairs = []
    translated(BOOK, take_pairs=pairs.extend)
    assert ("two & a", "TWO & A") in pairs and ('two "< dogs', 'TWO "< DOGS') in pairs
    assert len(pairs) == 7
    assert all(" ".join(source.upper().split()) == target for source, target in pairs)


def test_the_text_of_a_book_tells_its_language():
    text = decoded(BOOK, ".epub")
    assert "<b>dogs</b>" in text and "two &amp; a" in text and "mimetype" not in text
