"""Ray Serve: starts replicas, watches and restarts them, sends batches to them."""

import asyncio
import contextlib
import functools
import os
import re
import secrets
import shutil
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from keras_transformer.errors import InputError
from keras_transformer.serving.model import Version, folder_digest
from keras_transformer.serving.options import ServerOptions
from keras_transformer.serving.replica import Replica
from keras_transformer.serving.reporting import Rejection
from keras_transformer.serving.signatures import Signature

_CAUSE = re.compile(r"^\s*(?:[\w.]+\.)?(?:InputError|\w*Error|\w*Exception): (.+)$", re.MULTILINE)
# Smallest store that Ray takes: batches are far smaller, and small ones do not use it at all.
_OBJECT_STORE_BYTES = 100 * 2**20
_STOP_SECONDS = 30
_PROGRAMS_FLAG = "--tf_xla_persistent_cache_directory"


def start_ray(address: str | None = None, cpus: int | None = None):
    """Starts Ray on this machine, quietly, or joins a cluster.

    Nothing is sent to anybody, there is no dashboard, and nothing of Ray's goes to stdout. A
    token of its own keeps other users of the machine from giving this Ray work to do.

    Args:
        address: Address of a cluster; None starts Ray here.
        cpus: CPUs that Ray gives out; by default the machine's.

    Raises:
        InputError: Ray is not installed, or the cluster cannot be reached.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray gives its workers low priority (15), so that any other program would starve a server.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # A thread that waits for replicas when Ray is ended would start another Ray.
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
    if address is None and "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    try:
        import ray
    except ImportError:
        raise InputError(
            "Ray is needed here and is not installed: pip install 'keras_transformer[serve]'."
        ) from None
    where = {"address": address}
    if address is None:
        where = {
            "address": "local",
            "num_cpus": cpus,
            "object_store_memory": _OBJECT_STORE_BYTES,
            "_node_ip_address": "127.0.0.1",
        }
    try:
        ray.init(
            include_dashboard=None if address else False,
            log_to_driver=False,
            logging_level="ERROR",
            **where,
        )
    except Exception as error:  # Ray raises nothing narrower where a machine is too busy for it.
        raise InputError(f"Ray cannot be started: {error}") from None


class Loaded(NamedTuple):
    """A version whose replicas run.

    Attributes:
        seconds: What loading and warming up took.
        handle: Ray Serve's, of the replicas.
        application: Ray Serve's name of it.
        timeout: Seconds after which a batch has hung.
        digest: That of its folder, which each of its replicas has found.
    """

    number: int
    signatures: dict[str, Signature]
    seconds: float
    handle: Any
    application: str
    timeout: float
    digest: str

    async def run(self, signature: str, columns: dict[str, list]) -> dict[str, Any]:
        """Runs one batch on one of the replicas; see `Replica.run`.

        Raises:
            Rejection: 503 if the replica ended before it answered, 504 if it hung.
        """
        import grpc
        from ray.exceptions import RayError
        from ray.serve.exceptions import RayServeException

        response = self.handle.run.remote(signature, columns)
        try:
            async with asyncio.timeout(self.timeout):
                return await response
        except TimeoutError:
            with contextlib.suppress(Exception):
                response.cancel()
            raise Rejection(504, f"No answer within {self.timeout} seconds", "timeout") from None
        # A batch is not sent a second time: a text that ends a replica would end the next.
        except (RayError, RayServeException, grpc.RpcError) as error:
            raise Rejection(
                503,
                "The replica that held this request ended before it answered: send it again "
                f"({type(error).__name__})",
                "replica",
            ) from None


class Cluster:
    """Ray Serve with an application for each version, whose names begin with `name`."""

    def __init__(self, name: str, options: ServerOptions):
        self._name = name
        self._options = options
        self._loads = 0
        self._programs = None
        # Ray Serve makes a deployment and reads a status with the same list of modules, which it
        # changes meanwhile: at the same time in two threads, one of them fails.
        self._making = threading.Lock()
        # What waits for Ray; where it calls Ray after Ray's end, Ray ends this process with 1.
        self._waiting = ThreadPoolExecutor(thread_name_prefix="ray")

    def start(self):
        """Starts Ray and Ray Serve."""
        if self._options.ray_address is None:
            self._share_programs()
        start_ray(self._options.ray_address)
        # Straight to the replica's own port, which Ray Serve opens anyway and Ray's token guards:
        # a batch is there in half the time.
        os.environ.setdefault("RAY_SERVE_USE_GRPC_BY_DEFAULT", "1")
        # `Replica` bounds its answers; by default 4 MB would end as if the replica had died.
        os.environ.setdefault("RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH", str(2**31 - 1))
        import logging

        from ray import serve

        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        serve.start(
            # This process has the HTTP server: batches, not requests, go through Ray.
            proxy_location="Disabled",
            logging_config={"log_level": "WARNING", "enable_access_log": False},
        )

    def _share_programs(self):
        """Keeps what XLA compiles in files while the server runs.

        A replica that takes the place of a dead one, and a new version of the same size, then
        start in a third of the time.
        """
        flags = os.environ.get("TF_XLA_FLAGS", "")
        if _PROGRAMS_FLAG not in flags:
            # Only this user can read and write it.
            self._programs = tempfile.mkdtemp(prefix="keras-transformer-serve-")
            os.environ["TF_XLA_FLAGS"] = f"{flags} {_PROGRAMS_FLAG}={self._programs}".strip()

    async def load(self, version: Version) -> Loaded:
        """Starts the replicas of a version and waits until all of them are warm.

        Raises:
            InputError: It cannot be loaded; nothing of it stays.
        """
        from ray import serve

        try:
            digest = await self._in_thread(folder_digest, version.folder)
        except OSError as error:
            raise InputError(f"{version.folder}: cannot be read: {error.strerror}.") from None
        self._loads += 1
        application = f"{self._name}-{version.number}-{self._loads}"
        deployment = await self._in_thread(self._deployment)
        bound = deployment.bind(version.folder, self._options, digest)
        try:
            handle = await self._in_thread(serve.run, bound, name=application, route_prefix=None)
            signatures, seconds = await handle.describe.remote()
        except Exception as error:
            reason = await self._in_thread(self._reason, application) or str(error)
            await self._in_thread(serve.delete, application)
            raise InputError(reason) from None
        timeout = 2 * self._options.request_timeout  # So that the request's own comes first.
        return Loaded(version.number, signatures, seconds, handle, application, timeout, digest)

    async def _in_thread(self, function, *arguments, **options):
        call = functools.partial(function, *arguments, **options)
        return await asyncio.get_running_loop().run_in_executor(self._waiting, call)

    def _deployment(self):
        from ray import serve

        options = self._options
        with self._making:
            return serve.deployment(
                Replica,
                name="replica",
                num_replicas=options.replicas,
                max_ongoing_requests=options.threads,
                ray_actor_options={"num_cpus": options.replica_cpus},
                health_check_period_s=1,
                health_check_timeout_s=30,
                graceful_shutdown_wait_loop_s=0.1,
                graceful_shutdown_timeout_s=10,
                max_constructor_retry_count=1,
            )

    def _status(self):
        from ray import serve

        with self._making:
            return serve.status()

    async def unload(self, loaded: Loaded):
        """Ends the replicas of a version."""
        from ray import serve

        await self._in_thread(serve.delete, loaded.application)

    async def running(self, application: str) -> int:
        """How many replicas of an application run."""
        status = await self._in_thread(self._status)
        if application not in status.applications:
            return 0
        deployments = status.applications[application].deployments.values()
        return sum(each.replica_states.get("RUNNING", 0) for each in deployments)

    def stop(self):
        """Ends all replicas, and Ray where it was started here."""
        # In a thread: where somebody has ended Ray's own processes, it would wait for a minute.
        ending = threading.Thread(target=self._stop, daemon=True)
        ending.start()
        ending.join(_STOP_SECONDS)
        if self._programs is not None:
            shutil.rmtree(self._programs, ignore_errors=True)

    def _stop(self):
        import ray
        from ray import serve

        if not ray.is_initialized():  # Or Ray Serve would start another.
            return
        with contextlib.suppress(Exception):
            if self._options.ray_address is None:
                serve.shutdown()
            else:  # Others may serve on that cluster, too.
                # Not by the beginning alone: "de-en-1-1" is none of a model "de".
                own = re.compile(rf"{re.escape(self._name)}-\d+-\d+")
                for name in filter(own.fullmatch, list(self._status().applications)):
                    serve.delete(name)
        self._waiting.shutdown(cancel_futures=True)
        with contextlib.suppress(Exception):
            ray.shutdown()

    def _reason(self, application):
        """The last line of what Ray Serve tells about an application that did not start."""
        status = self._status().applications.get(application)
        if status is None:
            return None
        messages = [each.message for each in status.deployments.values()] + [status.message]
        # The last of a chain of tracebacks, each inside the other, has the cause.
        causes = [cause for message in messages for cause in _CAUSE.findall(message)]
        return causes[-1].strip() if causes else " ".join("; ".join(messages).split())[:500]
