"""A server under load, and its cold start.

python -m benchmarks.serve load --url http://127.0.0.1:8501/v1/models/NAME --text FILE
python -m benchmarks.serve routes --url URL --text FILE
python -m benchmarks.serve load --url URL --text FILE --rate 400 --seconds 600 --memory-of 4321
python -m benchmarks.serve cold-start SAVED_MODEL LITERT CTRANSLATE2
python -m benchmarks.serve compare --model EXPORT --text FILE
"""

import asyncio
import collections
import contextlib
import itertools
import json
import math
import pathlib
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import psutil

from benchmarks import command_line
from benchmarks.command_line import Report, log, markdown
from keras_transformer.errors import InputError

_OUTSTANDING = 10_000  # requests without an answer
_MEMORY_EVERY_SECONDS = 10.0
_SERVE = [sys.executable, "-m", "keras_transformer", "serve"]
_ADDRESS = re.compile(r"(http://[^/\s]+)(/v1/models/\S+)")
# The application as a deployment of Ray Serve here, which tells its address as `serve` does.
_RAY = """
import os, signal, sys
from keras_transformer.cluster import ClusterOptions, build_app
from keras_transformer.cluster.files import private_ray

model, port = sys.argv[1:]
with private_ray(os.cpu_count(), 100 * 2**20):
    from ray import serve

    serve.start(http_options={"host": "127.0.0.1", "port": int(port)})
    options = ClusterOptions(model=model, name="measured")
    serve.run(build_app(options), name="measured", route_prefix="/")
    print(f"http://127.0.0.1:{port}/v1/models/measured", file=sys.stderr, flush=True)
    signal.sigwait({signal.SIGTERM})
    serve.shutdown()
"""

Route = Literal["predict", "translate"]


class _Requests(NamedTuple):
    """Requests of a route: their address, the body of some texts, the translations of an answer."""

    url: str
    body: Callable[[list[str]], dict[str, Any]]
    columns: Callable[[dict[str, Any]], Iterable[Sequence]]


def _requests_of(url, route, signature):
    if route == "predict":

        def outputs_of(answer):
            outputs = answer["outputs"]
            return outputs.values() if isinstance(outputs, dict) else [outputs]

        return _Requests(
            f"{url}:predict",
            lambda texts: {"signature_name": signature, "inputs": {"text": texts}},
            outputs_of,
        )
    server = url.partition("/v1/")[0]
    with urllib.request.urlopen(f"{server}/languages") as answer:
        first = json.load(answer)[0]
    source = first["code"]
    target = next(code for code in first["targets"] if code != source)
    return _Requests(
        f"{server}/translate",
        lambda texts: {"q": texts, "source": source, "target": target},
        lambda answer: [answer["translatedText"]],
    )


async def _watch_memory(process, samples):
    """Appends seconds and private megabytes of a process and its children, again and again."""
    start = time.monotonic()
    while True:
        total = _private_memory([process, *process.children(recursive=True)])
        samples.append([round(time.monotonic() - start), round(total)])
        await asyncio.sleep(_MEMORY_EVERY_SECONDS)


def _private_memory(processes):
    """Returns the MiB that processes do not share."""
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            memory = process.memory_info()
            total += memory.rss - memory.shared
    return total / 2**20


