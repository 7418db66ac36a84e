"""Vocabularies and languages of M2M100, NLLB-200 and SMaLL-100, in folders of Hugging Face.

Their ids are fairseq's: first `<s>`, `<pad>`, `</s>` and `<unk>`. A `vocab.json` has the ids of the
pieces; without this file an id is SentencePiece's id plus 1. The tokens of languages follow.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_transformer.base.errors import InputError
from keras_transformer.base.options import received
from keras_transformer.base.reading import read_json
from keras_transformer.extras.foreign.vocabulary import (
    Vocabulary,
    check_rows,
    ids_of_names,
    named_ids,
    read_sentencepiece,
    vocabulary_from_ids,
)
from keras_transformer.text.languages import Languages, codes_of
from keras_transformer.text.tags import LANGUAGE_TOKEN

KIND = "m2m_100"
"""`model_type` in `config.json` of all three families."""
POSITIONS = {
    "position_layout": "halves",
    "position_frequencies": "marian",
    "position_offset": 2,
}
"""Positions of these models, as fields of a `TransformerConfig`."""
_PIECES = "sentencepiece.bpe.model"
_FIRST_NAMES = ("<s>", "<pad>", "</s>", "<unk>")
# Its tokenizer, and the file of the tokenizer.
_SMALL100 = ("SMALL100Tokenizer", "tokenization_small100.py")


def read_vocabulary(
    folder: Path, rows: int, added: Mapping[str, int], settings: Mapping[str, Any], **special: int
) -> tuple[Vocabulary, Languages]:
    """Reads the vocabulary of both sides, and its languages. No Python file of the folder is run.

    Args:
        folder: Path of the model.
        rows: Number of rows of the embeddings; ids without a name are tokens that no text has.
        added: Ids of added tokens by name.
        settings: Content of `tokenizer_config.json`.
        **special: Ids `pad` and `start`.
    """
    pieces, path = folder / _PIECES, folder / "vocab.json"
    model = read_sentencepiece(pieces)
    if path.is_file():
        named = named_ids(path)
    else:
        path = pieces
        names = [*_FIRST_NAMES, *(piece.piece for piece in model.pieces[len(_FIRST_NAMES) - 1 :])]
        named = [(name, id, path) for id, name in enumerate(names)]
    added = _with_languages(folder, added, settings, len(named))
    ids = ids_of_names(path, named, added)
    check_rows(max(rows, *(id + 1 for id in ids.values())), rows, path)
    tokens = codes_of(filter(LANGUAGE_TOKEN.fullmatch, added))
    return vocabulary_from_ids(model, ids, rows, **special), Languages(
        tokens, **_uses(folder, settings)
    )


def _uses(folder, settings):
    """Returns the fields of `Languages` that say where the model reads which token."""
    name, file = _SMALL100
    if settings.get("tokenizer_class") == name or (folder / file).is_file():
        return {"source_prefix": "target"}
    is_legacy = settings.get("legacy_behaviour") is True
    field = "source_suffix" if is_legacy else "source_prefix"
    return {field: "source", "target_prefix": "target"}


def _with_languages(folder, added, settings, first_id):
    """Returns the ids of added tokens and of languages, from the first file that has them.

    Older folders only have a list, in the order of the ids after the pieces.
    """
    if any(map(LANGUAGE_TOKEN.fullmatch, added)):
        return added
    tokens, lists = folder / "tokenizer.json", folder / "special_tokens_map.json"
    if tokens.is_file():
        rows = read_json(tokens).get("added_tokens")
        try:
            return {**added, **{row["content"]: row["id"] for row in rows}}
        except (KeyError, TypeError):
            rule = f"{tokens}: `added_tokens` must have tokens with ids"
            raise InputError(f"{rule}. Received: {received(rows)}.") from None
    sources = [read_json(lists) if lists.is_file() else {}, settings]
    for options in sources:
        names = options.get("additional_special_tokens")
        if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
            return {**added, **{name: first_id + index for index, name in enumerate(names)}}
    rule = "the tokens of languages, such as __de__ or deu_Latn, must be in added_tokens.json"
    raise InputError(f"{folder}: {rule}, tokenizer.json or special_tokens_map.json.")
