"""The configuration of a recurrent encoder-decoder."""

import dataclasses
from typing import Any, ClassVar, Literal

from keras_transformer.config.checks import check, check_choice, check_rate
from keras_transformer.config.model_config import ModelConfig

ATTENTION_SCORES = ("dot", "scaled_dot", "general", "additive")
"""Names of the scores of `layers.Attention`."""
_SCORE_OF = {"bahdanau": "additive", "luong": "general"}


@dataclasses.dataclass(frozen=True)
class RecurrentConfig(ModelConfig):
    """Sizes and switches of a recurrent encoder-decoder.

    Args:
        vocabulary_size: Number of ids, of the source side or of both.
        model_dim: Width of embeddings and states, even: each direction of the encoder has half.
        cell: `"gru"` or `"lstm"`.
        num_encoder_layers: Bidirectional layers of the encoder.
        num_decoder_layers: Cells of the decoder, one above the other.
        attention: `"none"`: the decoder knows the encoder's last state alone; `"bahdanau"`: the
            state before a step attends, and what it finds is an input of the step; `"luong"`: the
            state after it attends (Luong's global attention).
        attention_score: A score of `layers.Attention`; by default additive for Bahdanau's
            attention, general for Luong's.
        input_feeding: Whether the output of a step is an input of the next one (Luong et al.
            2015, section 3.3).
        dropout: Rate on embeddings, on what each encoder layer reads, and on outputs.
        tie_embeddings: As for `TransformerConfig`.
        target_vocabulary_size: Number of target ids, when it is a vocabulary of its own.

    Raises:
        ValueError: A field is out of range or two fields contradict each other.
    """

    vocabulary_size: int
    model_dim: int = 256
    cell: Literal["gru", "lstm"] = "gru"
    num_encoder_layers: int = 1
    num_decoder_layers: int = 1
    attention: Literal["none", "bahdanau", "luong"] = "bahdanau"
    attention_score: str | None = None
    input_feeding: bool = False
    dropout: float = 0.1
    tie_embeddings: Literal["all", "decoder", "none"] = "all"
    target_vocabulary_size: int | None = None

    kind: ClassVar[str] = "recurrent"

    def __post_init__(self):
        for name in ("vocabulary_size", "model_dim", "num_encoder_layers", "num_decoder_layers"):
            check(name, getattr(self, name), "a positive integer", int)
        check_choice("cell", self.cell, ("gru", "lstm"))
        check_choice("attention", self.attention, ("none", *_SCORE_OF))
        check("input_feeding", self.input_feeding, "true or false", bool)
        check_rate("dropout", self.dropout)
        if self.attention_score is not None:
            check_choice("attention_score", self.attention_score, ATTENTION_SCORES)
        if self.attention == "none" and (self.attention_score or self.input_feeding):
            raise ValueError(
                "`attention_score` and `input_feeding` need an attention. Received: "
                f"attention='none', attention_score={self.attention_score!r}, "
                f"input_feeding={self.input_feeding!r}."
            )
        if self.model_dim % 2:
            raise ValueError(f"`model_dim` must be even. Received: model_dim={self.model_dim}.")
        self.check_vocabularies()

    @property
    def score(self) -> str | None:
        """The attention's score, `None` without attention."""
        return self.attention_score or _SCORE_OF.get(self.attention)

    def heads_of(self, kind: Literal["encoder", "decoder", "cross"]) -> tuple[int, ...]:
        """Heads of each attention of a kind: of that to the source one, or none."""
        return (1,) if kind == "cross" and self.attention != "none" else ()

    def multiply_adds(self, source_length: Any, target_length: Any) -> Any:
        """Multiply-adds of the matrix products of a pass forwards; as `TransformerConfig`'s."""
        width, source, target = self.model_dim, source_length, target_length
        gates, attends = {"gru": 3, "lstm": 4}[self.cell], len(self.heads_of("cross"))
        # Two directions of half the width, which read all of it.
        encoder = source * self.num_encoder_layers * gates * (width + width // 2) * width
        read = 1 + (self.attention == "bahdanau") + self.input_feeding
        cells = gates * width**2 * (read + 1 + 2 * (self.num_decoder_layers - 1))
        step = cells + (1 + attends) * width**2 + 2 * attends * source * width
        keys = width**2 * (self.score in ("general", "additive"))
        step = step + width**2 * (self.score == "additive")
        start = self.num_decoder_layers * (1 + (self.cell == "lstm")) * width**2
        logits = target * width * self.output_vocabulary_size
        return encoder + source * keys + start + target * step + logits

    def activations(self, length: int) -> int:
        """Numbers that a position keeps for the way back; as `TransformerConfig`'s."""
        gates = {"gru": 3, "lstm": 4}[self.cell] + 3
        layers = self.num_encoder_layers + self.num_decoder_layers
        attended = length * (2 + self.model_dim * (self.score == "additive"))
        return layers * gates * self.model_dim + attended + 3 * self.output_vocabulary_size
