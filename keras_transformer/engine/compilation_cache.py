"""XLA's persistent compilation cache: later commands read the functions that a command compiled.

Only commands switch it on, never an import. The folder holds machine code, so it is private to its
user, and has a subfolder for each version and processor. This module writes and deletes only in
subfolders that it made and marked, and that hold only compiled functions.
"""

import contextlib
import hashlib
import importlib.metadata
import itertools
import os
import platform
import shutil
import stat
import subprocess
import warnings
from pathlib import Path

from keras_transformer.files import OwnedFolder

VARIABLE = "KERAS_TRANSFORMER_COMPILATION_CACHE"
"""The environment variable with the folder to use instead of the default, or `off`."""

LIMIT_BYTES = 512 * 2**20
"""Maximum size of the folder; also the minimum free space of the disk."""

_MARK = "MADE_BY_KERAS_TRANSFORMER"
# Files that TensorFlow and JAX write, as paths in a marked folder.
_FILES = rf"{_MARK}|[^/]+\.(pb|tmp)|jax/.+"

_TENSORFLOW_FLAG = "--tf_xla_persistent_cache_directory"
_JAX_VARIABLE = "JAX_COMPILATION_CACHE_DIR"
_JAX_SETTINGS = {
    # By default what compiles in less than a second is compiled again.
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    # XLA's choices of the fastest kernels of a GPU, in a folder next to the programs.
    "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "xla_gpu_per_fusion_autotune_cache_dir",
}
_DRIVER = Path("/proc/driver/nvidia")
_QUERY_SECONDS = 10
_CUDA_PACKAGES = ("nvidia-", "jax-cuda")


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
        if not any(folder.iterdir()):
            (folder / _MARK).touch()
        if OwnedFolder(folder, _MARK, _FILES).foreign_files():
            raise OSError(f"{folder} must hold only compiled programs and the file {_MARK}.")
        _tidy(root, folder)
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
    versions = []
    for name in ("tensorflow", "jaxlib"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{name}-{importlib.metadata.version(name)}")
    # The number of processors and the flags change the code that the compiler makes.
    parts = [*versions, _processor(), str(os.cpu_count()), os.environ.get("XLA_FLAGS", "")]
    if described := gpus():
        parts += [described, *_cuda_versions()]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return "-".join(["keras_transformer", *versions[:1], digest])


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
        return _gpus_by_program()
    models = [line for text in texts for line in text.splitlines() if line.startswith("Model:")]
    return "\n".join([*models, version.partition("\n")[0]]) if models else ""


def _gpus_by_program():
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=_QUERY_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _cuda_versions():
    packages = importlib.metadata.distributions()
    names = {f"{package.name.lower()}-{package.version}" for package in packages if package.name}
    return sorted(name for name in names if name.startswith(_CUDA_PACKAGES))


def _make_private(folder):
    """Makes a folder that only its user may write to; raises `OSError` for any other folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status, problem = folder.lstat(), None
    if not stat.S_ISDIR(status.st_mode):
        problem = "it is no folder, or a link to one"
    elif hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        problem = "it belongs to another user"
    elif status.st_mode & 0o022:
        problem = "others may write to it (chmod 700 would mend that)"
    if problem:
        raise OSError(f"{folder} must be private: {problem}.")


def _tidy(root, folder):
    """Deletes folders with a damaged program, and the oldest programs beyond the limit."""
    entries = []
    folders = (path for path in root.iterdir() if path.is_dir() and not path.is_symlink())
    owned = (folder for folder in folders if not OwnedFolder(folder, _MARK, _FILES).foreign_files())
    for path in itertools.chain.from_iterable(folder.rglob("*") for folder in owned):
        if path.name == _MARK:
            continue
        with contextlib.suppress(FileNotFoundError):  # Another command may tidy at the same time.
            if stat.S_ISREG((status := path.lstat()).st_mode):
                last_use = max(status.st_atime, status.st_mtime)
                entries.append((last_use, status.st_size, path))
    # XLA renames complete files, so only a crash of the machine leaves an empty program, which
    # would end a run.
    damaged = {path.parent for _, size, path in entries if not size and path.suffix == ".pb"}
    size = sum(bytes_of_file for _, bytes_of_file, _ in entries)
    for _, bytes_of_file, path in sorted(entries):
        if size > LIMIT_BYTES or path.parent in damaged:
            path.unlink(missing_ok=True)
            size -= bytes_of_file
    if (free := shutil.disk_usage(root).free) < LIMIT_BYTES:
        # A program that cannot be written ends a run.
        raise OSError(f"{root}: only {free / 2**20:.0f} MB are free on that disk.")
