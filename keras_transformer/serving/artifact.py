"""A SavedModel as a server runs it: any of its signatures, on columns of values."""

import concurrent.futures
import json
import os
from pathlib import Path

from keras_transformer.decoding.compiled import length_buckets
from keras_transformer.errors import InputError
from keras_transformer.files import MANIFEST
from keras_transformer.serving.columns import to_array, to_values
from keras_transformer.serving.protocol import DEFAULT
from keras_transformer.serving.signatures import read_signatures
from keras_transformer.serving.token_counter import TokenCounter


class Artifact:
    """Loads a SavedModel and runs its signatures. Nothing but its graph is run.

    Args:
        folder: Path of the SavedModel.
        threads: Threads that TensorFlow uses; None leaves them as they are.

    Attributes:
        signatures: Dict of `Signature` by name.
        tokens: `TokenCounter`.

    Raises:
        InputError: The folder holds no SavedModel that can be served.
    """

    def __init__(self, folder, threads=None):
        import tensorflow as tf
        import tensorflow_text  # noqa: F401 (registers the tokenizer's operations)

        if threads is not None:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(threads)
        self._folder = os.fspath(folder)
        graph = self._read_graph()
        self.signatures = read_signatures(graph, (Path(folder) / MANIFEST).is_file())
        try:
            # Held: the signatures alone do not keep the variables alive.
            self._module = tf.saved_model.load(self._folder)
        # The loader names no exceptions: a damaged file ends in those of protobuf, of the graph
        # importer, of the checkpoint reader or of Python.
        except Exception as error:
            raise self._damaged(error) from None
        self._functions = {
            name: self._module.signatures[name]
            for name in self.signatures
            if name in self._module.signatures
        }
        self.signatures = {name: self.signatures[name] for name in sorted(self._functions)}
        if not self.signatures:
            raise InputError(f"{self._folder}: no signature takes and gives batches.")
        self.tokens = TokenCounter(graph)

    def run(self, signature, columns):
        """Runs a signature on one batch.

        Args:
            signature: Its name.
            columns: Dict from the name of an input to a list with a value for each sentence.

        Returns:
            A dict from the name of an output to such a list, or to an array.
        """
        import tensorflow as tf

        inputs = self.signatures[signature].inputs
        tensors = {
            key: tf.constant(to_array(values, inputs[key]), inputs[key].dtype)
            for key, values in columns.items()
        }
        results = self._functions[signature](**tensors)
        return {key: to_values(results[key].numpy()) for key in sorted(results)}

    def warm_up(self, max_batch_size, tokens, threads=1, signatures=(DEFAULT,)):
        """Runs signatures once in each of the shapes that XLA compiles a program for.

        Args:
            max_batch_size: Batches up to this size are expected.
            tokens: Sources up to so many tokens are expected; 0 compiles nothing.
            threads: Programs that are compiled at a time.
            signatures: Names of signatures that take nothing but texts. `serving_default` is
                left out where it takes something else or is missing.

        Returns:
            The number of batches that were run.

        Raises:
            InputError: Another signature takes something else or is missing.
        """
        names = [name for name in signatures if self._is_warmable(name)]
        if not tokens:
            return 0
        rows = [1 << power for power in range(max(max_batch_size - 1, 0).bit_length() + 1)]
        # The end of the sentence takes one place.
        lengths = length_buckets(min(tokens + 1, self._max_source_length()))
        texts = [self.tokens.text_of(columns - 1) for columns in lengths]
        batches = [(name, [text] * count) for name in names for text in texts for count in rows]

        def run(batch):
            name, values = batch
            self.run(name, dict.fromkeys(self.signatures[name].inputs, values))

        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            list(pool.map(run, batches))
        return len(batches)

    def _is_warmable(self, name):
        found = self.signatures.get(name)
        if found is not None and {each.dtype for each in found.inputs.values()} == {"string"}:
            return True
        if name == DEFAULT:  # Nobody asked for it.
            return False
        takes = "no such signature" if found is None else f"inputs {', '.join(found.inputs)}"
        raise InputError(
            f"{self._folder}: a signature to be warmed up takes nothing but texts. "
            f"Received: {name}, {takes}."
        )

    def _max_source_length(self):
        try:
            manifest = json.loads((Path(self._folder) / MANIFEST).read_text(encoding="utf-8"))
            return int(manifest["max_source_length"])
        except (OSError, ValueError, KeyError, TypeError):
            return 512  # Somebody else's SavedModel.

    def _read_graph(self):
        from tensorflow.python.saved_model import loader_impl

        try:
            return loader_impl.parse_saved_model(self._folder).meta_graphs[0]
        except Exception as error:  # As above.
            raise self._damaged(error) from None

    def _damaged(self, error):
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        return InputError(
            f"{self._folder}: the SavedModel is incomplete or damaged. Received: {reason:.300}"
        )
