"""KerasHub's BART of the same sizes, with its own compiled `generate`."""

import numpy as np

from keras_transformer.benchmark.measure import MAX_POSITIONS
from keras_transformer.config import BOS_ID, PAD_ID
from keras_transformer.errors import InputError


class KerasHubBart:
    """`keras_hub.models.BartSeq2SeqLM` with random weights.

    Args:
        model: `Transformer`, whose sizes are taken.
        threads: Not used: TensorFlow's are set once for the process (`use_threads`).
        text_engine: Not used: BART cannot take our weights.

    Raises:
        ImportError: `keras_hub` is not installed.
        InputError: BART cannot have the model's sizes.
    """

    name = "keras_hub"
    package = "keras_hub"
    distribution = "keras-hub"
    extra = "peers"
    note = (
        "BART of the same sizes with random weights of its own: learned positions, a "
        "normalization of the embeddings and gelu set it apart from our model"
    )

    def __init__(self, model, threads=2, text_engine=None):
        try:
            import keras_hub
        except ImportError as error:
            raise ImportError(
                'KerasHub is needed: pip install "keras_transformer[peers]".'
            ) from error
        config = model.config
        if config.num_encoder_layers != config.num_decoder_layers:
            raise InputError(
                "KerasHub's BART has as many encoder as decoder blocks: leave keras_hub out. "
                f"Received: num_encoder_layers={config.num_encoder_layers}, "
                f"num_decoder_layers={config.num_decoder_layers}."
            )
        if config.output_vocabulary_size != config.vocabulary_size:
            raise InputError(
                "KerasHub's BART has one vocabulary: leave keras_hub out. "
                f"Received: vocabulary_size={config.vocabulary_size}, "
                f"target_vocabulary_size={config.output_vocabulary_size}."
            )
        self._keras_hub = keras_hub
        self._backbone = keras_hub.models.BartBackbone(
            vocabulary_size=config.vocabulary_size,
            num_layers=config.num_encoder_layers,
            num_heads=config.num_heads,
            hidden_dim=config.model_dim,
            intermediate_dim=config.intermediate_dim,
            max_sequence_length=MAX_POSITIONS + 1,  # the start of the target comes on top
            dtype="float32",
        )
        self._models = {}

    def model(self, beam_size):
        """The language model that searches with `beam_size` hypotheses."""
        # `compile` throws the compiled function away, so there is a model for each sampler;
        # they share the weights.
        if beam_size not in self._models:
            samplers = self._keras_hub.samplers
            sampler = samplers.BeamSampler(num_beams=beam_size)
            if beam_size == 1:
                sampler = samplers.GreedySampler()
            model = self._keras_hub.models.BartSeq2SeqLM(self._backbone, preprocessor=None)
            model.compile(sampler=sampler, jit_compile=True)
            self._models[beam_size] = model
        return self._models[beam_size]

    def translate(self, source_ids, beam_size, steps):
        """Forces `steps` steps, as `Ours.translate`: `generate` fills the room that it is given."""
        inputs = forced_inputs(source_ids, steps)
        # Without an id to stop on, the sampler's loop runs from the first free place to the last.
        outputs = self.model(beam_size).generate(inputs, stop_token_ids=None)
        return outputs["decoder_token_ids"][:, 1:].tolist()


def forced_inputs(source_ids, steps):
    """What `generate` wants: the source, and a target with a start and room for `steps` ids."""
    longest = max(len(ids) for ids in source_ids)
    rows = [ids + [PAD_ID] * (longest - len(ids)) for ids in source_ids]
    target = np.full((len(rows), steps + 1), PAD_ID, "int32")
    target[:, 0] = BOS_ID
    encoder_ids = np.array(rows, "int32")
    return {
        "encoder_token_ids": encoder_ids,
        "encoder_padding_mask": (encoder_ids != PAD_ID).astype("int32"),
        "decoder_token_ids": target,
        "decoder_padding_mask": (target == BOS_ID).astype("int32"),
    }
