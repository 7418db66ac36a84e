"""What a server does: limits, batching, replicas."""

import dataclasses

from keras_transformer.errors import InputError

_LEAST = {
    "port": 0,
    "max_batch_size": 1,
    "batch_wait_ms": 0,
    "warm_up_tokens": 0,
    "replica_cpus": 0,
}


@dataclasses.dataclass(frozen=True)
class ServerOptions:
    """The options of `serve`; those of the command line have the same names.

    Args:
        name: The model's name in the addresses; None takes that of its folder.
        host: Address to listen on; `"0.0.0.0"` is every network that the machine is in.
        allowed_hosts: Names that a request may have for this server in its Host header besides
            localhost and `host`, with commas between them; `"*"` takes any. None takes any, too,
            if `host` is not of this machine alone.
        port: Port to listen on; 0 takes a free one.
        replicas: Processes that hold the model.
        threads: Batches that a replica works on at a time, and threads that it uses.
        max_batch_size: Most sentences in one batch.
        batch_wait_ms: How long a sentence waits for others while a replica is free.
        max_queue: Most sentences that wait; one more request is rejected with 429.
        max_body_bytes: Longest request; a longer one is rejected with 413.
        max_sentences: Most sentences in one request, likewise.
        max_text_bytes: Longest text, in bytes of UTF-8, likewise.
        max_answer_bytes: Longest answer; a request that needs a longer one is rejected with 413.
        max_connections: Most open connections; one more is rejected with 503.
        request_timeout: Seconds until a request that has no answer gets 504.
        read_timeout: Seconds that a client has to send a request, or to take an answer.
        drain_timeout: Seconds that a server which is told to stop has for what it accepted.
        poll_seconds: How often the folder is looked at for a new version.
        warm_up_tokens: Sources up to so many tokens are compiled before the server is ready.
        warm_up_signatures: The signatures that are compiled then, with commas between them; they
            take nothing but texts.
        replica_cpus: CPUs that Ray reserves for a replica. 0 reserves none, so that a new version
            loads beside the old one.
        ray_address: Address of a Ray cluster to join; None starts one in this machine. Ray's gRPC
            ports run whatever they are sent, a replica's too: start such a cluster with
            `RAY_AUTH_MODE=token`, or keep its network closed.

    Raises:
        InputError: A value is out of range.
    """

    name: str | None = None
    host: str = "127.0.0.1"
    allowed_hosts: str | None = None
    port: int = 8501
    replicas: int = 1
    threads: int = 2
    max_batch_size: int = 32
    batch_wait_ms: float = 10.0
    max_queue: int = 1000
    max_body_bytes: int = 1 << 20
    max_sentences: int = 256
    max_text_bytes: int = 8192
    max_answer_bytes: int = 1 << 24
    max_connections: int = 4096
    request_timeout: float = 30.0
    read_timeout: float = 10.0
    drain_timeout: float = 60.0
    poll_seconds: float = 1.0
    warm_up_tokens: int = 48
    warm_up_signatures: str = "serving_default"
    replica_cpus: float = 0.0
    ray_address: str | None = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type not in (int, float):
                continue
            least = _LEAST.get(field.name, 1 if field.type is int else 0.001)
            if not least <= value < float("inf"):
                raise InputError(
                    f"`{field.name}` must be at least {least}. Received: {field.name}={value!r}."
                )
        if self.port > 65535:
            raise InputError(f"`port` must be at most 65535. Received: port={self.port!r}.")
        if self.max_sentences > self.max_queue:
            raise InputError(
                "`max_sentences` must be at most `max_queue`, or a request could never be taken. "
                f"Received: max_sentences={self.max_sentences!r}, max_queue={self.max_queue!r}."
            )
        if self.name is not None and (not self.name or set(self.name) & set("/:?#%")):
            raise InputError(
                f"`name` must be a part of an address, without /:?#%. Received: name={self.name!r}."
            )
