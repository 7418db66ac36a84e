"""The engine of a live classifier."""

import keras
import numpy as np
from keras import ops

from keras_transformer import inputs
from keras_transformer.decoding.compiled import Compiled
from keras_transformer.engine import LabelEngine


class ClassifierEngine(LabelEngine):
    """Gives labels with a `Classifier`, its tokenizer and `Labels`; see `ModelEngine`."""

    max_target_length = 2  # a label and the end

    def __init__(
        self,
        model: keras.Model,
        source_tokenizer,
        target_tokenizer,
        max_source_length: int = 512,
        max_target_length: int = 2,
        frozen: bool = False,
    ):
        inputs.check_tokenizers(model.config, source_tokenizer, target_tokenizer)
        self.model = model
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer
        self.labels: list[str] = target_tokenizer.names
        longest = model.config.position_limit or max_source_length
        self.max_source_length = min(max_source_length, longest)
        self._buckets = inputs.length_buckets(self.max_source_length)
        self._run = Compiled(model, lambda ids: label_probabilities(model, ids))

    @property
    def compilations(self) -> int:
        """Programs that XLA has compiled so far: one for each of the few shapes."""
        return self._run.compilations

    def probabilities(self, texts, batch_size=32, long_input="refuse"):
        limit, results = self.max_source_length, np.zeros((len(texts), len(self.labels)), "float32")
        ids, parts = inputs.source_ids(texts, self.source_tokenizer, limit, long_input)
        # A text that is not split has one part, a blank one none.
        owners = [place for place, part in enumerate(parts) for _ in part]
        rows = inputs.row_count(min(len(ids), batch_size))

        def call(chosen):
            columns = inputs.bucket(len(ids[chosen[0]]), self._buckets)
            found = self._run(inputs.pad([ids[place] for place in chosen], rows, columns))
            return np.asarray(found)[: len(chosen)]

        for owner, row in zip(
            owners, inputs.in_batches(list(map(len, ids)), batch_size, [call]), strict=True
        ):
            results[owner] = row
        return results


def label_probabilities(model: keras.Model, source_ids: keras.KerasTensor) -> keras.KerasTensor:
    """Computes probabilities, float32 `(batch, labels)`, of int32 ids `(batch, source)`."""
    logits = ops.cast(model(source_ids)[:, 0], "float32")
    return ops.softmax(logits)
