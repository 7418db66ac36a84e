"""A decoder-only language model, on which a text is its own beginning and continuation."""

import keras
from keras import ops

from keras_transformer.config import LanguageModelConfig
from keras_transformer.models.transformer import Transformer


@keras.saving.register_keras_serializable(package="keras_transformer")
class LanguageModel(Transformer):
    """The decoder of a `Transformer`, from ids to logits, without an encoder.

    It is called as `Transformer` is, so that datasets, losses and searches are the same; the
    source is not read. What a search begins with is in the source, all the same: `continues_source`
    says that its tokens are the first ones of the target.

    Reference: Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training".

    Example:

    >>> config = LanguageModelConfig(vocabulary_size=100, model_dim=32, num_heads=2)
    >>> ids = keras.ops.ones((2, 7), dtype="int32")
    >>> LanguageModel(config)((ids, ids)).shape
    (2, 7, 100)
    """

    config_class = LanguageModelConfig
    continues_source = True

    def encode(self, source_ids, training=None):
        """Nothing: there is no encoder, and no mask of what it read."""
        return None, None

    def call_with_attention(
        self, source_ids: keras.KerasTensor, target_ids: keras.KerasTensor
    ) -> tuple[keras.KerasTensor, tuple[()]]:
        """As `Transformer.call_with_attention`, without any attention to a source."""
        return ops.cast(self((source_ids, target_ids)), "float32"), ()
