"""Makes tokenizers with this package's special ids from the vocabularies of other programs' models.

Marian has `</s>` and `<unk>`, but no padding. Nearly always these two have the ids 0 and 1, and id
`i` of the file becomes `i + 2`.
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.base.errors import InputError
from keras_transformer.base.ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.base.impossible import BANNED
from keras_transformer.base.options import received
from keras_transformer.base.reading import decode_text, read_checked, read_json
from keras_transformer.extras.foreign.settings import yaml_loader
from keras_transformer.text import Tokenizer
from keras_transformer.text.tags import language_in_tag
from keras_transformer.text.vocabulary import OF_FIRST_IDS, SPACE, parsed

_SIDES = ("source|src", "target|trg|tgt")  # in names of files
_SPECIAL = {PAD_ID: "<pad>", BOS_ID: "<s>", EOS_ID: "</s>", UNK_ID: "<unk>"}
# Score of a piece that no segmentation uses if other pieces can spell the text.
_NEVER = -1000.0
# In quotes, yaml-cpp before 0.6.3 writes two characters with one byte too many.
_OVERLONG = {b"\xc1\xbf": b"\x7f", b"\xe0\x9f\xbf": b"\xdf\xbf"}


class Vocabulary(NamedTuple):
    """Vocabulary of one side, with the file's ids in this package's order.

    Attributes:
        model: SentencePiece `ModelProto` that segments.
        names: Name of each id of the file.
        end: Id of the end of a sentence.
        unknown: Id of the unknown token.
        pad: Id of padding, or None.
        start: Id that starts the decoder; None for a vector of zeros.
        added: Names of Hugging Face's added tokens, which are tokens anywhere in a text.
    """

    model: Any
    names: Sequence[str]
    end: int
    unknown: int
    pad: int | None = None
    start: int | None = None
    added: tuple[str, ...] = ()

    @property
    def rows(self) -> list[Any]:
        """The file's id for each id of this package; None for an id that the file lacks.

        An added token has a second id at the end, which is used within a word.
        """
        known = {self.start, self.end, self.unknown, self.pad}
        words = (id for id in range(len(self.names)) if id not in known)
        added = map(self.names.index, self.added)
        return [self.pad, self.start, self.end, self.unknown, *words, *added]

    def table(self, values: Any, file: Any) -> "Table":
        """Returns an array, or the rows of a tensor, in the order of this package's ids.

        Its shape is `(file's ids, …)`.
        """
        check_rows(len(self.names), values.shape[0], file)
        return Table(values, np.array([-1 if id is None else id for id in self.rows]))

    def bias(self, values: np.ndarray, file: Any) -> np.ndarray:
        """Reorders a bias to this package's ids, with `BANNED` for ids that no text may have."""
        table = self.table(values.reshape(-1), file)
        bias = table[:]
        bias[table.ids < 0] = BANNED
        # Second copies of ids of the file would count twice.
        copies = list(range(len(bias) - len(self.added), len(bias)))
        if self.start in (None, self.pad, self.end, self.unknown):
            copies.append(BOS_ID)
        bias[copies] = BANNED
        return bias


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of an array in another order, which are copied where they are read.

    Attributes:
        values: The array, or the `TensorRows` of a file.
        ids: Index of each row; -1 for a row of zeros.
    """

    values: Any
    ids: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of all rows."""
        return (len(self.ids), *self.values.shape[1:])

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Returns some rows."""
        ids = self.ids[rows]
        block = self.values[np.maximum(ids, 0)]
        block[ids < 0] = 0
        return block


def check_rows(ids: int, rows: int, where: str | os.PathLike, advice: str = "") -> None:
    """Raises `InputError` unless a tensor has one row for each id of a vocabulary."""
    if ids != rows:
        rule = "each id must have a row" if ids > rows else "each row must have a name"
        sizes = f"{ids} ids of the vocabulary and {rows} rows of a tensor"
        raise InputError(f"{where}: {rule}. Received: {sizes}.{advice}")


def files_of_sides(files: Sequence[Path], are_named: bool) -> list[Path]:
    """Returns the files of the source and of the target; an empty list if that is not clear.

    Args:
        files: One file of both sides, or two files whose names have the sides.
        are_named: Whether a user or a file names them in this order, so that any name is right.
    """
    sides = [[file for file in files if re.search(side, file.name)] for side in _SIDES]
    if len(files) == 1 and (are_named or len(sides[0]) == len(sides[1])):
        return [files[0], files[0]]
    if len(files) == 2 and are_named:
        return list(files)
    is_clear = len(files) == 2 and len(sides[0]) == len(sides[1]) == 1 and sides[0] != sides[1]
    return [sides[0][0], sides[1][0]] if is_clear else []


def vocabulary_from_sentencepiece(model: Any, file: Any = "the SentencePiece model") -> Vocabulary:
    """Makes the vocabulary of a SentencePiece model; errors name `file`."""
    names = [piece.piece for piece in model.pieces]
    unknown = [id for id, piece in enumerate(model.pieces) if piece.type == piece.UNKNOWN]
    end = model.trainer_spec.eos_piece or "</s>"
    if not unknown or end not in names:
        missing = f"{end:.80}, the end of a sentence" if unknown else "<unk>, the unknown token"
        raise InputError(f"{file}: the vocabulary must have {missing}.")
    return Vocabulary(model, names, names.index(end), unknown[0])


def vocabulary_from_names(
    pieces: Path,
    path: Path,
    rows: int,
    added: Mapping[str, int] = MappingProxyType({}),
    **special: int,
) -> Vocabulary:
    """Makes a vocabulary from a SentencePiece file and a YAML or JSON file with the names of ids.

    Args:
        pieces: Path of the SentencePiece file.
        path: Path of the file with the names.
        rows: Number of rows of the embeddings.
        added: Ids of added tokens.
        **special: Ids `pad` and `start` of padding and of the decoder's start; they may lack names.
    """
    ids = ids_of_names(path, named_ids(path), added)
    count = max([*ids.values(), *special.values()]) + 1
    check_rows(count, rows, path)
    special_ids = {ids["</s>"], ids["<unk>"], *special.values()}
    words = tuple(name for name in added if ids[name] not in special_ids)
    return vocabulary_from_ids(read_sentencepiece(pieces), ids, rows, **special, added=words)


def vocabulary_from_ids(model: Any, ids: Mapping[str, int], rows: int, **fields: Any) -> Vocabulary:
    """Makes a vocabulary of names with their ids, which `ids_of_names` checked; `rows` in all."""
    names = {id: name for name, id in ids.items()}
    names_of_rows = [names.get(id, f"<missing_{id}>") for id in range(rows)]
    return Vocabulary(model, names_of_rows, ids["</s>"], ids["<unk>"], **fields)


def ids_of_names(
    path: Path, named: Iterable[tuple[Any, Any, Any]], added: Mapping[str, int]
) -> dict[str, int]:
    """Returns the ids of a vocabulary's names; raises `InputError` for ids that contradict.

    Args:
        path: The vocabulary's file, for errors.
        named: Names with their ids, as `named_ids` reads them.
        added: Ids of added tokens.
    """
    ids: dict[str, int] = {}
    names: dict[int, str] = {}
    added_ids = ((name, id, f"{path}: added tokens") for name, id in added.items())
    for name, value, index in (*named, *added_ids):
        rule = ""
        if not isinstance(name, str) or not re.fullmatch("[0-9]{1,18}", str(value)):
            rule = "expected a name and an integer of at least 0"
        elif ids.setdefault(name, int(value)) != int(value):
            rule = f"a name must have one id, and this name has the id {ids[name]} too"
        elif names.setdefault(int(value), name) != name:
            rule = f"an id must have one name, and this id is {received(names[int(value)])} too"
        if rule:
            pair = f"{received(name)}: {received(value)}"
            raise InputError(f"{index}: {rule}. Received: {pair}.")
    if not ids:
        raise InputError(f"{path}: expected names with their ids.")
    for name in sorted({"</s>", "<unk>"} - ids.keys()):
        raise InputError(f"{path}: the vocabulary must have {name}.")
    return ids


def named_ids(path: Path) -> list[tuple[Any, Any, Any]]:
    """Reads names with their ids as the file writes them, and the line of each for errors."""
    if path.suffix == ".json":
        return [(name, id, path) for name, id in read_json(path, tuple)]
    content = read_checked(path)
    for overlong, right in _OVERLONG.items():
        content = content.replace(overlong, right)
    with yaml_loader(decode_text(content, path), path) as loader:
        root = loader.get_single_node()
        if getattr(root, "id", None) != "mapping":
            raise InputError(f"{path}: expected names with their ids.")
        return [
            (*map(loader.construct_object, pair), f"{path}, line {pair[0].start_mark.line + 1}")
            for pair in root.value
        ]


def tokenizer_of(vocabulary: Vocabulary, is_target: bool) -> Tokenizer:
    """Makes a tokenizer with a vocabulary's segmentation and ids.

    A piece that only the SentencePiece model has takes part in the segmentation, and its id is
    unknown. A name that the model lacks is a piece of the other side, which no segmentation uses.
    Exceptions are language tags and added tokens. A tag `>>xxx<<` is a token at the start of a
    word, and an added token is a token anywhere in a text.

    Args:
        vocabulary: Vocabulary of the side.
        is_target: Whether the ids become text. Then pieces of the other side keep their text.
    """
    model = vocabulary.model
    new_model = type(model)()
    new_model.CopyFrom(model)
    del new_model.pieces[:]
    for piece in _pieces_of_ids(vocabulary, is_target):
        new_model.pieces.add(**piece)
    count = len(new_model.pieces)
    new_model.pieces.extend(_pieces_without_ids(model, new_model.pieces))
    spec = new_model.trainer_spec
    spec.pad_id, spec.bos_id, spec.eos_id, spec.unk_id = PAD_ID, BOS_ID, EOS_ID, UNK_ID
    spec.pad_piece, spec.bos_piece, spec.eos_piece, spec.unk_piece = _SPECIAL.values()
    # SentencePiece reads the types of the pieces; the package reads tags and separators here.
    del spec.user_defined_symbols[:], spec.control_symbols[:]
    if len(new_model.pieces) > count:
        spec.control_symbols.append(f"{OF_FIRST_IDS}{count}")
    return Tokenizer(new_model.SerializeToString())


def _pieces_of_ids(vocabulary, is_target):
    """Yields the fields of the piece of each of this package's ids."""
    model = vocabulary.model
    types = type(model.pieces[0])
    for id, name in _SPECIAL.items():
        kind = types.UNKNOWN if id == UNK_ID else types.CONTROL
        yield {"piece": name, "score": 0.0, "type": kind}
    model_pieces = {piece.piece: piece for piece in model.pieces}
    # BPE merges to any piece, whatever its score.
    keeps_text = is_target and model.trainer_spec.model_type != model.trainer_spec.BPE
    word_ids = vocabulary.rows[len(_SPECIAL) :]
    first_within_words = len(word_ids) - len(vocabulary.added)
    texts = set(_SPECIAL.values())
    for index, id in enumerate(word_ids):
        name = vocabulary.names[id]
        if name in vocabulary.added:
            piece = _added_piece(name, index >= first_within_words, types)
        else:
            piece = _piece(name, model_pieces, keeps_text, types)
        if piece["piece"] in texts:  # No two pieces may be equal. This one is in no segmentation.
            piece |= {"piece": f"<{id}:{name}>", "type": types.CONTROL}
        texts.add(piece["piece"])
        yield piece


