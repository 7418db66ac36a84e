"""Tokenizers of an export as `tokenizer.json`, which Hugging Face's `tokenizers` read."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import sentencepiece

from keras_transformer.base.errors import InputError
from keras_transformer.base.files import write_whole
from keras_transformer.base.ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.base.imports import stderr_kept_back
from keras_transformer.engine.engine import Engine
from keras_transformer.export.exporter import write_tokenizers
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabulary import SPACE, parsed, sentencepiece_schema

# Characters that SentencePiece turns into `SPACE` after all rules.
_WHITE = " \t\r\n"
# No token contains a space, since spaces of a text become "▁". So no text can spell these names, as
# `Tokenizer.tokenize` promises. SentencePiece also writes " ⁇ " for unknown tokens.
_NAMES = {PAD_ID: " <pad> ", BOS_ID: " <s> ", EOS_ID: " </s> ", UNK_ID: " \u2047 "}


def write_all_tokenizers(engine: Engine, folder: Path) -> dict[str, str]:
    """Writes the SentencePiece models, and next to each the same tokenizer for `tokenizers`.

    Returns the manifest's keys, as `write_tokenizers`.
    """
    names = write_tokenizers(engine, folder)
    for name in set(names.values()):
        smaller = without_needless_rules(Tokenizer.load(folder / name).model_bytes)
        content = json.dumps(tokenizer_json(Tokenizer(smaller)), ensure_ascii=False)
        write_whole((folder / name).with_suffix(".json"), content)
    return names


def tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """Converts a tokenizer for Hugging Face's `tokenizers`, in Python, Rust or JavaScript.

    It returns the ids of `tokenize`, without BOS and EOS. The special ids have names with spaces
    around, such as `" </s> "`, so that no text is tokenized to them; remove these ids before you
    decode. The library in Python and Rust applies rules of normalization to whole graphemes. So a
    text with a grapheme of several characters, such as a letter with a combining mark, may get
    other ids there. Pieces that an imported vocabulary lacks take part in the segmentation: their
    ids, from `vocabulary_size` on, stand for the unknown token.

    Returns:
        A dict, for `json.dump` into `tokenizer.json`.

    Raises:
        InputError: It is a BPE vocabulary with tokens that are never split.
    """
    model = parsed(tokenizer.model_bytes)
    algorithm, words = _model(tokenizer, model)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(tokenizer, model)},
        "pre_tokenizer": words,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": _decoders(model)},
        "model": algorithm,
    }


def _normalizers(tokenizer, model):
    """Returns the steps from a text to the text that the algorithm splits."""
    specification = model.normalizer_spec
    steps: list[dict] = []
    if tags := list(map(_escaped, tokenizer.tag_tokens.values())):
        # `tokenize` has no space before a tag at the beginning, and one space after it.
        steps.append(_replaced(rf"\A\s+(?={'|'.join(tags)})", ""))
        after_tag = "|".join(rf"\A{tag}" for tag in tags)
        steps.append(_replaced(rf"(?<={after_tag})\s*(?!\s|\z)", " "))
    if specification.precompiled_charsmap:
        rules = base64.b64encode(specification.precompiled_charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": rules})
    if specification.remove_extra_whitespaces:
        steps += [_replaced(r"\A +", ""), _replaced(" {2,}", " ")]
    steps.append(_replaced(" ", SPACE))
    if specification.remove_extra_whitespaces:
        steps.append(_replaced(rf"{SPACE}+\z", ""))  # Also the character itself.
    if specification.add_dummy_prefix:
        # Not by `Metaspace`, which adds nothing to a text that begins with the character itself.
        steps.append(_replaced(r"\A(?!\z)", SPACE))
    return steps


def _model(tokenizer, model):
    """Returns the algorithm that splits a text, and the rule that divides it into words before."""
    pieces = [[_name(id, piece), piece.score] for id, piece in enumerate(model.pieces)]
    ids = {name: id for id, (name, _) in enumerate(pieces)}
    fallback = model.trainer_spec.byte_fallback
    if tokenizer.kind == "bpe":
        return {
            "type": "BPE",
            "unk_token": _NAMES[UNK_ID],
            "fuse_unk": True,
            "byte_fallback": fallback,
            "vocab": ids,
            "merges": _merges(model),
        }, None
    if not tokenizer.whole_words:
        return {
            "type": "Unigram",
            "unk_id": UNK_ID,
            "vocab": pieces,
            "byte_fallback": fallback,
        }, None
    symbols = [piece.piece for piece in model.pieces if piece.type == piece.USER_DEFINED]
    symbols = list(map(_escaped, symbols))
    # A word begins at a space or a symbol. The longest symbol is first.
    starts = "|".join([*sorted(symbols, key=len, reverse=True), SPACE])
    pattern = {"Regex": f"(?:{starts})(?:(?!{starts})[^{SPACE}])*"}
    words = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    # A word of several pieces is unknown, since no piece has the prefix. (The library in
    # JavaScript has no `WordLevel`.)
    return {
        "type": "WordPiece",
        "unk_token": _NAMES[UNK_ID],
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": max(map(len, ids)),
        "vocab": ids,
    }, words


def _decoders(model):
    """Returns the steps from pieces to a text."""
    # Not `Metaspace`, which removes all spaces at the start of the first token, not only one.
    steps = [_replaced(SPACE, " ")]
    if model.trainer_spec.byte_fallback:
        steps.append({"type": "ByteFallback"})
    return [*steps, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]


def _merges(model):
    """Returns the pairs of pieces that become one piece, the pair that is merged first at the head.

    SentencePiece merges the neighbours that are the piece with the highest score, whatever the two
    are.
    """
    if symbols := [piece.piece for piece in model.pieces if piece.type == piece.USER_DEFINED]:
        rule = "`tokenizer.json`, which the page for browsers has too, has no BPE vocabulary with"
        raise InputError(f"{rule} tokens that are never split. Received: {symbols[0]!r}.")
    scores = {piece.piece: piece.score for piece in model.pieces if piece.type == piece.NORMAL}
    return [
        [name[:end], name[end:]]
        for name in sorted(scores, key=scores.__getitem__, reverse=True)
        for end in range(1, len(name))
        if name[:end] in scores and name[end:] in scores
    ]


def _escaped(text):
    """Escapes a text for regular expressions of all three libraries."""
    return re.sub(r"[$()*+.?[\\\]^{|}]", r"\\\g<0>", text)


def _name(id, piece):
    """Returns a piece's text, or for a control piece a name that no text can spell."""
    spelled = f" {piece.piece} " if piece.type == piece.CONTROL else piece.piece
    return _NAMES.get(id, spelled)


