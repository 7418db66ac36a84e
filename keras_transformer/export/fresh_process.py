"""Program of a new process, in which packages that users may lack are hidden.

`child_process.ChildProcess` runs `python -P fresh_process.py DESCRIPTOR`, which answers requests
from a pipe.
"""

import contextlib
import ctypes
import importlib
import re
import runpy
import signal
import sys
import traceback
from multiprocessing.connection import Connection

_PR_SET_PDEATHSIG = 1  # of linux/prctl.h


def function_of(name, root):
    """Returns the function `MODULE:FUNCTION` or `FILE.py:FUNCTION`.

    `root` is the directory with this package, which a file need not import.
    """
    place, _, function = name.rpartition(":")
    if place.endswith(".py"):
        return runpy.run_path(place)[function]
    sys.path.insert(0, root)  # this package, even if another version is installed
    return getattr(importlib.import_module(place), function)


def end_with_parent():
    """Lets Linux end this process at once when its parent process ends."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def message_of(error, hidden):
    """Returns the line about an error, which is the last one on stderr."""
    if isinstance(error, ImportError) and error.name in hidden:
        return f"it imports {error.name}, which is hidden from it"
    # Keras' first line names the layer, and the second one the cause, in bold.
    lines = re.sub("\x1b\\[[0-9]*m", "", str(error)).strip().splitlines()
    lines = [line for line in lines if line]
    return f"{type(error).__name__}: {' '.join(lines[:2]) or 'no message'}"


def main(descriptor):
    with Connection(int(descriptor)) as pipe:
        name, root, hidden, arguments = pipe.recv()
        # None in `sys.modules` makes the import of a module raise ImportError.
        sys.modules.update(dict.fromkeys(hidden))
        try:
            answer = function_of(name, root)(**arguments)
            while True:
                pipe.send(answer(**pipe.recv()))
        except EOFError:  # No request will follow.
            pass
        except Exception as error:
            traceback.print_exc()
            sys.exit(message_of(error, hidden))


if __name__ == "__main__":
    end_with_parent()
    main(sys.argv[1])
