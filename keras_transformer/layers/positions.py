"""Positions: vectors for the embedded tokens, rotations and distance scores in attention."""

import math
import numbers
from typing import Any, Literal

import keras
import numpy as np
from keras import ops

from keras_transformer.base.options import check, check_choice, check_ids, check_positive, values_of
from keras_transformer.layers.masks import fits, vocabulary_mask
from keras_transformer.layers.projection import Projection
from keras_transformer.layers.quantization import dtype_config

AttentionPositions = Literal["rotary", "relative", "alibi"]
"""Positions inside attention; other ones are vectors at the embedded tokens."""


def known_start(start_index: int | keras.KerasTensor) -> int | None:
    """Returns a start as an integer, None for a traced one, which has no value yet.

    Raises:
        ValueError: The start is not an integer, or below 0.
    """
    value = values_of(start_index)
    if value is None:
        check_ids("start_index", start_index)
        return None
    check("start_index", value.item(), "an integer of at least 0", numbers.Integral, 0)
    return value.item()


def _positions_of(inputs, start_index, positions):
    """Returns int32 `(length,)`, or the given positions, `(length,)` or `(batch, length)`."""
    start = known_start(start_index)
    batch, length = inputs.shape[:2]
    if positions is None:
        return ops.cast(start_index, "int32") + ops.arange(ops.shape(inputs)[1], dtype="int32")
    if start != 0:
        raise ValueError(f"Give `positions` or `start_index`. Received: both, start_index={start}.")
    positions = ops.convert_to_tensor(positions)
    shape, dtype = tuple(positions.shape), keras.backend.standardize_dtype(positions.dtype)
    has_shape = any(fits(shape, axes) for axes in ((length,), (batch, length), (1, length)))
    values = values_of(positions)
    lowest = 0 if values is None else values.min(initial=0)
    if "int" not in dtype or not has_shape or lowest < 0:
        raise ValueError(
            "`positions` must be integers of at least 0, with the axes (length) or "
            f"(batch, length), here {(length,)} or {(batch, length)}. Received: positions of shape "
            f"{shape}, of dtype {dtype}, from {lowest}."
        )
    return ops.cast(positions, "int32")


