"""What a server tells Prometheus."""

import prometheus_client

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 2, 3, 5, 10, 20, 30, 60)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_PREFIX = "keras_transformer_"


class Metrics:
    """Counters and histograms, in a registry of their own.

    Attributes:
        content_type: That of `exposition`.
    """

    content_type = prometheus_client.CONTENT_TYPE_LATEST

    def __init__(self):
        registry = self._registry = prometheus_client.CollectorRegistry()

        def make(kind, name, text, labels=(), **options):
            return kind(_PREFIX + name, text, labels, registry=registry, **options)

        counter, gauge = prometheus_client.Counter, prometheus_client.Gauge
        histogram = prometheus_client.Histogram
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

    def answered(self, seconds):
        """A prediction was answered."""
        self._requests.labels("200").inc()
        self._latency.observe(seconds)

    def rejected(self, rejection):
        """A request ended with a `Rejection`."""
        self._requests.labels(str(rejection.status)).inc()
        self._rejections.labels(rejection.reason).inc()

    def refused(self, status):
        """A connection was turned away before there was a request."""
        self._rejections.labels(f"connection_{status}").inc()

    def batch(self, signature, sentences, seconds, tokens):
        """A batch came back."""
        self._sizes.labels(signature).observe(sentences)
        self._batch_seconds.labels(signature).observe(seconds)
        for side, count in zip(("source", "target"), tokens, strict=True):
            self._tokens.labels(side).inc(count)

    def exposition(self, waiting, version, replicas):
        """All of it in Prometheus' text format, with the gauges' values as of now."""
        self._waiting.set(waiting)
        self._version.set(version)
        self._replicas.set(replicas)
        return prometheus_client.generate_latest(self._registry)
