"""Configuration of the recurrent encoder-decoder."""

from typing import ClassVar, Literal

from keras_transformer.config.models import VocabularyFields
from keras_transformer.declaration import declared, option

ATTENTION_SCORES = ("dot", "scaled_dot", "general", "additive")
"""Names of the scores of `layers.Attention`."""
_SCORE_OF = {"bahdanau": "additive", "luong": "general"}


@declared
class RecurrentConfig(VocabularyFields):
    """Sizes and switches of a recurrent encoder-decoder.

    Raises:
        ValueError: A field is out of range or two fields contradict each other.
    """

    model_dim: int = option(
        256,
        "Width of embeddings and states, even: each direction of the encoder has half.",
        ge=1,
    )
    cell: Literal["gru", "lstm"] = option("gru", "Kind of the cells.", strict=None)
    num_encoder_layers: int = option(1, "Bidirectional layers of the encoder.", ge=1)
    num_decoder_layers: int = option(1, "Cells of the decoder, one above the other.", ge=1)
    attention: Literal["none", "bahdanau", "luong"] = option(
        "bahdanau",
        "none: the decoder knows the encoder's last state alone; bahdanau: the state before a step "
        "attends, and the context is an input of the step; luong: the state after it attends "
        "(Luong's global attention).",
        strict=None,
    )
    attention_score: Literal["dot", "scaled_dot", "general", "additive"] | None = option(
        None,
        "Score of the attention; null: additive for Bahdanau's attention, general for Luong's.",
        strict=None,
    )
    input_feeding: bool = option(
        False,
        "The output of a step is an input of the next one (Luong et al. 2015, section 3.3).",
    )
    dropout: float = option(
        0.1,
        "Rate on embeddings, on the input of each encoder layer, and on outputs.",
        ge=0,
        lt=1,
    )

    kind: ClassVar[str] = "recurrent"

    def check(self) -> None:
        super().check()
        if self.attention == "none" and (self.attention_score or self.input_feeding):
            raise ValueError(
                "`attention_score` and `input_feeding` need an attention. Received: "
                f"attention='none', attention_score={self.attention_score!r}, "
                f"input_feeding={self.input_feeding!r}."
            )
        if self.model_dim % 2:
            raise ValueError(f"`model_dim` must be even. Received: model_dim={self.model_dim}.")

    @property
    def score(self) -> str | None:
        """Score of the attention, `None` without attention."""
        return self.attention_score or _SCORE_OF.get(self.attention)

    def heads_of(self, kind: str) -> tuple[int, ...]:
        return (1,) if kind == "cross" and self.attention != "none" else ()
