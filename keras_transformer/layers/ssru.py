"""The simpler simple recurrent unit: a decoder's past in a state of constant size."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.base.options import check_flags
from keras_transformer.layers.kv_cache import Past, of_parents
from keras_transformer.layers.mixer import Mixer, Projections
from keras_transformer.layers.projection import Dense, check_sequence

_BLOCK_POSITIONS = 16
_LEVELS = 5
LONGEST = _BLOCK_POSITIONS**_LEVELS
"""The largest number of positions of a sequence: a million."""


class SSRUState(NamedTuple):
    """State of an `SSRU` after some steps, an entry of `DecodingCache.layers`.

    Attributes:
        cell: Float32 `(batch, beams, model_dim)`.
    """

    cell: keras.KerasTensor

    def extended(self, num_entries: int) -> "SSRUState":
        """Returns itself: a state has no length."""
        return self

    def reorder(self, parents: keras.KerasTensor) -> "SSRUState":
        """Lets each hypothesis continue another one; see `DecodingCache.reorder`."""
        return SSRUState(of_parents(self.cell, parents))


@keras.saving.register_keras_serializable(package="keras_transformer")
class SSRU(Mixer):
    """`c_t = f_t · c_(t-1) + (1 - f_t) · W x_t` with `f_t = σ(W_f x_t + b_f)`; outputs `relu(c_t)`.

    Nothing but the elementwise recurrence runs over time, and that is an associative scan: all
    positions of a training batch are computed in parallel. It is computed in float32 under every
    dtype policy, because forget gates near 1 keep small differences for many steps.

    Args:
        use_projection: Whether another projection follows the output.
        **kwargs: Initializers, regularizers and constraints of all projections, as
            `keras.layers.Dense` takes them; and what `keras.layers.Layer` takes.

    Call arguments:
        inputs: Float `(batch, length, model_dim)`, of at most `LONGEST` positions.

    Masking: a position sees itself and the positions before it. Padding at the end has no effect
    on the positions before it.

    Returns:
        Float of the shape of `inputs`, in the compute dtype.

    Raises:
        ValueError: The input has the wrong axes or features.

    Reference: Kim et al. 2019 (arXiv:1909.01953).

    Example:

    >>> tuple(SSRU()(keras.ops.ones((3, 5, 16))).shape)
    (3, 5, 16)
    """

    arguments = ("use_projection",)
    sublayer_name = "ssru"

    def __init__(self, use_projection: bool = False, **kwargs: Any):
        super().__init__(**kwargs)
        check_flags(use_projection=use_projection)
        self.use_projection = use_projection
        self.supports_masking = True
        self._width = None

    def build(self, input_shape):
        check_sequence("inputs", input_shape)
        self._width = input_shape[2]
        self.input_dense = self._dense("input", input_shape, use_bias=False)
        self.forget_dense = self._dense("forget", input_shape)
        self.output_dense = None
        if self.use_projection:
            self.output_dense = self._dense("output", input_shape)

    def _dense(self, name, input_shape, use_bias=True):
        options = self._options_of_a_projection()
        dense = Dense(self._width, use_bias=use_bias, name=name, **options)
        dense.build(input_shape)
        return dense

    def call(
        self,
        inputs: keras.KerasTensor,
        projections: Projections | None = None,
        longest: int | None = None,
    ) -> keras.KerasTensor:
        check_sequence("inputs", inputs.shape, self._width)
        project, project_output = projections or self.own_projections()
        forget, gated_inputs = _gates(*project(inputs))
        return project_output(self._output(scan(forget, gated_inputs, longest)))

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def start(
        self,
        batch: int | keras.KerasTensor,
        beams: int,
        capacity: int | keras.KerasTensor | None = None,
    ) -> SSRUState:
        """Makes the state before the first step; it needs no capacity."""
        return SSRUState(ops.zeros((batch, beams, self._width), "float32"))

    def step(
        self,
        inputs: keras.KerasTensor,
        state: SSRUState,
        past: Past | None = None,
        projections: Projections | None = None,
    ) -> tuple[keras.KerasTensor, SSRUState]:
        """Computes one position of each hypothesis, float `(batch, beams, model_dim)`."""
        project, project_output = projections or self.own_projections()
        forget, gated_inputs = _gates(*project(inputs))
        # Arrays from a compiled function may have lost the static size of an axis.
        cell = forget * ops.reshape(state.cell, (-1, *gated_inputs.shape[1:])) + gated_inputs
        return project_output(self._output(cell)), SSRUState(cell)

    def _output(self, cell):
        return ops.cast(ops.relu(cell), self.compute_dtype)

    def inner_layers(self):
        return self.input_dense, self.forget_dense

    def outer_layer(self):
        return self.output_dense

    @property
    def projections(self):
        """The projections of the input, of the forget gate and, where there is one, the output."""
        layers = self.input_dense, self.forget_dense
        return layers if self.output_dense is None else (*layers, self.output_dense)


def _gates(projected_inputs, forget_scores):
    forget = ops.sigmoid(ops.cast(forget_scores, "float32"))
    return forget, (1.0 - forget) * ops.cast(projected_inputs, "float32")


def scan(
    forget: keras.KerasTensor, gated_inputs: keras.KerasTensor, longest: int | None = None
) -> keras.KerasTensor:
    """Computes `c_t = f_t · c_(t-1) + x_t` from `c_0 = 0` at all positions in parallel.

    A step is the pair `(f, x)`, and two steps in a row are one: `(f2 · f1, f2 · x1 + x2)`.
    Blocks of 16 positions are combined by doubling, then the blocks themselves in the same way.
    Keras' `associative_scan` needs a length that is known when the graph is made, which a training
    step over batches of several lengths does not have.

    Args:
        forget: `f`, float `(batch, length, features)`, of at most `LONGEST` positions.
        gated_inputs: `x`, float of the same shape.
        longest: Maximum length. If it is known, an unknown length is not cut into blocks, and no
            size is computed from a tensor's shape.

    Returns:
        Float `(batch, length, features)`.
    """
    if longest is not None and gated_inputs.shape[1] is None:
        return _doubled(forget, gated_inputs, 1, longest)[1]
    return _scan(forget, gated_inputs, _LEVELS)


def _scan(forget, gated_inputs, levels):
    batch, length, width = ops.shape(gated_inputs)
    # A traced length is not compared: a condition would go into the graph.
    is_short = isinstance(length, int) and length <= _BLOCK_POSITIONS
    blocks = -(-length // _BLOCK_POSITIONS)
    padding = ((0, 0), (0, blocks * _BLOCK_POSITIONS - length), (0, 0))
    shape = (batch, blocks, _BLOCK_POSITIONS, width)
    forget = ops.reshape(ops.pad(forget, padding), shape)
    gated_inputs = ops.reshape(ops.pad(gated_inputs, padding), shape)
    forget, gated_inputs = _doubled(forget, gated_inputs, 2, _BLOCK_POSITIONS)
    if levels > 1 and not is_short:
        cells = _scan(
            forget[:, :, -1], gated_inputs[:, :, -1], levels - 1
        )  # --> [batch, blocks, width]
        gated_inputs = gated_inputs + forget * ops.expand_dims(_moved(cells, 1, axis=1), 2)
    return ops.reshape(gated_inputs, (batch, blocks * _BLOCK_POSITIONS, width))[:, :length]


def _doubled(forget, gated_inputs, axis, length):
    """Combines up to `length` steps along an axis, each with those before it."""
    shift = 1
    while shift < length:
        gated_inputs = gated_inputs + forget * _moved(gated_inputs, shift, axis)
        forget = forget * _moved(forget, shift, axis, fill=1.0)
        shift *= 2
    return forget, gated_inputs


def _moved(values, shift, axis, fill=0.0):
    """Moves values `shift` steps up an axis, with `fill` in the first steps."""
    padding = [(0, 0)] * len(values.shape)
    padding[axis] = (shift, 0)
    padded = ops.pad(values, padding, constant_values=fill)
    slices = [slice(None)] * axis + [slice(None, -shift)]
    return padded[tuple(slices)]
