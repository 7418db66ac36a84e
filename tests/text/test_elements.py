"""Beginnings of pages; `tests/markup` has the tags."""

import pytest

from keras_transformer.text.elements import begins_page


@pytest.mark.parametrize(
    "text",
    [
        "<!doctype html>",
        " \n<HTML lang=en>",
        '<?xml version="1.0"?>\n<!-- a --><!DOCTYPE html>',
    ],
)
def test_a_page_begins_with_a_doctype_or_its_tag(text):
    assert begins_page(text) is True
    # Any beginning of it tells nothing yet.
    assert {begins_page(text[:size]) for size in range(len(text) - 9)} == {None}


@pytest.mark.parametrize("text", ["a", "<p>a</p>", "a <html>", "<htmlx>", "<!-- <html> -->a"])
def test_a_fragment_does_not(text):
    assert begins_page(text) is False
