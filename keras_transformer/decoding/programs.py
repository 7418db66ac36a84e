"""The compiled programs of a model, kept for the calls to come."""

import collections
import threading

import keras

from keras_transformer.decoding.compiled import Compiled
from keras_transformer.decoding.forced import ForcedTargets
from keras_transformer.decoding.search import Search
from keras_transformer.decoding.stages import Stages

# What is part of a compiled program; the other options are arguments of it.
_IN_THE_PROGRAM = (
    "sampling",
    "beams",
    "n_best",
    "num_groups",
    "with_coverage",
    "no_repeat_ngram_size",
    "attention_layer",
    "attention_heads",
)

MOST_PROGRAMS = 64
"""Sets of options whose programs are kept. A program takes about 30 MB, also of a tiny model; a set
has one for each of the few shapes of its batches."""
_MOST_GRAPHS = 8


class Programs:
    """Searches and scorings of one model, each made when it is first asked for.

    Args:
        model: `Transformer`.
        max_source_length: Longest source, tokens.
        max_target_length: Longest target, tokens.
        frozen: Whether the weights will not change any more: they are then laid out once.
        workers: Batches that are decoded at once.
        most: Sets of options that XLA compiles programs for. TensorFlow never frees what XLA has
            compiled (tensorflow#64170): further sets run as its ordinary graphs, a few times as
            slow, of which the last few are kept. JAX frees, and the last `most` are kept.
    """

    def __init__(
        self, model, max_source_length, max_target_length, frozen, workers, most=MOST_PROGRAMS
    ):
        self._model = model
        self._max_lengths = max_source_length, max_target_length
        self._frozen, self._workers = frozen, workers
        self._kept = {}
        self._most, self._lock = most, threading.Lock()
        self._compiled, self._graphs = {}, collections.OrderedDict()
        self._freed = 0

    @property
    def compilations(self):
        """Programs that XLA has compiled so far."""
        kept = (*self._compiled.values(), *self._graphs.values())
        return self._freed + sum(each.compilations for each in kept)

    def stages(self, options):
        """The `Stages` that search with these `DecodingOptions`."""
        key = tuple(getattr(options, name) for name in _IN_THE_PROGRAM)
        kept_weights = self._kept_weights if self._frozen else None

        def make(with_xla):
            search = Search(self._model, options)
            return Stages(search, self._max_lengths[1], kept_weights, self._workers, with_xla)

        return self._one_of_few(key, make)

    def forced_targets(self, options, alignment):
        """The `ForcedTargets` with these `DecodingOptions`, with or without alignments."""
        key = (options.attention_layer, options.attention_heads, alignment)
        return self._one_of_few(
            key, lambda with_xla: ForcedTargets(self._model, *key, *self._max_lengths, with_xla)
        )

    def _one_of_few(self, key, make):
        with self._lock:
            if key in self._compiled:
                return self._compiled[key]
            frees = keras.backend.backend() == "jax"
            if not frees and len(self._compiled) < self._most:
                self._compiled[key] = make(True)
                return self._compiled[key]
            if key not in self._graphs:
                self._graphs[key] = make(False)
                if len(self._graphs) > (self._most if frees else _MOST_GRAPHS):
                    _, oldest = self._graphs.popitem(last=False)
                    self._freed += oldest.compilations
            self._graphs.move_to_end(key)
            return self._graphs[key]

    def _kept_weights(self, layout):
        if layout not in self._kept:
            self._kept[layout] = Compiled(self._model, lambda: self._model.step_weights(layout))()
        return self._kept[layout]
