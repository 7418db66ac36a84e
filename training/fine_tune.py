"""Adapts an imported model to a domain with LoRA, and compares it with the original.

    python training/fine_tune.py MODEL_FOLDER --domain domain.en domain.de --general general.en

`MODEL_FOLDER` holds a model of OPUS-MT, Marian, Hugging Face or Firefox. The text has one sentence
per line. The general text needs no translation, because the original model translates it. The
output has two runs, `original` and `adapted`, for `keras-transformer translate` and `export`.
"""

import argparse
import pathlib

from keras_transformer import Translator
from keras_transformer.data import read_lines, read_pairs
from keras_transformer.extras.importing.importing import import_run
from keras_transformer.training import Recipe, evaluate, train

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model_folder")
parser.add_argument("--domain", nargs=2, required=True, metavar=("SOURCE", "TARGET"))
parser.add_argument("--general", required=True, metavar="SOURCE")
parser.add_argument("--output", type=pathlib.Path, default="fine_tuned", help="new directory")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--max-shapes", type=int, default=4, help="shapes of batches")
options = parser.parse_args()


def translate(translator, sources):
    return [result.text for result in translator.translate(sources, long_input="split")]


original, adapted = options.output / "original", options.output / "adapted"
import_run(options.model_folder, original)
translators = {"original": Translator.load(original)}

# After training on the domain only, a model translates other text worse than before. So the model
# also learns general sentences with its own translations.
general = read_lines(options.general)
own_translations = translate(translators["original"], general)
texts = {"domain": read_pairs(*options.domain), "general": (general, own_translations)}

folder, tests = options.output / "text", {}
folder.mkdir()
for name, sides in texts.items():
    tests[name] = [lines[::10] for lines in sides]  # Every tenth pair is only for the comparison.
    for side, lines in zip(("source", "target"), sides, strict=True):
        kept = [line for number, line in enumerate(lines) if number % 10]
        (folder / f"{name}.{side}").write_text("\n".join(kept) + "\n", encoding="utf-8")

# Vocabulary, sizes and search are those of the run in `start_from`.
recipe = Recipe.from_dict(
    {
        "data": {
            "folder": str(folder),
            "train": [
                {"name": name, "source": f"{name}.source", "target": f"{name}.target"}
                for name in texts
            ],
            "hold_out_every": 20,  # These pairs choose the best epoch.
        },
        "training": {
            "start_from": str(original),
            "lora_rank": 16,  # Trains two small matrices per projection, and nothing else.
            "batch_tokens": 2048,
            "max_shapes": options.max_shapes,  # XLA compiles the training step for each shape.
            "epochs": options.epochs,
        },
    }
)
train(recipe, adapted)
translators["adapted"] = Translator.load(adapted)

# The domain is scored with its references, general text with the original's translations: 100 says
# that the adapted model translates it as before.
for run, translator in translators.items():
    for name, (sources, references) in tests.items():
        scores = evaluate(translate(translator, sources), references)
        print(f"{run}, {name} text: BLEU {scores['bleu']}")