def load(
    url: str,
    text: pathlib.Path,
    route: Route = "predict",
    signature: str = "serving_default",
    clients: int = 32,
    rate: float | None = None,
    seconds: float = 10.0,
    requests: int = 1_000_000,
    sentences: int = 1,
    timeout: float = 60.0,
    memory_of: int | None = None,
) -> Report:
    """Latencies and throughput of a running server, by aiohttp.

    Clients that wait for their answers measure capacity. With `--rate` requests come whether or not
    answers do, and a request's time is counted from when it was due, so that a slow server cannot
    hide by slowing the clients down.

    Args:
        url: http://HOST:PORT/v1/models/NAME.
        text: Sentences to send, in random order.
        route: predict asks as a client of TensorFlow Serving, translate of LibreTranslate.
        signature: Signature to call with the route predict.
        clients: Number of clients.
        rate: Requests per second, instead of clients.
        seconds: Time in which requests are sent.
        requests: Largest number of requests.
        sentences: Number of sentences per request.
        timeout: Seconds to wait for an answer.
        memory_of: Id of a process whose memory, with its children's, is watched.
    """
    import aiohttp
    import uvloop  # The clients take less of the server's machine.

    for name in ("clients", "rate", "seconds", "requests", "sentences", "timeout"):
        if (value := locals()[name]) is not None and not value > 0:
            raise InputError(f"`--{name}` must be more than 0. Received: {value}.")
    lines = [line for line in text.read_text(encoding="utf-8").split("\n") if line.strip()]
    random.Random(1).shuffle(lines)
    texts = itertools.cycle(lines)
    asked = _requests_of(url, route, signature)
    statuses: collections.Counter[str] = collections.Counter()
    answered: list[float] = []
    memory: list[list[int]] = []
    incomplete = 0

    async def send(session, due):
        nonlocal incomplete
        body = asked.body(list(itertools.islice(texts, sentences)))
        try:
            async with session.post(asked.url, json=body) as answer:
                status, content = answer.status, await answer.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            status = type(error).__name__
        statuses[str(status)] += 1
        if status == 200:
            answered.append(time.monotonic() - due)
            columns = asked.columns(json.loads(content))
            incomplete += any(len(column) != sentences for column in columns)

    async def closed_loop(session, deadline):
        left = iter(range(requests))

        async def client():
            while time.monotonic() < deadline and next(left, None) is not None:
                await send(session, time.monotonic())

        await asyncio.gather(*(client() for _ in range(clients)))

    async def open_loop(session, deadline):
        times, due, tasks = random.Random(1), time.monotonic(), set()
        for _ in range(requests):
            due += times.expovariate(rate)
            if due >= deadline:
                break
            await asyncio.sleep(max(due - time.monotonic(), 0))
            if len(tasks) >= _OUTSTANDING:
                statuses["not sent: too many outstanding"] += 1
                continue
            tasks.add(task := asyncio.create_task(send(session, due)))
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)

    async def all_requests():
        if memory_of is not None:
            watching = asyncio.create_task(_watch_memory(psutil.Process(memory_of), memory))
        options = {"timeout": aiohttp.ClientTimeout(total=timeout)}
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, **options) as session:
            await (open_loop if rate else closed_loop)(session, time.monotonic() + seconds)
        if memory_of is not None:
            watching.cancel()

    start = time.monotonic()
    uvloop.run(all_requests())
    elapsed = time.monotonic() - start
    shares = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))
    figures: dict[str, Any] = {
        **({"rate": rate} if rate else {"clients": clients}),
        "route": route,
        "signature": signature,
        "sentences_per_request": sentences,
        "seconds": round(elapsed, 1),
        "statuses": dict(statuses),
        "incomplete_answers": incomplete,
        "sentences_per_second": round(len(answered) * sentences / elapsed, 1),
        "milliseconds": {
            name: round(1000 * percentile(answered, share), 1) if answered else None
            for name, share in shares
        },
    }
    if memory:
        figures["memory_megabytes"] = memory
    row = {f"{name} ms": value for name, value in figures["milliseconds"].items()}
    row = {"sentences/s": figures["sentences_per_second"], **row, **figures["statuses"]}
    return Report(figures, markdown([row]))


