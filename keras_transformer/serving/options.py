"""Options of the server and of the translation of files, also of their commands."""

import os
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pydantic

from keras_transformer.errors import InputError
from keras_transformer.options import checked, option
from keras_transformer.owned_folder import MANIFEST


def _number(default, meaning, least, greatest=None):
    # Not strict: `serve run … threads=4` hands over text.
    return option(default, meaning, ge=least, le=greatest, strict=None)


def _count(default, meaning):
    return _number(default, meaning, 1)


def _seconds(default, meaning):
    return _number(default, meaning, 0.001)


class _Options(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)

    def __init__(self, **values: Any):
        with checked(type(self)):
            super().__init__(**values)


class BulkOptions(_Options):
    """Options of a translation of files.

    Raises:
        InputError: A value is out of range.
    """

    chunk_lines: int = _count(500, "lines that are translated at a time")
    threads: int | None = option(
        None, "threads in all, or of each of Ray's workers, by default LiteRT's 2, Ray's 1", ge=1
    )
    workers: int | None = option(
        None, "Ray's processes, by default one for each `threads` of this machine's cores", ge=1
    )
    ray_address: str | None = option(None, "the cluster's, by default Ray is started here")


class ServerOptions(_Options):
    """Options of a server.

    Raises:
        InputError: A value is out of range.
    """

    model: str
    name: str | None = option(
        None,
        "the model's name in the addresses, by default its folder's",
        expected="a part of an address, without /:?#%",
        pattern="^[^/:?#%]+$",
    )
    version: int | None = _number(
        None, "number of the export to serve, by default the highest at the start", 0
    )
    allowed_hosts: str | None = option(
        None,
        "more names of this server in the Host header, with commas between them, * for any; by "
        "default localhost and numeric addresses",
    )

    markup: Literal["none", "placeholders", "html"] = option(
        "none",
        "what requests without a field `markup` translate around: URLs, e-mail addresses and "
        "fields; html: tags as well",
        strict=None,
    )
    replicas: pydantic.PositiveInt | Literal["auto"] = option(
        1,
        "processes that hold the model; auto: Ray scales them with the load",
        expected="a positive integer, or auto",
        strict=None,
    )
    max_replicas: int = _count(4, "most processes with replicas=auto")
    replica_cpus: float = _number(
        0.0,
        "CPUs that Ray reserves for a replica; 0 reserves none, so that a new deployment loads "
        "beside the old one",
        0,
    )
    threads: int = _count(2, "threads of a replica, and batches that it runs at once")
    max_batch_size: int = _count(
        32, "most sentences in a batch; a SavedModel takes as many as it was made for"
    )
    batch_wait_ms: float = _number(
        10.0, "most milliseconds that a sentence waits for others if a thread is free", 0
    )
    # With EOS a padded length of a SavedModel: one more token would add a third to the start.
    warm_up_tokens: int = _number(
        47, "sources up to so many tokens are compiled before a replica is ready", 0
    )
    warm_up_signatures: str = option(
        "serving_default", "signatures that are compiled then, with commas between them"
    )

    max_ongoing: int = _count(
        256, "most requests that a replica holds at once; more wait in Ray's proxy"
    )
    # Ray's proxy asks replicas again and again for each request that waits: a thousand of them take
    # the processor from the model.
    max_queue: int = _count(32, "most requests that wait there; more are rejected with 503")
    max_body_bytes: int = _count(
        1 << 20, "longest request in bytes; a longer one is rejected with 413"
    )
    max_sentences: int = _count(256, "most sentences in a request, likewise")
    max_text_bytes: int = _count(8192, "longest text in bytes of UTF-8, likewise")
    max_answer_bytes: int = _count(1 << 22, "longest answer in bytes, likewise")
    request_timeout: float = _seconds(30.0, "seconds until a request without an answer gets 504")
    batch_timeout: float = _seconds(
        60.0, "seconds after which a batch has hung: its requests get 504, its process is replaced"
    )


class LocalOptions(_Options):
    """Options of `keras-transformer serve` in addition to those of the application.

    Raises:
        InputError: A value is out of range.
    """

    host: str = option("127.0.0.1", "address to listen on, 0.0.0.0 for every network")
    port: int = _number(8501, "port to listen on, 0 for a free one", 0, 65535)
    metrics_port: int = _number(
        0, "port of Ray's metrics for Prometheus, on every address; 0 for a free one", 0, 65535
    )


class ServedExport(NamedTuple):
    """The export that a server serves.

    Attributes:
        number: Version number in the endpoints, as clients of TensorFlow Serving expect it.
        path: Absolute path of the export's folder, or of a LiteRT file in it.
        folder: The export's folder.
        name: Name of the model in the endpoints.
    """

    number: int
    path: str
    folder: Path
    name: str


def served_export(options: ServerOptions) -> ServedExport:
    """Finds the export to serve: `options.model`, or a numbered folder in it.

    Raises:
        InputError: There is none.
    """
    path = Path(os.path.abspath(options.model))
    folder = path.parent if path.is_file() else path
    if (folder / MANIFEST).is_file():
        number = int(folder.name) if _is_number(folder.name) else 1
        named_folder = folder.parent if _is_number(folder.name) else folder
    else:
        numbers = {
            int(path.parent.name): path.parent
            for path in folder.glob(f"*/{MANIFEST}")
            if _is_number(path.parent.name)
        }
        named_folder = folder
        number = max(numbers, default=0) if options.version is None else options.version
        if (folder / "recipe.yaml").is_file():
            command = f"keras-transformer export --model {options.model} --format saved_model"
            problem = "this is a run, and a server takes an export"
            raise InputError(f"{options.model}: {problem}. Export it first: {command} --output DIR")
        if number not in numbers:
            rule = f"expected an export ({MANIFEST}) or numbered folders of exports"
            received = f"version={options.version}" if path.exists() else "no such folder"
            raise InputError(f"{options.model}: {rule}. Received: {received}.")
        path = folder = numbers[number]
    safe_name = "".join("_" if sign in "/:?#%" else sign for sign in named_folder.name)
    return ServedExport(number, str(path), folder, options.name or safe_name or "model")


def _is_number(name):
    # `isdecimal` alone would take digits of every script.
    return name.isascii() and name.isdecimal()
