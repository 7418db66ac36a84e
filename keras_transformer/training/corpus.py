"""From a recipe to its texts, tokenizers and batches; only validation texts are held in memory."""

import itertools
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_transformer.data import PairReport, ParallelDataset, encode_files, iterate_pairs
from keras_transformer.errors import InputError
from keras_transformer.files import iterate_lines
from keras_transformer.text import Tokenizer
from keras_transformer.training.hosts import ALONE, Host
from keras_transformer.training.recipe import Recipe

Tokenizers = tuple[Tokenizer, Tokenizer]


def text_files(recipe: Recipe, part: str) -> tuple[pathlib.Path, pathlib.Path | None]:
    """The source's and the target's file; None for the second if both are in the first."""
    base = pathlib.Path(recipe.data.folder)
    files = getattr(recipe.data, part)
    return base / files.source, None if files.target is None else base / files.target


def texts_of(recipe: Recipe, part: str) -> Iterator[tuple[str, str]]:
    """The pairs of `"train"` or `"validation"`, as they are read."""
    return _reader(recipe)(*text_files(recipe, part))


def _reader(recipe):
    """The function that reads pairs from files."""
    turns = recipe.turns
    if not recipe.with_sources:
        return lambda file, _: (("", line) for line in iterate_lines(file))
    if turns is None:
        return iterate_pairs

    def read(source, target):
        for number, (context, response) in enumerate(iterate_pairs(source, target), start=1):
            if turns.are_in(response):
                raise InputError(
                    f"{target or source}, line {number}: a target is one turn, without the "
                    f"separator. Received: {turns.separator!r} in it."
                )
            yield turns.join(turns.split(context)), response

    return read


def train_tokenizers(recipe: Recipe) -> Tokenizers:
    """The tokenizers of both sides, learned from the training texts; one twice when joint."""
    text = recipe.text
    options: dict[str, Any] = dict(
        byte_fallback=text.byte_fallback,
        split_digits=text.split_digits,
        character_coverage=text.character_coverage,
        normalization=text.normalization,
        turn_separator=text.turn_separator,
    )
    sources, targets = _side(recipe, 0), _side(recipe, 1)
    if text.joint:
        lines = _sample(itertools.chain(sources, targets), text.sample_sentences)
        joint = Tokenizer.train_from_texts(lines, text.vocabulary_size, **options)
        return joint, joint
    target_size = text.target_vocabulary_size or text.vocabulary_size
    sources, targets = (_sample(side, text.sample_sentences) for side in (sources, targets))
    return (
        Tokenizer.train_from_texts(sources, text.vocabulary_size, **options),
        Tokenizer.train_from_texts(targets, target_size, **options),
    )


def _side(recipe, side):
    return (pair[side] for pair in texts_of(recipe, "train"))


def _sample(lines, size):
    """So many of the lines, each with equal probability, always the same; None: all."""
    if size is None:
        return lines
    rng, kept = np.random.default_rng(0), list(itertools.islice(lines, size))
    for seen, line in enumerate(lines, start=size + 1):
        place = int(rng.integers(seen))
        if place < size:
            kept[place] = line
    return kept


def make_datasets(
    recipe: Recipe,
    tokenizers: Tokenizers,
    digests: dict[str, dict[str, str]] | None = None,
    host: Host = ALONE,
) -> tuple[dict[str, ParallelDataset], dict[str, PairReport]]:
    """The batches of each part, this host's rows of them, and what was dropped from it.

    `digests` are those of the parts' texts, where they are known.
    """
    datasets, reports = {}, {}
    data, training = recipe.data, recipe.training
    for part in ("train", "validation"):
        is_training = part == "train"
        pairs, reports[part] = encode_files(
            *text_files(recipe, part),
            *tokenizers,
            max_length=data.max_length,
            max_length_ratio=data.max_length_ratio,
            drop_duplicates=data.drop_duplicates and is_training,
            cache=data.cache,
            known_digests=None if digests is None else digests[part],
            read=_reader(recipe),
            with_sources=recipe.with_sources,
        )
        datasets[part] = ParallelDataset(
            pairs,
            batch_tokens=training.batch_tokens,
            # Each shape costs seconds of compilation, more than padding costs on a small set.
            max_shapes=training.max_shapes if is_training else min(4, training.max_shapes),
            shuffle=is_training,
            seed=training.seed,
            copies=1 if training.r_drop is None else 2,
            accumulation_steps=training.accumulation_steps if is_training else 1,
            host=host.index,
            hosts=host.count,
            shards=host.shards,
            short_targets=training.short_targets,
        )
    return datasets, reports
