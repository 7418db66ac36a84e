"""Tags are what the tokenizer of the HTML standard reads as tags; beginnings of pages.

`tests/extras/markup` has what becomes of them.
"""

import re

import pytest

from keras_transformer.text.elements import begins_page, find_tags

# Tags, comments, and what is copied, stand in double angle brackets. The rest of each line is text.
# https://html.spec.whatwg.org/multipage/parsing.html#tokenization
MARKED = """
⟪<a href="x"">⟫b⟪</a>⟫ ⟪<a href='x''y>⟫ ⟪<a b="c"d="e">⟫ ⟪<a "b>⟫ ⟪<a ="b>⟫ ⟪<a b="c>d">⟫
⟪<a b=c"d>⟫
⟪<a b='>' c=">" d==>⟫ ⟪<a/b=c/d>⟫ ⟪<a<b>⟫ ⟪<a b=<c>⟫ ⟪<a-b:c.d e>⟫ ⟪</a b=">">⟫ ⟪</ a>⟫ ⟪</>⟫
⟪<!a>⟫ ⟪<!>⟫ ⟪<?a>⟫
1 < 2, a<2 <3 < b> <= <> <-- a --> & <é> ⟪<0>⟫a⟪</0>⟫⟪<1/>⟫ I ⟪</3 you>⟫ <5000>
⟪<!-- <b> -->⟫a⟪<!-->⟫b⟪<!--->⟫c⟪<!-- -- > --!>⟫d⟪<!--!> -->⟫e⟪<!---!> -->⟫ ⟪<!doctype html>⟫
⟪<![if !IE]>⟫
⟪<?xml:namespace prefix = o ns = "urn:x" />⟫a⟪<?php echo 1 > 2 ?>⟫b⟪<?= a > 1 ?>⟫
⟪<![CDATA[ a > b ]]>⟫
⟪<script>if (a < b) "<p>" </b> </scriptx></script >⟫a⟪<style><!-- </style>⟫
b⟪<iframe><p></IFRAME/x>⟫c⟪<xmp><b></xmp>⟫
⟪<script><!-- w("<script>a</script>") --></script>⟫b ⟪<script><!-- a </script>⟫
c ⟪<script><!--><script></script>⟫d
⟪<title>⟫a <b> <!-- c </titles>⟪</title>⟫d⟪<textarea>⟫<p>⟪</TEXTAREA >⟫ ⟪<script src="a"/>⟫
a⟪<title/>⟫⟪<b>⟫c⟪</b>⟫
⟪<script><!-- <script> <!-- </script> --></script>⟫e
a ⟪<!-- b <p>c</p>⟫
a ⟪<a href="b>c</a> d⟫
a ⟪<b c⟫
a ⟪<script>b</p>⟫
a ⟪<?b <p⟫
a⟪<title>⟫b <p>c</p>
a </
a <
""".strip()


@pytest.mark.parametrize("marked", MARKED.splitlines())
def test_tags_and_comments_are_those_of_a_browser(marked):
    source = re.sub("[⟪⟫]", "", marked)
    tags = find_tags(source)
    assert [source[tag.start : tag.stop] for tag in tags] == re.findall("⟪(.*?)⟫", marked)


@pytest.mark.parametrize(
    ("tag", "attributes"),
    [
        ('<a href="x"" b>', {"href": "x", '"': "", "b": ""}),
        ("<a B='c' b=d E = f/ g=>", {"b": "c", "e": "f/", "g": ""}),
        ("<a/b=c/d=\"e>f\"h='i'j/>", {"b": 'c/d="e'}),
        ("<a =b==c d='\"'\te=\n\"'\">", {"=b": "=c", "d": '"', "e": "'"}),
        ("<img alt title=it's>", {"alt": "", "title": "it's"}),
    ],
)
def test_attributes_are_those_of_a_browser(tag, attributes):
    (found,) = find_tags(tag)
    assert {name: found.attribute(tag, name) for name in found.attributes} == attributes


@pytest.mark.parametrize(
    ("tag", "kind"),
    [("<b/>", "single"), ("<b />", "single"), ("<b c=d/>", "begin"), ("<br>", "single")],
)
def test_a_tag_is_empty_by_its_name_or_its_end(tag, kind):
    assert [found.kind for found in find_tags(tag)] == [kind]


PAGES = ["<!doctype html>", " \n<HTML lang=en>", '<?xml version="1.0"?>\n<!-- a --><!DOCTYPE html>']
FRAGMENTS = ["a", "<p>a</p>", "a <html>", "<htmlx>", "<!-- <html> -->a"]


@pytest.mark.parametrize("text", PAGES + FRAGMENTS)
def test_a_page_begins_with_a_doctype_or_its_tag_and_a_fragment_does_not(text):
    assert begins_page(text) is (text in PAGES)
    if text in PAGES:  # Any beginning of it tells nothing yet.
        assert {begins_page(text[:size]) for size in range(len(text) - 9)} == {None}
