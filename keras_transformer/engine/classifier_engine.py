"""Engine of a classifier in memory."""

import keras
import numpy as np
from keras import ops

from keras_transformer.engine import inputs
from keras_transformer.engine.device import DevicePlan, device_plan
from keras_transformer.engine.inputs import bucket, length_buckets
from keras_transformer.engine.label_engine import LabelEngine
from keras_transformer.engine.programs import Compiled
from keras_transformer.text.per_text import checked_texts


class ClassifierEngine(LabelEngine):
    """Labels texts with a `Classifier`, its tokenizer and `Labels`; see `ModelEngine`."""

    max_target_length = 2  # a label and EOS

    def __init__(
        self,
        model: keras.Model,
        source_tokenizer,
        target_tokenizer,
        max_source_length: int = 512,
        max_target_length: int = 2,
        frozen: bool = False,
        plan: DevicePlan | None = None,
    ):
        self.plan = plan or device_plan()
        inputs.check_tokenizers(model.config, source_tokenizer, target_tokenizer)
        self.model = model
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer
        self.labels: list[str] = target_tokenizer.names
        longest = model.config.position_limit or max_source_length
        self.max_source_length = min(max_source_length, longest)
        self._run = Compiled(model, self.label_probabilities)

    @property
    def compilations(self) -> int:
        """Number of functions that XLA has compiled so far: one for each of the few shapes."""
        return self._run.compilations

    def label_probabilities(self, source_ids: keras.KerasTensor) -> keras.KerasTensor:
        """Computes probabilities, float32 `(batch, labels)`, of int32 ids `(batch, source)`."""
        return ops.softmax(ops.cast(self.model(source_ids)[:, 0], "float32"))

    def probabilities(self, texts, batch_size=32, long_input="refuse"):
        texts, limit = checked_texts("texts", texts), self.max_source_length
        results = np.zeros((len(texts), len(self.labels)), "float32")
        ids, parts = inputs.source_ids(
            texts, self.source_tokenizer, limit, long_input, long_inputs=self.long_inputs
        )
        rows, buckets = inputs.row_count(min(len(ids), batch_size)), length_buckets(limit)
        if self.plan.has_few_programs and ids:
            longest_of_batches = sorted(map(len, ids), reverse=True)[::batch_size]
            buckets = self.plan.lengths_for([bucket(n, buckets) for n in longest_of_batches])

        def call(indices):
            columns = bucket(len(ids[indices[0]]), buckets)
            probabilities = self._run(inputs.pad([ids[index] for index in indices], rows, columns))
            return np.asarray(probabilities)[: len(indices)]

        probabilities = inputs.in_batches(list(map(len, ids)), batch_size, [call])
        # A text has one part, a blank text none.
        owners = [index for index, part in enumerate(parts) for _ in part]
        for owner, row in zip(owners, probabilities, strict=True):
            results[owner] = row
        return results
