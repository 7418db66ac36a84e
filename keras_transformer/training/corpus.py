"""From a recipe to its texts, tokenizers and batches."""

import hashlib
import pathlib

from keras_transformer.data import PairReport, ParallelDataset, encode_pairs, read_pairs
from keras_transformer.text import Tokenizer
from keras_transformer.training.recipe import Recipe

Texts = tuple[list[str], list[str]]
Tokenizers = tuple[Tokenizer, Tokenizer]


def text_files(recipe: Recipe, part: str) -> tuple[pathlib.Path, pathlib.Path | None]:
    """The source's and the target's file; None for the second if both are in the first."""
    base = pathlib.Path(recipe.data.folder)
    files = getattr(recipe.data, part)
    return base / files.source, None if files.target is None else base / files.target


def read_texts(recipe: Recipe, part: str) -> Texts:
    """The sentences of `"train"` or `"validation"`, the source's and the target's."""
    return read_pairs(*text_files(recipe, part))


def train_tokenizers(recipe: Recipe, texts: Texts) -> Tokenizers:
    """The tokenizers of both sides, learned from the training texts; one twice when joint."""
    text = recipe.text
    options = dict(
        byte_fallback=text.byte_fallback,
        split_digits=text.split_digits,
        character_coverage=text.character_coverage,
        normalization=text.normalization,
    )
    sources, targets = texts
    if text.joint:
        joint = Tokenizer.train_from_texts(sources + targets, text.vocabulary_size, **options)
        return joint, joint
    target_size = text.target_vocabulary_size or text.vocabulary_size
    return (
        Tokenizer.train_from_texts(sources, text.vocabulary_size, **options),
        Tokenizer.train_from_texts(targets, target_size, **options),
    )


def make_datasets(
    recipe: Recipe, texts: dict[str, Texts], tokenizers: Tokenizers
) -> tuple[dict[str, ParallelDataset], dict[str, PairReport]]:
    """The batches of each part, and what was dropped from it."""
    datasets, reports = {}, {}
    data, training = recipe.data, recipe.training
    copies = 1 if training.r_drop is None else 2
    for part, (sources, targets) in texts.items():
        pairs, reports[part] = encode_pairs(
            sources,
            targets,
            *tokenizers,
            max_length=data.max_length,
            max_length_ratio=data.max_length_ratio,
            drop_duplicates=data.drop_duplicates and part == "train",
        )
        datasets[part] = ParallelDataset(
            pairs,
            batch_tokens=training.batch_tokens,
            # Each shape costs seconds of compilation, more than padding costs on a small set.
            max_shapes=training.max_shapes if part == "train" else min(4, training.max_shapes),
            shuffle=part == "train",
            seed=training.seed,
            copies=copies,
            accumulation_steps=training.accumulation_steps if part == "train" else 1,
        )
    return datasets, reports


def digests_of(texts: Texts) -> dict[str, str]:
    """What tells texts from others: SHA-256 of each side."""
    digests = {}
    for side, lines in zip(("source", "target"), texts, strict=True):
        digest = hashlib.sha256()
        for line in lines:
            digest.update(line.encode("utf-8") + b"\n")
        digests[side] = digest.hexdigest()
    return digests
