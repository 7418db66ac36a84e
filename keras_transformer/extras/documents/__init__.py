"""Whole files: a document becomes texts, and their translations become the document again.

A kind is a `Document`: it finds the texts of a document, and writes their translations into it.
All except texts stays as it is, in the encoding and with the line ends of the document.
"""

from keras_transformer.extras.documents.translating import (
    KINDS,
    check_output,
    check_translates_sentences,
    kind_of,
    read_document,
    translate_document,
    translate_file,
)

__all__ = [
    "KINDS",
    "check_output",
    "check_translates_sentences",
    "kind_of",
    "read_document",
    "translate_document",
    "translate_file",
]
