"""This package's own search, as `ModelEngine` runs it."""

import numpy as np
from keras import ops

from keras_transformer.benchmark.measure import MAX_POSITIONS
from keras_transformer.config import EOS_ID
from keras_transformer.decoding import Beam, Constraints, Greedy, decode
from keras_transformer.decoding.compiled import Compiled
from keras_transformer.inputs import pad_to_few_shapes


class Ours:
    """The search compiled by XLA. All that the benchmark knows of `decoding` is in here.

    TensorFlow's threads are set once for the process (`use_threads`).
    """

    name = "ours"
    package = None
    distribution = "keras_transformer"
    note = "one program compiled by XLA for each shape; batches padded as `ModelEngine` pads them"

    def __init__(self, model, threads=2, text_engine=None):
        self._model = model
        self._text_engine = text_engine
        self._compiled, self._kept = {}, {}

    def translate(self, source_ids, beam_size, steps):
        """The best hypothesis of each sentence, `steps` ids: no id ends a sentence."""
        # The weights are laid out once, as a `frozen` engine does.
        layout = "one, kept" if beam_size == len(source_ids) == 1 else "many, kept"
        if layout not in self._kept:
            self._kept[layout] = Compiled(self._model, lambda: self._model.step_weights(layout))()
        key = (beam_size, steps, layout)
        if key not in self._compiled:
            self._compiled[key] = Compiled(
                self._model, self._forced(beam_size, steps), (self._kept[layout],)
            )
        config = self._model.config
        longest = config.max_length if config.positions == "learned" else MAX_POSITIONS
        hypotheses = self._compiled[key](pad_to_few_shapes(source_ids, longest))
        return np.asarray(hypotheses.ids)[: len(source_ids), 0].tolist()

    def _forced(self, beam_size, steps):
        model = self._model
        strategy = Greedy() if beam_size == 1 else Beam(beam_size, length_penalty=0.0)

        def run(source_ids, weights=None):
            cache = model.start_decoding(source_ids, steps, beam_size)
            limits = ops.full((ops.shape(source_ids)[0],), steps, "int32")
            # An end that is never chosen ends nothing. CTranslate2 is forced in the same way.
            constraints = Constraints(limits, forbidden_ids=(EOS_ID,))
            step = model.step_function(weights=weights)
            return decode(step, cache, strategy, constraints, steps, model.reorder)

        return run

    def translate_corpus(self, sentences, beam_size, length_penalty, batch_size):
        """Translates texts to texts; a sentence ends where the model ends it."""
        options = {"length_penalty": length_penalty, "batch_size": batch_size}
        found = self._text_engine.translate(sentences, beam_size=beam_size, **options)
        return [translation.text for translation in found]