def _added_piece(name, is_within_word, types):
    """Returns the fields of an added token's piece, at the start of a word or within a word."""
    text = ("" if is_within_word else SPACE) + name.replace(" ", SPACE)
    return {"piece": text, "score": 0.0, "type": types.USER_DEFINED}


def _piece(name, model_pieces: Mapping[str, Any], keeps_text, types):
    """Returns the fields of a name's piece."""
    if language_in_tag(name) and name[0] != SPACE:  # Marian looks up the whole tag.
        return {"piece": SPACE + name, "score": 0.0, "type": types.USER_DEFINED}
    if model_piece := model_pieces.get(name):
        kind = types.CONTROL if model_piece.type == types.UNUSED else model_piece.type
        return {"piece": name, "score": model_piece.score, "type": kind}
    if keeps_text:
        return {"piece": name, "score": _NEVER, "type": types.NORMAL}
    return {"piece": name, "score": 0.0, "type": types.CONTROL}


def _pieces_without_ids(model, pieces):
    """Returns a model's pieces that take part in its segmentation and are not among some pieces."""
    types = type(model.pieces[0])
    segmenting = (types.NORMAL, types.USER_DEFINED, types.BYTE)
    texts = {piece.piece for piece in pieces}
    return [
        piece for piece in model.pieces if piece.type in segmenting and piece.piece not in texts
    ]


def read_sentencepiece(path: str | os.PathLike) -> Any:
    """Reads a SentencePiece model, whatever its ids, as a `ModelProto`."""
    from google.protobuf.message import DecodeError

    try:
        model = parsed(read_checked(path))
    except DecodeError:
        model = None
    # protobuf gives bytes for a text that is not UTF-8.
    if not (model and model.pieces and all(isinstance(piece.piece, str) for piece in model.pieces)):
        raise InputError(f"{os.fspath(path)}: expected a SentencePiece model.")
    return model
