"""One layer of the encoder."""

import keras

from keras_transformer import masks
from keras_transformer.layers.block import Block


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderBlock(Block):
    """Self-attention, then a feed-forward sublayer, each with a residual connection.

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
        sliding_window: Keys within `sliding_window` - 1 of a query are seen by self-attention; all
            by default.
        positions: `"rotary"` or `"relative"`: positions inside self-attention.
        max_distance: Farthest distance of relative positions; see `MultiHeadAttention`.
        **kwargs: Initializers, regularizers and constraints of all projections, as
            `MultiHeadAttention` takes them; and what `keras.layers.Layer` takes.

    Call arguments:
        inputs: Float `(batch, length, model_dim)`.
        padding_mask: Bool `(batch, length)`, True = a real token.
        attention_mask: Bool, True = may attend: `(query, key)`, `(batch, query, key)` or
            `(batch, heads, query, key)`.
        training: Whether dropout is active.
        return_attention_scores: Whether to return the attention weights too.

    Masking: `padding_mask`, `attention_mask` and the mask that Keras attached to `inputs` are
    combined. Padded positions give numbers that mean nothing; no real position sees them.

    Returns:
        Float `(batch, length, model_dim)` in the compute dtype; with
        `return_attention_scores=True` also float `(batch, heads, length, length)`.

    Raises:
        ValueError: A size or rate is out of range, `num_heads` does not divide the width, or the
            input has the wrong axes or features.

    Reference: Vaswani et al. 2017, section 3.1 (arXiv:1706.03762); pre-norm: Xiong et al. 2020
    (arXiv:2002.04745).

    Example:

    >>> block = EncoderBlock(intermediate_dim=32, num_heads=2, dropout=0.1)
    >>> block(keras.ops.ones((3, 5, 16))).shape
    (3, 5, 16)
    """

    def build(self, input_shape):
        self._build_self_attention(input_shape)
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
        mask = masks.combine(masks.key_mask(padding_mask), masks.with_heads_axis(attention_mask))
        hidden = self._pre_norm(self.self_attention_norm, inputs)
        attended = self.self_attention(
            hidden,
            hidden,
            attention_mask=mask,
            return_attention_scores=return_attention_scores,
            training=training,
        )
        attended, *scores = attended if return_attention_scores else (attended,)
        hidden = self._add(inputs, attended, self.self_attention_norm, training)
        fed = self._pre_norm(self.feed_forward_norm, hidden)
        fed = self.feed_forward(fed, training=training)
        outputs = self._add(hidden, fed, self.feed_forward_norm, training)
        return (outputs, *scores) if return_attention_scores else outputs
