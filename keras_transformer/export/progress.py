"""How far an export is: a line for each phase, to the logger that the command line shows."""

import contextlib
import logging
import time
from collections.abc import Iterator

_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def phase(what: str) -> Iterator[None]:
    """Logs what was done in the context, and the seconds that it took."""
    start = time.perf_counter()
    yield
    _logger.info("%s: %.1f s", what, time.perf_counter() - start)
