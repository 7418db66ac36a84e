"""`keras-transformer serve`: Ray Serve behind one HTTP server."""

import asyncio
import contextlib
import importlib.util
import os
import resource
import signal
import socket

from keras_transformer.errors import InputError
from keras_transformer.serving.cluster import Cluster
from keras_transformer.serving.model import ServedModel, check_model, model_name
from keras_transformer.serving.options import ServerOptions
from keras_transformer.serving.reporting import Metrics, say, say_unexpected

_NEEDED = ("ray", "starlette", "uvicorn", "httptools", "uvloop", "prometheus_client")
_BACKLOG = 2048


def serve(path: str, options: ServerOptions):
    """Serves a SavedModel until SIGTERM or SIGINT, then finishes what was accepted.

    Args:
        path: A SavedModel's folder, or a folder of numbered versions.

    Raises:
        InputError: There is nothing to serve, the address is taken, or `[serve]` is missing.
    """
    check_model(path)
    # Looked for, not imported: Ray reads its settings while it is imported.
    missing = [each for each in _NEEDED if importlib.util.find_spec(each) is None]
    if missing:
        raise InputError(
            "Serving needs more packages: pip install 'keras_transformer[serve]'. "
            f"Missing: {', '.join(missing)}."
        )
    import uvloop  # Takes less time for a request than asyncio's own.

    _allow_files(options.max_connections + 1024)
    # Ray prints about its own comings and goings; nothing of `serve` goes to stdout.
    with (
        _listen(options) as listener,
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):
        cluster = Cluster(options.name or model_name(path), options)
        try:
            cluster.start()
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_serve(path, options, cluster, listener))
        finally:
            cluster.stop()


def _allow_files(count):
    """Lets this process have as many open files as its connections need, if it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        most = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _listen(options):
    """A bound socket, before anything is loaded: a taken port is told at once."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((options.host, options.port))
    except OSError as error:
        listener.close()
        raise InputError(
            f"{options.host}:{options.port}: cannot be listened on: {error.strerror or error}."
        ) from None
    return listener


async def _serve(path, options, cluster, listener):
    name, metrics = options.name or model_name(path), Metrics()
    model = ServedModel(path, name, options, cluster, metrics.batch)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if await _until(stop, model.load()):
        work = model.follow, model.count_replicas
        following = [asyncio.ensure_future(_forever(each)) for each in work]
        server = _http_server(model, options, metrics)
        # Before the address is printed: who reads it connects at once.
        listener.listen(_BACKLOG)
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        host, port = listener.getsockname()[:2]
        say(f"http://{f'[{host}]' if ':' in host else host}:{port}/v1/models/{name}")
        await _until(stop, asyncio.shield(serving))
        for task in following:
            task.cancel()
        say("stops, after what it accepted")
        server.should_exit = True
        await serving
    # Now, because a thread may wait for replicas that are being started.
    await asyncio.to_thread(cluster.stop)


def _http_server(model, options, metrics):
    import uvicorn

    from keras_transformer.serving.app import App
    from keras_transformer.serving.connection import connection_class

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self):
            yield  # `_serve` has them.

    return Server(
        uvicorn.Config(
            App(model, options, metrics),
            http=connection_class(options.max_connections, options.read_timeout, metrics.refused),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=60,
            timeout_graceful_shutdown=options.drain_timeout,
            backlog=_BACKLOG,
        )
    )


async def _until(stop, work):
    """Awaits `work`; gives False, and leaves it, if `stop` comes first."""
    task = asyncio.ensure_future(work)
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if task.done():
        task.result()
        return True
    task.cancel()
    return False


async def _forever(work):
    """Runs `work` again after an error: a hiccup of the disk or of Ray ends no server."""
    while True:
        try:
            await work()
        except Exception as error:
            say_unexpected(error)
            await asyncio.sleep(1)
