"""Mixers: the sublayers of blocks that mix positions, such as self-attention and SSRU."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras

from keras_transformer.layers.kv_cache import Past
from keras_transformer.layers.projection import LayerOfProjections


class Projections(NamedTuple):
    """Projects the inputs and the output of a mixer: by its own layers, or in another layout.

    Attributes:
        inner: Function from `(batch, new, model_dim)` to the output of each inner projection.
        outer: Function from the mixed values to `(batch, new, model_dim)`.
    """

    inner: Callable[[keras.KerasTensor], tuple[keras.KerasTensor, ...]]
    outer: Callable[[keras.KerasTensor], keras.KerasTensor]


class Mixer(LayerOfProjections):
    """The first sublayer of a block: each position reads the sequence.

    A mixer of a decoder has `call`, `start`, `step` and its projections.
    `call(inputs, projections=None)` computes all positions of float `(batch, length, model_dim)`.
    Each position sees only itself and the positions before it. A mixer other than self-attention
    also takes `longest`, the maximum length, where LiteRT computes any length. `start` and `step`
    compute the same position by position. All of them project with `projections`, if given: with
    weights in the layout of a loop (`models.step_weights`), or computed by LiteRT
    (`export.litert.mixers`).

    Attributes:
        sublayer_name: Attribute of a block, and name of its weights in files.
    """

    sublayer_name: str

    def inner_layers(self) -> tuple[keras.layers.Layer, ...]:
        """Returns the projections of the inputs."""
        raise NotImplementedError

    def outer_layer(self) -> keras.layers.Layer | None:
        """Returns the projection of the output; None: the output is not projected."""
        raise NotImplementedError

    # A method, because Keras saves weights under the first property that returns their layer.
    def own_projections(self) -> Projections:
        """Returns the functions of the mixer's own layers."""
        return Projections(
            lambda inputs: tuple(layer(inputs) for layer in self.inner_layers()),
            self.outer_layer() or (lambda outputs: outputs),
        )

    def mix(
        self,
        inputs: keras.KerasTensor,
        attention_mask: keras.KerasTensor | None = None,
        use_causal_mask: bool = True,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> tuple[keras.KerasTensor, keras.KerasTensor | None]:
        """Calls the mixer as a sublayer; returns its outputs, and weights of attention if asked.

        By default masks are ignored: padding must be at the end.
        """
        return self(inputs), None

    def start(
        self, batch: int | keras.KerasTensor, beams: int, capacity: int | keras.KerasTensor
    ) -> Any:
        """Makes the state before the first step: a NamedTuple of tensors.

        Their shapes are `(batch, beams, …)`, and the state has `extended(num_entries)` and
        `reorder(parents)`; see `layers.kv_cache.of_parents`. `capacity` is a number of steps,
        and each step has an entry per hypothesis.
        """
        raise NotImplementedError

    def step(
        self,
        inputs: keras.KerasTensor,
        state: Any,
        past: Past,
        projections: Projections | None = None,
    ) -> tuple[keras.KerasTensor, Any]:
        """Computes the next position of each hypothesis, float `(batch, beams, model_dim)`.

        `past` says which entries of a state that all hypotheses share a position sees. Returns
        outputs of this shape, and the next state.
        """
        raise NotImplementedError
