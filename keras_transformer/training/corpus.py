"""Texts of a recipe: pairs, digests, tokenizers and batches."""

import dataclasses
import functools
import itertools
import os
import pathlib
from collections.abc import Iterator

import numpy as np

from keras_transformer.data import (
    LabelledDataset,
    PairChecks,
    PairReport,
    ParallelDataset,
    encode_lines,
    iterate_pairs,
)
from keras_transformer.data.encoding import digests
from keras_transformer.errors import InputError
from keras_transformer.files import iterate_lines
from keras_transformer.text import Labels, Tokenizer
from keras_transformer.text.tokenizer import VocabularyOptions
from keras_transformer.training.hosts import SINGLE_HOST, Host
from keras_transformer.training.recipe import Recipe

Tokenizers = tuple[Tokenizer, Tokenizer | Labels]
PARTS = ("train", "validation")


class Corpus:
    """Training and validation text of a recipe.

    Each file is read once and held in memory while the corpus lives; but the training text is read
    in a stream, each time anew, where the recipe asks for less memory (`text.sample_sentences`,
    `data.cache`).
    """

    def __init__(self, recipe: Recipe):
        self.recipe = recipe
        self._held: dict[tuple, list[tuple[str, str]]] = {}

    def files(self, part: str) -> tuple[pathlib.Path, pathlib.Path | None]:
        """Returns the source's and the target's file; None for the second if one file has both."""
        base = pathlib.Path(self.recipe.data.folder)
        files = getattr(self.recipe.data, part)
        if not files.source:
            files = self.recipe.data.train  # some of whose pairs are held out
        return base / files.source, None if files.target is None else base / files.target

    def pairs(self, part: str) -> Iterator[tuple[str, str]]:
        """Yields the pairs of `"train"` or `"validation"`."""
        return filter(None, self._lines(part))

    def _lines(self, part, labels=None):
        """Yields the pair of each line of the files, or None for a line of the other part."""
        held_out, files = self.recipe.data.hold_out_every, self.files(part)
        for number, pair in enumerate(self._read(files), start=1):
            if labels is not None:
                labels.check(pair[1], f"{files[1] or files[0]}, line {number}")
            is_here = held_out is None or (number % held_out == 0) == (part == "validation")
            yield pair if is_here else None

    def _read(self, files):
        """All pairs of the files, from memory where they were read before."""
        is_streamed = self.recipe.text.sample_sentences or self.recipe.data.cache
        if is_streamed and files == self.files("train"):
            return self._stream(*files)
        if files not in self._held:
            self._held[files] = list(self._stream(*files))
        return self._held[files]

    def _stream(self, source, target):
        recipe = self.recipe
        if not recipe.with_sources:
            return (("", line) for line in iterate_lines(source))
        pairs = iterate_pairs(source, target)
        if recipe.gives_labels and target is None:
            return ((text, label) for label, text in pairs)
        return pairs if recipe.turns is None else _join(pairs, recipe.turns, target or source)

    @functools.cached_property
    def digests(self) -> dict[str, dict[str, str]]:
        """SHA-256 of the texts of each part and side, `{part: {side: digest}}`."""
        return {part: digests(self.pairs(part)) for part in PARTS}

    def tokenizers(self) -> Tokenizers:
        """Learns the tokenizers of both sides from the training texts; one twice when joint.

        A classifier's second one is its `Labels`.
        """
        text = self.recipe.text
        names = [field.name for field in dataclasses.fields(VocabularyOptions)]
        options = {name: getattr(text, name) for name in names}

        def learn(lines, size=text.vocabulary_size):
            lines = _sample(lines, text.sample_sentences)
            return Tokenizer.train_from_texts(lines, **{**options, "vocabulary_size": size})

        sources, targets = self._side(0), self._side(1)
        if self.recipe.gives_labels:
            return learn(sources), Labels.of_texts(targets)
        if text.joint:
            joint = learn(itertools.chain(sources, targets))
            return joint, joint
        return learn(sources), learn(targets, text.target_vocabulary_size or text.vocabulary_size)

    def _side(self, side):
        return (pair[side] for pair in self.pairs("train"))

    def datasets(
        self, tokenizers: Tokenizers, host: Host = SINGLE_HOST
    ) -> tuple[dict[str, ParallelDataset], dict[str, PairReport]]:
        """Makes the batches of each part, this host's rows of them, and counts dropped pairs.

        Training pairs that are equal to a held-out pair are dropped.
        """
        made, reports = {}, {}
        data, training = self.recipe.data, self.recipe.training
        is_classifier = self.recipe.gives_labels
        labels = tokenizers[1] if is_classifier else None
        for part in PARTS:
            is_training = part == "train"
            held_out = self.pairs("validation") if data.hold_out_every and is_training else ()
            checks = PairChecks(
                max_length=data.max_length,
                max_length_ratio=None if is_classifier else data.max_length_ratio,
                drop_duplicates=data.drop_duplicates and is_training,
                clean=data.clean if is_training else None,
            )
            pairs, reports[part] = encode_lines(
                functools.partial(self._lines, part, labels),
                tokenizers,
                checks,
                cache=data.cache,
                key=None if data.cache is None else self._key(part),
                with_sources=self.recipe.with_sources,
                held_out=held_out,
            )
            made[part] = (LabelledDataset if is_classifier else ParallelDataset)(
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
                with_sources=self.recipe.with_sources,
            )
        return made, reports

    def _key(self, part):
        """Everything that decides a part's pairs in the cache."""
        every = self.recipe.data.hold_out_every
        if every is None:
            return self.digests[part]
        # Dropped pairs and line numbers depend on both parts.
        return {"part": part, "hold_out_every": every, **self.digests}


def _join(pairs, turns, file):
    for number, (context, response) in enumerate(pairs, start=1):
        if turns.are_in(response):
            raise InputError(
                f"{file}, line {number}: a target is one turn, without the separator. "
                f"Received: {turns.separator!r} in it."
            )
        yield turns.join(turns.split(context)), response


def _sample(lines, size):
    """Draws `size` of the lines with text, each as probable, with one seed; None: all lines."""
    if size is None:
        return lines
    lines = filter(str.strip, lines)  # a language model's sources are blank
    rng, kept = np.random.default_rng(0), list(itertools.islice(lines, size))
    for seen, line in enumerate(lines, start=size + 1):
        place = int(rng.integers(seen))
        if place < size:
            kept[place] = line
    return kept


def labelled_texts(
    labels: Labels, source: str | os.PathLike, target: str | os.PathLike | None = None
) -> tuple[list[str], list[str]]:
    """Reads texts and their labels from `label<TAB>text` in `source`, or from two files.

    Raises:
        InputError: A label is none of `labels`.
    """
    pairs = list(iterate_pairs(source, target))
    texts, found = zip(*(pair if target else pair[::-1] for pair in pairs), strict=True)
    for number, label in enumerate(found, start=1):
        labels.check(label, f"{target or source}, line {number}")
    return list(texts), list(found)
