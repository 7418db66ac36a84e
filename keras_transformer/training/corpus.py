"""Texts of a recipe: pairs, checksums, tokenizers and batches."""

import dataclasses
import functools
import hashlib
import itertools
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from keras_transformer.data import (
    LabelledDataset,
    PairChecks,
    PairReport,
    ParallelDataset,
    encode_lines,
    iterate_pairs,
)
from keras_transformer.data.batching import epoch_rates
from keras_transformer.data.encoding import digests
from keras_transformer.data.noise import PairNoise
from keras_transformer.errors import InputError
from keras_transformer.files import iterate_lines
from keras_transformer.text import Labels, Tokenizer
from keras_transformer.text.glossary import Glossary
from keras_transformer.text.placeholders import Placeholders, with_placeholders
from keras_transformer.text.tags import tagged
from keras_transformer.text.tokenizer import tag_tokens
from keras_transformer.text.vocabulary import VocabularyOptions
from keras_transformer.training.hosts import SINGLE_HOST, Host
from keras_transformer.training.recipe import NamedFiles, Recipe

Tokenizers = tuple[Tokenizer, Tokenizer | Labels]
PARTS = ("train", "validation")
# The share of tokens in Gao et al. 2022 (SimCut).
_CUT_SHARE = 0.05


class Corpus:
    """Training and validation text of a recipe.

    Each file is read once, and stays in memory as long as the corpus. With options that save memory
    (`text.sample_sentences`, `data.cache`), the training text is read as a stream at each use.

    Args:
        recipe: Recipe of the run.
        tokenizers: Tokenizers that the run has already; None where it learns them.
    """

    def __init__(self, recipe: Recipe, tokenizers: Tokenizers | None = None):
        self.recipe = recipe
        self._tag_tokens = tag_tokens(recipe.data.tags)
        if tokenizers is not None:  # An imported model has other tokens.
            self._tag_tokens |= tokenizers[0].tag_tokens
        self._held: dict[tuple, list[tuple[str, str]]] = {}

    def files(self, part: str) -> list[pathlib.Path]:
        """Returns all files of `"train"` or `"validation"`."""
        corpora = self.recipe.data.corpora(part)
        files = [file for corpus in corpora for file in self.files_of(corpus) if file]
        if part == "train" and self._glossary is not None:
            files.append(self._glossary)
        return files

    def files_of(self, corpus: NamedFiles) -> tuple[pathlib.Path, pathlib.Path | None]:
        """Returns a corpus' source and target file; the target is None if one file has both."""
        base, target = pathlib.Path(self.recipe.data.folder), corpus.target
        return base / corpus.source, None if target is None else base / target

    def pairs(self, part: str) -> Iterator[tuple[str, str]]:
        """Yields the pairs of `"train"` or `"validation"`, corpus after corpus."""
        readers = self.readers(part).values()
        return filter(None, itertools.chain.from_iterable(read() for read in readers))

    def readers(
        self, part: str, labels: Labels | None = None
    ) -> dict[str, Callable[[], Iterator[tuple[str, str] | None]]]:
        """Returns functions that read the corpora of a part, by name, for `encode_lines`."""
        corpora = self.recipe.data.corpora(part)
        return {
            corpus.name: functools.partial(self._lines, part, corpus, labels) for corpus in corpora
        }

    def _lines(self, part, corpus, labels):
        """Yields the pair of each line of a corpus, or None for a line of the other part."""
        held_out, files = self.recipe.data.hold_out_every, self.files_of(corpus)
        text = self.recipe.text
        placeholders = Placeholders(text.placeholders, text.placeholder_numbers)
        for number, pair in enumerate(self._read(files, part), start=1):
            if labels is not None:
                labels.check(pair[1], f"{files[1] or files[0]}, line {number}")
            if placeholders.size:
                pair = with_placeholders(*pair, placeholders)
            is_in_part = held_out is None or (number % held_out == 0) == (part == "validation")
            token = self._tag_tokens.get(corpus.tag)
            yield (tagged(pair[0], token), pair[1]) if is_in_part else None

    def _noise(self, tokenizers=(None, None)):
        """Returns the `PairNoise` of the training pairs, or None."""
        data, terms = self.recipe.data, None
        if self._glossary is not None:
            terms = data.glossary_share, Glossary.load(self._glossary).in_training
        noise = PairNoise(data.noise, tokenizers, terms)
        return noise if noise.shares else None

    @property
    def _glossary(self):
        data = self.recipe.data
        return None if data.glossary is None else pathlib.Path(data.folder) / data.glossary

    def _read(self, files, part):
        """Returns all pairs of the files, from memory if they were read before."""
        is_streamed = self.recipe.text.sample_sentences or self.recipe.data.cache
        if is_streamed and (part == "train" or self.recipe.data.hold_out_every):
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
        """SHA-256 checksums of the texts of each part and side, `{part: {side: digest}}`."""
        digests_of_parts: dict[str, dict[str, str]] = {part: {} for part in PARTS}
        for part, name, read in self._every_reader():
            sides = digests(filter(None, read())).items()
            digests_of_parts[part] |= {
                f"{name}.{side}" if name else side: digest for side, digest in sides
            }
        if self._glossary is not None:
            content = "\n".join(iterate_lines(self._glossary))
            digests_of_parts["train"]["glossary"] = hashlib.sha256(content.encode()).hexdigest()
        return digests_of_parts

    def _every_reader(self):
        for part in PARTS:
            for name, read in self.readers(part).items():
                yield part, name, read

    def tokenizers(self) -> Tokenizers:
        """Learns the tokenizers of both sides from the training texts, or one joint tokenizer.

        A classifier has `Labels` instead of the target's tokenizer.
        """
        text = self.recipe.text
        names = [field.name for field in dataclasses.fields(VocabularyOptions)]
        options = {name: getattr(text, name) for name in names}

        def learn(lines, size=text.vocabulary_size):
            lines = _sample(lines, text.sample_sentences)
            options["vocabulary_size"] = size
            symbols = {"tags": self.recipe.data.tags, "terms": self._glossary is not None}
            return Tokenizer.train_from_texts(lines, **symbols, **options)

        # With noise, so that the vocabulary includes noisy text.
        sources, targets = self._side(0), self._side(1)
        if self.recipe.gives_labels:  # Noise does not change labels.
            return learn(sources), Labels.of_texts(label for _, label in self.pairs("train"))
        if text.joint:
            joint = learn(itertools.chain(sources, targets))
            return joint, joint
        return learn(sources), learn(targets, text.target_vocabulary_size or text.vocabulary_size)

    def _side(self, side):
        pairs, noise = self.pairs("train"), self._noise()
        if noise is not None:
            pairs = noise.texts(pairs, self.recipe.training.seed)
        return (pair[side] for pair in pairs)

    def datasets(
        self, tokenizers: Tokenizers, host: Host = SINGLE_HOST
    ) -> tuple[dict[str, ParallelDataset], dict[str, PairReport]]:
        """Makes this host's rows of the batches of each part, and counts dropped pairs.

        Training pairs that equal a held-out pair are dropped. With several validation corpora, each
        corpus also has its own batches, as `validation/NAME`.

        Raises:
            InputError: The vocabulary of another run lacks a tag or cannot annotate terms.
        """
        datasets, reports = {}, {}
        data = self.recipe.data
        is_classifier = self.recipe.gives_labels
        labels: Any = tokenizers[1] if is_classifier else None
        if missing_tags := set(data.tags).difference(tokenizers[0].tags):
            rule = f"The vocabulary has no tag {', '.join(sorted(missing_tags))}"
            raise InputError(f"{rule}: it has {', '.join(tokenizers[0].tags) or 'none'}.")
        if self._glossary is not None and not tokenizers[0].annotates_terms:
            rule = "`data.glossary` needs a vocabulary that was learned with it"
            raise InputError(f"{rule}: this one cannot annotate terms.")
        for part in PARTS:
            is_training = part == "train"
            held_out = self.pairs("validation") if data.hold_out_every and is_training else ()
            checks = PairChecks(
                max_length=data.max_length,
                max_length_ratio=None if is_classifier else data.max_length_ratio,
                drop_duplicates=data.drop_duplicates and is_training,
            )
            try:
                pairs, reports[part] = encode_lines(
                    self.readers(part, labels),
                    tokenizers,
                    checks,
                    cache=data.cache,
                    key=None if data.cache is None else self._key(part),
                    with_sources=self.recipe.with_sources,
                    held_out=held_out,
                )
            except InputError as error:
                index, every = f"`data.{part}`", data.hold_out_every
                if every is not None:
                    index = f"{part} pairs of `data.hold_out_every: {every}`"
                raise InputError(f"{index}: {error}") from None
            noise = self._noise(tokenizers) if is_training else None
            datasets[part] = self._dataset(pairs, is_training, host, noise=noise)
            if is_training or len(pairs.corpora) < 2:
                continue
            for name in filter(pairs.corpora.get, pairs.corpora):
                dataset = self._dataset(pairs.of_corpus(name), False, host, datasets[part].shapes)
                datasets[f"{part}/{name}"] = dataset
        return datasets, reports

    def _dataset(self, pairs, is_training, host, shapes=None, noise=None):
        data, training = self.recipe.data, self.recipe.training
        weights = {corpus.name: corpus.weight for corpus in data.corpora("train")}
        dataset_class = LabelledDataset if self.recipe.gives_labels else ParallelDataset
        needs_copy = training.r_drop is not None or training.simcut is not None
        return dataset_class(
            pairs,
            batch_tokens=training.batch_tokens,
            # Each shape costs seconds of compilation, more than padding costs on a small set.
            max_shapes=training.max_shapes if is_training else min(4, training.max_shapes),
            shuffle=is_training,
            seed=training.seed,
            shapes=shapes,
            copies=2 if needs_copy else 1,
            cut_share=_CUT_SHARE if is_training and training.simcut is not None else 0.0,
            accumulation_steps=training.accumulation_steps if is_training else 1,
            host=host.index,
            hosts=host.count,
            shards=host.shards,
            with_sources=self.recipe.with_sources,
            noise=noise,
            max_length=data.max_length,
            rates=epoch_rates(pairs.corpora, weights, data.temperature) if is_training else None,
        )

    def _key(self, part):
        """Returns all values that a part's pairs in the cache depend on."""
        hold_out_every = self.recipe.data.hold_out_every
        # Lists keep the order of corpora, whose first copy of a pair is the one that stays.
        digests_of_parts = {name: list(sides.items()) for name, sides in self.digests.items()}
        if hold_out_every is None:
            return digests_of_parts[part]
        # Dropped pairs and line numbers depend on both parts.
        return {"part": part, "hold_out_every": hold_out_every, **digests_of_parts}


