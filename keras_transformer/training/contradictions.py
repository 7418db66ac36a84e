"""What is wrong between the sections of a recipe, each of which is right by itself."""

import dataclasses
from typing import Any

from keras_transformer.errors import InputError

# Why a classifier has no such options; a language model has none that two texts need.
_NOT_OF_A_CLASSIFIER = {
    "text.turn_separator": "needs a model that answers, which a classifier does not.",
    "training.attention_images": "needs attention to a source, which a classifier has not.",
    "training.select_by: bleu": "needs a model that writes text: set loss or accuracy.",
}


def contradiction(recipe: Any, trained: bool) -> str | None:
    """What is wrong between sections, as the end of an error; None if nothing is."""
    data, text, training = recipe.data, recipe.text, recipe.training
    for part in () if recipe.with_sources else ("train", "validation"):
        if getattr(data, part).target is not None:
            return f"A language model learns from one text: `data.{part}` is {{source: FILE}}."
    given = {
        "text.joint: false": not text.joint,
        "text.turn_separator": text.turn_separator is not None,
        "training.attention_images": training.attention_images is not None,
        "training.select_by: bleu": training.select_by == "bleu",
    }
    for name in [name for name, is_given in given.items() if is_given]:
        if not recipe.with_sources:
            return f"`{name}` needs a source and a target, which a language model has none of."
        if recipe.gives_labels and name in _NOT_OF_A_CLASSIFIER:
            return f"`{name}` {_NOT_OF_A_CLASSIFIER[name]}"
    if data.hold_out_every and data.validation.source:
        return "`data.hold_out_every` and `data.validation` are two validation sets: give one."
    for part in ("train",) if data.hold_out_every else ("train", "validation"):
        if not getattr(data, part).source:
            return f"`data.{part}` must name its files: {{source: FILE, target: FILE}}."
    if data.context_turns is not None and text.turn_separator is None:
        return "`data.context_turns` needs `text.turn_separator`, which tells turns apart."
    if text.joint and text.target_vocabulary_size is not None:
        return (
            "`text.target_vocabulary_size` needs `text.joint: false`: a joint vocabulary has one "
            "size."
        )
    if not text.joint and recipe.model.get("tie_embeddings") == "all" and not trained:
        return (
            "`model.tie_embeddings: all` shares one table between both sides, which "
            "`text.joint: false` gives a vocabulary each: set model.tie_embeddings to decoder or "
            "none."
        )
    return None


def with_positions(recipe: Any, positions: int, values: dict[str, Any], where: str) -> Any:
    """The recipe with no text longer than a learned table of so many positions."""
    limits = {}
    for key in ("data.max_length", "decoding.max_source_length", "decoding.max_target_length"):
        section, name = key.split(".")
        limit = getattr(getattr(recipe, section), name)
        if limit > positions and (section == "data" or name in values.get(section, {})):
            raise InputError(
                f"{where}: learned positions end at `model.max_length`, which must be at least "
                f"`{key}`. Received: model.max_length={positions}, {key}={limit}."
            )
        limits[name] = min(limit, positions)
    del limits["max_length"]
    return dataclasses.replace(recipe, decoding=dataclasses.replace(recipe.decoding, **limits))
