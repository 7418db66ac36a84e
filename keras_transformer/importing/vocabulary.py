"""Vocabularies of Marian's models as tokenizers with the special ids of this package.

Marian has `</s>` and `<unk>` and no padding. Nearly always these are the file's ids 0 and 1; then
id `i` of the file becomes `i + 2`.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.text import Tokenizer
from keras_transformer.text.vocabulary import OF_FIRST_IDS, SPACE, parsed

BANNED = -100.0
"""Bias of an id that may not be chosen: its probability is 0, and label smoothing stays finite."""
_LANGUAGE = re.compile(r">>.+<<")
_SPECIAL = {PAD_ID: "<pad>", BOS_ID: "<s>", EOS_ID: "</s>", UNK_ID: "<unk>"}
# Score of a piece that is used only for text that no other pieces can spell.
_NEVER = -1000.0


class Vocabulary(NamedTuple):
    """Tokens of one side of a file, and its ids in the order of ours.

    Attributes:
        names: Name of each id of the file.
        end: The file's id of the end of a sentence.
        unknown: The file's id of the unknown token.
        pad: The file's id of padding, or None.
        start: The file's id of the token that a decoder reads first; None for a vector of zeros.
    """

    names: Sequence[str]
    end: int
    unknown: int
    pad: int | None = None
    start: int | None = None

    @property
    def rows(self) -> list[Any]:
        """The file's id of each of our ids; None for an id that the file does not have."""
        special_ids = {self.end, self.unknown, self.pad}
        words = (id for id in range(len(self.names)) if id not in special_ids)
        return [self.pad, self.start, self.end, self.unknown, *words]

    def table(self, embeddings: np.ndarray) -> np.ndarray:
        """Returns rows of a matrix `(file's ids, width)` in our order, zeros for None."""
        table = np.zeros((len(self.rows), embeddings.shape[1]), "float32")
        for row, id in enumerate(self.rows):
            if id is not None:
                table[row] = embeddings[id]
        return table

    def bias(self, values: np.ndarray | None) -> np.ndarray:
        """Returns the bias of our ids' logits: the file's values, `BANNED` for ids it lacks."""
        bias = np.full(len(self.rows), BANNED, "float32")
        for row, id in enumerate(self.rows):
            if id is not None and row != BOS_ID:
                bias[row] = 0.0 if values is None else values[id]
        return bias


def read_sentencepiece(path: Path) -> Any:
    """Reads a SentencePiece model as a `ModelProto`."""
    from google.protobuf.message import DecodeError

    try:
        model = parsed(path.read_bytes())
    except (DecodeError, OSError):
        model = None
    if model is None or not model.pieces:
        raise InputError(f"{path}: expected a SentencePiece model.")
    return model


def read_yaml(text: str, where: str | os.PathLike) -> dict[str, Any]:
    """Reads a YAML mapping whose values are texts, lists or mappings of them."""
    import yaml

    try:  # BaseLoader: `yes` and `1` are texts, and `<<` is no merge key.
        value = yaml.load(text, getattr(yaml, "CBaseLoader", yaml.BaseLoader))
    except yaml.YAMLError:
        value = None
    if not isinstance(value, dict):
        raise InputError(f"{where}: expected names and values as YAML.")
    return value


def of_sentencepiece(model: Any) -> Vocabulary:
    """Makes the vocabulary of a SentencePiece model whose ids are the file's."""
    names = [piece.piece for piece in model.pieces]
    unknown = next(i for i, piece in enumerate(model.pieces) if piece.type == piece.UNKNOWN)
    return Vocabulary(names, names.index(model.trainer_spec.eos_piece or "</s>"), unknown)


