"""What is wrong between the sections of a recipe, each of which is right by itself."""

import dataclasses
from typing import Any

from keras_transformer.errors import InputError


def contradiction(recipe: Any, trained: bool) -> str | None:
    """What is wrong between sections, as the end of an error; None if nothing is."""
    if not recipe.with_sources and (problem := _problem_of_a_language_model(recipe)):
        return problem
    if recipe.data.hold_out_every and recipe.data.validation.source:
        return "`data.hold_out_every` and `data.validation` are two validation sets: give one."
    if recipe.kind == "classifier" and recipe.text.turn_separator is not None:
        return "`text.turn_separator` needs a model that answers, which a classifier does not."
    if recipe.kind == "classifier" and recipe.training.attention_images:
        return (
            "`training.attention_images` needs attention to a source, which a classifier has not."
        )
    if recipe.kind == "classifier" and recipe.training.select_by == "bleu":
        return "`training.select_by: bleu` needs a model that writes text: set loss or accuracy."
    for part in ("train",) if recipe.data.hold_out_every else ("train", "validation"):
        if not getattr(recipe.data, part).source:
            return f"`data.{part}` must name its files: {{source: FILE, target: FILE}}."
    if recipe.data.context_turns is not None and recipe.text.turn_separator is None:
        return "`data.context_turns` needs `text.turn_separator`, which tells turns apart."
    if recipe.text.joint and recipe.text.target_vocabulary_size is not None:
        return (
            "`text.target_vocabulary_size` needs `text.joint: false`: a joint vocabulary has one "
            "size."
        )
    if not recipe.text.joint and recipe.model.get("tie_embeddings") == "all" and not trained:
        return (
            "`model.tie_embeddings: all` shares one table between both sides, which "
            "`text.joint: false` gives a vocabulary each: set model.tie_embeddings to decoder or "
            "none."
        )
    return None


def _problem_of_a_language_model(recipe):
    for part in ("train", "validation"):
        if getattr(recipe.data, part).target is not None:
            return f"A language model learns from one text: `data.{part}` is {{source: FILE}}."
    for name, wrong in (
        ("text.joint: false", not recipe.text.joint),
        ("text.turn_separator", recipe.text.turn_separator is not None),
        ("training.select_by: bleu", recipe.training.select_by == "bleu"),
        ("training.attention_images", recipe.training.attention_images is not None),
    ):
        if wrong:
            return f"`{name}` needs a source and a target, which a language model has none of."
    return None


def with_positions(recipe: Any, positions: int, values: dict[str, Any], where: str) -> Any:
    """The recipe with no text longer than a learned table of so many positions."""
    if recipe.data.max_length > positions:
        raise InputError(
            f"{where}: learned positions end at `model.max_length`, which must be at least "
            f"`data.max_length`. Received: model.max_length={positions}, "
            f"data.max_length={recipe.data.max_length}."
        )
    limits = {}
    for key in ("max_source_length", "max_target_length"):
        limit = getattr(recipe.decoding, key)
        if limit > positions and key in values.get("decoding", {}):
            raise InputError(
                f"{where}: learned positions end at `model.max_length`, which must be at least "
                f"`decoding.{key}`. Received: model.max_length={positions}, "
                f"decoding.{key}={limit}."
            )
        limits[key] = min(limit, positions)
    return dataclasses.replace(recipe, decoding=dataclasses.replace(recipe.decoding, **limits))
