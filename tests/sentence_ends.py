"""Texts in many languages with `|` where each sentence ends, from `data/sentence_ends.tsv`."""

import pathlib

_FILE = pathlib.Path(__file__).parent / "data" / "sentence_ends.tsv"
_ROWS = [line.split("\t") for line in _FILE.read_text(encoding="utf-8").splitlines()]
SENTENCES = [(language or None, text.replace("\\n", "\n")) for language, _, text in _ROWS]
# Without those whose ends a browser does not know: abbreviations, sentences that begin with digits.
OF_BROWSERS = [row for row, (_, needs, _) in zip(SENTENCES, _ROWS, strict=True) if not needs]
