"""What a replica answers, whatever happens to a batch, and when it calls itself ill."""

import asyncio
import os
import threading
import types

import numpy as np
import pytest

from keras_transformer.errors import InputError
from keras_transformer.serving import ServerOptions
from keras_transformer.serving.replica import Replica
from keras_transformer.serving.versions import folder_digest

pytestmark = pytest.mark.tensorflow

tf = pytest.importorskip("tensorflow")

INVALID = tf.errors.InvalidArgumentError


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 20))


@pytest.fixture(scope="module")
def replica(toy):
    options = ServerOptions(
        threads=2,  # As many as the tests' TensorFlow has: it takes no other number afterwards.
        max_batch_size=3,
        warm_up_tokens=19,
        warm_up_signatures="serving_default,beam",
    )
    return Replica(toy / "1", options)


def test_it_tells_what_it_holds_and_how_it_started(replica):
    told = run(replica.describe())
    assert list(told["signatures"]) == ["align", "beam", "ids", "sample", "serving_default"]
    # Two signatures; 1, 2 and 4 sentences; up to 16 and 20 columns.
    assert told["warmed"] == 2 * 3 * 2
    assert told["pid"] == os.getpid()
    assert told["seconds"] > 0


def test_a_batch_comes_back_with_its_outputs_and_time(replica):
    answer = run(replica.run("serving_default", {"text": [b"ab", b"c"]}))
    assert set(answer) == {"outputs", "seconds", "tokens"} and answer["seconds"] > 0
    assert answer["outputs"] == {"score": [1.0, 1.0], "translation": [b"AB", b"C"]}
    assert answer["tokens"] == (0, 0)  # There is no tokenizer in the graph.


def test_files_that_are_not_those_of_the_version_are_refused(make, tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(b"graph")
    digest = folder_digest(tmp_path)
    Replica(tmp_path, ServerOptions(), digest)
    (tmp_path / "saved_model.pb").write_bytes(b"other")
    with pytest.raises(InputError, match="the files have changed"):
        Replica(tmp_path, ServerOptions(), digest)


def test_an_assertion_in_the_graph_is_the_texts_fault(replica):
    error = run(replica.run("serving_default", {"text": [b"ab", b"fail"]}))["error"]
    assert (error.status, error.reason) == (400, "model")
    assert "this text fails" in error.message and "\n" not in error.message


class Artifact:
    """Does what it is told to instead of running a graph; counts words as tokens."""

    def __init__(self, folder, threads):
        self.signatures = {}
        self.tokens = types.SimpleNamespace(
            sources=lambda texts: sum(len(text.split()) for text in texts),
            targets=lambda texts: 100 * sum(len(text.split()) for text in texts),
        )

    def warm_up(self, *values):
        return 0

    def run(self, signature, columns):
        return signature(columns)


@pytest.fixture
def make(monkeypatch):
    """`make(**options)`: a replica whose signatures are functions."""
    monkeypatch.setattr("keras_transformer.serving.artifact.Artifact", Artifact)
    return lambda **options: Replica("folder", ServerOptions(**options))


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (INVALID(None, None, "top\n\n\t id 7 is bad \n\t [[{{node x}}]]"), 400, "id 7 is bad"),
        (ValueError("too deep"), 400, "too deep"),
        (RuntimeError("it broke"), 500, "it broke"),
        (tf.errors.ResourceExhaustedError(None, None, "no memory"), 500, "no memory"),
        (MemoryError(), 500, "MemoryError"),
        (RuntimeError("a" * 1000), 500, "a" * 300),
    ],
)
def test_an_error_is_told_in_a_line_with_whose_fault_it_is(make, error, status, message):
    def fail(columns):
        raise error

    answer = run(make().run(fail, {"text": [b"a"]}))
    # Whoever runs the server is told where, if it is not the text's fault.
    assert ("in fail" in answer.get("traceback", "")) == (status == 500)
    told = answer["error"]
    assert (told.status, told.reason, told.message) == (status, "model", message)


@pytest.mark.parametrize(
    ("columns", "outputs", "tokens"),
    [
        ({"text": [b"a b", b"c"]}, {"translation": [b"d e f", b"g h"]}, (3, 500)),
        # Of several translations of a sentence the best one counts.
        ({"source": [b"a b"]}, {"translation": [[b"c", b"d e"]]}, (2, 100)),
        ({"text": [b"a"]}, {"translation": np.array([[b"c d", b"e"]], object)}, (1, 200)),
        ({"source_ids": [[2, 3]]}, {"ids": [[5, 7]]}, (0, 0)),
    ],
)
def test_tokens_of_texts_and_of_the_best_translations_are_counted(make, columns, outputs, tokens):
    assert run(make().run(lambda _: outputs, columns))["tokens"] == tokens


def test_outputs_that_are_far_too_large_are_not_sent(make):
    replica = make(max_answer_bytes=1000)

    def zeros(columns):
        return {"x": np.zeros((1, columns["count"]))}

    assert "outputs" in run(replica.run(zeros, {"count": 1000}))
    error = run(replica.run(zeros, {"count": 1001}))["error"]
    # Requests that share a batch are told apart by this reason.
    assert (error.status, error.reason) == (413, "model")
    assert "At most 1000 bytes an answer" in error.message


def test_as_many_batches_as_threads_run_at_a_time(make):
    all_there = threading.Barrier(3)

    def meet(columns):
        all_there.wait(timeout=10)
        return {}

    async def scenario():
        replica = make(threads=3)
        answers = await asyncio.gather(*(replica.run(meet, {}) for _ in range(3)))
        assert [each.get("outputs") for each in answers] == [{}, {}, {}]

    run(scenario())


def test_a_batch_that_hangs_makes_it_ill_until_it_ends(make, monkeypatch):
    clock, go = types.SimpleNamespace(now=100.0), threading.Event()
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr("keras_transformer.serving.replica.time", clock)

    def hang(columns):
        go.wait(timeout=10)
        return {}

    async def scenario():
        replica = make(request_timeout=3.0)
        held = [asyncio.ensure_future(replica.run(hang, {}))]
        await asyncio.sleep(0)
        clock.now += 6.0  # Twice the time of a request.
        held.append(asyncio.ensure_future(replica.run(hang, {})))
        await asyncio.sleep(0)
        replica.check_health()
        clock.now += 0.1
        with pytest.raises(RuntimeError, match="more than 6.0 seconds"):
            replica.check_health()
        go.set()
        await asyncio.gather(*held)
        replica.check_health()

    run(scenario())
