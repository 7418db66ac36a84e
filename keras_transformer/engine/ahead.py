"""Compiles programs together, in threads, before the first of them runs."""

import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

_logger = logging.getLogger(__name__)  # The command line shows its messages.


class Program(NamedTuple):
    """A program that is traced and not yet compiled.

    Attributes:
        name: What it computes, in words.
        compile: Function that compiles it, which any thread may call.
    """

    name: str
    compile: Callable[[], object]


class Ahead:
    """Compiles all programs that it is given at once, and tells how many are left.

    XLA's compiler works outside Python's lock, so that threads suffice.

    Args:
        tell: Function that shows a line.
    """

    def __init__(self, tell: Callable[[str], object] = _logger.info):
        self._tell, self._futures = tell, dict[str, concurrent.futures.Future]()
        self._lock, self._left = threading.Lock(), 0

    def add(self, program: Program) -> None:
        """Begins to compile a program."""
        future: concurrent.futures.Future = concurrent.futures.Future()
        with self._lock:
            self._left += 1
        # A daemon, unlike the threads of a pool: a process that ends does not wait for it.
        threading.Thread(target=self._run, args=(program, future), daemon=True).start()
        self._futures[program.name] = future

    def _run(self, program, future):
        try:
            self._compile(program)
        except BaseException as error:
            _logger.debug("the line of %s: %s", program.name, error)
        finally:  # Whatever has failed, the calls that wait go on.
            future.set_result(None)

    def _compile(self, program):
        start = time.perf_counter()
        try:
            program.compile()
        except BaseException as error:
            # The call that needs the program compiles it again, and raises the error.
            _logger.debug("%s: %s", program.name, error)
        with self._lock:
            self._left -= 1
            left = self._left
        self._tell(self._line(program.name, time.perf_counter() - start, left))

    @staticmethod
    def _line(name, seconds, left):
        rest = "" if left == 0 else f"; {left} {'program is' if left == 1 else 'programs are'} left"
        return f"compiled {name} in {seconds:.1f} s{rest}"

    def wait(self, name: str | None = None) -> None:
        """Waits for a program, or for all of them; a name that was not added takes no time."""
        futures = self._futures.values() if name is None else [self._futures.get(name)]
        concurrent.futures.wait([future for future in futures if future is not None])


def compile_together(programs: Iterable[Program]) -> None:
    """Compiles programs at once, and returns when all of them are compiled."""
    ahead = Ahead()
    for program in programs:
        ahead.add(program)
    ahead.wait()
