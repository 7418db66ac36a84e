"""A server under load, its cold start, and other servers.

python -m benchmarks.serve load --url http://127.0.0.1:8501/v1/models/NAME --text FILE
python -m benchmarks.serve routes --url URL --text FILE
python -m benchmarks.serve load --url URL --text FILE --rate 400 --seconds 600 --memory-of 4321
python -m benchmarks.serve cold-start SAVED_MODEL LITERT CTRANSLATE2
python -m benchmarks.serve compare --model EXPORT --text FILE --libretranslate PYTHON PACKAGE
python -m benchmarks.serve compare --model EXPORT --text FILE --bergamot PYTHON STUDENT
python -m benchmarks.serve memory --model EXPORT --text FILE --libretranslate PYTHON PACKAGE
"""

import asyncio
import collections
import contextlib
import itertools
import json
import math
import pathlib
import random
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import psutil

from benchmarks import command_line
from benchmarks.command_line import Panel, Report, log, markdown
from benchmarks.servers import SERVE, Name, commands, served
from keras_transformer.base.errors import InputError

_OUTSTANDING = 10_000  # requests without an answer
_MEMORY_EVERY_SECONDS = 5.0
_SAMPLE = 50  # texts whose translations are compared
_LONGEST = 20  # lines of a text
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
        directions = [
            (language["code"], target)
            for language in json.load(answer)
            for target in language["targets"]
            if target != language["code"]
        ]
    source, target = directions[0]
    return _Requests(
        f"{server}/translate",
        lambda texts: {"q": texts, "source": source, "target": target},
        lambda answer: [answer["translatedText"]],
    )


def _lines(text):
    """Returns the lines of a file that are not blank, in random order."""
    lines = [line for line in text.read_text(encoding="utf-8").split("\n") if line.strip()]
    random.Random(1).shuffle(lines)
    return lines


async def _watch_memory(process, statuses, samples):
    """Appends seconds, answers and mebibytes of a process and its children, again and again."""
    start = time.monotonic()
    while True:
        seconds = round(time.monotonic() - start)
        samples.append([seconds, sum(statuses.values()), round(_memory(process))])
        await asyncio.sleep(_MEMORY_EVERY_SECONDS)


def _memory(process):
    """Returns the MiB of a process and its children, of shared pages each process its part."""
    total = 0
    for member in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            total += member.memory_full_info().pss
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
    texts = itertools.cycle(_lines(text))
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
            watching = asyncio.create_task(
                _watch_memory(psutil.Process(memory_of), statuses, memory)
            )
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
            rates[route].append(_rate(url, text, route, clients, seconds))
    ratios = [translate / predict for predict, translate in zip(*rates.values(), strict=True)]
    ratio = round(statistics.median(ratios), 3)
    rows = [{"route": route, "requests/s": statistics.median(rates[route])} for route in rates]
    return Report({"requests_per_second": rates, "ratio": ratio}, markdown(rows))


def _rate(url, text, route, clients, seconds):
    """Returns the requests per second that were all answered."""
    figures = load(url, text, route, clients=clients, seconds=seconds).figures
    if list(figures["statuses"]) != ["200"] or figures["incomplete_answers"]:
        raise InputError(f"All requests must be answered. Received: {figures['statuses']}.")
    return figures["sentences_per_second"]


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
    with served([*SERVE, "--model", model], "/readyz") as server:
        return server.ready_seconds


