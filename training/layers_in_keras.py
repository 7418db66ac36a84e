"""Uses the layers in a Functional translator: fit, decode, save, load, export by Keras.

    python training/layers_in_keras.py [--epochs 6]

It is the short form of docs/howto/use_layers.md, which also has beam search, LoRA and int8.
"""

import argparse
import functools
import tempfile

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_transformer import SmoothedCrossEntropy, TokenAccuracy, Tokenizer, TransformerSchedule
from keras_transformer.cli.dates import date_corpus
from keras_transformer.layers import (
    DecoderBlock,
    EncoderBlock,
    SinusoidalPositionalEncoding,
    TokenEmbedding,
)

BOS, EOS = 1, 2  # Id 0 is padding for all layers, losses and metrics.
padded = functools.partial(keras.utils.pad_sequences, padding="post")


def small_translator(vocabulary_size, model_dim=64, num_heads=4):
    source_ids = keras.Input((None,), dtype="int32", name="source_ids")
    hidden = SinusoidalPositionalEncoding()(TokenEmbedding(vocabulary_size, model_dim)(source_ids))
    hidden = EncoderBlock(2 * model_dim, num_heads)(hidden)
    encoder = keras.Model(source_ids, hidden, name="encoder")
    target_ids = keras.Input((None,), dtype="int32", name="target_ids")
    encoded = keras.Input((None, model_dim), name="encoded")
    is_token = keras.Input((None,), dtype="bool", name="is_token")
    hidden = SinusoidalPositionalEncoding()(TokenEmbedding(vocabulary_size, model_dim)(target_ids))
    hidden = DecoderBlock(2 * model_dim, num_heads)(hidden, encoded, encoder_padding_mask=is_token)
    logits = keras.layers.Dense(vocabulary_size)(hidden)
    decoder = keras.Model([target_ids, encoded, is_token], logits, name="decoder")
    logits = decoder([target_ids, encoder(source_ids), ops.not_equal(source_ids, 0)])
    return keras.Model([source_ids, target_ids], logits)


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--epochs", type=int, default=6)
options = parser.parse_args()
corpus = date_corpus(num_train=6400, num_held_out=200)
texts = corpus.train_source + corpus.train_target
tokenizer = Tokenizer.train_from_texts(texts, vocabulary_size=500, split_digits=True)
source_ids = padded([tokenizer.tokenize(text) for text in corpus.train_source])
target_ids = padded([[BOS, *tokenizer.tokenize(date), EOS] for date in corpus.train_target])
# The decoder reads all tokens except the last, and predicts all except the first.
inputs, labels = (source_ids, target_ids[:, :-1]), target_ids[:, 1:]

keras.utils.set_random_seed(1)
translator = small_translator(tokenizer.vocabulary_size)
optimizer = keras.optimizers.Adam(TransformerSchedule(64, warmup_steps=200), beta_2=0.98)
translator.compile(optimizer, SmoothedCrossEntropy(), metrics=[TokenAccuracy()], jit_compile=True)
translator.fit(inputs, labels, batch_size=64, epochs=options.epochs, verbose=2)

# Greedy decoding. All steps have one shape, because XLA would compile each further shape.
held_out_ids = padded([tokenizer.tokenize(text) for text in corpus.held_out_source])
expected = padded([[*tokenizer.tokenize(date), EOS] for date in corpus.held_out_target])
written = np.pad([[BOS]] * len(expected), ((0, 0), (0, expected.shape[1])))
for step in range(expected.shape[1]):
    logits = translator.predict_on_batch((held_out_ids, written[:, :-1]))
    written[:, step + 1] = logits[:, step].argmax(axis=-1)
is_right = (written[:, 1:] == expected) | (expected == 0)
print(f"{is_right.all(axis=1).mean():.0%} of {len(written)} held-out dates are right")

with tempfile.TemporaryDirectory() as folder:
    translator.save(f"{folder}/translator.keras")
    loaded = keras.models.load_model(f"{folder}/translator.keras")  # needs no custom objects
    loaded.export(f"{folder}/exported", verbose=False)  # a SavedModel from ids to logits
    batch = [part[:8] for part in inputs]
    outputs = tf.saved_model.load(f"{folder}/exported")
    np.testing.assert_allclose(outputs.serve(batch), translator.predict_on_batch(batch), atol=1e-4)
    print("The loaded model and its export give the same logits.")
