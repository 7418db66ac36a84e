"""Serving an exported SavedModel over HTTP, on Ray Serve (extra `serve`).

`server.py` starts everything: `connection.py` and `app.py` are the HTTP side, `protocol.py`
TensorFlow Serving's JSON; `model.py` follows the versions, `batcher.py` makes batches, `cluster.py`
has Ray Serve run them in `replica.py`, where the SavedModel is.
"""

from keras_transformer.serving.options import ServerOptions

__all__ = ["ServerOptions", "serve"]


def __getattr__(name):
    # Late: whoever reads the options alone needs neither Keras nor Ray.
    if name == "serve":
        from keras_transformer.serving.server import serve

        return serve
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
