"""Options of the server: arguments of `build_app` and of `keras-transformer serve`."""

from typing import Any, Literal

import pydantic

from keras_transformer.declaration import checked, option
from keras_transformer.errors import InputError

_NOT_IN_A_NAME = set("/:?#%")


def _count(default, meaning, least=1, most=None):
    # Not strict: `serve run … threads=4` hands over text.
    return option(default, meaning, ge=least, le=most, strict=None)


def _seconds(default, meaning):
    return option(default, meaning, ge=0.001, strict=None)


class ServerOptions(pydantic.BaseModel):
    """Options of a server.

    Raises:
        InputError: A value is out of range.
    """

    model_config = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)

    model: str
    name: str | None = option(None, "the model's name in the addresses, by default its folder's")
    version: int | None = option(
        None, "the number of the version to serve, by default the highest", ge=0, strict=None
    )
    allowed_hosts: str | None = option(
        None,
        "more names of this server in the Host header, with commas between them, * for any; by "
        "default localhost and numeric addresses",
    )

    replicas: int | Literal["auto"] = option(
        1, "processes that hold the model; auto: Ray scales them with the load", strict=None
    )
    max_replicas: int = _count(4, "most processes with replicas=auto")
    replica_cpus: float = option(
        0.0,
        "CPUs that Ray reserves for a replica; 0 reserves none, so that a new version loads beside "
        "the old one",
        ge=0,
        strict=None,
    )
    frontends: int = _count(1, "processes that parse requests and make batches")
    threads: int = _count(2, "threads of a replica")
    max_batch_size: int = _count(32, "most sentences in a batch")
    batch_wait_ms: float = option(
        10.0,
        "most milliseconds that a sentence waits for others if a replica is free",
        ge=0,
        strict=None,
    )
    warm_up_tokens: int = _count(
        48, "sources up to so many tokens are compiled before a replica is ready", 0
    )
    warm_up_signatures: str = option(
        "serving_default", "signatures that are compiled then, with commas between them"
    )

    max_queue: int = _count(1000, "most sentences that wait; more are rejected with 429")
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

    def __init__(self, **values: Any):
        with checked(type(self)):
            super().__init__(**values)
        if isinstance(self.replicas, int) and self.replicas < 1:
            rule = "`replicas` must be a positive integer, or auto."
            raise InputError(f"{rule} Received: replicas={self.replicas!r}.")
        if self.max_sentences > self.max_queue:
            raise InputError(
                "`max_sentences` must be at most `max_queue`, or a request could never be taken. "
                f"Received: max_sentences={self.max_sentences!r}, max_queue={self.max_queue!r}."
            )
        if self.name is not None and (not self.name or set(self.name) & _NOT_IN_A_NAME):
            raise InputError(
                f"`name` must be a part of an address, without /:?#%. Received: name={self.name!r}."
            )


class LocalOptions(pydantic.BaseModel):
    """Options of `keras-transformer serve` beside those of the application.

    Raises:
        InputError: A value is out of range.
    """

    model_config = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)

    host: str = option("127.0.0.1", "address to listen on, 0.0.0.0 for every network")
    port: int = _count(8501, "port to listen on, 0 for a free one", 0, 65535)
    metrics_port: int = _count(
        0, "port of Ray's metrics for Prometheus, on every address; 0 for a free one", 0, 65535
    )
    drain_timeout: float = _seconds(
        60.0, "seconds that a server told to stop has for what it accepted"
    )
    poll_seconds: float = _seconds(1.0, "how often the folder is looked at for a new version")

    def __init__(self, **values: Any):
        with checked(type(self)):
            super().__init__(**values)
