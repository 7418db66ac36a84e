"""XLA's persistent compilation cache: later commands read the functions that a command compiled.

Only commands switch it on, never an import. The folder holds machine code, so it is private to its
user, and has a subfolder for each set of versions and processor. Only files in these subfolders are
deleted.
"""

import contextlib
import hashlib
import os
import platform
import re
import shutil
import stat
import sys
import warnings
from pathlib import Path

VARIABLE = "KERAS_TRANSFORMER_COMPILATION_CACHE"
"""The environment variable with the folder to use instead of the default, or `off`."""

LIMIT_BYTES = 512 * 2**20
"""Maximum size of the folder; also the minimum free space of the disk."""

_FOLDER = re.compile(r"keras_transformer-[0-9a-f]{32}")
# Folders in which pip keeps the names and versions of what computes: of TensorFlow there are also
# tensorflow_cpu, tensorflow_intel, tf_nightly, …
_DISTRIBUTION = re.compile(
    r"(\S*tensorflow|tf_nightly|jax|nvidia)\S*\.(dist|egg)-info", re.IGNORECASE
)

_TENSORFLOW_FLAG = "--tf_xla_persistent_cache_directory"
_JAX_VARIABLE = "JAX_COMPILATION_CACHE_DIR"
_JAX_SETTINGS = {
    # By default what compiles in less than a second is compiled again.
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    # XLA's choices of the fastest kernels of a GPU, in a folder next to the programs.
    "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "xla_gpu_per_fusion_autotune_cache_dir",
}
_DRIVER = Path("/proc/driver/nvidia")


def enable_compilation_cache() -> None:
    """Switches the cache on for this process and its children.

    Call it before TensorFlow or JAX compiles anything, because they read the environment once. The
    user's own settings there stay. If the folder cannot be used, a warning gives the reason.
    """
    value = os.environ.get(VARIABLE, "")
    flags = os.environ.get("TF_XLA_FLAGS", "")
    if value.lower() == "off" or _TENSORFLOW_FLAG in flags:
        return
    try:
        root = Path(value).absolute() if value else _default_folder()
        folder = root / _key()
        for private_folder in (root, folder):
            _make_private(private_folder)
        _limit_size(root)
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home folder.
        reason = str(error)
        if isinstance(error, OSError) and error.errno:
            reason = f"{error.filename}: {error.strerror}"
        warnings.warn(f"Functions are compiled again, without a cache: {reason}", stacklevel=2)
        return
    # TensorFlow's own key names the kind of a device, not its model.
    devices = "CPU,GPU" if gpus() else "CPU"
    ours = f'{_TENSORFLOW_FLAG}="{folder}" --tf_xla_persistent_cache_device_types={devices}'
    os.environ["TF_XLA_FLAGS"] = f"{flags} {ours}".strip()
    os.environ.setdefault(_JAX_VARIABLE, str(folder / "jax"))
    for name, setting in _JAX_SETTINGS.items():
        os.environ.setdefault(name, setting)


def _default_folder():
    home = os.environ.get("XDG_CACHE_HOME", "")
    # By the XDG specification a relative path has no effect.
    base = Path(home) if os.path.isabs(home) else Path.home() / ".cache"
    return base / "keras_transformer" / "programs"


def _key():
    """Returns a name of everything that a compiled function depends on and XLA does not check."""
    # The number of processors and the flags change the code that the compiler makes.
    parts = [_processor(), str(os.cpu_count()), os.environ.get("XLA_FLAGS", ""), gpus()]
    digest = hashlib.sha256("\n".join([*_versions(), *parts]).encode()).hexdigest()
    return f"keras_transformer-{digest[:32]}"


def _versions():
    """Returns names and versions of the installed libraries that compile; imports none."""
    names = set()
    for path in sys.path:
        with contextlib.suppress(OSError):  # a path that is missing, or an archive
            names.update(filter(_DISTRIBUTION.fullmatch, os.listdir(path or ".")))
    return sorted(names)


def _processor():
    """Returns the processor's model and its instruction sets, if the system shows them."""
    field_names = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU ")
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="latin-1") as file:
        first_processor = file.read().partition("\n\n")[0]
        if lines := [line for line in first_processor.splitlines() if line.startswith(field_names)]:
            return "\n".join(lines)
    return f"{platform.machine()} {platform.processor()}"


def gpus(driver: Path = _DRIVER) -> str:
    """Returns the models of NVIDIA's GPUs and the driver's version; empty without a GPU.

    Args:
        driver: Folder in which the driver tells about itself.
    """
    try:
        version = (driver / "version").read_text(encoding="utf-8", errors="replace")
        files = sorted(driver.glob("gpus/*/information"))
        texts = [file.read_text(encoding="utf-8", errors="replace") for file in files]
    except OSError:  # no driver, or a container without this folder
        return ""
    models = [line for text in texts for line in text.splitlines() if line.startswith("Model:")]
    return "\n".join([*models, version.partition("\n")[0]]) if models else ""


def _make_private(folder):
    """Makes a folder that only its user may write to; raises `OSError` for any other folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status, problem = folder.lstat(), None
    if not stat.S_ISDIR(status.st_mode):
        problem = "it is not a folder, or it is a link to one"
    elif hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        problem = "it belongs to another user"
    elif status.st_mode & 0o022:
        problem = "others may write to it (chmod 700 would mend that)"
    if problem:
        raise OSError(f"{folder} must be private: {problem}.")


def _limit_size(root):
    """Deletes all programs if they are larger than the limit, and else empty programs."""
    programs = []
    for folder in filter(lambda path: _FOLDER.fullmatch(path.name), root.iterdir()):
        for path in () if folder.is_symlink() else folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # Another command may delete now.
                if stat.S_ISREG((status := path.lstat()).st_mode):
                    programs.append((path, status.st_size))
    is_full = sum(bytes_of_file for _, bytes_of_file in programs) > LIMIT_BYTES
    for path, bytes_of_file in programs:
        # XLA renames complete files, so only a crash of the machine leaves an empty program, which
        # would end a run.
        if is_full or not bytes_of_file and path.suffix == ".pb":
            path.unlink(missing_ok=True)
    if (free := shutil.disk_usage(root).free) < LIMIT_BYTES:
        # A program that cannot be written ends a run.
        raise OSError(f"{root}: only {free / 2**20:.0f} MB are free on that disk.")
