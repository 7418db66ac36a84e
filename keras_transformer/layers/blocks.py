"""Blocks of the encoder and the decoder: attention and feed-forward with residual connections."""

import functools
import numbers
from collections.abc import Callable
from typing import Any, NamedTuple

import keras

from keras_transformer.base.options import (
    check,
    check_attention,
    check_flags,
    check_positive,
    check_rate,
)
from keras_transformer.layers import masks
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.kv_cache import KeyValue, Past
from keras_transformer.layers.mixer import Mixer, Projections
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.positions import AttentionPositions
from keras_transformer.layers.projection import LayerOfProjections, check_sequence
from keras_transformer.layers.ssru import SSRU


class StepSublayers(NamedTuple):
    """Functions to use in a step in place of a `DecoderBlock`'s own sublayers; None: its own."""

    mixer: Projections | None = None
    cross_attention: Projections | None = None
    feed_forward: Callable[[keras.KerasTensor], keras.KerasTensor] | None = None


class Block(LayerOfProjections):
    """Arguments, sublayers and the residual rule of `EncoderBlock` and `DecoderBlock`.

    A sublayer `f` computes `norm(x + dropout(f(x)))`, or pre-norm `x + dropout(f(norm(x)))`.

    Attributes:
        token_mixer: The first sublayer, a `Mixer`.
        token_mixer_norm: Its normalization.
    """

    arguments: tuple[str, ...] = ("intermediate_dim", "num_heads", "dropout", "activation")
    arguments += ("normalize_first", "attention_dropout", "feed_forward_dropout")
    arguments += ("layer_norm_epsilon", "key_dim", "num_kv_heads", "sliding_window")
    arguments += ("positions", "max_distance", "relative_values")

    def __init__(
        self,
        intermediate_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        activation: str | Callable = "relu",
        normalize_first: bool = False,
        attention_dropout: float = 0.0,
        feed_forward_dropout: float = 0.0,
        layer_norm_epsilon: float = 1e-5,
        key_dim: int | None = None,
        num_kv_heads: int | None = None,
        sliding_window: int | None = None,
        positions: AttentionPositions | None = None,
        max_distance: int = 16,
        relative_values: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.intermediate_dim, self.num_heads, self.max_distance = check_positive(
            intermediate_dim=intermediate_dim, num_heads=num_heads, max_distance=max_distance
        )
        self.key_dim, self.num_kv_heads, self.sliding_window = check_positive(
            or_none=True,
            key_dim=key_dim,
            num_kv_heads=num_kv_heads,
            sliding_window=sliding_window,
        )
        check_flags(normalize_first=normalize_first, relative_values=relative_values)
        check_attention(self.num_heads, self.num_kv_heads, self.key_dim, positions, relative_values)
        check("layer_norm_epsilon", layer_norm_epsilon, "a positive number", numbers.Real)
        check_rate("dropout", dropout)
        check_rate("attention_dropout", attention_dropout)
        check_rate("feed_forward_dropout", feed_forward_dropout)
        self.dropout = dropout
        self.activation = keras.activations.get(activation)
        self.normalize_first = normalize_first
        self.attention_dropout = attention_dropout
        self.feed_forward_dropout = feed_forward_dropout
        self.layer_norm_epsilon = float(layer_norm_epsilon)
        self.positions = positions
        self.relative_values = relative_values
        self.supports_masking = True
        self._model_dim = None
        self._dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def _build_mixer(self, shape, mixer=None):
        self._check_inputs(shape)
        self._model_dim = shape[2]
        if mixer is None:
            mixer = self._attention(
                "self_attention",
                shape,
                shape,
                sliding_window=self.sliding_window,
                positions=self.positions,
                max_distance=self.max_distance,
                relative_values=self.relative_values,
            )
        elif not mixer.built:
            mixer.build(shape)
        # Keras saves weights under the first attribute that holds a layer, in alphabetical order.
        name = mixer.sublayer_name
        norm = self._normalization(f"{name}_norm", shape)
        setattr(self, name, mixer)
        setattr(self, f"{name}_norm", norm)
        self.token_mixer, self.token_mixer_norm = mixer, norm

    def _mix(self, inputs, mask, is_causal, return_attention_scores, training):
        """Applies the mixer to all positions; returns outputs and weights of attention if asked."""
        hidden = self._pre_norm(self.token_mixer_norm, inputs)
        mixed, scores = self.token_mixer.mix(
            hidden, mask, is_causal, return_attention_scores, training
        )
        return self._add(inputs, mixed, self.token_mixer_norm, training), scores

    def _feed(self, inputs, training=None, feed_forward=None):
        feed_forward = feed_forward or functools.partial(self.feed_forward, training=training)
        outputs = feed_forward(self._pre_norm(self.feed_forward_norm, inputs))
        return self._add(inputs, outputs, self.feed_forward_norm, training)

    def _build_feed_forward(self, shape):
        self.feed_forward = FeedForward(
            self.intermediate_dim,
            activation=self.activation,
            dropout=self.feed_forward_dropout,
            name="feed_forward",
            **self._options_of_a_projection(),
        )
        self.feed_forward.build(shape)
        self.feed_forward_norm = self._normalization("feed_forward_norm", shape)

    def _attention(self, name, query_shape, value_shape, num_heads=None, **options):
        if self.key_dim is None and self._model_dim % self.num_heads:
            raise ValueError(
                "`num_heads` must divide the width of the input. "
                f"Received: num_heads={self.num_heads}, input of shape {tuple(query_shape)}."
            )
        attention = MultiHeadAttention(
            num_heads or self.num_heads,
            key_dim=self.key_dim or self._model_dim // self.num_heads,
            dropout=self.attention_dropout,
            num_kv_heads=self.num_kv_heads,
            name=name,
            **options,
            **self._options_of_a_projection(),
        )
        attention.build(query_shape, value_shape)
        return attention

    def _normalization(self, name, input_shape):
        # Keras computes the mean and the variance in float32 under every policy.
        normalization = keras.layers.LayerNormalization(
            epsilon=self.layer_norm_epsilon, dtype=self.dtype_policy, name=name
        )
        normalization.build(input_shape)
        return normalization

    def _check_inputs(self, shape):
        check_sequence("inputs", shape, self._model_dim)

    def _pre_norm(self, normalization, inputs):
        return normalization(inputs) if self.normalize_first else inputs

    def _add(self, inputs, outputs, normalization, training=None):
        outputs = inputs + self._dropout_layer(outputs, training=training)
        return outputs if self.normalize_first else normalization(outputs)

    def compute_output_shape(self, input_shape, *other_shapes):
        return tuple(input_shape)

    @classmethod
    def from_config(cls, config):
        # KerasHub's blocks drop attention weights at the rate of the outputs, too, and their
        # configurations have the shapes of inputs.
        config = {"attention_dropout": config.get("dropout", 0.0), **config}
        shapes = "decoder_sequence_shape", "encoder_sequence_shape"
        return super().from_config({k: v for k, v in config.items() if k not in shapes})


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderBlock(Block):
    """Self-attention, then a feed-forward sublayer, each with a residual connection.

    `from_config` also takes the configuration of KerasHub's `TransformerEncoder`.

    Args:
        intermediate_dim: Inner width of the feed-forward sublayer.
        num_heads: Attention heads; must divide the input's width, unless `key_dim` is given.
        dropout: Rate on each sublayer's output, in [0, 1).
        activation: Feed-forward activation, a name or a callable.
        normalize_first: Normalize each sublayer's input (pre-norm) instead of its sum with the
            residual (post-norm, as in the paper). A pre-norm stack needs one more normalization
            after its last block.
        attention_dropout: Rate on the attention weights.
        feed_forward_dropout: Rate on the feed-forward sublayer's inner units.
        layer_norm_epsilon: Added to the variance in normalization.
        key_dim: Width of a head; by default the input's width over `num_heads`.
        num_kv_heads: Heads of keys and values in each attention; see `MultiHeadAttention`.
        sliding_window: In self-attention a query sees the keys within `sliding_window` - 1 of
            itself; all by default.
        positions: `"rotary"`, `"relative"` or `"alibi"`: positions inside self-attention.
        max_distance: Farthest distance of relative positions; see `MultiHeadAttention`.
        relative_values: Whether relative positions have vectors of the values, too.
        **kwargs: Initializers, regularizers and constraints of all projections, as
            `MultiHeadAttention` takes them; and what `keras.layers.Layer` takes.

    Call arguments:
        inputs: Float `(batch, length, model_dim)`.
        padding_mask: Bool `(batch, length)`, True = not padding.
        attention_mask: Bool, True = may attend: `(query, key)`, `(batch, query, key)` or
            `(batch, heads, query, key)`. Two axes are never `(batch, key)`.
        training: Whether dropout is active.
        return_attention_scores: Whether to return the attention weights too.

    Masking: `padding_mask`, `attention_mask` and the mask that Keras attached to `inputs` are
    combined. Ignore the outputs of padded positions: no other position sees them. Without
    any mask padding counts as tokens; `TokenEmbedding` attaches one.

    Returns:
        Float `(batch, length, model_dim)` in the compute dtype; with
        `return_attention_scores=True` also float `(batch, heads, length, length)`.

    Raises:
        ValueError: A size or rate is out of range, `num_heads` does not divide the width, or the
            input has the wrong axes or features. A mask is float or has another shape.

    Reference: Vaswani et al. 2017, section 3.1 (arXiv:1706.03762); pre-norm: Xiong et al. 2020
    (arXiv:2002.04745).

    Example:

    >>> block = EncoderBlock(intermediate_dim=32, num_heads=2, dropout=0.1)
    >>> tuple(block(keras.ops.ones((3, 5, 16))).shape)
    (3, 5, 16)
    """

    def build(self, input_shape):
        self._build_mixer(input_shape)
        self._build_feed_forward(input_shape)

    def call(
        self,
        inputs: keras.KerasTensor,
        padding_mask: keras.KerasTensor | None = None,
        attention_mask: keras.KerasTensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> keras.KerasTensor | tuple[keras.KerasTensor, ...]:
        self._check_inputs(inputs.shape)
        mask = masks.combine_attention(
            inputs.shape,
            inputs.shape,
            self.num_heads,
            {"padding_mask": padding_mask},
            {"attention_mask": attention_mask},
        )
        hidden, scores = self._mix(inputs, mask, False, return_attention_scores, training)
        outputs = self._feed(hidden, training)
        return (outputs, scores) if return_attention_scores else outputs


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderBlock(Block):
    """A mixer (causal self-attention), attention to the encoder, and a feed-forward sublayer.

    Built without an encoder sequence it is a decoder-only block, without weights for attention to
    the encoder.

    `DecoderBlock.from_config(theirs.get_config())`, a first call, and then
    `ours.set_weights(theirs.get_weights())` carry a `TransformerDecoder` of KerasHub over.

    Args:
        *args: Arguments of `EncoderBlock`, as `**kwargs`.
        num_cross_heads: Heads of the attention to the encoder; `num_heads` by default.
        mixer: Layer that reads the target so far, such as an `SSRU`; self-attention by default.
            A mixer other than self-attention ignores masks over the target: padding must be at
            the end. Its weights of attention are None.

    Call arguments:
        decoder_sequence: Float `(batch, target, model_dim)`.
        encoder_sequence: Float `(batch, source, encoder_dim)`.
        decoder_padding_mask: Bool `(batch, target)`, True = not padding.
        encoder_padding_mask: Bool `(batch, source)`, True = not padding.
        decoder_attention_mask: Bool, True = may attend: `(target, target)`,
            `(batch, target, target)` or `(batch, heads, target, target)`. Two axes are never
            `(batch, target)`.
        encoder_attention_mask: Bool, True = may attend: the same shapes with `source` as last axis.
        use_causal_mask: Whether position `i` sees the positions `0 … i` only.
        training: Whether dropout is active.
        return_attention_scores: Whether to return the attention weights too.

    Masking: all given masks, the causal mask and the masks that Keras attached to the two
    sequences are combined. Without any mask of a sequence its padding counts as tokens;
    `TokenEmbedding` attaches one.

    Returns:
        Float `(batch, target, model_dim)` in the compute dtype; with
        `return_attention_scores=True` also the weights of the self-attention, float
        `(batch, heads, target, target)`. With an encoder sequence the weights of the attention to
        it follow, float `(batch, heads, target, source)`.

    Raises:
        ValueError: A size or rate is out of range, `num_heads` does not divide the width, or an
            input has the wrong axes or features. A mask is float or has another shape. One call
            has an encoder sequence and another call has none.

    Reference: Vaswani et al. 2017, section 3.1 (arXiv:1706.03762).

    Example:

    >>> block = DecoderBlock(intermediate_dim=32, num_heads=2)
    >>> tuple(block(keras.ops.ones((3, 5, 16)), keras.ops.ones((3, 7, 16))).shape)
    (3, 5, 16)
    """

    arguments = (*Block.arguments, "num_cross_heads")

    def __init__(
        self,
        *args: Any,
        num_cross_heads: int | None = None,
        mixer: Mixer | None = None,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        (self.num_cross_heads,) = check_positive(or_none=True, num_cross_heads=num_cross_heads)
        self._mixer = mixer

    def build(self, decoder_sequence_shape, encoder_sequence_shape=None):
        shape = decoder_sequence_shape
        self._build_mixer(shape, self._mixer)
        self.cross_attention = None
        if encoder_sequence_shape is not None:
            self.cross_attention = self._attention(
                "cross_attention", shape, encoder_sequence_shape, self.num_cross_heads
            )
            self.cross_attention_norm = self._normalization("cross_attention_norm", shape)
        self._build_feed_forward(shape)

    def compute_output_shape(self, decoder_sequence_shape, encoder_sequence_shape=None):
        return tuple(decoder_sequence_shape)

    def call(
        self,
        decoder_sequence: keras.KerasTensor,
        encoder_sequence: keras.KerasTensor | None = None,
        decoder_padding_mask: keras.KerasTensor | None = None,
        encoder_padding_mask: keras.KerasTensor | None = None,
        decoder_attention_mask: keras.KerasTensor | None = None,
        encoder_attention_mask: keras.KerasTensor | None = None,
        use_causal_mask: bool = True,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> keras.KerasTensor | tuple[keras.KerasTensor, ...]:
        self._check_inputs(decoder_sequence.shape)
        self._check_encoder_sequence(encoder_sequence)
        mask = masks.combine_attention(
            decoder_sequence.shape,
            decoder_sequence.shape,
            self.num_heads,
            {"decoder_padding_mask": decoder_padding_mask},
            {"decoder_attention_mask": decoder_attention_mask},
        )
        cross_mask = None
        if encoder_sequence is not None:
            cross_mask = masks.combine_attention(
                decoder_sequence.shape,
                encoder_sequence.shape,
                self.cross_attention.num_heads,
                {"encoder_padding_mask": encoder_padding_mask},
                {"encoder_attention_mask": encoder_attention_mask},
            )
        options = {"return_attention_scores": return_attention_scores, "training": training}

        hidden, mixer_scores = self._mix(decoder_sequence, mask, use_causal_mask, **options)
        scores = [mixer_scores]
        if self.cross_attention is not None:
            query = self._pre_norm(self.cross_attention_norm, hidden)
            attended = self.cross_attention(
                query, encoder_sequence, attention_mask=cross_mask, **options
            )
            attended, *cross_scores = attended if return_attention_scores else (attended,)
            hidden = self._add(hidden, attended, self.cross_attention_norm, training)
            scores += cross_scores
        outputs = self._feed(hidden, training)
        return (outputs, *scores) if return_attention_scores else outputs

    def step(
        self,
        inputs: keras.KerasTensor,
        state: Any,
        past: Past,
        cross_key_value: KeyValue | None = None,
        cross_mask: keras.KerasTensor | None = None,
        sublayers: StepSublayers | None = None,
    ) -> tuple[keras.KerasTensor, Any, keras.KerasTensor | None]:
        """Computes the positions that follow those in `state`.

        Args:
            inputs: Float `(batch, new, model_dim)`.
            state: State of the mixer, from `token_mixer.start` or the step before.
            past: The entries that each new position sees.
            cross_key_value: `KeyValue` of the encoder's sequence, from
                `cross_attention.project_key_value`.
            cross_mask: Bool `(batch, 1, 1, source)`.
            sublayers: Functions to use in place of the block's own projections.

        Returns:
            Float `(batch, new, model_dim)`, the next state, and the attention to the encoder,
            `(batch, heads, new, source)` or `None`.
        """
        self._check_encoder_sequence(cross_key_value)
        sublayers = sublayers or StepSublayers()
        hidden = self._pre_norm(self.token_mixer_norm, inputs)
        mixed, state = self.token_mixer.step(hidden, state, past, sublayers.mixer)
        hidden = self._add(inputs, mixed, self.token_mixer_norm)
        scores = None
        if self.cross_attention is not None:
            query = self._pre_norm(self.cross_attention_norm, hidden)
            attended, scores = self.cross_attention.cross_step(
                query, cross_key_value, cross_mask, sublayers.cross_attention
            )
            hidden = self._add(hidden, attended, self.cross_attention_norm)
        return self._feed(hidden, feed_forward=sublayers.feed_forward), state, scores

    def _check_encoder_sequence(self, encoder_sequence):
        if (encoder_sequence is None) != (self.cross_attention is None):
            built = "without" if self.cross_attention is None else "with"
            received = "none" if encoder_sequence is None else "one"
            raise ValueError(
                "Either every call of a decoder block has an encoder sequence or none has. "
                f"Received: a block built {built} an encoder sequence, called with {received}."
            )

    def get_config(self):
        mixer = self._mixer and keras.saving.serialize_keras_object(self._mixer)
        if mixer:
            # The block builds it, under the path that policies of quantized sublayers have.
            mixer.pop("build_config", None)
        return {**super().get_config(), "mixer": mixer}

    @classmethod
    def from_config(cls, config):
        if config.get("mixer"):
            config = {**config, "mixer": keras.saving.deserialize_keras_object(config["mixer"])}
        return super().from_config(config)


@keras.saving.register_keras_serializable(package="keras_transformer")
class SSRUDecoderBlock(DecoderBlock):
    """Name of a `DecoderBlock(mixer=SSRU(use_projection))` in files, where Keras looks it up.

    Keras also names the weights of a list of layers after their class.
    """

    def __init__(self, *args: Any, use_projection: bool = False, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if self._mixer is None:
            self._mixer = SSRU(use_projection, name="ssru", **self._options_of_a_projection())
