"""The Ray Serve application of a model, and the versions that it may be built of."""

import os
from pathlib import Path
from typing import Any, NamedTuple

from ray import serve

from keras_transformer.errors import InputError
from keras_transformer.owned_folder import MANIFEST
from keras_transformer.serving.frontend import Frontend
from keras_transformer.serving.options import ServerOptions
from keras_transformer.serving.replica import Replica, export_digest


class Version(NamedTuple):
    """A version of a model: number, absolute path of the export, sizes and times of its files."""

    number: int
    folder: str
    stamp: tuple


def find_versions(model: str | os.PathLike) -> list[Version]:
    """Returns the versions of a model, the highest first.

    Args:
        model: Path of an export, or of a folder of exports whose names are numbers, as TensorFlow
            Serving wants it. Folders with other names, or without a manifest, are passed over.
    """
    path = Path(os.path.abspath(model))
    if path.suffix == ".tflite" or (path / MANIFEST).is_file():
        return [_version(int(path.name) if _is_number(path.name) else 1, path)]
    try:
        folders = [entry for entry in path.iterdir() if _is_number(entry.name)]
    except OSError:
        return []
    found = [_version(int(entry.name), entry) for entry in folders if (entry / MANIFEST).is_file()]
    return sorted(found, key=lambda version: version.number, reverse=True)


def _is_number(name):
    # `isdecimal` alone would take digits of every script.
    return name.isascii() and name.isdecimal()


def _version(number, folder):
    stamp = []
    for path in sorted(folder.rglob("*")):
        try:
            status = path.stat()
        except OSError:
            continue
        stamp.append((str(path), status.st_size, status.st_mtime_ns))
    return Version(number, str(folder), tuple(stamp))


def model_name(options: ServerOptions) -> str:
    """Returns the model's name in the addresses: by default that of the folder of its versions."""
    path = Path(os.path.abspath(options.model))
    inside = (path / MANIFEST).is_file() and _is_number(path.name)
    name = (path.parent if inside else path).stem
    return options.name or "".join("_" if sign in "/:?#%" else sign for sign in name) or "model"


def chosen_version(options: ServerOptions) -> Version:
    """Returns the version to serve.

    Raises:
        InputError: There is no export at `options.model`, or not of that number.
    """
    versions = find_versions(options.model)
    wanted = [each for each in versions if options.version in (None, each.number)]
    if wanted:
        return wanted[0]
    rule = f"{options.model}: expected an export ({MANIFEST}) or numbered folders with one each."
    have = ", ".join(str(each.number) for each in versions) or "neither"
    raise InputError(f"{rule} Received: {have}.")


def build(options: ServerOptions, states: dict[str, list[str]] | None = None) -> serve.Application:
    """Builds the application for the version that `options` name.

    A later deployment under the same name starts its replicas beside the old ones, which answer
    until the new ones are warm, and go on answering where the new ones do not start.

    Args:
        options: Options of the server.
        states: State and message of other versions for the status, by number.

    Raises:
        InputError: There is no such export.
    """
    version = chosen_version(options)
    digest = export_digest(version.folder)
    scaling: dict[str, Any] = {"num_replicas": options.replicas}
    if options.replicas == "auto":
        scaling["autoscaling_config"] = {
            "min_replicas": 1,
            "max_replicas": options.max_replicas,
            # Batches on their way: a replica whose threads are all busy asks for another.
            "target_ongoing_requests": max(options.threads / 2, 0.5),
        }
    replica: Any = serve.deployment(
        Replica,
        name="Replica",
        # One more for `describe`.
        max_ongoing_requests=options.threads + 1,
        ray_actor_options={"num_cpus": options.replica_cpus},
        health_check_period_s=1,
        health_check_timeout_s=30,
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=10,
        max_constructor_retry_count=1,
        max_surge_percent=100,
        **scaling,
    )
    frontend = Frontend.options(
        num_replicas=options.frontends,
        max_ongoing_requests=2 * options.max_queue + 100,
        max_queued_requests=options.max_queue,
        graceful_shutdown_timeout_s=options.request_timeout + 5,
        user_config=states or {},
    )
    name = model_name(options)
    bound = replica.bind(version.folder, version.number, digest, options)
    return frontend.bind(bound, name, options)
