"""Loads a running server and reports latencies and throughput, by aiohttp, which Ray brings.

A closed loop has N clients that each wait for an answer before they ask again: it measures
capacity. An open loop sends at a fixed rate whether or not answers come, as the world does: it
measures what happens under a load, and counts a request's time from when it was due, so that a
slow server cannot hide by slowing the clients down.

    python -m benchmarks.load_test --url http://127.0.0.1:8501/v1/models/NAME --text FILE \\
        --clients 32 --seconds 20
    python -m benchmarks.load_test --url ... --text FILE --rate 400 --seconds 600 \\
        --memory-of 4321
"""

import argparse
import asyncio
import collections
import json
import math
import os
import pathlib
import random
import sys
import time


class Client:
    """Connections to one server, kept open and used again."""

    def __init__(self, url, timeout):
        import aiohttp

        self._url, self._errors = f"{url}:predict", (aiohttp.ClientError, TimeoutError)
        limits = aiohttp.ClientTimeout(total=timeout)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=limits,
            headers={"content-type": "application/json"},
        )

    async def post(self, body):
        """Sends a body; gives the status, or the name of what went wrong, and the answer."""
        try:
            async with self._session.post(self._url, data=body) as answer:
                return answer.status, await answer.read()
        except self._errors as error:
            return type(error).__name__, b""

    async def close(self):
        await self._session.close()


class Results:
    """What came back."""

    def __init__(self):
        self.statuses = collections.Counter()
        self.seconds = []
        self.wrong = 0

    def add(self, status, seconds, answer, sentences):
        self.statuses[status] += 1
        if status == 200:
            self.seconds.append(seconds)
            self.wrong += not _whole(answer, sentences)


def _whole(answer, sentences):
    """Whether an answer has as many values as were asked for."""
    outputs = json.loads(answer)["outputs"]
    columns = outputs.values() if isinstance(outputs, dict) else [outputs]
    return all(len(column) == sentences for column in columns)


async def closed_loop(client, bodies, clients, deadline, most, sentences, results):
    """`clients` clients that ask one after another until the deadline, or `most` requests."""
    left = iter(range(most))

    async def work():
        while time.monotonic() < deadline and next(left, None) is not None:
            started = time.monotonic()
            status, answer = await client.post(next(bodies))
            results.add(status, time.monotonic() - started, answer, sentences)

    await asyncio.gather(*(work() for _ in range(clients)))


async def open_loop(client, bodies, rate, deadline, most, sentences, outstanding, results, seed):
    """Requests at random times, `rate` a second on average, until the deadline."""
    times, tasks = random.Random(seed), set()
    due = time.monotonic()

    async def ask(due):
        status, answer = await client.post(next(bodies))
        results.add(status, time.monotonic() - due, answer, sentences)

    for _ in range(most):
        due += times.expovariate(rate)
        if due >= deadline:
            break
        await asyncio.sleep(max(due - time.monotonic(), 0))
        if len(tasks) >= outstanding:
            results.statuses["not sent: too many outstanding"] += 1
            continue
        task = asyncio.create_task(ask(due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    while tasks:
        await asyncio.wait(tasks)


async def watch_memory(process, every, samples):
    """Resident megabytes of a process and all below it, again and again."""
    started = time.monotonic()
    while True:
        samples.append([round(time.monotonic() - started), resident_megabytes(process)])
        await asyncio.sleep(every)


def resident_megabytes(process):
    """Private memory of a process tree: what its processes share is counted once at most."""
    children = collections.defaultdict(list)
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = pathlib.Path("/proc", entry, "stat").read_text()
            except OSError:
                continue
            children[int(stat.rpartition(")")[2].split()[1])].append(int(entry))
    total, left = 0, [process]
    while left:
        each = left.pop()
        left += children[each]
        try:
            status = pathlib.Path("/proc", str(each), "status").read_text()
        except OSError:
            continue
        total += sum(
            int(line.split()[1])
            for line in status.splitlines()
            if line.startswith(("RssAnon:", "RssShmem:"))
        )
    return round(total / 1024)


def percentile(values, share):
    """The smallest value that at least `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)] if ordered else None


def _bodies(options):
    lines = pathlib.Path(options.text).read_text(encoding="utf-8").split("\n")
    lines = [line for line in lines if line.strip()]
    random.Random(options.seed).shuffle(lines)
    place = 0
    while True:
        texts = [lines[(place + i) % len(lines)] for i in range(options.sentences)]
        place += options.sentences
        request = {"signature_name": options.signature, "inputs": {"text": texts}}
        yield json.dumps(request).encode("utf-8")


async def run(options):
    """Runs the load and gives the report."""
    client, results, memory = Client(options.url, options.timeout), Results(), []
    watching = options.memory_of and asyncio.create_task(
        watch_memory(options.memory_of, options.memory_every, memory)
    )
    started = time.monotonic()
    deadline, bodies = started + options.seconds, _bodies(options)
    if options.rate:
        await open_loop(
            client,
            bodies,
            options.rate,
            deadline,
            options.requests,
            options.sentences,
            options.outstanding,
            results,
            options.seed,
        )
    else:
        await closed_loop(
            client, bodies, options.clients, deadline, options.requests, options.sentences, results
        )
    seconds = time.monotonic() - started
    if watching:
        watching.cancel()
    await client.close()
    done = len(results.seconds)
    return {
        "loop": "open" if options.rate else "closed",
        **({"rate": options.rate} if options.rate else {"clients": options.clients}),
        "signature": options.signature,
        "sentences_per_request": options.sentences,
        "seconds": round(seconds, 1),
        "statuses": {str(key): value for key, value in results.statuses.items()},
        "answers_that_miss_sentences": results.wrong,
        "sentences_per_second": round(done * options.sentences / seconds, 1),
        "milliseconds": {
            name: round(1000 * percentile(results.seconds, share), 1) if done else None
            for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))
        },
        **({"memory_megabytes": memory} if memory else {}),
    }


def table(report):
    """The report as a table of two columns."""
    rows = [(key, value) for key, value in report.items() if not isinstance(value, dict | list)]
    rows += [(f"{key} ms", value) for key, value in report["milliseconds"].items()]
    rows += [(f"status {key}", value) for key, value in sorted(report["statuses"].items())]
    memory = [value for _, value in report.get("memory_megabytes", [])]
    if memory:
        rows.append(
            ("memory MB, first .. last (most)", f"{memory[0]} .. {memory[-1]} ({max(memory)})")
        )
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _loop_factory():
    """uvloop's where it is installed: on the server's own machine the clients take less of it."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.load_test", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--url", required=True, help="http://HOST:PORT/v1/models/NAME")
    parser.add_argument("--text", required=True, metavar="FILE", help="sentences, one a line")
    parser.add_argument("--signature", default="serving_default")
    loop = parser.add_mutually_exclusive_group()
    loop.add_argument("--clients", type=int, default=32, help="closed loop; default: 32")
    loop.add_argument("--rate", type=float, help="open loop: requests a second")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--requests", type=int, default=1_000_000, help="at most so many")
    parser.add_argument("--sentences", type=int, default=1, help="a request")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for an answer")
    parser.add_argument("--outstanding", type=int, default=10_000, help="requests without answer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--memory-of", type=int, metavar="PID", help="watch this process tree")
    parser.add_argument("--memory-every", type=float, default=10.0, metavar="SECONDS")
    options = parser.parse_args(arguments)
    for name in ("clients", "rate", "seconds", "requests", "sentences", "timeout", "outstanding"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            parser.error(f"--{name} must be more than 0. Received: {value}")
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        report = runner.run(run(options))
    print(table(report), file=sys.stderr)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
