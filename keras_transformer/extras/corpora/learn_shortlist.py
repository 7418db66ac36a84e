"""Learns shortlists of runs with IBM's Model 1, from the tokens of pairs of texts."""

import math
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from keras_transformer.base.errors import InputError
from keras_transformer.base.ids import EOS_ID, PAD_ID
from keras_transformer.data import EncodedPairs, encode_pairs
from keras_transformer.data.encoding import in_chunks
from keras_transformer.data.placeholders import with_placeholders
from keras_transformer.extras.corpora.model_1 import Sentences, Translations, model_1
from keras_transformer.runs.run_folder import RunFolder
from keras_transformer.text import Tokenizer
from keras_transformer.text.shortlist import Shortlist
from keras_transformer.training.recipe import Recipe

Progress = Callable[[str, float], None]

MAX_PAIRS = 1_000_000
MAX_LINKS = 200_000_000  # of a source token to a target token; about a minute and 1.5 GB
NUM_FREQUENT = 100
NUM_CANDIDATES = 75  # So the file of 32,000 source tokens has at most 5 MB.
MIN_PROBABILITY = 1e-5


def make_shortlist(
    run: str | os.PathLike,
    pairs: Iterable[tuple[str, str]],
    progress: Progress = lambda stage, size: None,
) -> pathlib.Path:
    """Makes or replaces the shortlist of a run, and returns the path of its file.

    Args:
        run: Path of the run.
        pairs: Pairs of a source and a target, such as the training texts. From more than a million
            pairs a part is taken, at equal distances; see also `learn_shortlist`.
        progress: Function that is called with a stage and the number of bytes that were processed.
            All pairs are read first; then learning counts as many bytes.

    Raises:
        InputError: There is no run, another process writes to it, its model does not translate, or
            no pair is left after the checks of `encode_pairs`.
    """
    folder = RunFolder.existing(run)
    recipe = Recipe.of_run(folder)
    if not recipe.with_sources or recipe.gives_labels:
        rule = "only a model that translates has a shortlist"
        raise InputError(f"{run}: {rule}. Received: a model of the kind {recipe.kind}.")
    tokenizers = folder.tokenizers()
    total_size = 0

    def reading() -> Iterator[tuple[str, str]]:
        nonlocal total_size
        for numbers, chunk in in_chunks(pairs):
            size = sum(len(f"{source}\n{target}\n".encode()) for source, target in chunk)
            total_size += size
            progress(f"reading {numbers[-1]:,} pairs", size)
            yield from chunk

    with folder.owned().locked():
        placeholders = tokenizers[0].placeholders
        sample = _sampled(reading())
        if placeholders.size:
            sample = [with_placeholders(*pair, placeholders) for pair in sample]
        sources, targets = ([pair[side] for pair in sample] for side in (0, 1))
        encoded, _ = encode_pairs(sources, targets, *tokenizers)
        stage = f"learning from {len(encoded):,} pairs"
        shortlist = learn_shortlist(
            encoded, *tokenizers, lambda share: progress(stage, share * total_size)
        )
        shortlist.save(folder.shortlist_file)
    return folder.shortlist_file


def _sampled(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns all pairs, or more than `MAX_PAIRS` / 2 of them at equal distances."""
    sample: list[tuple[str, str]] = []
    step = 1
    for number, pair in enumerate(pairs):
        if number % step == 0:
            sample.append(pair)
        if len(sample) > MAX_PAIRS:
            sample, step = sample[::2], 2 * step
    return sample


def learn_shortlist(
    pairs: EncodedPairs,
    source_tokenizer: Tokenizer,
    target_tokenizer: Any,
    progress: Callable[[float], None] = lambda share: None,
) -> Shortlist:
    """Learns a shortlist.

    A source token gets its 75 most probable translations, and itself if the target has it too. The
    100 most frequent target tokens, and symbols such as tags and placeholders, are candidates of
    every sentence. A byte is translated by any byte.

    Args:
        pairs: Tokenized pairs. From many pairs a part is taken, at equal distances: 300,000 pairs
            of 25 tokens, or 900,000 of 15.
        source_tokenizer: Tokenizer of the sources.
        target_tokenizer: Tokenizer of the targets.
        progress: Function that is called with each finished share of the work.
    """
    links = np.dot(pairs.source_lengths.astype("int64"), pairs.target_lengths)
    chosen = np.arange(0, len(pairs), max(1, math.ceil(links / MAX_LINKS)))
    # Padding is Model 1's NULL word, which explains target tokens without a translation.
    sources = _sets(pairs.source_flat, pairs.source_offsets, chosen, [PAD_ID])
    targets = _sets(pairs.target_flat, pairs.target_offsets, chosen)
    source_pieces, target_pieces = (
        tokenizer.pieces_of(range(tokenizer.vocabulary_size))
        for tokenizer in (source_tokenizer, target_tokenizer)
    )
    target_ids = {piece: id for id, piece in enumerate(target_pieces)}
    candidates = [[target_ids[piece]] if piece in target_ids else [] for piece in source_pieces]
    for id in source_tokenizer.byte_ids:
        candidates[id] += target_tokenizer.byte_ids
    for block in model_1(sources, targets, progress):
        best = _best(block)
        for source, target in zip(best.sources.tolist(), best.targets.tolist(), strict=True):
            candidates[source].append(target)
    counts = np.bincount(targets.ids)
    frequent = np.argsort(-counts, kind="stable")[:NUM_FREQUENT]
    return Shortlist([*frequent.tolist(), *target_tokenizer.symbol_ids], candidates)


def _sets(flat, offsets, chosen, added=()):
    """Makes the sets of tokens of chosen sentences, without special ids except `added`."""
    lengths = offsets[chosen + 1] - offsets[chosen]
    ends = np.cumsum(lengths)
    ids = flat[np.repeat(offsets[chosen] - (ends - lengths), lengths) + np.arange(ends[-1])]
    sentences = np.repeat(np.arange(len(chosen)), lengths)[ids > EOS_ID]
    keys = [(sentences << 32) + ids[ids > EOS_ID]]
    keys += [(np.arange(len(chosen)) << 32) + id for id in added]
    sorted_keys = np.sort(np.concatenate(keys))
    sorted_keys = sorted_keys[np.diff(sorted_keys, prepend=-1) > 0]
    sentences, ids = np.divmod(sorted_keys, 1 << 32)
    return Sentences(ids.astype("int32"), np.searchsorted(sentences, np.arange(len(chosen) + 1)))


def _best(block):
    """Returns the most probable translations of each token."""
    is_likely = (block.probabilities >= MIN_PROBABILITY) & (block.sources != PAD_ID)
    block = Translations(*(column[is_likely] for column in block))
    order = np.lexsort((-block.probabilities, block.sources))
    rank = np.arange(len(order)) - np.searchsorted(block.sources, block.sources)
    return Translations(*(column[order[rank < NUM_CANDIDATES]] for column in block))
