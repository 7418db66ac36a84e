"""A SentencePiece model as `tokenizer.json`, which the `tokenizers` libraries read."""

import base64
from typing import Any

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.text.tokenizer import SPACE, Tokenizer, parsed

# Spaces stand for no token's character, since a text's become "▁": no text can spell these names,
# as `Tokenizer.tokenize` promises. SentencePiece, too, writes " ⁇ " for what it did not know.
_NAMES = {PAD_ID: " <pad> ", BOS_ID: " <s> ", EOS_ID: " </s> ", UNK_ID: " \u2047 "}


def tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """The same tokenizer for Hugging Face's `tokenizers`, in Python, Rust or JavaScript.

    It gives the ids of `tokenize`, without a beginning or an end. The special ids have names with
    spaces around, such as `" </s> "`, so that nothing in a text is taken for them; leave them out
    of what is decoded. The library in Python and Rust applies rules of normalization to whole
    graphemes: a letter with a mark of its own may get other ids there.

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
    if fallback:
        space = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
        steps_back = [_replaced(SPACE, " "), {"type": "ByteFallback"}, {"type": "Fuse"}, space]
        decoder: dict = {"type": "Sequence", "decoders": steps_back}
    else:
        decoder = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always"}
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
        "decoder": decoder,
        "model": algorithm,
    }


def _replaced(pattern, content):
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}
