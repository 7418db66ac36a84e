"""Keeps TensorFlow's messages on the machine out of a command's own."""

import contextlib
import os
import sys


def silence_tensorflow():
    """Silences all but TensorFlow's errors, unless the user has set `TF_CPP_MIN_LOG_LEVEL`.

    Child processes inherit the level. What the C++ side writes before it reads that level, while
    it is loaded and looks for a GPU, is kept back by the import itself.
    """
    if "TF_CPP_MIN_LOG_LEVEL" in os.environ:
        return
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    if "tensorflow" not in sys.modules:
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds `tensorflow`, to be imported with file descriptor 2 kept back."""

    def find_spec(self, name, path=None, target=None):
        if name != "tensorflow":
            return None
        import importlib.util

        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            load = spec.loader.exec_module
            spec.loader.exec_module = lambda module: _load_quietly(load, module)
        return spec


def _load_quietly(load, module):
    import glob

    with _kept_back() as show:
        load(module)
        found = module.config.list_physical_devices("GPU")
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
        # A GPU that cannot be used is an error; none at all is not.
        if not found and not hidden and glob.glob("/dev/nvidia[0-9]*"):
            show()


@contextlib.contextmanager
def _kept_back():
    """Keeps back what is written to file descriptor 2; it is shown if the block asks or fails."""
    import tempfile

    stderr = os.dup(2)
    with tempfile.TemporaryFile() as kept, contextlib.ExitStack() as at_end:
        os.dup2(kept.fileno(), 2)
        at_end.callback(os.close, stderr)

        def show():
            kept.seek(0)
            os.write(stderr, kept.read())

        try:
            yield show
        except BaseException:
            show()
            raise
        finally:
            os.dup2(stderr, 2)
