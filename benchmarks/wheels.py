"""Gathers wheels for `gpu.sh`, for a machine without a network; it needs neither Keras nor JAX.

bash benchmarks/gpu.sh wheels FOLDER
python -m benchmarks.wheels FOLDER
"""

import importlib.metadata
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from benchmarks import command_line
from keras_transformer.base.errors import InputError

ROOT = pathlib.Path(__file__).parents[1]

WHEELS = (
    "keras namex optree pydantic pydantic_core annotated-types typing-inspection typing_extensions "
    # What the commands need: vocabularies, BLEU, curves, recipes, weights.
    "sentencepiece sacrebleu portalocker tabulate colorama lxml tensorboard protobuf PyYAML "
    "tqdm safetensors h5py"
).split()
"""What this package needs without TensorFlow, and an installation of JAX and PyTorch may lack."""

MOST_MEGABYTES = 64
"""Of all that is brought along: wheels and the package as source."""

_SOURCES = ("keras_transformer", "benchmarks", "tests", "training")
_PLATFORMS = ("2_28", "2_27", "2_17", "2014")  # pip takes only wheels of those that are named


def wheels(folder: pathlib.Path, /, python: str = "3.12") -> dict[str, Any]:
    """Gathers wheels, of the versions of this environment, for a machine without a network.

    They suit Linux on x86-64. A package that this environment lacks comes in its newest version.

    Args:
        folder: Directory for the wheels.
        python: Version of Python on that machine.
    """
    if re.fullmatch(r"3\.\d+", python) is None:
        raise InputError(f"`--python` must be a version like 3.12. Received: {python!r}.")
    if any(folder.glob("*.whl")):
        raise InputError(f"{folder}: expected a folder without wheels. Choose another one.")
    options = ["--quiet", "--no-deps", "--only-binary=:all:", f"--dest={folder}"]
    options += ["--implementation=cp", f"--python-version={python}"]
    options += [f"--platform=manylinux_{name}_x86_64" for name in _PLATFORMS[:-1]]
    options += [f"--platform=manylinux{_PLATFORMS[-1]}_x86_64"]
    command_line.call("download", *options, *map(_requirement, WHEELS), module="pip")
    files = sorted(folder.glob("*.whl"))
    sources = [path for top in _SOURCES for path in (ROOT / top).rglob("*") if path.is_file()]
    megabytes = round(sum(path.stat().st_size for path in (*files, *sources)) / 2**20, 1)
    if megabytes > MOST_MEGABYTES:
        rule = f"Wheels and sources must have at most {MOST_MEGABYTES} MiB."
        raise InputError(f"{rule} Received: {megabytes} MiB.")
    return {"wheels": [path.name for path in files], "megabytes": megabytes}


def _requirement(name):
    try:
        return f"{name}=={importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return name


def main(arguments: Sequence[str] | None = None) -> None:
    command_line.run(wheels, arguments=arguments)


if __name__ == "__main__":
    main()
