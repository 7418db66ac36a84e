"""LiteRT with the same weights, in float32 and in int8."""

from keras_transformer.config import EOS_ID
from keras_transformer.decoding.shapes import pad


class LiteRTFloat32:
    """The graph that `export_litert` makes, on LiteRT's interpreter with XNNPACK.

    Args:
        model: `Transformer`.
        threads: Threads of one computation.
        text_engine: Not used.
    """

    name = "litert"
    package = "ai_edge_litert"
    distribution = "ai-edge-litert"
    extra = "litert"
    quantize = "none"
    note = "the same weights, in this package's LiteRT export"

    def __init__(self, model, threads=2, text_engine=None):
        self._model, self._threads = model, threads
        self._runners = {}

    def translate(self, source_ids, beam_size, steps):
        """Forces `steps` steps, as `Ours.translate`: an end that is never chosen ends nothing."""
        rows = pad(source_ids, len(source_ids), max(map(len, source_ids)))
        found = self._runner(rows.shape[1], beam_size, steps)(source_ids=rows)
        return found["ids"].reshape(len(rows), -1, steps)[:, 0].tolist()

    def _runner(self, length, beam_size, steps):
        key = (length, beam_size, steps)
        if key not in self._runners:
            from ai_edge_litert.interpreter import Interpreter

            content = self._content(length, beam_size, steps)
            # Held: a runner alone does not keep its interpreter.
            interpreter = Interpreter(model_content=content, num_threads=self._threads)
            self._runners[key] = interpreter, interpreter.get_signature_runner("search")
        return self._runners[key][1]

    def _content(self, length, beam_size, steps):
        import tensorflow as tf

        from keras_transformer.export.litert_file import convert, join
        from keras_transformer.export.litert_search import Search
        from keras_transformer.export.litert_strategies import Options

        options = Options(beam_size, 0.0, 1, steps, ratio=0.0, extra=steps, forbidden_ids=(EOS_ID,))
        spec = tf.TensorSpec((None, length), tf.int32, name="source_ids")
        search = Search(self._model, options, length)
        function = tf.function(search.__call__, [spec], autograph=False)
        return join([convert("search", function.get_concrete_function())], self.quantize)


class LiteRTInt8(LiteRTFloat32):
    """The same with weights in int8 and activations of the products in int8, row by row."""

    name = "litert_int8"
    quantize = "int8"
    note = "weights and activations of the products in int8 (dynamic range)"
