"""Serving an export over HTTP (extra `serve`).

`app.py` is an ASGI application with the `endpoints.py` of three protocols (TensorFlow Serving's
`protocol.py`, `libretranslate.py` and `deepl.py`), batches (`batcher.py`) and the engine
(`model.py`) in one process. `translated_files.py` keeps whole files until clients fetch them.
`server.py` runs the application in processes on this machine; `extras/cluster` runs it on several
machines.
"""

from keras_transformer.base.errors import require
from keras_transformer.extras.serving.server_options import LocalOptions, ServerOptions

__all__ = ["LocalOptions", "ServerOptions", "serve_here"]

_NEEDED = ("uvicorn", "httptools", "starlette", "python_multipart", "prometheus_client")


def serve_here(options: ServerOptions, local: LocalOptions) -> None:
    """Serves an export on this machine until SIGTERM or SIGINT: see `server.serve_here`.

    Raises:
        InputError: `[serve]` is not installed, or as `server.serve_here`.
    """
    for package in _NEEDED:
        require(package, "The server", "serve")
    from keras_transformer.extras.serving import server

    server.serve_here(options, local)