@keras.saving.register_keras_serializable(package="keras_transformer")
class SinusoidalPositionalEncoding(keras.layers.Layer):
    """Adds `sin(p / w^(2i/d))` to feature `2i` and `cos(p / w^(2i/d))` to feature `2i + 1`.

    `p` is the position, `d` the width, `w` the `max_wavelength`. Marian has other frequencies and
    another order of the features; Hugging Face's models of it have the paper's frequencies in
    Marian's order. There are no weights and no maximum length. The angles are computed in float32
    under every dtype policy: in float16 or bfloat16, positions past a few hundred could not be
    told apart.

    Args:
        max_wavelength: The longest wavelength is 2π times this, in tokens.
        layout: `"interleaved"`, a sine next to its cosine; or `"halves"`, all sines, then all
            cosines.
        frequencies: `"paper"`, `w^(-2i/d)`; or `"marian"`, `w^(-i/(d/2 - 1))`.
        offset: Number added to each position. fairseq's models give the first token position 2.

    Call arguments:
        inputs: Float `(batch, length, model_dim)`; an odd width has one cosine less.
        start_index: Position of the first token, an integer or an integer scalar tensor; not
            zero when a sequence arrives in parts.
        positions: Integer `(length,)` or `(batch, length)`: the position of each token, in place of
            `start_index`. They begin again with each sequence that a row is packed of.

    Masking: a Keras mask on `inputs` is passed on; padding gets a position like all else.

    Returns:
        `inputs` + encoding, of the same shape, in the compute dtype.

    Raises:
        ValueError: A number is out of range, or there is no such layout or frequency. The start, or
            a known position, is not an integer or is below 0. Positions have another shape.

    Reference: Vaswani et al. 2017, section 3.5 (arXiv:1706.03762).

    Example:

    >>> encoding = SinusoidalPositionalEncoding()(keras.ops.zeros((1, 2, 512)))
    >>> [round(float(x), 4) for x in encoding[0, 1, :4]]
    [0.8415, 0.5403, 0.8219, 0.5697]
    """

    def __init__(
        self,
        max_wavelength: float = 10000,
        layout: Literal["interleaved", "halves"] = "interleaved",
        frequencies: Literal["paper", "marian"] = "paper",
        offset: int = 0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check("max_wavelength", max_wavelength, "a positive number", numbers.Real)
        check_choice("layout", layout, ("interleaved", "halves"))
        check_choice("frequencies", frequencies, ("paper", "marian"))
        check("offset", offset, "an integer of at least 0", numbers.Integral, 0)
        self.max_wavelength, self.offset = float(max_wavelength), int(offset)
        self.layout, self.frequencies = layout, frequencies
        self.supports_masking = True
        # `start_index=3` may be given by position, like any other call argument.
        self._allow_non_tensor_positional_args = True

    def build(self, input_shape):
        pass

    def call(
        self,
        inputs: keras.KerasTensor,
        start_index: int | keras.KerasTensor = 0,
        positions: keras.KerasTensor | None = None,
    ) -> keras.KerasTensor:
        width = inputs.shape[-1]
        positions = self.offset + _positions_of(inputs, start_index, positions)
        pairs = ops.arange((width + 1) // 2, dtype="float32")
        # Pairs over which a wavelength grows `max_wavelength` times; Marian's last pair has it.
        span = width / 2 if self.frequencies == "paper" else max(width / 2 - 1, 1)
        frequencies = ops.exp(pairs * (-math.log(self.max_wavelength) / span))
        # --> [length, pairs], or [batch, length, pairs]
        angles = ops.expand_dims(ops.cast(positions, "float32"), -1) * frequencies
        waves = [ops.sin(angles), ops.cos(angles)]
        if self.layout == "halves":
            encoding = ops.concatenate(waves, axis=-1)
        else:
            shape = *ops.shape(positions), 2 * ((width + 1) // 2)
            encoding = ops.reshape(ops.stack(waves, axis=-1), shape)
        return inputs + ops.cast(encoding[..., :width], inputs.dtype)

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def get_config(self):
        names = ("max_wavelength", "layout", "frequencies", "offset")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


@keras.saving.register_keras_serializable(package="keras_transformer")
class LearnedPositionalEmbedding(keras.layers.Layer):
    """Adds one trained vector for each position.

    Args:
        max_length: Number of positions that have a vector, in tokens.

    Call arguments:
        inputs: Float `(batch, length, model_dim)`.
        start_index, positions: See `SinusoidalPositionalEncoding`.

    Masking: a Keras mask on `inputs` is passed on; padding gets a position like all else.

    Returns:
        `inputs` + embedding, of the same shape, in the compute dtype.

    Raises:
        ValueError: `max_length` is not positive, or the sequence is not within it. This is checked
            only for a length and a start that are known when the graph is built. Otherwise, and
            for given positions, outputs outside the table are NaN, unless the processor raises an
            error itself.

    Reference: Gehring et al. 2017, section 3.1 (arXiv:1705.03122); compared with sinusoids in
    Vaswani et al. 2017, table 3 row E (arXiv:1706.03762).
    """

    def __init__(self, max_length: int, **kwargs: Any):
        super().__init__(**kwargs)
        (self.max_length,) = check_positive(max_length=max_length)
        self.supports_masking = True
        self._allow_non_tensor_positional_args = True

    def build(self, input_shape):
        width = input_shape[-1]
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.max_length, width),
            initializer=keras.initializers.RandomNormal(stddev=width**-0.5),
        )

    def call(
        self,
        inputs: keras.KerasTensor,
        start_index: int | keras.KerasTensor = 0,
        positions: keras.KerasTensor | None = None,
    ) -> keras.KerasTensor:
        length, start = inputs.shape[1], known_start(start_index)
        is_static = isinstance(length, int) and start is not None and positions is None
        if is_static and start + length > self.max_length:
            raise ValueError(
                "The sequence must end within `max_length`. Received: "
                f"max_length={self.max_length}, start_index={start}, length={length}."
            )
        positions = _positions_of(inputs, start_index, positions)
        embedding = ops.take(ops.convert_to_tensor(self.embeddings), positions, axis=0)
        if not is_static:
            # XLA reads the last row for every position past the table; NaN shows the mistake.
            inside = ops.expand_dims(vocabulary_mask(positions, self.max_length), -1)
            embedding = ops.where(inside, embedding, float("nan"))
        return inputs + ops.cast(embedding, inputs.dtype)

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def get_config(self):
        return {**super().get_config(), "max_length": self.max_length}


@keras.saving.register_keras_serializable(package="keras_transformer")
class ConcatenatedPositions(keras.layers.Layer):
    """Concatenates the features of a token and of its position, and projects both to the width.

    Args:
        positions: A layer that adds vectors of positions to its inputs, as
            `SinusoidalPositionalEncoding` and `LearnedPositionalEmbedding` do. Several layers may
            share one.

    The call arguments are as in `positions`.

    Masking: a Keras mask on `inputs` is passed on.

    Returns:
        Float of the inputs' shape, in the compute dtype.

    This equals the sum of a projection of each. Unlike in a plain sum, the model learns which
    directions positions have.
    """

    def __init__(self, positions: keras.layers.Layer, **kwargs: Any):
        super().__init__(**kwargs)
        self.positions = positions
        self.supports_masking = True
        self._allow_non_tensor_positional_args = True

    def build(self, input_shape):
        width = input_shape[-1]
        if not self.positions.built:
            self.positions.build(input_shape)
        self.projection = Projection(
            "btd,du->btu", (None, width), dtype=self.dtype_policy, name="projection"
        )
        self.projection.build((*input_shape[:-1], 2 * width))

    def call(
        self,
        inputs: keras.KerasTensor,
        start_index: int | keras.KerasTensor = 0,
        positions: keras.KerasTensor | None = None,
    ) -> keras.KerasTensor:
        given = {} if positions is None else {"positions": positions}
        vectors = self.positions(ops.zeros_like(inputs), start_index=start_index, **given)
        return self.projection(ops.concatenate([inputs, vectors], axis=-1))

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def get_config(self):
        # Serialized twice: Keras marks the second one as shared in the file of a model.
        keras.saving.serialize_keras_object(self.positions)
        positions = keras.saving.serialize_keras_object(self.positions)
        return {**super().get_config(), **dtype_config(self), "positions": positions}

    @classmethod
    def from_config(cls, config):
        positions = keras.saving.deserialize_keras_object(config["positions"])
        return cls(**{**config, "positions": positions})


def position_table(layer: keras.layers.Layer | None, length: int, width: int) -> np.ndarray:
    """Returns the vectors that a positional layer adds at each position.

    Args:
        layer: `SinusoidalPositionalEncoding`, `LearnedPositionalEmbedding`, or
            `ConcatenatedPositions` over one of them. None: no layer, vectors of zeros.
        length: Number of positions, from 0.
        width: The model's width.

    Returns:
        Float32 `(length, width)`; fewer rows if a learned table has fewer.
    """
    if layer is None:
        return np.zeros((length, width), "float32")
    inner = layer.positions if isinstance(layer, ConcatenatedPositions) else layer
    if isinstance(inner, LearnedPositionalEmbedding):
        length = min(length, inner.max_length)
    encoded = layer(ops.zeros((1, length, width), layer.compute_dtype))[0]
    return ops.convert_to_numpy(ops.cast(encoded, "float32"))


def apply_rotary(
    heads: keras.KerasTensor, positions: keras.KerasTensor, max_wavelength: float = 10000
) -> keras.KerasTensor:
    """Turns the pair of features `i` and `i + d/2` at position `p` by `p / w^(2i/d)`.

    `d` is the number of features, `w` the `max_wavelength`. The product of a rotated query and a
    rotated key depends only on the difference of their positions.

    Args:
        heads: Float `(batch, length, heads, features)`, an even number of features.
        positions: Integer `(length,)`.

    Returns:
        Float of the shape and dtype of `heads`; angles and products are computed in float32.

    Reference: Su et al. 2021, section 3.4.2 (arXiv:2104.09864). The paper pairs neighbouring
    features; the projections before the rotation learn either order.
    """
    half = heads.shape[-1] // 2
    frequencies = ops.exp(ops.arange(half, dtype="float32") * (-math.log(max_wavelength) / half))
    angles = ops.expand_dims(ops.cast(positions, "float32"), 1) * frequencies
    angles = ops.expand_dims(angles, 1)  # --> [length, 1, features / 2]
    cosine, sine = ops.cos(angles), ops.sin(angles)
    wide = ops.cast(heads, "float32")
    first, second = wide[..., :half], wide[..., half:]
    rotated = [first * cosine - second * sine, first * sine + second * cosine]
    return ops.cast(ops.concatenate(rotated, axis=-1), heads.dtype)


def alibi_slopes(num_heads: int) -> np.ndarray:
    """Returns ALiBi's slope of each head, float32 `(heads,)`: `2^(-8h/n)` for `h` from 1 to `n`.

    `n` is a power of two. Other numbers of heads have the slopes of the next smaller power, and
    then every other slope of the next larger power, as in the program of the paper.
    """
    power = 2 ** (num_heads.bit_length() - 1)
    first = -8 / power * np.arange(1, power + 1)
    others = -4 / power * np.arange(1, 2 * (num_heads - power), 2)
    return np.exp2(np.concatenate([first, others])).astype("float32")


def alibi_scores(
    num_heads: int, query_positions: keras.KerasTensor, key_positions: keras.KerasTensor
) -> keras.KerasTensor:
    """Returns what ALiBi adds to scores: each head's slope times the distance, negative.

    The paper has only keys before the query. A key after it gets the slope of the head at the other
    end of the list. So a head that sees far to one side sees near to the other. With one slope for
    both sides, as with one head, an encoder sees a row and its mirror image alike.

    Args:
        num_heads: Number of heads.
        query_positions: Integer `(query,)`.
        key_positions: Integer `(key,)`.

    Returns:
        Float32 `(heads, query, key)`.

    Reference: Press et al. 2022 (arXiv:2108.12409), for causal models. Its authors discuss encoders
    in github.com/ofirpress/attention_with_linear_biases/issues/5.
    """
    slopes = alibi_slopes(num_heads)[:, None, None]
    distance = ops.expand_dims(key_positions, 0) - ops.expand_dims(query_positions, 1)
    distance = ops.cast(distance, "float32")  # --> [query, key]
    return ops.minimum(distance, 0.0) * slopes - ops.maximum(distance, 0.0) * slopes[::-1]


def relative_scores(
    query: keras.KerasTensor,
    distance_embeddings: keras.KerasTensor,
    query_positions: keras.KerasTensor,
    key_positions: keras.KerasTensor,
) -> keras.KerasTensor:
    """Multiplies each query with the trained vector of its distance to each key.

    Args:
        query: Float `(batch, heads, query, key_dim)`.
        distance_embeddings: Float `(2 · max_distance + 1, key_dim)`; farther keys count as
            `max_distance` away.
        query_positions: Integer `(query,)`.
        key_positions: Integer `(key,)`.

    Returns:
        Float `(batch, heads, query, key)`.

    Reference: Shaw et al. 2018, section 3.2 (arXiv:1803.02155).
    """
    vectors = _distance_vectors(distance_embeddings, query.dtype, query_positions, key_positions)
    return ops.einsum("bnqd,qkd->bnqk", query, vectors)


def relative_values(
    weights: keras.KerasTensor,
    distance_values: keras.KerasTensor,
    query_positions: keras.KerasTensor,
    key_positions: keras.KerasTensor,
) -> keras.KerasTensor:
    """Sums the trained vectors of the distances to all keys, weighted by the attention.

    Args:
        weights: Float `(batch, heads, query, key)`.
        distance_values: Float `(2 · max_distance + 1, value_dim)`.
        query_positions, key_positions: As `relative_scores` takes them.

    Returns:
        Float `(batch, heads, query, value_dim)`.
    """
    vectors = _distance_vectors(distance_values, weights.dtype, query_positions, key_positions)
    return ops.einsum("bnqk,qkd->bnqd", weights, vectors)


def _distance_vectors(table, dtype, query_positions, key_positions):
    """Returns the vector of each distance, float `(query, key, features)`."""
    farthest = table.shape[0] // 2
    distance = ops.expand_dims(key_positions, 0) - ops.expand_dims(query_positions, 1)
    index = ops.clip(distance, -farthest, farthest) + farthest  # --> [query, key]
    return ops.take(ops.cast(table, dtype), index, axis=0)