def _join(pairs, turns, file):
    for number, (context, response) in enumerate(pairs, start=1):
        if turns.are_in(response):
            raise InputError(
                f"{file}, line {number}: a target is one turn, without the separator. "
                f"Received: {turns.separator!r} in it."
            )
        yield turns.join(turns.split(context)), response


def _sample(lines, size):
    """Samples `size` of the non-blank lines uniformly, with a fixed seed; None: all lines."""
    if size is None:
        return lines
    lines = filter(str.strip, lines)  # a language model's sources are blank
    rng, sample = np.random.default_rng(0), list(itertools.islice(lines, size))
    for count, line in enumerate(lines, start=size + 1):
        index = int(rng.integers(count))
        if index < size:
            sample[index] = line
    return sample


def labelled_texts(
    labels: Labels, source: str | os.PathLike, target: str | os.PathLike | None = None
) -> tuple[list[str], list[str]]:
    """Reads texts and their labels from `label<TAB>text` in `source`, or from two files.

    Raises:
        InputError: A label is not among `labels`.
    """
    pairs = list(iterate_pairs(source, target))
    texts, names = zip(*(pair if target else pair[::-1] for pair in pairs), strict=True)
    for number, name in enumerate(names, start=1):
        labels.check(name, f"{target or source}, line {number}")
    return list(texts), list(names)
