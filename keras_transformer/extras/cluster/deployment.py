"""The server's application as a deployment of Ray Serve, whose replicas are its processes."""

from typing import TYPE_CHECKING, Any, Literal

import pydantic

from keras_transformer.base.options import option
from keras_transformer.extras.serving.app import RETRY_SECONDS, Api, application
from keras_transformer.extras.serving.server_options import (
    ServedExport,
    ServerOptions,
    served_export,
)

if TYPE_CHECKING:
    from ray.serve import Application

_QUEUED = 32  # requests that may wait in Ray's proxy, which asks replicas again and again


class ClusterOptions(ServerOptions):
    """Options of a server on a cluster.

    Raises:
        InputError: A value is out of range.
    """

    replicas: pydantic.PositiveInt | Literal["auto"] = option(
        1,
        "number of processes with the model; auto: Ray scales them with the load",
        expected="a positive integer, or auto",
        strict=None,
    )
    max_replicas: int = option(
        4, "maximum number of processes with replicas=auto", ge=1, strict=None
    )
    replica_cpus: float = option(
        0.0,
        "number of CPUs that Ray reserves per replica; 0 reserves none, so that a new deployment "
        "loads while the old one runs",
        ge=0,
        strict=None,
    )


class Server:
    """Replica of a model.

    Args:
        export: The export, which has the same path on all nodes.
        options: Options of the server.

    Raises:
        InputError: The export is damaged.
    """

    def __init__(self, export: ServedExport, options: ClusterOptions):
        self._app = application(Api(export, options))

    def __serve_build_asgi_app__(self):
        return self._app


def build_app(options: ClusterOptions) -> "Application":
    """Builds the application, `keras_transformer.extras.cluster:build_app` for `serve run`.

    A later deployment under the same name, by `serve deploy`, starts new replicas next to the old
    ones. The old replicas answer until the new ones are warm, and also if these fail to start.

    Raises:
        InputError: The export does not exist.
    """
    # Late: Ray reads its settings while it is imported.
    from ray import serve
    from ray.serve.config import BackpressureConfig

    scaling: dict[str, Any] = {"num_replicas": options.replicas}
    if options.replicas == "auto":
        scaling["autoscaling_config"] = {
            "min_replicas": 1,
            "max_replicas": options.max_replicas,
            # More requests than full batches in all threads need another replica.
            "target_ongoing_requests": options.threads * options.max_batch_size,
        }
    deployment: Any = serve.deployment(serve.ingress()(Server))
    return deployment.options(
        ray_actor_options={"num_cpus": options.replica_cpus},
        health_check_period_s=1,
        health_check_timeout_s=30,
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=options.request_timeout + 5,
        max_constructor_retry_count=1,
        max_surge_percent=100,
        max_ongoing_requests=2 * options.max_ongoing,  # The application refuses some.
        max_queued_requests=_QUEUED,
        backpressure_config=BackpressureConfig(retry_after_s=RETRY_SECONDS),
        **scaling,
    ).bind(served_export(options), options)
