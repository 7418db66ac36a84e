"""What is told to clients and counted, as Prometheus' own parser reads it."""

import pickle

import pytest

REASON = "comes with the extra [serve]"
parser = pytest.importorskip("prometheus_client.parser", reason=REASON)

from keras_transformer.serving.reporting import Metrics, Rejection  # noqa: E402


def read(metrics, waiting=0, version=0, replicas=0):
    """The samples by name, or by name and the values of their labels."""
    text = metrics.exposition(waiting, version, replicas).decode("utf-8")
    samples = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix("keras_transformer_")
            assert name != sample.name
            key = (name, *sample.labels.values()) if sample.labels else name
            samples[key] = sample.value
    return samples


def test_requests_are_counted_by_status_and_rejections_by_reason():
    metrics = Metrics()
    metrics.answered(0.5)
    metrics.answered(0.5)
    metrics.rejected(Rejection(429, "wait", "queue"))
    metrics.rejected(Rejection(400, "no JSON"))
    metrics.rejected(Rejection(400, "this text fails", "model"))
    samples = read(metrics)
    assert [samples["requests_total", status] for status in ("200", "400", "429")] == [2, 2, 1]
    assert [samples["rejections_total", why] for why in ("queue", "400", "model")] == [1, 1, 1]


def test_the_latency_is_that_of_answers_alone():
    metrics = Metrics()
    for seconds in (0.04, 0.3, 90.0):
        metrics.answered(seconds)
    metrics.rejected(Rejection(504, "too late", "timeout"))
    samples = read(metrics)
    within = {key[1]: value for key, value in samples.items() if "request_seconds_bucket" in key}
    # A bound is in its bucket, and each bucket holds those before it.
    bounds = ("0.025", "0.05", "0.2", "0.3", "60.0", "+Inf")
    assert [within[bound] for bound in bounds] == [0, 1, 1, 2, 2, 3]
    assert samples["request_seconds_count"] == 3
    assert samples["request_seconds_sum"] == pytest.approx(0.04 + 0.3 + 90.0)


def test_a_refused_connection_is_no_request():
    metrics = Metrics()
    metrics.refused(431)
    metrics.refused(503)
    metrics.refused(431)
    samples = read(metrics)
    assert samples["rejections_total", "connection_431"] == 2
    assert samples["rejections_total", "connection_503"] == 1
    assert not [key for key in samples if "requests_total" in key]


def test_batches_are_counted_by_signature_and_tokens_by_side():
    metrics = Metrics()
    metrics.batch("serving_default", 5, 0.25, (31, 37))
    metrics.batch("serving_default", 2, 0.5, (7, 11))
    metrics.batch("beam", 3, 2.0, (13, 17))
    samples = read(metrics)

    def of(name):
        return [samples[name, signature] for signature in ("serving_default", "beam")]

    assert of("batch_sentences_count") == [2, 1] and of("batch_sentences_sum") == [5 + 2, 3]
    assert of("batch_seconds_count") == [2, 1] and of("batch_seconds_sum") == [0.25 + 0.5, 2.0]
    assert samples["tokens_total", "source"] == 31 + 7 + 13
    assert samples["tokens_total", "target"] == 37 + 11 + 17


def test_what_waits_and_runs_is_told_as_of_now():
    metrics = Metrics()
    for waiting, version, replicas in ((5, 7, 2), (0, 11, 3)):
        samples = read(metrics, waiting, version, replicas)
        assert samples["waiting_sentences"] == waiting
        assert samples["model_version"] == version
        assert samples["replicas"] == replicas


def test_two_servers_of_a_process_count_apart():
    one, other = Metrics(), Metrics()
    one.answered(0.1)
    assert read(one)["request_seconds_count"] == 1
    assert read(other)["request_seconds_count"] == 0


def test_a_rejection_comes_out_of_a_pickle_as_it_went_in():
    received = pickle.loads(pickle.dumps(Rejection(503, "it died", "replica")))
    assert type(received) is Rejection
    assert vars(received) == {"status": 503, "message": "it died", "reason": "replica"}
    assert str(received) == "it died"


@pytest.mark.parametrize(("given", "reason"), [((), "413"), (("length",), "length")])
def test_the_reason_is_the_status_unless_it_has_a_name(given, reason):
    assert Rejection(413, "too long", *given).reason == reason