def routes(
    url: str, text: pathlib.Path, clients: int = 32, seconds: float = 10.0, rounds: int = 5
) -> Report:
    """Throughput of both protocols of a running server, interleaved.

    Args:
        url: http://HOST:PORT/v1/models/NAME.
        text: Sentences to send, in random order.
        clients: Number of clients.
        seconds: Time in which the requests of a round are sent.
        rounds: Number of rounds, of which every other one begins with the second route.
    """
    rates: dict[Route, list[float]] = {route: [] for route in get_args(Route)}
    for number in range(rounds):
        for route in list(rates)[:: -1 if number % 2 else 1]:
            figures = load(url, text, route, clients=clients, seconds=seconds).figures
            if list(figures["statuses"]) != ["200"] or figures["incomplete_answers"]:
                raise InputError(f"All requests must be answered. Received: {figures['statuses']}.")
            rates[route].append(figures["sentences_per_second"])
    ratios = [translate / predict for predict, translate in zip(*rates.values(), strict=True)]
    ratio = round(statistics.median(ratios), 3)
    rows = [{"route": route, "requests/s": statistics.median(rates[route])} for route in rates]
    return Report({"requests_per_second": rates, "ratio": ratio}, markdown(rows))


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the smallest value that at least `share` of the values do not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def cold_start(models: Sequence[str], /, rounds: int = 3) -> dict[str, Any]:
    """Seconds from `keras-transformer serve` until `/readyz` says 200.

    A first start, which fills the compilation cache, is reported separately.

    Args:
        models: Exports, or directories of numbered exports.
        rounds: Number of further starts.
    """
    report = {}
    for model in models:
        first, *others = (_seconds_until_ready(model) for _ in range(rounds + 1))
        report[model] = {"first": first, "seconds": others}
        log(f"{model}: {report[model]}")
    return report


def _seconds_until_ready(model):
    with _served([*_SERVE, "--model", model, "--name", "measured", "--port", "0"]) as server:
        return server.ready_seconds


class _Served(NamedTuple):
    """A running server: its process, its model's URL, and the seconds of its start."""

    process: subprocess.Popen
    url: str
    ready_seconds: float


@contextlib.contextmanager
def _served(command):
    """Yields a server that is ready, and ends it."""
    with tempfile.NamedTemporaryFile() as file:
        start = time.monotonic()
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file)
        try:
            while not _is_ready(log_text := pathlib.Path(file.name).read_text(errors="replace")):
                if server.poll() is not None:
                    raise InputError(log_text[-2000:])
                time.sleep(0.2)
            seconds = round(time.monotonic() - start, 1)
            yield _Served(server, "".join(_ADDRESS.findall(log_text)[0]), seconds)
        finally:
            server.terminate()
            server.wait()


def compare(
    model: str, text: pathlib.Path, clients: Sequence[int] = (1, 16, 64), seconds: float = 10.0
) -> Report:
    """`keras-transformer serve` and the same application on Ray Serve, one after the other.

    Args:
        model: An export, or a directory of numbered exports.
        text: Sentences to send, in random order.
        clients: Numbers of clients.
        seconds: Time in which requests are sent, for each number of clients.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    commands = {
        "serve": [*_SERVE, "--model", model, "--name", "measured", "--port", "0"],
        "Ray Serve": [sys.executable, "-c", _RAY, model, port],
    }
    rows = []
    for name, command in commands.items():
        with _served(command) as server:
            row: dict[str, Any] = {"server": name, "ready s": server.ready_seconds}
            load(server.url, text, seconds=seconds)
            for count in clients:
                figures = load(server.url, text, clients=count, seconds=seconds).figures
                if list(figures["statuses"]) != ["200"]:
                    raise InputError(f"All must be answered. Received: {figures['statuses']}.")
                row[f"requests/s, {count} clients"] = figures["sentences_per_second"]
            process = psutil.Process(server.process.pid)
            members = [process, *process.children(recursive=True)]
            row["processes"], row["MiB"] = len(members), round(_private_memory(members))
            started = time.monotonic()
        row["end s"] = round(time.monotonic() - started, 1)
        rows.append(row)
    return Report({"servers": rows}, markdown(rows))


def _is_ready(log_text):
    """Asks the server that printed its address."""
    address = _ADDRESS.search(log_text)
    try:
        return bool(address) and urllib.request.urlopen(f"{address[1]}/readyz").status == 200
    except urllib.error.URLError:
        return False


def main(arguments: Sequence[str] | None = None) -> None:
    command_line.run(load, routes, cold_start, compare, arguments=arguments)


if __name__ == "__main__":
    main()
