"""The trainers by name: our `fit`, KerasHub's layers and PyTorch, each in float32 and bfloat16.

A trainer is made with the `TransformerConfig` whose sizes it takes. It has the `package` that it
needs, a `note`, the `precision` that it computes in, the number of batch shapes (`max_shapes`) that
suit it: 1 is a pipeline that pads all to one length; and

- `settings()`: ways to train, keywords in its own words;
- `steps(dataset, count, **setting)`: a function that trains on the first `count` batches of a
  `ParallelDataset` and gives the loss of the last one. Afterwards `parameters` of `ours` and
  `torch` is the number of the model's parameters.
"""

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_transformer.base.ids import PAD_ID
from keras_transformer.data import ParallelDataset
from keras_transformer.models import Transformer
from keras_transformer.models.config import TransformerConfig
from keras_transformer.training import compile_model
from keras_transformer.training.recipe_sections import TrainingSection

_SHAPES = 8
_RATE = 1e-3


class Trainer:
    """A trainer with one setting and the batches of `ours`."""

    package = "keras_transformer"
    precision = "float32"
    max_shapes = _SHAPES
    parameters = 0

    def __init__(self, config: TransformerConfig):
        self.config = config

    def settings(self) -> list[dict[str, Any]]:
        return [{}]


class Ours(Trainer):
    """`model.fit` on batches of a few shapes, as `keras-transformer train` calls it."""

    note = "`fit` with this package's loss, metrics and batches"

    def settings(self) -> list[dict[str, Any]]:
        return [{"jit_compile": True}, {"jit_compile": False}]

    def steps(self, dataset: ParallelDataset, count: int, jit_compile: bool) -> Callable[[], float]:
        model = Transformer(self.config, dtype=self.precision)
        compile_model(model, TrainingSection(jit_compile=jit_compile))
        model.build()
        self.parameters = model.count_params()
        return _fit(model, dataset, count)


class Bare(Trainer):
    """The compiled step of our model on batches in memory: loss, gradients, Adam."""

    note = "the step of `ours` without `fit`, metrics and data pipeline"

    def steps(self, dataset: ParallelDataset, count: int) -> Callable[[], float]:
        import tensorflow as tf

        model = Transformer(self.config)
        compile_model(model, TrainingSection())
        model.optimizer.build(model.trainable_variables)
        batches = [
            [tf.constant(ids) for ids in (*inputs, labels)]
            for inputs, labels, *_ in itertools.islice(dataset.batches(0), count)
        ]

        @tf.function(
            input_signature=[tf.TensorSpec((None, None), tf.int32)] * 3,
            jit_compile=True,
            autograph=False,
        )
        def step(source_ids, target_in_ids, labels):
            with tf.GradientTape() as tape:
                logits = model((source_ids, target_in_ids), training=True)
                loss = model.loss(labels, logits)
            gradients = tape.gradient(loss, model.trainable_variables)
            model.optimizer.apply(gradients, model.trainable_variables)
            return loss

        return lambda: float([step(*batch) for batch in batches][-1])


class KerasHub(Ours):
    """KerasHub's encoder and decoder layers in a functional model, as in Keras' own example."""

    package = "keras_hub"
    note = "its Transformer layers, every batch padded to the longest pair of the corpus"
    max_shapes = 1

    def steps(self, dataset: ParallelDataset, count: int, jit_compile: bool) -> Callable[[], float]:
        with warnings.catch_warnings():  # of masks that end in its own layers
            warnings.simplefilter("ignore")
            model = self._model(dataset.shapes[-1][1], self.precision)
        model.compile(
            optimizer=keras.optimizers.Adam(_RATE),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=PAD_ID),
            jit_compile=jit_compile,
        )
        return _fit(model, dataset, count)

    def _model(self, length, dtype):
        from keras_hub import layers

        config = self.config
        sizes = dict(intermediate_dim=config.intermediate_dim, num_heads=config.num_heads)
        sizes |= dict(dropout=config.dropout, normalize_first=config.normalize_first, dtype=dtype)
        embed = [
            layers.TokenAndPositionEmbedding(
                config.vocabulary_size, length, config.model_dim, mask_zero=True, dtype=dtype
            )
            for _ in range(2)
        ]
        inputs = [keras.Input((None,), dtype="int32") for _ in range(2)]
        encoded, decoded = (layer(ids) for layer, ids in zip(embed, inputs, strict=True))
        for _ in range(config.num_encoder_layers):
            encoded = layers.TransformerEncoder(**sizes)(encoded)
        for _ in range(config.num_decoder_layers):
            decoded = layers.TransformerDecoder(**sizes)(decoded, encoded)
        logits = keras.layers.Dense(config.vocabulary_size, dtype=dtype)(decoded)
        return keras.Model(inputs, keras.ops.cast(logits, "float32"))


