"""A small REST server of Bergamot's own engine, with LibreTranslate's `/translate`.

python -m benchmarks.bergamot_server PYTHON STUDENT --port 8502 --threads 2

The engine keeps Python's lock while it translates, so it runs in other processes. A process takes
the texts of all waiting requests at once, and its threads share them.
"""

import asyncio
import concurrent.futures
import itertools
import pathlib
import queue
import threading
from collections.abc import Callable, Sequence

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from benchmarks import command_line
from benchmarks.bergamot import Bergamot

_WORDS = 1024  # of a batch


def application(engines: Sequence[Callable[[list[str]], list[str]]]) -> Starlette:
    """Returns the application of engines, each of which translates in a thread of its own."""
    waiting: queue.SimpleQueue = queue.SimpleQueue()

    def run(engine):
        while True:
            requests = [waiting.get()]
            while not waiting.empty():
                requests.append(waiting.get())
            texts = itertools.chain.from_iterable(texts for texts, _ in requests)
            translations = iter(engine([*texts]))
            for texts, future in requests:
                future.set_result([*itertools.islice(translations, len(texts))])

    for engine in engines:
        threading.Thread(target=run, args=(engine,), daemon=True).start()

    async def translate(request: Request):
        future: concurrent.futures.Future = concurrent.futures.Future()
        waiting.put(((await request.json())["q"], future))
        return JSONResponse({"translatedText": await asyncio.wrap_future(future)})

    async def languages(request: Request):
        return JSONResponse([{"code": "source", "targets": ["target"]}])

    return Starlette(
        routes=[Route("/translate", translate, methods=["POST"]), Route("/languages", languages)]
    )


def serve(
    python: str, student: pathlib.Path, /, port: int, threads: int = 1, processes: int = 1
) -> None:
    """Answers texts until it is stopped.

    Args:
        python: Python of an environment with `bergamot`.
        student: Directory of `model.*.bin`, `vocab.*.spm` and `lex.*.bin`.
        port: Port on this machine.
        threads: Threads of a process.
        processes: Processes with the engine.
    """
    import uvicorn

    engines = [Bergamot(python, student, True, _WORDS, threads=threads) for _ in range(processes)]
    try:
        uvicorn.run(application(engines), port=port, log_level="warning")
    finally:
        for engine in engines:
            engine.close()


def main(arguments: Sequence[str] | None = None) -> None:
    command_line.run(serve, arguments=arguments)


if __name__ == "__main__":
    main()
