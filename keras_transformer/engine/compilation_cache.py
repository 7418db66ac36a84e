"""XLA's persistent compilation cache: what one command compiles, the next one reads from a folder.

The commands switch it on, an import never does. The folder holds machine code that is run as it
stands: it is private to its user, and has a subfolder for each version and processor. Nothing is
written or deleted but in subfolders that were made and marked here, and hold only programs.
"""

import contextlib
import hashlib
import importlib.metadata
import itertools
import os
import platform
import re
import shutil
import stat
import warnings
from pathlib import Path

VARIABLE = "KERAS_TRANSFORMER_COMPILATION_CACHE"
"""The environment variable with the folder to use instead of the default, or `off`."""

LIMIT_BYTES = 512 * 2**20
"""Most that the folder keeps; also what the disk must have free."""

_MARK = "MADE_BY_KERAS_TRANSFORMER"
# Files that TensorFlow and JAX write, as paths in a marked folder.
_PROGRAM = re.compile(r"[^/]+\.(pb|tmp)|jax/.+")

_TENSORFLOW_FLAG = "--tf_xla_persistent_cache_directory"
_JAX_VARIABLE = "JAX_COMPILATION_CACHE_DIR"


def enable_compilation_cache() -> None:
    """Switches the cache on for this process and its children.

    Called before TensorFlow or JAX compiles anything: they read it from the environment. The user's
    own settings there stay. A warning says why a folder cannot be used.
    """
    value = os.environ.get(VARIABLE, "")
    flags = os.environ.get("TF_XLA_FLAGS", "")
    if value.lower() == "off" or _TENSORFLOW_FLAG in flags:
        return
    try:
        root = Path(value).absolute() if value else _default_folder()
        folder = root / _key()
        for each in (root, folder):
            _make_private(each)
        _mark(folder)
        _tidy(root, folder)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder.
        reason = str(error)
        if isinstance(error, OSError) and error.errno:
            reason = f"{error.filename}: {error.strerror}"
        warnings.warn(f"Programs are compiled anew, without a cache: {reason}", stacklevel=2)
        return
    # Only on the CPU: the key says nothing of a GPU.
    ours = f'{_TENSORFLOW_FLAG}="{folder}" --tf_xla_persistent_cache_device_types=CPU'
    os.environ["TF_XLA_FLAGS"] = f"{flags} {ours}".strip()
    os.environ.setdefault(_JAX_VARIABLE, str(folder / "jax"))


def _default_folder():
    home = os.environ.get("XDG_CACHE_HOME", "")
    # By its specification a relative path has no effect.
    base = Path(home) if os.path.isabs(home) else Path.home() / ".cache"
    return base / "keras_transformer" / "programs"


def _key():
    """A name for all that a program depends on except what XLA checks itself."""
    versions = []
    for name in ("tensorflow", "jaxlib"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{name}-{importlib.metadata.version(name)}")
    # The compiler splits work by the number of processors; its flags change what it makes.
    parts = [*versions, _processor(), str(os.cpu_count()), os.environ.get("XLA_FLAGS", "")]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return "-".join(["keras_transformer", *versions[:1], digest])


def _processor():
    """The processor's model and its instruction sets, as far as the system tells."""
    told = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU ")
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="latin-1") as file:
        first_processor = file.read().partition("\n\n")[0]
        if known := [line for line in first_processor.splitlines() if line.startswith(told)]:
            return "\n".join(known)
    return f"{platform.machine()} {platform.processor()}"


def _make_private(folder):
    """Makes a folder that only its user may write to; raises `OSError` for any other."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    wrong = (
        "it is no folder, or a link to one"
        if not stat.S_ISDIR(status.st_mode)
        else "it belongs to another user"
        if hasattr(os, "geteuid") and status.st_uid != os.geteuid()
        else "others may write to it (chmod 700 would mend that)"
        if status.st_mode & 0o022
        else None
    )
    if wrong:
        raise OSError(f"{folder} must be private: {wrong}.")


def _mark(folder):
    """Marks a folder that is empty; raises `OSError` for one that holds anything but programs."""
    if not any(folder.iterdir()):
        (folder / _MARK).touch()
    if _programs(folder) is None:
        raise OSError(f"{folder} must hold compiled programs alone and the file {_MARK}.")


def _programs(folder):
    """The files of a folder that was marked here, or None: nothing in it may be touched."""
    files = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    names = {path.relative_to(folder).as_posix() for path in files}
    if _MARK not in names or not all(_PROGRAM.fullmatch(name) for name in names - {_MARK}):
        return None
    return [path for path in files if path != folder / _MARK]


def _tidy(root, folder):
    """Deletes the programs of a folder with a damaged one, and the oldest beyond the limit."""
    entries = []
    folders = (path for path in root.iterdir() if path.is_dir() and not path.is_symlink())
    for path in itertools.chain.from_iterable(_programs(folder) or () for folder in folders):
        with contextlib.suppress(FileNotFoundError):  # Another command tidies, too.
            if stat.S_ISREG((status := path.lstat()).st_mode):
                used = max(status.st_atime, status.st_mtime)
                entries.append((used, status.st_size, path))
    # XLA renames what is whole: a program is empty after a crash of the machine, and ends a run.
    damaged = {path.parent for _, size, path in entries if not size and path.suffix == ".pb"}
    size = sum(bytes_of_file for _, bytes_of_file, _ in entries)
    for _, bytes_, path in sorted(entries):
        if size > LIMIT_BYTES or path.parent in damaged:
            path.unlink(missing_ok=True)
            size -= bytes_
    if (free := shutil.disk_usage(root).free) < LIMIT_BYTES:
        # A program that cannot be written ends a run.
        raise OSError(f"{root}: only {free / 2**20:.0f} MB are free on that disk.")
