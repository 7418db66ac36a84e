"""`python -m keras_transformer`, and the command `keras-transformer`."""

import os
import signal
import sys
from typing import NoReturn


def start() -> NoReturn:
    """Runs the command line; Ctrl-C is one line also while Python imports the package."""
    was_interrupted = False

    def interrupt(number, frame):
        nonlocal was_interrupted
        was_interrupted = True
        signal.default_int_handler(number, frame)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        from keras_transformer.cli.main import main

        main()
    except (KeyboardInterrupt, Exception):  # pydantic raises an error of its own instead.
        if not was_interrupted:
            raise
        print("keras-transformer: interrupted", file=sys.stderr, flush=True)
        os._exit(130)  # A thread may stay in TensorFlow for long.


if __name__ == "__main__":
    start()
