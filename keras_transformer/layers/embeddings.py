"""Ids to vectors, and vectors back to logits with one matrix."""

import math
from typing import Any

import keras
from keras import ops

from keras_transformer.base.ids import PAD_ID
from keras_transformer.base.large_variables import assign_rows, stored_arrays
from keras_transformer.base.options import check_flags, check_ids, check_positive, values_of
from keras_transformer.layers.half_precision import matmul_transposed
from keras_transformer.layers.masks import vocabulary_mask
from keras_transformer.layers.matrix_layer import MatrixLayer


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenEmbedding(MatrixLayer, keras.layers.Embedding):
    """Looks ids up in a table and scales them by √model_dim.

    The table, unscaled and transposed, is also the output projection (`project`): that ties
    input and output. `enable_lora` and `quantize("int8")` of `keras.layers.Embedding` work in both
    directions. A quantized `project` multiplies floats with the dequantized table, unlike
    `keras.layers.ReversibleEmbedding`, which also quantizes its inputs. Files have the table that
    LoRA's matrices are added to.

    Args:
        vocabulary_size: Number of ids.
        model_dim: Width of a vector.
        output_bias: Whether `project` adds a trained bias.
        mask_zero: Whether Keras attaches the mask of all ids except 0 to the result, as
            `keras.layers.Embedding` does. There it is False by default. Here it is True, because
            0 is padding for every tokenizer, loss and search of this package, and a forgotten
            mask changes outputs without an error. False for other ids, where 0 is a token.
        embeddings_initializer: Initial values of the table, as Keras takes them. `None`: drawn from
            N(0, 1/√model_dim), so that a scaled embedding has the size of a positional encoding
            and a logit has unit variance.
        **kwargs: `embeddings_regularizer` and `embeddings_constraint`, as `keras.layers.Embedding`
            takes them; and what `keras.layers.Layer` takes.

    Call arguments:
        inputs: Integer `(batch, length)`, padded with 0 where `mask_zero` is True. A model needs
            `keras.Input((None,), dtype="int32")`, because Keras' inputs are float by default.

    Masking: with `mask_zero` the layers that follow see no padding. They combine this mask with
    the masks that are given to them.

    Returns:
        Float `(batch, length, model_dim)` in the compute dtype. The vector of an id outside the
        vocabulary is NaN in a compiled call, unless the processor raises an error itself.

    Raises:
        ValueError: A size is not positive. Ids are float, or an id is outside the vocabulary.

    Reference: Vaswani et al. 2017, section 3.4 (arXiv:1706.03762); Press & Wolf 2017
    (arXiv:1608.05859).
    """

    def __init__(
        self,
        vocabulary_size: int,
        model_dim: int,
        output_bias: bool = False,
        mask_zero: bool = True,
        embeddings_initializer: Any = None,
        **kwargs: Any,
    ):
        vocabulary_size, model_dim = check_positive(
            vocabulary_size=vocabulary_size, model_dim=model_dim
        )
        check_flags(output_bias=output_bias, mask_zero=mask_zero)
        if made_later := kwargs.keys() & {"lora_rank", "lora_alpha", "weights"}:
            raise ValueError(
                "Call `enable_lora` and `set_weights` of a `TokenEmbedding` that is built. "
                f"Received: {', '.join(sorted(made_later))}."
            )
        super().__init__(
            vocabulary_size, model_dim, embeddings_initializer, mask_zero=mask_zero, **kwargs
        )
        self.has_output_bias, self.output_bias = output_bias, None
        self.supports_masking = True
        self._is_built_by_floats = False

    @property
    def vocabulary_size(self) -> int:
        return self.input_dim

    @property
    def model_dim(self) -> int:
        return self.output_dim

    def build(self, input_shape=None):
        initializer = self.embeddings_initializer
        if initializer is None:
            normal = keras.initializers.RandomNormal(stddev=self.model_dim**-0.5)
            self.embeddings_initializer = normal
        super().build(input_shape)
        self.embeddings_initializer = initializer
        if self.has_output_bias:
            self.output_bias = self.add_weight(
                name="output_bias", shape=(self.vocabulary_size,), initializer="zeros"
            )

    def save_own_variables(self, store: dict[str, Any]) -> None:
        tables: dict[str, Any] = {}
        super().save_own_variables(tables)  # with LoRA's matrices added
        for name, values in {**self._stored_variables(), **tables}.items():
            for number, array in enumerate(stored_arrays(values)):
                store[f"{name}.{number}" if number else name] = array

    def load_own_variables(self, store: Any) -> None:
        variables = self._stored_variables()
        if unknown := {key.split(".")[0] for key in store.keys()} ^ variables.keys():
            rule = f"{self.path} must have the variables {sorted(variables)}, as in the file"
            raise ValueError(f"{rule}. Only one of both has {sorted(unknown)}.")
        for name, variable in variables.items():
            further = sum(key.startswith(f"{name}.") for key in store.keys())
            names = [name, *(f"{name}.{number}" for number in range(1, further + 1))]
            assign_rows(variable, (store[block] for block in names))
        if self.lora_enabled:
            self.lora_embeddings_b.assign(ops.zeros(self.lora_embeddings_b.shape))

    def _stored_variables(self):
        """Returns the variables of a file by their names there: Keras' own, then the bias."""
        _, *others = self.variable_serialization_spec[self.quantization_mode]
        tables = self._embeddings, *(getattr(self, name, None) for name in others)
        stored = [variable for variable in (*tables, self.output_bias) if variable is not None]
        return {str(number): variable for number, variable in enumerate(stored)}

    def __call__(self, inputs, *args, **kwargs):
        # Keras builds the model of a file by tracing its call with floats. The model may call the
        # layer several times.
        is_traced = not isinstance(inputs, keras.KerasTensor) and values_of(inputs) is None
        is_float = is_traced and "float" in keras.backend.standardize_dtype(inputs.dtype)
        self._is_built_by_floats = is_float and (not self.built or self._is_built_by_floats)
        if not self._is_built_by_floats:
            check_ids("inputs", inputs, self.vocabulary_size)
        return super().__call__(inputs, *args, **kwargs)

    def call(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        return self._scaled(super().call(ops.cast(inputs, "int32")), inputs)

    def quantized_call(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        return self._scaled(super().quantized_call(ops.cast(inputs, "int32")), inputs)

    def _scaled(self, vectors, ids):
        # XLA reads another row for an id outside the table; NaN shows the mistake. As a scale it
        # costs nothing: the vectors are multiplied with a number anyway.
        is_id = vocabulary_mask(ids, self.vocabulary_size)
        scale = ops.where(is_id, math.sqrt(self.model_dim), float("nan"))
        return vectors * ops.expand_dims(ops.cast(scale, self.compute_dtype), -1)

    def table(self) -> keras.KerasTensor:
        """Returns the table as it is used, float `(vocabulary_size, model_dim)`.

        LoRA's matrices are added, and a quantized table is dequantized.
        """
        if self.quantization_mode is None:
            return ops.convert_to_tensor(self.embeddings)
        return super().quantized_call(ops.arange(self.vocabulary_size))

    def project(self, hidden: keras.KerasTensor) -> keras.KerasTensor:
        """Logits of each id: `hidden · embeddingsᵀ`, plus the output bias.

        From float `(…, model_dim)` to float `(…, vocabulary_size)` in the compute dtype.
        """
        logits = matmul_transposed(ops.cast(hidden, self.compute_dtype), self.table())
        if self.output_bias is None:
            return logits
        return logits + ops.cast(ops.convert_to_tensor(self.output_bias), self.compute_dtype)

    def compute_mask(self, inputs, previous_mask=None):
        return ops.not_equal(inputs, PAD_ID) if self.mask_zero else previous_mask

    def get_config(self):
        config = super().get_config()
        of_keras = "input_dim", "output_dim", "activity_regularizer", "lora_rank", "lora_alpha"
        config = {name: value for name, value in config.items() if name not in of_keras}
        sizes = {"vocabulary_size": self.vocabulary_size, "model_dim": self.model_dim}
        return {**config, **sizes, "output_bias": self.has_output_bias}

    @classmethod
    def from_config(cls, config):
        # A layer that was saved without this option made no mask.
        return super().from_config({"mask_zero": False, **config})
