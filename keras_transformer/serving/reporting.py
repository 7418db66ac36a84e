"""What is reported: rejections to clients, lines to stderr, figures to Prometheus."""

import sys
import time
import traceback

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 2, 3, 5, 10, 20, 30, 60)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

_last_traceback = -1.0


class Rejection(Exception):
    """A request that is not answered with a result: its HTTP status and one clear line.

    Args:
        status: HTTP status code.
        message: The line that the client gets.
        reason: Short name for the metrics, by default the status itself.
    """

    def __init__(self, status: int, message: str, reason: str | None = None):
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason or str(status)

    def __reduce__(self):
        return type(self), (self.status, self.message, self.reason)


def answer_too_long(max_bytes: int) -> Rejection:
    """The rejection of a request whose answer is longer than `max_bytes`."""
    message = f"At most {max_bytes} bytes an answer: send fewer or shorter sentences in a request"
    return Rejection(413, message, "answer")


def say(message: str):
    """Writes one line to stderr."""
    print(f"keras-transformer serve: {message}", file=sys.stderr, flush=True)


def say_unexpected(error: BaseException, where: str | None = None):
    """Writes an error that nobody foresaw, with its traceback at most once in a second.

    `where` is its traceback as text, of an error of another process.
    """
    global _last_traceback
    say(f"unexpected error: {type(error).__name__}: {error}"[:500])
    now = time.monotonic()
    # A client that has found a way to cause them must not fill the disk.
    if _last_traceback < 0 or now - _last_traceback >= 1:
        _last_traceback = now
        text = where or "".join(traceback.format_exception(error))
        print(text, file=sys.stderr, flush=True)


class Metrics:
    """Counters and histograms for Prometheus, in a registry of their own.

    Attributes:
        content_type: That of `exposition`.
    """

    def __init__(self):
        import prometheus_client as prometheus

        self.content_type = prometheus.CONTENT_TYPE_LATEST
        self._write = prometheus.generate_latest
        self._registry = prometheus.CollectorRegistry()

        def make(kind, name, meaning, labels=(), **options):
            name = f"keras_transformer_{name}"
            return kind(name, meaning, labels, registry=self._registry, **options)

        counter, gauge = prometheus.Counter, prometheus.Gauge
        histogram = prometheus.Histogram
        self._requests = make(counter, "requests", "Predictions asked for.", ["status"])
        self._rejections = make(counter, "rejections", "Requests without a result.", ["reason"])
        self._latency = make(
            histogram,
            "request_seconds",
            "From the request's last byte to the answer, of those that have a result.",
            buckets=_SECONDS,
        )
        self._sizes = make(
            histogram, "batch_sentences", "Sentences in a batch.", ["signature"], buckets=_SIZES
        )
        self._batch_seconds = make(
            histogram, "batch_seconds", "Time of a batch.", ["signature"], buckets=_SECONDS
        )
        self._tokens = make(counter, "tokens", "Tokens, by side.", ["side"])
        self._waiting = make(gauge, "waiting_sentences", "Sentences that wait for a replica.")
        self._version = make(gauge, "model_version", "The version that is served.")
        self._replicas = make(gauge, "replicas", "Replicas that run.")

    def answered(self, seconds: float):
        """A prediction was answered."""
        self._requests.labels("200").inc()
        self._latency.observe(seconds)

    def rejected(self, rejection: Rejection):
        """A request ended with a rejection."""
        self._requests.labels(str(rejection.status)).inc()
        self._rejections.labels(rejection.reason).inc()

    def refused(self, status: int):
        """A connection was turned away before there was a request."""
        self._rejections.labels(f"connection_{status}").inc()

    def batch(self, signature: str, sentences: int, seconds: float, tokens: tuple[int, int]):
        """A batch came back; its tokens are those of the sources and of the translations."""
        self._sizes.labels(signature).observe(sentences)
        self._batch_seconds.labels(signature).observe(seconds)
        for side, count in zip(("source", "target"), tokens, strict=True):
            self._tokens.labels(side).inc(count)

    def exposition(self, waiting: int, version: int, replicas: int) -> bytes:
        """All of it in Prometheus' text format, with the gauges' values as of now."""
        self._waiting.set(waiting)
        self._version.set(version)
        self._replicas.set(replicas)
        return self._write(self._registry)
