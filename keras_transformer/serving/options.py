"""What a server does: limits, batching, replicas."""

import pydantic

from keras_transformer.declaration import STRICT, checked, option
from keras_transformer.errors import InputError


def _count(default, meaning, least=1, most=None):
    return option(default, meaning, ge=least, le=most)


def _seconds(default, meaning):
    return option(default, meaning, ge=0.001)


class ServerOptions(pydantic.BaseModel):
    """The options of `serve`; those of the command line have the same names.

    Raises:
        InputError: A value is out of range.
    """

    model_config = pydantic.ConfigDict(**STRICT, frozen=True)

    name: str | None = option(None, "the model's name in the addresses, by default its folder's")
    host: str = option("127.0.0.1", "address to listen on, 0.0.0.0 for every network")
    allowed_hosts: str | None = option(
        None,
        "more names of this server in the Host header, with commas between them, * for any; by "
        "default localhost and the address, any if that is not of this machine alone",
    )
    port: int = _count(8501, "port to listen on, 0 for a free one", 0, 65535)

    replicas: int = _count(1, "processes that hold the model")
    threads: int = _count(2, "batches that a replica works on at a time, and its threads")
    max_batch_size: int = _count(32, "most sentences in a batch")
    batch_wait_ms: float = option(
        10.0, "most milliseconds that a sentence waits for others if a replica is free", ge=0
    )
    warm_up_tokens: int = _count(
        48, "sources up to so many tokens are compiled before the server is ready", 0
    )
    warm_up_signatures: str = option(
        "serving_default",
        "signatures that are compiled then, with commas between them; they take only texts",
    )
    replica_cpus: float = option(
        0.0,
        "CPUs that Ray reserves for a replica; 0 reserves none, so that a new version loads beside "
        "the old one",
        ge=0,
    )
    ray_address: str | None = option(
        None,
        "a Ray cluster to join; without token authentication (RAY_AUTH_MODE=token) whoever reaches "
        "its gRPC ports can run code in it; by default one is started on this machine",
    )

    max_queue: int = _count(1000, "most sentences that wait; more are rejected with 429")
    max_body_bytes: int = _count(
        1 << 20, "longest request in bytes; a longer one is rejected with 413"
    )
    max_sentences: int = _count(256, "most sentences in a request, likewise")
    max_text_bytes: int = _count(8192, "longest text in bytes of UTF-8, likewise")
    max_answer_bytes: int = _count(
        1 << 24, "longest answer in bytes; a request for a longer one is rejected with 413"
    )
    max_connections: int = _count(4096, "most open connections; more are rejected with 503")
    request_timeout: float = _seconds(30.0, "seconds until a request without an answer gets 504")
    read_timeout: float = _seconds(
        10.0, "seconds that a client has to send a request or take an answer"
    )
    drain_timeout: float = _seconds(
        60.0, "seconds that a server told to stop has for what it accepted"
    )
    poll_seconds: float = _seconds(1.0, "how often the folder is looked at for a new version")

    def __init__(self, **values):
        with checked(type(self)):
            super().__init__(**values)
        if self.max_sentences > self.max_queue:
            raise InputError(
                "`max_sentences` must be at most `max_queue`, or a request could never be taken. "
                f"Received: max_sentences={self.max_sentences!r}, max_queue={self.max_queue!r}."
            )
        if self.name is not None and (not self.name or set(self.name) & set("/:?#%")):
            raise InputError(
                f"`name` must be a part of an address, without /:?#%. Received: name={self.name!r}."
            )
