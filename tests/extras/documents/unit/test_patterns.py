"""The patterns of documents read a long text once, whatever is in it."""

import itertools
import time

import pytest

from keras_transformer.extras.documents import (
    dividing,
    heading_links,
    markdown,
    markdown_parser,
    markdown_passage,
)

MODULES = dividing, heading_links, markdown, markdown_parser, markdown_passage
PATTERNS = {
    f"{module.__name__.rpartition('.')[2]}.{name}": pattern
    for module in MODULES
    for name, pattern in vars(module).items()
    if name.startswith("_") and hasattr(pattern, "groupindex")
}
# Signs with which patterns begin, go on and end.
UNITS = ["[^", "]:", "{:", ":a", "<a ", "=x\"'", "<!--", " ", "\n---", "1", "。我"]


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_reads_a_long_text_once(name):
    pattern = PATTERNS[name]
    is_bytes = isinstance(pattern.pattern, bytes)
    for first, second in itertools.product(UNITS, repeat=2):
        count = 4000 // len(first + second)
        for text in ((first + second) * count, first * count + second * count):
            text = text.encode() if is_bytes else text
            start = time.thread_time()
            pattern.findall(text)
            # A pattern that reads the rest at each sign takes much longer.
            assert time.thread_time() - start < 0.02, text[:20]
