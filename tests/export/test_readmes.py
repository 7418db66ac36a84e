"""What the README of every export says."""

import inspect

import pytest

from keras_transformer.export.exporter import read_template
from keras_transformer.formats import FORMATS

SPLIT_BY = {"argos": "Argos Translate searches", "web": "Each sentence of a text is"}


@pytest.mark.parametrize("name", FORMATS)
def test_a_readme_says_whether_a_text_is_one_segment_and_how_to_split_it(name):
    exporter = FORMATS[name].exporter()
    text = read_template(inspect.getfile(type(exporter)), exporter.template).template
    assert SPLIT_BY.get(name, 'sentencex.segment("en", text)') in text
    assert name == "web" or "one segment" in text
