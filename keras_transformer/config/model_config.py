"""The base of all model configurations, and the fields of models with two vocabularies."""

import dataclasses
import functools
from typing import Any, ClassVar, Literal, Self

from keras_transformer.declaration import inherited, option

named = functools.partial(option, kw_only=True)
"""Declares a field that is given by its name alone."""


@inherited
class ModelConfig:
    """Sizes, rates and switches of a model.

    Attributes:
        kind: Name of the model in recipes.
        ignore_id: Target id that losses and metrics leave out.
        writes_text: False for a model that gives labels.
        continues_source: True where a target begins with its source (a language model).
    """

    vocabulary_size: int = option(..., "Ids, of the source side or of both.", ge=1)

    kind: ClassVar[str]
    ignore_id: ClassVar[int] = 0
    writes_text: ClassVar[bool] = True
    continues_source: ClassVar[bool] = False

    def __post_init__(self):
        self.check()

    def check(self) -> None:
        """Raises `ValueError` where two fields contradict each other."""

    @property
    def output_vocabulary_size(self) -> int:
        """Number of target ids, whether the vocabulary is shared or not."""
        return self.vocabulary_size

    @property
    def position_limit(self) -> int | None:
        """Most positions that the model has vectors for; None: any number."""
        return None

    def heads_of(self, kind: str) -> tuple[int, ...]:
        """Heads of each block's attention of a kind: `"encoder"`, `"decoder"` or `"cross"`."""
        return ()

    def multiply_adds(self, source_length: Any, target_length: Any) -> Any:
        """Multiply-adds of the matrix products of a pass forwards over one pair.

        Padding, and what attention computes and then masks, do not count. A multiply-add is two
        floating-point operations; a training step takes three passes' worth.

        Args:
            source_length: Tokens, a number or an array.
            target_length: Tokens, likewise.
        """
        raise NotImplementedError

    def activations(self, length: int) -> int:
        """Numbers that a position of sequences of a length keeps for the way back, roughly."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Plain values alone, fit for JSON and YAML."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """Inverse of `to_dict`; an unknown field is a `ValueError`."""
        known = {field.name for field in dataclasses.fields(cls)}
        fields = with_sliding_window(fields)
        # Before 0.2 every kind had the fields of all kinds, unused ones at these values.
        return cls(**{k: v for k, v in fields.items() if k in known or v not in (None, 0, "none")})


@inherited
class VocabularyFields(ModelConfig):
    """Fields of a model that reads one language and writes another."""

    tie_embeddings: Literal["all", "decoder", "none"] = named(
        "all",
        "Share one matrix: all, of source embedding, target embedding and output projection; "
        "decoder, of the last two; none.",
        strict=None,
    )
    target_vocabulary_size: int | None = named(
        None, "Ids of the target side, where it has a vocabulary of its own.", ge=1
    )

    @property
    def output_vocabulary_size(self) -> int:
        """Number of target ids, whether the vocabulary is shared or not."""
        return self.target_vocabulary_size or self.vocabulary_size

    def check(self) -> None:
        super().check()
        own = self.target_vocabulary_size
        if self.tie_embeddings == "all" and own not in (None, self.vocabulary_size):
            raise ValueError(
                '`tie_embeddings="all"` needs one vocabulary for both sides. Received: '
                f"vocabulary_size={self.vocabulary_size}, target_vocabulary_size={own}."
            )


def with_sliding_window(fields: dict[str, Any]) -> dict[str, Any]:
    """Renames a saved window that counted the tokens to each side (before 0.2)."""
    fields = dict(fields)
    for old in {"window", "attention_window"} & set(fields):
        reach = fields.pop(old)
        fields["sliding_window"] = None if reach is None else reach + 1
    return fields
