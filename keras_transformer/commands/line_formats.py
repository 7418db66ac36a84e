"""How a translation is written: its text, a numbered list, or JSON."""

import json
import math

import numpy as np

from keras_transformer.commands.line_reader import Line
from keras_transformer.decoding import Translation

_ALIGNMENT_DIGITS = 4


def as_text(line: Line, translation: Translation) -> str:
    """The best translation."""
    return one_line(translation.text) + "\n"


def as_list(line: Line, translation: Translation) -> str:
    """A line for each hypothesis: `number ||| translation ||| score`, counted from 0."""
    return "".join(
        f"{line.number - 1} ||| {one_line(each.text)} ||| {each.score:.4f}\n"
        for each in (translation, *translation.alternatives)
    )


def as_json(line: Line, translation: Translation) -> str:
    """One JSON object: all that the translation holds."""
    return _json_line({"line": line.number, "source": line.text, **_record(translation)})


def as_scored_json(line: Line, target: str, scored: Translation) -> str:
    """One JSON object for a given target."""
    values = _record(scored)
    del values["translation"], values["alternatives"]
    return _json_line({"line": line.number, "source": line.text, "target": target, **values})


FORMATS = {"text": as_text, "list": as_list, "json": as_json}
"""The formats of a translation by name."""


def one_line(text: str) -> str:
    """A text without line breaks, so that lines stay aligned."""
    return " ".join(text.splitlines())


def _record(translation):
    # Fit for JSON: no number in it is infinite or NaN.
    values = {
        **_hypothesis(translation),
        "source_tokens": list(translation.source_tokens),
        "alternatives": [_hypothesis(each) for each in translation.alternatives],
    }
    if translation.parts:
        values["parts"] = [_record(part) for part in translation.parts]
    return values


def _hypothesis(translation):
    values = {
        "translation": translation.text,
        "score": _number(translation.score),
        "log_probability": _number(translation.log_probability),
        "tokens": list(translation.tokens),
        "token_log_probabilities": [_number(each) for each in translation.token_log_probabilities],
    }
    if translation.alignment is not None:
        rows = np.asarray(translation.alignment, "float64").round(_ALIGNMENT_DIGITS)
        values["alignment"] = rows.tolist()
    return values


def _number(value):
    # The shortest digits that give the same float32 again: none is lost, none is made up.
    return float(str(np.float32(value))) if math.isfinite(value) else None


def _json_line(values):
    return json.dumps(values, ensure_ascii=False) + "\n"
