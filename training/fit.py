"""Trains a translator on your text with Keras' `fit`, and measures its BLEU.

Each part of the text is two UTF-8 files: line n of the target translates line n of the source.

    python training/fit.py --train train.en train.de --validation val.en val.de --output fit
    tensorboard --logdir fit

Without text of your own, take the dates that `keras-transformer demo` writes:

    python training/fit.py --train demo/data/train.source demo/data/train.target \
        --validation demo/data/validation.source demo/data/validation.target \
        --vocabulary-size 500 --epochs 5 --warmup-steps 400
"""

import argparse
import pathlib

import keras

from keras_transformer import (
    SmoothedCrossEntropy,
    TokenAccuracy,
    Tokenizer,
    TokenLoss,
    Transformer,
    TransformerSchedule,
)
from keras_transformer.data import ParallelDataset, encode_pairs, read_pairs
from keras_transformer.engine import ModelEngine
from keras_transformer.training import evaluate

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--train", nargs=2, required=True, metavar=("SOURCE", "TARGET"))
parser.add_argument("--validation", nargs=2, required=True, metavar=("SOURCE", "TARGET"))
parser.add_argument("--output", type=pathlib.Path, default="fit", help="directory to write")
parser.add_argument("--vocabulary-size", type=int, default=8000)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--warmup-steps", type=int, default=1000, help="about a fifth of all steps")
parser.add_argument("--max-shapes", type=int, default=4, help="shapes of batches")
options = parser.parse_args()
options.output.mkdir(exist_ok=True)
keras.utils.set_random_seed(1)

# One vocabulary for both sides, so that both embeddings and the output layer are one matrix.
tokenizer = Tokenizer.train(options.train, options.vocabulary_size, split_digits=True)
tokenizer.save(options.output / "tokenizer.model")

# Pairs that would harm the training are dropped, such as pairs of very different lengths.
pairs, report = encode_pairs(*read_pairs(*options.train), tokenizer, tokenizer)
print(report)
sources, references = read_pairs(*options.validation)
validation_pairs, _ = encode_pairs(sources, references, tokenizer, tokenizer)

# Batches have sentences of similar lengths, and few shapes, because XLA compiles each shape.
dataset = ParallelDataset(pairs, batch_tokens=4096, max_shapes=options.max_shapes)
validation = ParallelDataset(validation_pairs, batch_tokens=4096, max_shapes=1, shuffle=False)

model = Transformer.from_preset("transformer_tiny", tokenizer.vocabulary_size)
schedule = TransformerSchedule(model.config.model_dim, options.warmup_steps)
model.compile(
    keras.optimizers.Adam(schedule, beta_2=0.98, epsilon=1e-9),
    SmoothedCrossEntropy(label_smoothing=0.1),
    # Keras' `loss` is a mean over batches. `TokenLoss` replaces it by the mean over tokens.
    metrics=[TokenLoss(label_smoothing=0.1), TokenAccuracy()],
    jit_compile=True,  # On a CPU, XLA halves the time of a step.
)
best = options.output / "model.keras"
callbacks = [
    keras.callbacks.TensorBoard(options.output, write_graph=False),
    keras.callbacks.ModelCheckpoint(best, save_best_only=True),
]
arguments = {"epochs": options.epochs, "callbacks": callbacks, "verbose": 2}
model.fit(dataset.to_tf_dataset(), validation_data=validation.to_tf_dataset(), **arguments)

# The engine tokenizes, batches by length and runs the compiled beam search.
engine = ModelEngine(keras.models.load_model(best), tokenizer)
translations = engine.translate(sources, beam_size=4, length_penalty=0.6, long_input="truncate")
print(f"{sources[0]} -> {translations[0].text}")
scores = evaluate([translation.text for translation in translations], references)
print(f"BLEU {scores['bleu']}, {scores['signatures']['bleu']}")