def _translations(url, texts):
    """Returns the translations of texts by a server."""
    asked = _requests_of(url, "translate", "")
    body = json.dumps(asked.body(texts)).encode()
    request = urllib.request.Request(asked.url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        (translations,) = asked.columns(json.load(answer))
    changed = sum(
        bool(new.strip()) and new != text for text, new in zip(texts, translations, strict=True)
    )
    if 2 * changed < len(texts):
        raise InputError(f"{url}: expected translations. Received: {translations[:3]}.")
    return translations


def compare(
    model: str,
    text: pathlib.Path,
    libretranslate: Sequence[str] = (),
    bergamot: Sequence[str] = (),
    servers: Sequence[Name] = get_args(Name),
    clients: Sequence[int] = (1, 16, 64),
    seconds: float = 10.0,
) -> Report:
    """`keras-transformer serve` and other servers, one after the other, each at its best setting.

    All are asked as LibreTranslate is. Settings are tried with 16 clients, in half the time.

    Args:
        model: An export that knows its languages.
        text: Sentences to send, in random order.
        libretranslate: Python of an environment with `libretranslate` and `gunicorn`, and its model
            as a file of `export --format argos`.
        bergamot: Python of an environment with `bergamot`, and its model as a directory of
            `model.*.bin`, `vocab.*.spm` and `lex.*.bin`.
        servers: Servers to compare.
        clients: Numbers of clients.
        seconds: Time in which requests are sent, for each number of clients.
    """
    rows, sample, first = [], _lines(text)[:_SAMPLE], None
    others = {"libretranslate": libretranslate, "bergamot": bergamot}
    with tempfile.TemporaryDirectory() as folder:
        for name, settings in commands(servers, pathlib.Path(folder), model, others).items():
            rates = {}
            for setting, command in settings.items():
                with served(command) as server:
                    _translations(server.url, sample)
                    rates[setting] = _rate(server.url, text, "translate", 16, seconds / 2)
            log(f"{name}: {rates}")
            best = max(rates, key=rates.__getitem__)
            started = time.monotonic()
            with served(settings[best]) as server:
                _translations(server.url, sample[:1])
                row: dict[str, Any] = {"server": name, "best setting": best}
                row["ready s"] = round(time.monotonic() - started, 1)
                translations = _translations(server.url, sample)
                first = first or translations
                _rate(server.url, text, "translate", 16, seconds / 2)  # It warms up.
                for count in clients:
                    rate = _rate(server.url, text, "translate", count, seconds)
                    row[f"requests/s, {count} clients"] = rate
                row["processes"] = 1 + len(server.process.children(recursive=True))
                row["MiB (PSS)"] = round(_memory(server.process))
                started = time.monotonic()
            row["end s"] = round(time.monotonic() - started, 1)
            equal = sum(map(str.__eq__, translations, first))
            row["equal texts"] = f"{equal} of {len(first)}"
            rows.append({**row, "settings": rates})
            log(rows[-1])
    table = [{key: value for key, value in row.items() if key != "settings"} for row in rows]
    return Report({"servers": rows}, markdown(table))


def memory(
    model: str,
    text: pathlib.Path,
    libretranslate: Sequence[str] = (),
    bergamot: Sequence[str] = (),
    servers: Sequence[Name] = ("serve", "libretranslate"),
    clients: int = 16,
    requests: int = 100_000,
    seconds: float = 600.0,
    plot: pathlib.Path | None = None,
) -> Report:
    """Memory of servers while they answer texts of one to 20 lines, each at its usual setting.

    Args:
        model: An export that knows its languages.
        text: Lines, of which random lines make the texts; a text of many lines is rare.
        libretranslate: Python of its environment, and its model, as of `compare`.
        bergamot: Python of its environment, and its model, as of `compare`.
        servers: Servers to watch.
        clients: Number of clients.
        requests: Largest number of requests for each server.
        seconds: Longest time for each server.
        plot: Path of a picture of the memory over the requests, PNG or SVG.
    """
    lines, drawn, curves, rows = _lines(text), random.Random(1), {}, []
    others = {"libretranslate": libretranslate, "bergamot": bergamot}
    with tempfile.TemporaryDirectory() as folder:
        varied = pathlib.Path(folder, "varied.txt")
        sizes = [min(int(drawn.paretovariate(2)), _LONGEST) for _ in range(requests)]
        texts = (" ".join(drawn.choices(lines, k=size)) for size in sizes)
        varied.write_text("\n".join(texts), encoding="utf-8")
        for name, settings in commands(servers, pathlib.Path(folder), model, others).items():
            with served(next(iter(settings.values()))) as server:
                _translations(server.url, lines[:_SAMPLE])
                limits: dict[str, Any] = {"requests": requests, "seconds": seconds}
                watched = {"clients": clients, "memory_of": server.process.pid}
                figures = load(server.url, varied, "translate", **limits, **watched).figures
                last = round(_memory(server.process))
            statuses, count = figures["statuses"], sum(figures["statuses"].values())
            curve = {done: size for _, done, size in figures["memory_megabytes"]} | {count: last}
            curves[name], first = curve, next(iter(curve.values()))
            row = {"server": name, "requests": count, "errors": count - statuses.get("200", 0)}
            row |= {"seconds": figures["seconds"], "MiB at the start": first}
            row["after a tenth"] = next(size for done, size in curve.items() if done >= count / 10)
            rows.append(row | {"at the end": last})
            log(rows[-1])
    if plot:
        panel = Panel(curves, "requests", "MiB (sum of PSS)")
        command_line.plot(plot, panel)
    return Report({"servers": rows, "curves": curves}, markdown(rows))


def main(arguments: Sequence[str] | None = None) -> None:
    command_line.run(load, routes, cold_start, compare, memory, arguments=arguments)


if __name__ == "__main__":
    main()
