"""One page, six sentences, in eighteen languages, from `data/page_in_languages.tsv`."""

import pathlib

_FILE = pathlib.Path(__file__).parent / "data" / "page_in_languages.tsv"
_ROWS = [line.split("\t") for line in _FILE.read_text(encoding="utf-8").splitlines()]
PAGE = {language: sentences for language, *sentences in _ROWS}
