"""Output formats: a line and its translation as text."""

import functools
import json
import math
from typing import Any

import numpy as np

from keras_transformer.base.reading import one_line
from keras_transformer.cli.lines import Line
from keras_transformer.engine.translation import Translation, pair_lines

_ALIGNMENT_DIGITS = 4


def as_text(line: Line, translation: Translation) -> str:
    """The best translation, with the end of the line."""
    return one_line(translation.text) + line.end


def as_list(line: Line, translation: Translation, count: int = 1) -> str:
    """`count` lines, `number ||| translation ||| score`, counted from 0.

    A blank text, and a search that finds fewer hypotheses, are filled up with empty translations of
    the score -inf, so that `count` lines follow from each line.
    """
    hypotheses = [translation, *translation.alternatives]
    hypotheses += [Translation("", -math.inf)] * (count - len(hypotheses))
    return "".join(
        f"{line.number - 1} ||| {one_line(hypothesis.text)} ||| {hypothesis.score:.4f}\n"
        for hypothesis in hypotheses
    )


def as_json(line: Line, translation: Translation) -> str:
    """Returns all fields of a translation as one JSON object."""
    return _json_line({"line": line.number, "source": line.text, **_record(translation)})


def as_pairs(line: Line, translation: Translation, is_back: bool = False) -> str:
    """A row of a CSV file per hypothesis: `source,target`; see `pair_lines`."""
    pairs = pair_lines(line.text, translation, is_back)
    return "".join(pair.rpartition(",")[0] + "\n" for pair in pairs)


as_pairs_back = functools.partial(as_pairs, is_back=True)


def as_scored_json(line: Line, scored: Translation | None) -> str:
    """Returns a JSON object for the target of a line; a pair without a score has nulls."""
    values = _record(Translation("", math.nan, math.nan) if scored is None else scored)
    del values["translation"], values["alternatives"]
    return _json_line({"line": line.number, "source": line.text, "target": line.target, **values})


def as_scored_row(line: Line, scored: Translation | None) -> str:
    """Source, target and cross-entropy of the target in nats per token, with tabs between.

    The nats are per word of a target whose tokens the model does not tell, and null for a pair
    without a score.
    """
    target, nats = line.target or "", "null"
    if scored is not None:
        count = len(scored.token_log_probabilities) or len(target.split()) + 1
        nats = f"{-scored.log_probability / count:.4f}"
    sides = [" ".join(side.split()) for side in (line.text, target)]
    return "\t".join([*sides, nats]) + "\n"


def _record(translation, is_alternative=False):
    """Returns a translation's fields as values of JSON, without infinite numbers and NaN."""
    values: dict[str, Any] = {
        "translation": translation.text,
        "score": _number(translation.score),
        "log_probability": _number(translation.log_probability),
        "tokens": list(translation.tokens),
        "token_log_probabilities": list(map(_number, translation.token_log_probabilities)),
    }
    if translation.continuation_length is not None:
        values["continuation_log_probability"] = _number(translation.continuation_log_probability)
        values["continuation_length"] = translation.continuation_length
    if translation.alignment is not None:
        rows = np.asarray(translation.alignment, "float64").round(_ALIGNMENT_DIGITS)
        values["alignment"] = rows.tolist()
    if not is_alternative:
        values["source_tokens"] = list(translation.source_tokens)
        values["alternatives"] = [_record(other, True) for other in translation.alternatives]
    if translation.parts:
        values["parts"] = [_record(part, is_alternative) for part in translation.parts]
    return values


def _number(value):
    # The shortest digits that give the same float32 again: none is lost, none is made up.
    return float(str(np.float32(value))) if math.isfinite(value) else None


def _json_line(values):
    return json.dumps(values, ensure_ascii=False) + "\n"