def read_names(path: Path) -> list[str]:
    """Reads the name of each id from a YAML or JSON file of names and ids."""
    try:
        text = path.read_text(encoding="utf-8")
        ids = json.loads(text) if path.suffix == ".json" else read_yaml(text, path)
        names = {int(id): name for name, id in ids.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        raise InputError(f"{path}: expected names with their ids.") from None
    return [names.get(id, f"<missing_{id}>") for id in range(max(names) + 1)]


def of_names(names: Sequence[str], path: str | os.PathLike, **special: int | None) -> Vocabulary:
    """Makes the vocabulary of a file of names; `special` are its ids of `pad` and `start`."""
    for name in ("</s>", "<unk>"):
        if name not in names:
            raise InputError(f"{path}: the vocabulary must have {name}.")
    return Vocabulary(names, names.index("</s>"), names.index("<unk>"), **special)


def tokenizer_of(model: Any, vocabulary: Vocabulary, writes: bool) -> Tokenizer:
    """Makes a tokenizer that segments as a SentencePiece model and has the ids of a vocabulary.

    A piece of the model that the vocabulary lacks is still used in the segmentation, and becomes
    the unknown token. A name that the model lacks is a piece of the other side, which no text is
    cut into. But a name `>>xxx<<` is a language tag, which is known at the start of a word.

    Args:
        model: `ModelProto`.
        vocabulary: Vocabulary of the side.
        writes: Whether the side's ids become text; then pieces of the other side keep their text.
    """
    pieces_by_name = {piece.piece: piece for piece in model.pieces}
    new_model = type(model)()
    new_model.CopyFrom(model)
    del new_model.pieces[:]
    kinds = type(model.pieces[0])
    for id, name in _SPECIAL.items():
        new_model.pieces.add(
            piece=name, score=0.0, type=kinds.UNKNOWN if id == UNK_ID else kinds.CONTROL
        )
    used_names = set(_SPECIAL.values())
    # BPE merges to any piece, whatever its score, so that such pieces would be used there.
    keeps_text = writes and model.trainer_spec.model_type != model.trainer_spec.BPE
    for id in vocabulary.rows[len(_SPECIAL) :]:
        name = vocabulary.names[id]
        piece = _piece(name, pieces_by_name, keeps_text, kinds)
        if piece["piece"] in used_names:
            piece |= {"piece": f"<{id}:{name}>", "type": kinds.CONTROL}
        used_names.add(piece["piece"])
        new_model.pieces.add(**piece)
    count = len(new_model.pieces)
    segmented = (kinds.NORMAL, kinds.USER_DEFINED, kinds.BYTE)
    for unlisted in model.pieces:
        if unlisted.piece not in used_names and unlisted.type in segmented:
            new_model.pieces.add(piece=unlisted.piece, score=unlisted.score, type=unlisted.type)
    spec = new_model.trainer_spec
    spec.pad_id, spec.bos_id, spec.eos_id, spec.unk_id = PAD_ID, BOS_ID, EOS_ID, UNK_ID
    spec.pad_piece, spec.bos_piece, spec.eos_piece, spec.unk_piece = _SPECIAL.values()
    # SentencePiece reads the types of pieces; this package reads tags and separators from the
    # lists of symbols.
    del spec.user_defined_symbols[:], spec.control_symbols[:]
    if len(new_model.pieces) > count:
        spec.control_symbols.append(f"{OF_FIRST_IDS}{count}")
    return Tokenizer(new_model.SerializeToString())


def _piece(name, pieces_by_name: Mapping[str, Any], keeps_text, kinds):
    """Returns the fields of the piece of a name."""
    if name in pieces_by_name:
        known_piece = pieces_by_name[name]
        kind = kinds.CONTROL if known_piece.type == kinds.UNUSED else known_piece.type
        return {"piece": name, "score": known_piece.score, "type": kind}
    if _LANGUAGE.fullmatch(name):
        return {"piece": SPACE + name, "score": 0.0, "type": kinds.USER_DEFINED}
    kind = kinds.NORMAL if keeps_text else kinds.CONTROL
    return {"piece": name, "score": _NEVER if keeps_text else 0.0, "type": kind}
