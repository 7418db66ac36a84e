"""Small LiteRT files for tests: a table, functions that read it, and how to run them."""

import numpy as np

ROWS, WIDTH = 67, 31


def table():
    """Rows of very different size, each with a scale of its own."""
    chance = np.random.default_rng(5)
    sizes = np.logspace(-2, 1, ROWS)[:, None]
    return (chance.normal(size=(ROWS, WIDTH)) * sizes).astype("float32")


def look_up_and_multiply(table):
    """Two `Part` of the same function: rows of the table, and their products with all of them."""
    import tensorflow as tf

    from keras_transformer.export.litert.file import convert, traced

    def function(ids):
        rows = tf.gather(table, ids)
        return {"rows": rows, "logits": tf.matmul(rows, tf.constant(table), transpose_b=True)}

    spec = tf.TensorSpec((None,), tf.int32, name="ids")
    return convert([(name, traced(function, spec)) for name in ("one", "two")])


def run(content, name, **inputs):
    """What a signature of a file gives."""
    from ai_edge_litert.interpreter import Interpreter

    return Interpreter(model_content=content).get_signature_runner(name)(**inputs)


def constants(content):
    """The arrays of a file, bytes each."""
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromPackedBuf(content, 0)
    return [bytes(each.data) for each in model.buffers if each.data is not None]
