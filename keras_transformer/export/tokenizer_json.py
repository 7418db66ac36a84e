"""Export of a run's tokenizers as `tokenizer.json`, which Hugging Face's `tokenizers` read."""

import base64
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.engine import Engine
from keras_transformer.errors import VerificationError, require
from keras_transformer.export.exporter import Exporter
from keras_transformer.export.texts import sample_texts
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabulary import SPACE, parsed

# Spaces stand for no token's character, since a text's become "▁": no text can spell these names,
# as `Tokenizer.tokenize` promises. SentencePiece, too, writes " ⁇ " for what it did not know.
_NAMES = {PAD_ID: " <pad> ", BOS_ID: " <s> ", EOS_ID: " </s> ", UNK_ID: " \u2047 "}


class TokenizerExporter(Exporter):
    """The format `tokenizer_json`: `tokenizer.json`, or one for each side; no labels.

    `verification.json` names the texts that get other ids in that library, which only some with a
    grapheme of several characters may.
    """

    name = "tokenizer_json"
    template = "tokenizer_json.md"

    def resolve_export_options(self, engine: Engine, options: Any) -> dict[str, Any]:
        return {}

    def write(self, engine: Engine, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
        for name, tokenizer in _files(engine).items():
            content = json.dumps(tokenizer_json(tokenizer), ensure_ascii=False)
            (folder / name).write_text(content, encoding="utf-8")
        return {}

    def verify(
        self, engine: Engine, folder: Path, manifest: dict, texts: Sequence[str] | None
    ) -> dict[str, Any]:
        return {
            name: verify_tokenizer_json(
                folder / name, tokenizer, [*(texts or ()), *sample_texts(tokenizer)]
            )
            for name, tokenizer in _files(engine).items()
        }

    def readme_fields(self, manifest: dict) -> dict[str, str]:
        names = list(manifest["files"])
        return {"first": names[0], "names": ", ".join(f"`{name}`" for name in names)}


def _files(engine):
    """Tokenizers by the names of their files."""
    source, target = engine.source_tokenizer, engine.target_tokenizer
    if source == target:
        return {"tokenizer.json": source}
    sides = {"source_tokenizer.json": source}
    return sides if engine.labels is not None else {**sides, "target_tokenizer.json": target}


def tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """Converts a tokenizer for Hugging Face's `tokenizers`, in Python, Rust or JavaScript.

    It gives the ids of `tokenize`, without a beginning or an end. The special ids have names with
    spaces around, such as `" </s> "`, so that nothing in a text is taken for them; leave them out
    of what is decoded. The library in Python and Rust applies rules of normalization to whole
    graphemes: a text with one of several characters, such as a letter with a mark of its own, may
    get other ids there.

    Returns:
        A dict, for `json.dump` into `tokenizer.json`.
    """
    model = parsed(tokenizer.model_bytes)
    specification, fallback = model.normalizer_spec, model.trainer_spec.byte_fallback
    steps: list[dict] = []
    if specification.precompiled_charsmap:
        rules = base64.b64encode(specification.precompiled_charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": rules})
    if specification.remove_extra_whitespaces:
        steps += [_replaced(r"\A +| +\z", ""), _replaced(" {2,}", " ")]
    steps.append(_replaced(" ", SPACE))
    if specification.add_dummy_prefix:
        # Not by `Metaspace`, which leaves a text alone that begins with the character itself.
        steps.append(_replaced(r"\A(?!\z)", SPACE))
    pieces = [[_NAMES.get(id, each.piece), each.score] for id, each in enumerate(model.pieces)]
    # Not `Metaspace`, which also takes away the other spaces of a first token that has several.
    back = [_replaced(SPACE, " "), *[{"type": "ByteFallback"}] * fallback, {"type": "Fuse"}]
    back.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    words = None
    algorithm = {"type": "Unigram", "unk_id": UNK_ID, "vocab": pieces, "byte_fallback": fallback}
    if tokenizer.whole_words:
        pattern = {"Regex": f"{SPACE}[^{SPACE}]*"}
        words = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
        # A word of several pieces is unknown, since no piece has the prefix. (The library in
        # JavaScript has no `WordLevel`.)
        algorithm = {
            "type": "WordPiece",
            "unk_token": _NAMES[UNK_ID],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": max(len(name) for name, _ in pieces),
            "vocab": {name: id for id, (name, _) in enumerate(pieces)},
        }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": words,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": back},
        "model": algorithm,
    }


def _replaced(pattern, content):
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


ODD_TEXTS = (
    "|  |  a   b |</s>|<s> a </s> <unk> <pad>|\u2581a|a\u2581b|a\x00b\tc\nd|12 345".split("|")
    + "Grüße, señor!|你好，世界 😀|שלום عليكم|ＡＢＣ ①|x²…|a~b～c|İ ß ẞ".split("|")
    # Graphemes of several characters: normalization changes some of them.
    + "e\u0301|\ufb01\u0323|\uff76\uff9e|\u1112\u1161\u11ab|क्\u200dष|👨\u200d👩".split("|")
)
"""Texts that tokenizers get wrong."""


def verify_tokenizer_json(
    file: str | os.PathLike, tokenizer: Tokenizer, texts: Iterable[str]
) -> dict[str, Any]:
    """Compares `tokenizer_json` in a file, as Hugging Face's Python library reads it.

    Returns:
        A dict fit for JSON: how many different `texts` there were, `ODD_TEXTS` among them, and
        which are `outside`: they have a grapheme of several characters and get other ids.

    Raises:
        InputError: `tokenizers` is not installed; it comes with the extra `tokenizers`.
        VerificationError: Another text gets other ids, or ids become another text.
    """
    tokenizers = require("tokenizers", "Hugging Face's tokenizers", "tokenizers")
    theirs = tokenizers.Tokenizer.from_file(os.fspath(file))
    graphemes = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"\X"), "isolated")
    texts, outside = list(dict.fromkeys([*texts, *ODD_TEXTS])), []
    ids = tokenizer.tokenize(texts)
    found = [each.ids for each in theirs.encode_batch(texts)]
    # SentencePiece takes all of several spaces at the beginning, they take one.
    decoded = [text.lstrip() for text in theirs.decode_batch(ids)]
    expected = [text.lstrip() for text in tokenizer.detokenize(ids)]
    for text, *pair, one, other in zip(texts, ids, found, expected, decoded, strict=True):
        several = any(len(each) > 1 for each, _ in graphemes.pre_tokenize_str(text))
        if pair[0] != pair[1] and several:
            outside.append(text)
        elif pair[0] != pair[1] or one != other:
            raise VerificationError(
                "`tokenizer.json` must give the ids and texts of SentencePiece. Received: "
                f"{pair[1]!r:.60} instead of {pair[0]!r:.60}, {other!r:.60} of these, for "
                f"{text!r:.60}."
            )
    return {"texts": len(texts), "outside": outside}
