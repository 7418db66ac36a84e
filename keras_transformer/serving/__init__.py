"""Serving an export over HTTP: an application of Ray Serve (extra `serve`).

`app.py` builds the application: `frontend.py` speaks HTTP (`protocol.py`) and makes batches
(`batcher.py`), `replica.py` holds what `Translator.load` returns. `local.py` starts Ray on this
machine and deploys the application there.
"""

from typing import TYPE_CHECKING

from keras_transformer.serving.options import LocalOptions, ServerOptions

if TYPE_CHECKING:
    from ray.serve import Application

__all__ = ["LocalOptions", "ServerOptions", "build_app", "serve"]


def build_app(options: ServerOptions) -> "Application":
    """Builds the application: `keras_transformer.serving:build_app` for `serve run` and configs.

    Raises:
        InputError: There is no export at `options.model`.
    """
    # Late: Ray reads its settings while it is imported.
    from keras_transformer.serving.app import build

    return build(options)


def serve(options: ServerOptions, local: LocalOptions | None = None) -> None:
    """Serves an export on this machine until SIGTERM or SIGINT; see `local.serve`."""
    from keras_transformer.serving.local import serve as run

    run(options, local or LocalOptions())
