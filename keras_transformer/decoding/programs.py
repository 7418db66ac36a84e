"""The compiled programs of a model, kept for the calls to come."""

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


class Programs:
    """Searches and scorings of one model, each made when it is first asked for.

    Args:
        model: `Transformer`.
        max_source_length: Longest source, tokens.
        max_target_length: Longest target, tokens.
        frozen: Whether the weights will not change any more: they are then laid out once.
        workers: Batches that are decoded at once.
    """

    def __init__(self, model, max_source_length, max_target_length, frozen, workers):
        self._model = model
        self._max_lengths = max_source_length, max_target_length
        self._frozen, self._workers = frozen, workers
        self._kept = {}
        self._stages = {}
        self._forced = {}

    @property
    def compilations(self):
        """Programs that XLA has compiled so far."""
        compiled = (*self._stages.values(), *self._forced.values())
        return sum(each.compilations for each in compiled)

    def stages(self, options):
        """The `Stages` that search with these `DecodingOptions`."""
        key = tuple(getattr(options, name) for name in _IN_THE_PROGRAM)
        if key not in self._stages:
            self._stages[key] = Stages(
                Search(self._model, options),
                self._max_lengths[1],
                self._kept_weights if self._frozen else None,
                self._workers,
            )
        return self._stages[key]

    def forced_targets(self, options, alignment):
        """The `ForcedTargets` with these `DecodingOptions`, with or without alignments."""
        key = (options.attention_layer, options.attention_heads, alignment)
        if key not in self._forced:
            self._forced[key] = ForcedTargets(self._model, *key, *self._max_lengths)
        return self._forced[key]

    def _kept_weights(self, layout):
        if layout not in self._kept:
            self._kept[layout] = Compiled(self._model, lambda: self._model.step_weights(layout))()
        return self._kept[layout]
