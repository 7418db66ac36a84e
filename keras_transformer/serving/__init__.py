"""Serving an export over HTTP: an application of Ray Serve (extra `serve`).

`app.py` is an application of one deployment: HTTP (TensorFlow Serving's `protocol.py`, and
`libretranslate.py`), batches (`batcher.py`) and the engine (`model.py`) in one process.
`translated_files.py` keeps whole files until clients fetch them. `local.py` starts Ray on this
machine, and deploys the application there.
"""

from typing import TYPE_CHECKING

from keras_transformer.serving.server_options import LocalOptions, ServerOptions

if TYPE_CHECKING:
    from ray.serve import Application

__all__ = ["LocalOptions", "ServerOptions", "build_app"]


def build_app(options: ServerOptions) -> "Application":
    """Builds the application: `keras_transformer.serving:build_app` for `serve run` and configs.

    Raises:
        InputError: There is no export at `options.model`.
    """
    # Late: Ray reads its settings while it is imported.
    from keras_transformer.serving.app import build

    return build(options)
