"""What the server writes to stderr."""

import sys
import time
import traceback

_last_traceback = -1.0


def say(message):
    """Writes one line."""
    print(f"keras-transformer serve: {message}", file=sys.stderr, flush=True)


def say_unexpected(error, where=None):
    """Writes an error that nobody foresaw, with its traceback at most once in a second.

    Args:
        error: The exception.
        where: Its traceback as text, of an error of another process; None takes the exception's.
    """
    global _last_traceback
    say(f"unexpected error: {type(error).__name__}: {error}"[:500])
    now = time.monotonic()
    # A client that has found a way to cause them must not fill the disk.
    if _last_traceback < 0 or now - _last_traceback >= 1:
        _last_traceback = now
        text = where or "".join(traceback.format_exception(error))
        print(text, file=sys.stderr, flush=True)
