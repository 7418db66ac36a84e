"""What the configurations of all models share."""

import dataclasses
from typing import Any, ClassVar, Literal, Self

from keras_transformer.config.checks import check, check_choice, with_sliding_window


class ModelConfig:
    """A frozen dataclass with these fields, of which all but the first have defaults."""

    kind: ClassVar[str]
    # The target id that losses and metrics leave out: padding.
    ignore_id: ClassVar[int] = 0
    __dataclass_fields__: ClassVar[dict[str, Any]]
    vocabulary_size: int
    target_vocabulary_size: int | None
    tie_embeddings: Literal["all", "decoder", "none"]

    @property
    def position_limit(self) -> int | None:
        """The most positions that the model has vectors for; None: any number."""
        return None

    def check_vocabularies(self) -> None:
        """Raises `ValueError` where vocabularies and tied embeddings contradict each other."""
        own = self.target_vocabulary_size
        if own is not None:
            check("target_vocabulary_size", own, "a positive integer", int)
        check_choice("tie_embeddings", self.tie_embeddings, ("all", "decoder", "none"))
        if self.tie_embeddings == "all" and own not in (None, self.vocabulary_size):
            raise ValueError(
                '`tie_embeddings="all"` needs one vocabulary for both sides. Received: '
                f"vocabulary_size={self.vocabulary_size}, target_vocabulary_size={own}."
            )

    @property
    def output_vocabulary_size(self) -> int:
        """Number of target ids, whether the vocabulary is shared or not."""
        return self.target_vocabulary_size or self.vocabulary_size

    def to_dict(self) -> dict[str, Any]:
        """Plain values alone, fit for JSON and YAML."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """The inverse of `to_dict`; an unknown field is a `ValueError`."""
        fields = with_sliding_window(fields)
        if unknown := set(fields) - {field.name for field in dataclasses.fields(cls)}:
            raise ValueError(f"Unknown fields of {cls.__name__}: {sorted(unknown)}.")
        return cls(**fields)
