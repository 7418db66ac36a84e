"""Names of the files of a run: the only table of them.

Engines and exports need no other files: `model.keras` holds its configuration, and the recipe's
section `decoding` the search defaults. Only `training/` reads the rest of the recipe.
"""

import re

from keras_transformer.base.files import SHORTLIST_FILE

# Read by engines and exports.
RECIPE = "recipe.yaml"  # the recipe with every default written out, and the version of the files
TOKENIZER = "tokenizer.model"  # of both sides; or a file per side
SOURCE_TOKENIZER = "source_tokenizer.model"
TARGET_TOKENIZER = "target_tokenizer.model"
LABELS = "labels.json"  # a classifier's labels, next to the source's tokenizer
MODEL = "model.keras"  # the best model, or the average of some epochs where that is better
LANGUAGES = "languages.json"  # directions of a model of several languages, and their tokens
SHORTLIST = SHORTLIST_FILE  # target tokens that each source token is likely to become, if made
SAMPLE_PAIRS = "samples.tsv"  # validation pairs that exports are verified with
METRICS = "metrics.json"  # the best epoch, minutes, filter statistics of the data
# Read by training only.
DIGESTS = "data.json"  # SHA-256 checksums of the texts
HISTORY = "history.csv"  # one line per epoch
SAMPLES = "samples.txt"  # sample translations of each epoch
BAD_BATCH = "bad_batch.json"  # the batch whose loss was NaN or infinite, if there was one
TENSORBOARD = "tensorboard"  # event files
CHECKPOINTS = "checkpoints"  # the last epochs, with the optimizer's state, and:
BASE = "base.keras"  # the model that LoRA's small matrices belong to
CANDIDATE = "best-{epoch:04d}.keras"  # may become the best model, or part of an average
EPOCH = "epoch-{epoch:04d}{suffix}"

MARKER = f"*{TOKENIZER}"
"""Pattern of a file that marks a run: a user may have a `recipe.yaml`, but no tokenizer."""
OWNED = "|".join(
    [
        re.escape(name)
        for name in (
            *(RECIPE, TOKENIZER, SOURCE_TOKENIZER, TARGET_TOKENIZER, LABELS, MODEL, LANGUAGES),
            *(SHORTLIST, SAMPLE_PAIRS, METRICS, DIGESTS, HISTORY, SAMPLES, BAD_BATCH),
            f"{CHECKPOINTS}/{BASE}",
        )
    ]
    + [
        rf"{CHECKPOINTS}/(epoch|best)-\d+\.(keras|npz)",
        rf"{TENSORBOARD}/(train|validation)/events\.out\.tfevents\.[^/]*",
    ]
)
"""Regular expression of the paths of a run's files, which `--overwrite` may remove."""
WITHOUT_EFFECT = frozenset({CHECKPOINTS, TENSORBOARD, HISTORY, METRICS, SAMPLE_PAIRS, SAMPLES})
"""Files and folders whose changes do not change translations."""
