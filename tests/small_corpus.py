"""32 pairs of real sentences, and a recipe that trains on them in seconds."""

import pathlib

import yaml

_FILE = pathlib.Path(__file__).with_name("data") / "small_corpus.tsv"
PAIRS = [tuple(line.split("\t")) for line in _FILE.read_text("utf-8").splitlines()]


def write_corpus(folder):
    """Writes `train.en` and `train.de`."""
    folder.mkdir(parents=True, exist_ok=True)
    for side, name in enumerate(("train.en", "train.de")):
        text = "".join(pair[side] + "\n" for pair in PAIRS)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def recipe_values(corpus, **training):
    """The dict of a recipe over a folder that `write_corpus` made."""
    files = {"source": "train.en", "target": "train.de"}
    model = {"model_dim": 64, "num_heads": 2, "intermediate_dim": 128, "dropout": 0.0}
    model |= {"num_encoder_layers": 1, "num_decoder_layers": 1, "normalize_first": True}
    steps = {"epochs": 2, "batch_tokens": 512, "max_shapes": 1, "warmup_steps": 100}
    if "start_from" not in training:
        steps["learning_rate"] = 0.0125
    return {
        "data": {"folder": str(corpus), "train": files, "validation": files},
        "text": {"vocabulary_size": 150},
        "model": model,
        "training": {**steps, "sample_translations": 0, **training},
        "decoding": {"beam_size": 2, "max_source_length": 48, "max_target_length": 32},
    }


def repeat_pairs(corpus, values, times):
    """Lets a recipe train on each pair some times: most of an epoch's cost is not its steps."""
    for side in ("en", "de"):
        text = (corpus / f"train.{side}").read_text(encoding="utf-8")
        (corpus / f"many.{side}").write_text(text * times, encoding="utf-8")
    files = {"source": "many.en", "target": "many.de"}
    values["data"] |= {"train": files, "drop_duplicates": False}


def write_recipe(path, values):
    """Writes a recipe as YAML."""
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path
