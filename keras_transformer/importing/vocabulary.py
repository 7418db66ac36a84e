"""Vocabularies of Marian's models as tokenizers with the ids that the whole package agrees on.

Marian has `</s>` and `<unk>` and no padding. Id `i` of the file becomes `i + 2` where these two are
its ids 0 and 1, as they nearly always are.
"""

import contextlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.errors import InputError, show
from keras_transformer.ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.options import INT32, received
from keras_transformer.text import Tokenizer
from keras_transformer.text.vocabulary import OF_FIRST_IDS, SPACE, read_sentencepiece

BANNED = -100.0
"""Bias of an id that may not be chosen: nothing in a softmax, harmless in label smoothing."""
_LANGUAGE = re.compile(r">>.+<<")
_SPECIAL = {PAD_ID: "<pad>", BOS_ID: "<s>", EOS_ID: "</s>", UNK_ID: "<unk>"}
# Score of a piece that is never the best segmentation of what other pieces can spell.
_NEVER = -1000.0


class Vocabulary(NamedTuple):
    """Tokens of one side of a file, and its ids in the order of ours.

    Attributes:
        model: SentencePiece `ModelProto` that segments.
        names: Name of each id of the file.
        end: Its id of the end of a sentence.
        unknown: Its id of the unknown token.
        pad: Its id of padding, or None.
        start: Its id of what a decoder reads first; None for a vector of zeros.
    """

    model: Any
    names: Sequence[str]
    end: int
    unknown: int
    pad: int | None = None
    start: int | None = None

    @property
    def rows(self) -> list[Any]:
        """The file's id of each of our ids; None for an id that the file does not have."""
        known = {self.end, self.unknown, self.pad}
        words = (id for id in range(len(self.names)) if id not in known)
        return [self.pad, self.start, self.end, self.unknown, *words]

    def table(self, values: np.ndarray, file: Any, missing: float = 0.0) -> np.ndarray:
        """Rows of an array `(file's ids, …)` in the order of our ids, `missing` where None."""
        ids = np.array([-1 if id is None else id for id in self.rows])
        sizes = f"{ids.max() + 1} ids of the vocabulary and {len(values)} rows of a tensor"
        if ids.max() >= len(values):
            raise InputError(f"{file}: each id must have a row. Received: {sizes}.")
        if ids.max() + 1 < len(values) and values.ndim > 1:  # Not again for the bias.
            show(f"{file}: {sizes}, of which the last are not imported")
        table = values[ids]
        table[ids < 0] = missing
        return table


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


def number(
    options: Mapping[str, Any], name: str, where: Any, default: Any = None, kind: type = int
) -> Any:
    """Returns an option as a number, `default` for none; raises `InputError` for other values."""
    value = default if options.get(name) in (None, "") else options[name]
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        if 0 <= kind(value) < INT32:  # Neither NaN nor infinity.
            return kind(value)
    rule = f"{'an integer' if kind is int else 'a finite number'} of at least 0"
    raise InputError(f"{where}: `{name}` must be {rule}. Received: {received(value)}.")


def of_sentencepiece(model: Any) -> Vocabulary:
    """Vocabulary of a model whose ids are the file's."""
    names = [piece.piece for piece in model.pieces]
    unknown = next(i for i, piece in enumerate(model.pieces) if piece.type == piece.UNKNOWN)
    return Vocabulary(model, names, names.index(model.trainer_spec.eos_piece or "</s>"), unknown)


def _read_names(path):
    try:
        text = path.read_text(encoding="utf-8")
        ids = json.loads(text) if path.suffix == ".json" else read_yaml(text, path)
        names = {int(id): name for name, id in ids.items()}
        return [names.get(id, f"<missing_{id}>") for id in range(max(names) + 1)]
    except (OSError, ValueError, AttributeError, TypeError):
        raise InputError(f"{path}: expected names with their ids.") from None


def of_names(pieces: Path, path: Path, **special: int | None) -> Vocabulary:
    """Vocabulary of a SentencePiece file and of a YAML or JSON file with the names of ids."""
    names = _read_names(path)
    for name in sorted({"</s>", "<unk>"} - set(names)):
        raise InputError(f"{path}: the vocabulary must have {name}.")
    end, unknown = map(names.index, ("</s>", "<unk>"))
    return Vocabulary(read_sentencepiece(pieces), names, end, unknown, **special)


def tokenizer_of(vocabulary: Vocabulary, writes: bool) -> Tokenizer:
    """Makes a tokenizer that segments as a vocabulary's SentencePiece model and has its ids.

    A piece of the model that the vocabulary lacks still takes part in the segmentation, and is
    unknown. A name that the model lacks is a piece of the other side, and no text is cut into it.
    An exception is a language tag: a name `>>xxx<<` is known at the start of a word.

    Args:
        vocabulary: Vocabulary of the side.
        writes: Whether the side's ids become text: then pieces of the other side keep their text.
    """
    model = vocabulary.model
    known = {piece.piece: piece for piece in model.pieces}
    made = type(model)()
    made.CopyFrom(model)
    del made.pieces[:]
    kinds = type(model.pieces[0])
    for id, name in _SPECIAL.items():
        kind = kinds.UNKNOWN if id == UNK_ID else kinds.CONTROL
        made.pieces.add(piece=name, score=0.0, type=kind)
    taken = set(_SPECIAL.values())
    # BPE merges to any piece, whatever its score.
    keeps_text = writes and model.trainer_spec.model_type != model.trainer_spec.BPE
    for id in vocabulary.rows[len(_SPECIAL) :]:
        name = vocabulary.names[id]
        piece = _piece(name, known, keeps_text, kinds)
        if piece["piece"] in taken:
            piece |= {"piece": f"<{id}:{name}>", "type": kinds.CONTROL}
        taken.add(piece["piece"])
        made.pieces.add(**piece)
    count = len(made.pieces)
    segmented = (kinds.NORMAL, kinds.USER_DEFINED, kinds.BYTE)
    unlisted = [piece for piece in model.pieces if piece.piece not in taken]
    made.pieces.extend(piece for piece in unlisted if piece.type in segmented)
    spec = made.trainer_spec
    spec.pad_id, spec.bos_id, spec.eos_id, spec.unk_id = PAD_ID, BOS_ID, EOS_ID, UNK_ID
    spec.pad_piece, spec.bos_piece, spec.eos_piece, spec.unk_piece = _SPECIAL.values()
    # The types of the pieces count; of these lists the package takes tags and separators.
    del spec.user_defined_symbols[:], spec.control_symbols[:]
    if len(made.pieces) > count:
        spec.control_symbols.append(f"{OF_FIRST_IDS}{count}")
    return Tokenizer(made.SerializeToString())


def _piece(name, known: Mapping[str, Any], keeps_text, kinds):
    """Fields of the piece of a name."""
    if _LANGUAGE.fullmatch(name):  # Marian looks it up by its name, whatever its piece is.
        return {"piece": SPACE + name, "score": 0.0, "type": kinds.USER_DEFINED}
    if known_piece := known.get(name):
        kind = kinds.CONTROL if known_piece.type == kinds.UNUSED else known_piece.type
        return {"piece": name, "score": known_piece.score, "type": kind}
    kind = kinds.NORMAL if keeps_text else kinds.CONTROL
    return {"piece": name, "score": _NEVER if keeps_text else 0.0, "type": kind}
