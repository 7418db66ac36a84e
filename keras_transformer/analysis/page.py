"""The attention of a sentence pair as one interactive HTML page that needs nothing else."""

import base64
import functools
import hashlib
import json
import pathlib
import re
from collections.abc import Sequence

import numpy as np

from keras_transformer.analysis.attention import Attention, is_sink, words_of

_COLUMNS = ("name", "label", "query", "key", "from", "to")
# Name, label, the sides of queries and keys, and what stands over both.
_KINDS = (
    ("encoder", "encoder", "source", "source", "source token", "attends to"),
    ("decoder", "decoder", "written", "read", "step that writes", "attends to what was read"),
    (
        "cross",
        "decoder to source",
        "written",
        "source",
        "step that writes",
        "attends to the source",
    ),
)


def attention_page(
    attention: Attention,
    source_tokens: Sequence[str],
    target_tokens: Sequence[str] = (),
    title: str = "",
) -> str:
    """A page to look at every layer and head with, in a browser, without a network.

    The target's tokens stand twice. As queries they are what the steps write: the row of a token is
    the step that predicts it, which has read those before it and not the token itself. As keys of
    the decoder they are what was read, one place later, after the beginning of the sentence.

    Args:
        attention: `Attention` of one pair: `target_ids` was BOS and all `target_tokens` but the
            last one.
        source_tokens: Each token of the source, with `"▁"` for a space, EOS included.
        target_tokens: Each token that the decoder writes, EOS included.
        title: What stands at the top, as text.

    Returns:
        HTML. Weights are in it with 16 bits.

    Raises:
        ValueError: The tokens are not as many as the weights have rows and columns.
    """
    read = ["<s>", *target_tokens[:-1]] if target_tokens else []
    sides = {"source": list(source_tokens), "written": list(target_tokens), "read": read}
    kinds = []
    for row in _KINDS:
        name, _, query, key, *_ = row
        weights = getattr(attention, name)
        if not weights.size:
            continue
        if weights.shape[2:] != (len(sides[query]), len(sides[key])):
            raise ValueError(
                f"The {name} attention needs a token for each row and column. Received: weights of "
                f"shape {weights.shape}, {len(sides[query])} and {len(sides[key])} tokens."
            )
        whole = np.round(weights * 65535).astype("<u2")
        kinds.append(
            {
                **dict(zip(_COLUMNS, row, strict=True)),
                "layers": weights.shape[0],
                "heads": weights.shape[1],
                "weights": base64.b64encode(whole.tobytes()).decode(),
            }
        )
    described = {name: _side(tokens) for name, tokens in sides.items()}
    values = json.dumps({"title": title, "sides": described, "kinds": kinds}, ensure_ascii=False)
    # `</script>` and `<!--` in a sentence must not end the element that holds it.
    escaped = values.replace("<", "\\u003c")
    return _template().replace(">DATA<", f">{escaped}<", 1)


def _side(tokens):
    sinks = [place for place, token in enumerate(tokens) if is_sink(token)]
    return {"tokens": tokens, "words": words_of(tokens), "sinks": sinks}


@functools.cache
def _template():
    """The page without its data; its policy allows the script and the style in it alone."""
    page = (pathlib.Path(__file__).parent / "page.html").read_text(encoding="utf-8")
    for tag in ("script", "style"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = hashlib.sha256(content.encode()).digest()
        page = page.replace(f"{tag.upper()}_HASH", base64.b64encode(digest).decode())
    return page
