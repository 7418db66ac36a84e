"""Serving an exported SavedModel over HTTP, on Ray Serve (extra `serve`).

`server.py` starts everything: `connection.py` and `app.py` are the HTTP side, `protocol.py`
TensorFlow Serving's JSON; `model.py` follows the versions, `batcher.py` makes batches, `cluster.py`
has Ray Serve run them in `replica.py`, each with an `artifact.py`.
"""

from keras_transformer.serving.options import ServerOptions
from keras_transformer.serving.server import serve

__all__ = ["ServerOptions", "serve"]
