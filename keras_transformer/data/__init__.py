"""Reads files into checked pairs, and makes batches of few static shapes."""

from keras_transformer.base.reading import read_lines
from keras_transformer.data.batching import choose_shapes
from keras_transformer.data.dataset import LabelledDataset, ParallelDataset
from keras_transformer.data.encoding import PairChecks, PairReport, encode_pairs
from keras_transformer.data.pairs import EncodedPairs, PairTable, iterate_pairs, read_pairs

__all__ = [
    "EncodedPairs",
    "LabelledDataset",
    "PairChecks",
    "PairReport",
    "PairTable",
    "ParallelDataset",
    "choose_shapes",
    "encode_pairs",
    "iterate_pairs",
    "read_lines",
    "read_pairs",
]