def _fit(model, dataset, count):
    def train():
        dataset.epoch = 0
        if keras.backend.backend() == "tensorflow":
            batches = dataset.to_tf_dataset().take(count)
        else:
            batches = dataset.to_py_dataset()
        steps = min(count, dataset.steps_per_epoch)
        history = model.fit(batches, steps_per_epoch=steps, shuffle=False, verbose=0).history
        return history["loss"][-1]

    return train


class Torch(Trainer):
    """`torch.nn.Transformer`."""

    package = "torch"
    device = "cpu"
    compiler: str | None = None  # a backend of `torch.compile`
    note = "`nn.Transformer`, eager, tied embeddings, fused Adam, the batches of `ours`"

    def steps(self, dataset: ParallelDataset, count: int) -> Callable[[], float]:
        import torch

        torch.manual_seed(1)
        with warnings.catch_warnings():  # of what inference alone could do faster
            warnings.simplefilter("ignore")
            model = _torch_model(self.config, dataset.shapes[-1][1]).to(self.device)
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        optimizer = torch.optim.Adam(model.parameters(), _RATE, fused=True)
        is_half = self.precision != "float32"
        forward = torch.compile(model, backend=self.compiler) if self.compiler else model

        def train():
            for (source_ids, target_in_ids), labels in itertools.islice(dataset.batches(0), count):
                arrays = source_ids, target_in_ids, labels
                batch = [torch.from_numpy(ids).to(self.device).long() for ids in arrays]
                optimizer.zero_grad()
                with torch.autocast(self.device, torch.bfloat16, enabled=is_half):
                    loss = forward(*batch)
                loss.backward()
                optimizer.step()
            return float(loss.detach())

        return train


def _torch_model(config, positions):
    """A module of `(source_ids, target_in_ids, labels)` that gives the smoothed loss.

    It has the parameters and the dropouts of our model.
    """
    import torch
    from torch import nn

    # Halves and not turns, unlike ours: the frequencies and the sums of products are equal.
    columns = np.arange(config.model_dim // 2) * 2 / config.model_dim
    angles = np.arange(positions)[:, None] / 10000.0**columns

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(config.vocabulary_size, config.model_dim, PAD_ID)
            nn.init.normal_(self.embed.weight, std=config.model_dim**-0.5)
            layers = config.num_encoder_layers, config.num_decoder_layers
            sizes = config.model_dim, config.num_heads, *layers, config.intermediate_dim
            options = {"norm_first": config.normalize_first, "batch_first": True}
            self.body = nn.Transformer(*sizes, config.dropout, **options)
            if not config.normalize_first:  # The last block has normalized its output.
                self.body.encoder.norm = self.body.decoder.norm = None
            for layer in (*self.body.encoder.layers, *self.body.decoder.layers):
                layer.dropout.p = config.feed_forward_dropout
            for module in self.body.modules():
                if isinstance(module, nn.MultiheadAttention):
                    module.dropout = config.attention_dropout
            encoding = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
            self.register_buffer("positions", torch.from_numpy(encoding).float())
            self.dropout = nn.Dropout(config.dropout)
            self.loss = nn.CrossEntropyLoss(ignore_index=PAD_ID, label_smoothing=0.1)

        def embedded(self, ids):
            scaled = self.embed(ids) * config.model_dim**0.5
            return self.dropout(scaled + self.positions[: ids.shape[1]])

        def forward(self, source_ids, target_in_ids, labels):
            length = target_in_ids.shape[1]
            padding = source_ids == PAD_ID
            # True is what may not be attended to. A padded target row attends to BOS alone.
            future = torch.ones(length, length, dtype=torch.bool, device=padding.device)
            decoded = self.body(
                self.embedded(source_ids),
                self.embedded(target_in_ids),
                tgt_mask=future.triu(1),
                src_key_padding_mask=padding,
                memory_key_padding_mask=padding,
                tgt_is_causal=True,
            )
            logits = decoded @ self.embed.weight.T
            return self.loss(logits.flatten(0, 1).float(), labels.flatten())

    return Model()


TRAINERS: dict[str, Any] = {"ours": Ours, "bare": Bare, "keras_hub": KerasHub, "torch": Torch}
for _name in ("ours", "keras_hub", "torch"):
    _note = f"`{_name}` in mixed bfloat16: Keras' policy, or `torch.autocast`"
    _attributes = {"note": _note, "precision": "mixed_bfloat16"}
    TRAINERS[f"{_name}_bfloat16"] = type(_name, (TRAINERS[_name],), _attributes)
