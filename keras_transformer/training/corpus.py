"""From a recipe to its texts, tokenizers and batches; only validation texts are held in memory."""

import functools
import itertools
import os
import pathlib
from collections.abc import Iterator

import numpy as np

from keras_transformer.data import (
    LabelledDataset,
    PairReport,
    ParallelDataset,
    encode_files,
    iterate_pairs,
)
from keras_transformer.data.encoding import digests
from keras_transformer.errors import InputError
from keras_transformer.files import iterate_lines
from keras_transformer.text import Labels, Tokenizer
from keras_transformer.training.hosts import ALONE, Host
from keras_transformer.training.recipe import Recipe

Tokenizers = tuple[Tokenizer, Tokenizer | Labels]


def text_files(recipe: Recipe, part: str) -> tuple[pathlib.Path, pathlib.Path | None]:
    """The source's and the target's file; None for the second if both are in the first."""
    base = pathlib.Path(recipe.data.folder)
    files = getattr(recipe.data, part)
    if not files.source:
        files = recipe.data.train  # some of whose pairs are held out
    return base / files.source, None if files.target is None else base / files.target


def texts_of(recipe: Recipe, part: str) -> Iterator[tuple[str, str]]:
    """The pairs of `"train"` or `"validation"`, as they are read."""
    return filter(None, _read(recipe, part, *text_files(recipe, part)))


def _read(recipe, part, source, target, labels=None):
    """Yields the pair of each line of the files, or None where it belongs to the other part."""
    held_out = recipe.data.hold_out_every
    for number, pair in enumerate(_pairs(recipe, source, target), start=1):
        if labels is not None:
            labels.check(pair[1], f"{target or source}, line {number}")
        is_here = held_out is None or (number % held_out == 0) == (part == "validation")
        yield pair if is_here else None


def text_digests(recipe: Recipe) -> dict[str, dict[str, str]]:
    """Returns the `digests` of the texts of each part."""
    return {part: digests(texts_of(recipe, part)) for part in ("train", "validation")}


def _pairs(recipe, source, target):
    """All pairs of the files, a source and a target each."""
    if not recipe.with_sources:
        return (("", line) for line in iterate_lines(source))
    pairs = iterate_pairs(source, target)
    if recipe.gives_labels and target is None:
        return ((text, label) for label, text in pairs)
    return pairs if recipe.turns is None else _joined(pairs, recipe.turns, target or source)


def _joined(pairs, turns, file):
    for number, (context, response) in enumerate(pairs, start=1):
        if turns.are_in(response):
            raise InputError(
                f"{file}, line {number}: a target is one turn, without the separator. "
                f"Received: {turns.separator!r} in it."
            )
        yield turns.join(turns.split(context)), response


def labelled_texts(
    labels: Labels, source: str | os.PathLike, target: str | os.PathLike | None = None
) -> tuple[list[str], list[str]]:
    """Texts and their labels from `label<TAB>text` in `source`, or from two files.

    Raises:
        InputError: A label is none of `labels`.
    """
    pairs = list(iterate_pairs(source, target))
    texts, found = zip(*(pair if target else pair[::-1] for pair in pairs), strict=True)
    for number, label in enumerate(found, start=1):
        labels.check(label, f"{target or source}, line {number}")
    return list(texts), list(found)


def train_tokenizers(recipe: Recipe) -> Tokenizers:
    """The tokenizers of both sides, learned from the training texts; one twice when joint.

    A classifier's second one is its `Labels`.
    """
    text = recipe.text
    names = "byte_fallback", "split_digits", "whole_words", "character_coverage", "normalization"
    options = {name: getattr(text, name) for name in (*names, "turn_separator")}

    def learned(lines, size=text.vocabulary_size):
        return Tokenizer.train_from_texts(_sample(lines, text.sample_sentences), size, **options)

    sources, targets = _side(recipe, 0), _side(recipe, 1)
    if recipe.gives_labels:
        return learned(sources), Labels.of_texts(targets)
    if text.joint:
        joint = learned(itertools.chain(sources, targets))
        return joint, joint
    return learned(sources), learned(targets, text.target_vocabulary_size or text.vocabulary_size)


def _side(recipe, side):
    return (pair[side] for pair in texts_of(recipe, "train"))


def _sample(lines, size):
    """So many of the lines with text, each as probable, always the same ones; None: all lines."""
    if size is None:
        return lines
    lines = filter(str.strip, lines)  # a language model's sources are blank
    rng, kept = np.random.default_rng(0), list(itertools.islice(lines, size))
    for seen, line in enumerate(lines, start=size + 1):
        place = int(rng.integers(seen))
        if place < size:
            kept[place] = line
    return kept


def _texts_of_cache(known_digests, part, every):
    if every is None:
        return known_digests[part]
    # Dropped pairs and line numbers depend on both parts.
    return {"part": part, "hold_out_every": every, **known_digests}


def make_datasets(
    recipe: Recipe,
    tokenizers: Tokenizers,
    known_digests: dict[str, dict[str, str]] | None = None,
    host: Host = ALONE,
) -> tuple[dict[str, ParallelDataset], dict[str, PairReport]]:
    """The batches of each part, this host's rows of them, and what was dropped from it.

    `known_digests` are the `text_digests`, where they are known. Training pairs that are equal to
    one of those held out are dropped.
    """
    datasets, reports = {}, {}
    data, training = recipe.data, recipe.training
    every = data.hold_out_every
    if data.cache is not None:
        known_digests = known_digests or text_digests(recipe)
    is_classifier = recipe.gives_labels
    labels = tokenizers[1] if is_classifier else None
    for part in ("train", "validation"):
        is_training, files = part == "train", text_files(recipe, part)
        pairs, reports[part] = encode_files(
            *files,
            *tokenizers,
            max_length=data.max_length,
            max_length_ratio=None if is_classifier else data.max_length_ratio,
            drop_duplicates=data.drop_duplicates and is_training,
            cache=data.cache,
            known_digests=known_digests and _texts_of_cache(known_digests, part, every),
            read=functools.partial(_read, recipe, part, labels=labels),
            with_sources=recipe.with_sources,
            held_out=texts_of(recipe, "validation") if every and is_training else (),
        )
        datasets[part] = (LabelledDataset if is_classifier else ParallelDataset)(
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
            with_sources=recipe.with_sources,
        )
    return datasets, reports
