"""Uses the layers in a Functional model of your own: fit, decode, save, load, export by Keras.

    python training/layers_in_keras.py [--epochs 12]

The model learns to write a row of digits backwards. Its attention must find the right position,
so that a missing mask or positional encoding would show.
"""

import argparse
import functools
import tempfile

import keras
import numpy as np
import tensorflow as tf

from keras_transformer import SmoothedCrossEntropy, TokenAccuracy
from keras_transformer.layers import (
    DecoderBlock,
    EncoderBlock,
    SinusoidalPositionalEncoding,
    TokenEmbedding,
)

PADDING, START, END, ZERO = 0, 1, 2, 3  # Id 0 is padding for all layers, losses and metrics.
VOCABULARY_SIZE, MODEL_DIM, LONGEST = ZERO + 10, 64, 8

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--epochs", type=int, default=12)
options = parser.parse_args()
keras.utils.set_random_seed(1)

rng = np.random.default_rng(1)
lengths = rng.integers(3, LONGEST + 1, 8192)
rows = [rng.integers(ZERO, VOCABULARY_SIZE, length).tolist() for length in lengths]
padded = functools.partial(keras.utils.pad_sequences, maxlen=LONGEST + 1, padding="post")
sources = padded(rows)
# After reading column t of `targets_so_far`, the model predicts column t of `targets`.
targets_so_far = padded([[START, *row[::-1]] for row in rows])
targets = padded([[*row[::-1], END] for row in rows])

source_ids = keras.Input((None,), dtype="int32", name="source_ids")
target_ids = keras.Input((None,), dtype="int32", name="target_ids")
embedding = TokenEmbedding(VOCABULARY_SIZE, MODEL_DIM)  # attaches the mask of the padding
positions = SinusoidalPositionalEncoding()
encoded = positions(embedding(source_ids))
encoded = EncoderBlock(intermediate_dim=128, num_heads=4, normalize_first=True)(encoded)
encoded = keras.layers.LayerNormalization()(encoded)  # the end of a pre-norm stack
hidden = positions(embedding(target_ids))
hidden = DecoderBlock(intermediate_dim=128, num_heads=4, normalize_first=True)(hidden, encoded)
hidden = keras.layers.LayerNormalization()(hidden)
model = keras.Model([source_ids, target_ids], keras.layers.Dense(VOCABULARY_SIZE)(hidden))

train, held_out = slice(0, -256), slice(-256, None)
optimizer = keras.optimizers.Adam(2e-3)
model.compile(optimizer, SmoothedCrossEntropy(), metrics=[TokenAccuracy()], jit_compile=True)
inputs = (sources[train], targets_so_far[train])
model.fit(inputs, targets[train], batch_size=128, epochs=options.epochs, verbose=2)

# Greedy decoding in plain Keras: the model reads its own tokens. All steps have one shape, because
# XLA would compile each further shape. What is not written yet is padding.
written = np.full((256, LONGEST + 2), PADDING)
written[:, 0] = START
for step in range(LONGEST + 1):
    logits = model.predict_on_batch((sources[held_out], written[:, :-1]))
    written[:, step + 1] = logits[:, step].argmax(axis=-1)
is_right = (written[:, 1:] == targets[held_out]) | (targets[held_out] == PADDING)
print(f"{is_right.all(axis=1).mean():.0%} of {len(written)} held-out rows are right")

with tempfile.TemporaryDirectory() as folder:
    model.save(f"{folder}/model.keras")
    loaded = keras.models.load_model(f"{folder}/model.keras")  # needs no custom objects
    loaded.export(f"{folder}/saved_model")  # a SavedModel from ids to logits
    batch = [sources[held_out], targets_so_far[held_out]]
    exported = tf.saved_model.load(f"{folder}/saved_model")
    np.testing.assert_allclose(exported.serve(batch), model.predict_on_batch(batch), atol=1e-4)
    print("The loaded model and its export give the same logits.")