def _replaced(pattern, content):
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def without_needless_rules(model_bytes: bytes) -> bytes:
    """Makes a tokenizer smaller, without a change of ids.

    SentencePiece's rule sets cover all of Unicode, 225,276 rules in 240 kB; a vocabulary of
    European languages needs a hundredth of them. A rule has no effect if no piece contains
    characters of its source or its replacement. Both then become the unknown token, and several
    unknown tokens in a row become a single one.

    Takes and returns a serialized SentencePiece model.
    """
    model = parsed(bytes(model_bytes))
    specification = model.normalizer_spec
    if not specification.precompiled_charsmap:
        return model_bytes
    rules = sentencepiece.SentencePieceNormalizer(model_proto=model_bytes).Decompile()
    schema = sentencepiece_schema()
    kinds = schema.ModelProto.SentencePiece
    pieces = (
        piece.piece for piece in model.pieces if piece.type in (kinds.NORMAL, kinds.USER_DEFINED)
    )
    smaller_rules = needed_rules(rules, {SPACE, *_WHITE}.union(*pieces))
    if len(smaller_rules) in (0, len(rules)):
        return model_bytes
    with stderr_kept_back():  # SentencePiece tells how it packs the rules.
        normalizer = sentencepiece.SentencePieceNormalizer(norm_map=smaller_rules)
    smaller = schema.NormalizerSpec.FromString(normalizer.serialized_normalizer_spec())
    specification.precompiled_charsmap = smaller.precompiled_charsmap
    return model.SerializeToString()


def needed_rules(rules: list[tuple[str, str]], characters: set[str]) -> list[tuple[str, str]]:
    """Returns the rules without which some text would get other ids.

    A rule is a pair of a source and its replacement; the longest source that matches at a place of
    a text wins. `characters` are the characters that tokens are made of.

    Example:

    >>> needed_rules([("Ａ", "A"), ("ｶ", "カ")], {"A"})
    [('Ａ', 'A')]
    """
    needed, skipped = [], []
    for rule in rules:
        foreign = rule[1] and characters.isdisjoint(rule[0]) and characters.isdisjoint(rule[1])
        (skipped if foreign else needed).append(rule)
    while True:
        # Without a rule for several characters, a rule that begins with one of them would act.
        first = {source[0] for source, _ in needed}
        hidden = {rule for rule in skipped if len(rule[0]) > 1 and not first.isdisjoint(rule[0])}
        if not hidden:
            return needed
        needed += hidden
        skipped = [rule for rule in skipped if rule not in hidden]
