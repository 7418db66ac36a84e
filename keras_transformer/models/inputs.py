"""What a model is called with."""

from typing import Any


def two_sequences(inputs: Any) -> Any:
    """`source_ids` and `target_ids`, as a pair or a dict with these keys; others are an error."""
    if isinstance(inputs, dict):
        missing = {"source_ids", "target_ids"} - set(inputs)
        if missing:
            raise ValueError(
                'The inputs must hold "source_ids" and "target_ids". '
                f"Received: keys {sorted(inputs)}."
            )
        return inputs["source_ids"], inputs["target_ids"]
    if not isinstance(inputs, (tuple, list)) or len(inputs) != 2:
        raise ValueError(
            f"The inputs must be (source_ids, target_ids). Received: {_description(inputs)}."
        )
    return inputs


def _description(inputs):
    name = type(inputs).__name__
    if isinstance(inputs, (tuple, list)):
        return f"{name} of {len(inputs)}"
    return f"{name} of shape {tuple(inputs.shape)}" if hasattr(inputs, "shape") else name
