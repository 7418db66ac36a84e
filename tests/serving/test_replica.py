"""What a replica answers, whatever happens to a batch, and when it calls itself ill."""

import asyncio
import math
import threading
import types

import numpy as np
import pytest
import sentencepiece
import small_corpus

from keras_transformer.errors import InputError
from keras_transformer.serving import ServerOptions
from keras_transformer.serving.model import folder_digest
from keras_transformer.serving.replica import Artifact, Replica, TokenCounter
from keras_transformer.text import Tokenizer

pytestmark = pytest.mark.tensorflow

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_text")

from tensorflow.core.protobuf import meta_graph_pb2  # noqa: E402
from tensorflow.python.saved_model import loader_impl  # noqa: E402

from keras_transformer.text.graph import GraphTokenizer  # noqa: E402

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
    signatures, seconds = run(replica.describe())
    assert list(signatures) == ["align", "beam", "ids", "sample", "serving_default"]
    assert seconds > 0


def test_a_batch_comes_back_with_its_outputs(replica):
    answer = run(replica.run("serving_default", {"text": [b"ab", b"c"]}))
    assert set(answer) == {"outputs", "tokens"}
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


class FakeArtifact:
    """Does what it is told to instead of running a graph; counts words as tokens."""

    def __init__(self, folder, threads):
        self.signatures = {}
        self.tokens = types.SimpleNamespace(
            count_sources=lambda texts: sum(len(text.split()) for text in texts),
            count_targets=lambda texts: 100 * sum(len(text.split()) for text in texts),
        )

    def warm_up(self, options):
        pass

    def run(self, signature, columns):
        return signature(columns)


@pytest.fixture
def make(monkeypatch):
    """`make(**options)`: a replica whose signatures are functions."""
    monkeypatch.setattr("keras_transformer.serving.replica.Artifact", FakeArtifact)
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


@pytest.fixture(scope="module")
def artifact(toy):
    return Artifact(toy / "1")


def test_every_signature_that_takes_batches_is_there(artifact):
    assert list(artifact.signatures) == ["align", "beam", "ids", "sample", "serving_default"]
    beam = artifact.signatures["beam"].outputs
    assert beam["score"].shape == (None, 2) and beam["translation"].dtype == "string"


def test_columns_go_in_and_come_out(artifact):
    assert artifact.run("sample", {"text": [b"a", b"b"], "seed": [3, 5]}) == {
        "translation": [b"a 3", b"b 5"]
    }
    beam = artifact.run("beam", {"text": [b"a"]})
    assert {key: values.tolist() for key, values in beam.items()} == {
        "translation": [[b"A", b""]],
        "score": [[1.0, -math.inf]],
    }


def test_the_warm_up_runs_each_power_of_two_and_length(artifact):
    # 1, 2, 4 and 8 sentences; up to 16, 32 and 41 columns.
    assert artifact.warm_up(ServerOptions(max_batch_size=5, warm_up_tokens=40)) == 12
    assert artifact.warm_up(ServerOptions(max_batch_size=5, warm_up_tokens=0)) == 0


def test_the_warm_up_takes_the_signatures_that_are_named(artifact, monkeypatch):
    ran = []
    monkeypatch.setattr(artifact, "run", lambda name, columns: ran.append((name, columns)))
    options = {"warm_up_tokens": 1, "warm_up_signatures": "serving_default,beam"}
    assert artifact.warm_up(ServerOptions(threads=1, max_batch_size=2, **options)) == 4
    assert [(name, len(columns["text"])) for name, columns in ran] == [
        ("serving_default", 1),
        ("serving_default", 2),
        ("beam", 1),
        ("beam", 2),
    ]


@pytest.mark.parametrize(
    ("name", "received"), [("sample", "inputs seed, text"), ("beem", "no such signature")]
)
def test_what_cannot_be_warmed_up_is_named(artifact, name, received):
    with pytest.raises(InputError, match=f"nothing but texts. Received: {name}, {received}"):
        artifact.warm_up(ServerOptions(warm_up_signatures=f"serving_default,{name}"))


def test_what_is_no_savedmodel_is_refused(tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(b"no graph")
    with pytest.raises(InputError, match="incomplete or damaged"):
        Artifact(tmp_path)


TEXTS = ["A dog plays.", "", "Two women", "Käse"]
ENCODED = [text.encode("utf-8") for text in TEXTS]


@pytest.fixture(scope="module")
def tokenizers():
    """Of English and German, of different sizes: no text has as many tokens in both."""
    english, german = zip(*small_corpus.PAIRS, strict=True)
    return (
        Tokenizer.train_from_texts(english, vocabulary_size=61),
        Tokenizer.train_from_texts(german, vocabulary_size=71),
    )


@pytest.fixture(scope="module")
def function(tokenizers):
    """Text to text, with both tokenizers."""
    source, target = map(GraphTokenizer, tokenizers)

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.string, name="text")])
    def default(text):
        return {"translation": target.detokenize(source.tokenize(text))}

    return default.get_concrete_function()


@pytest.fixture(scope="module")
def saved(function, tmp_path_factory):
    """The graph of a SavedModel, which has them in a function."""
    folder = str(tmp_path_factory.mktemp("saved"))
    tf.saved_model.save(tf.Module(), folder, signatures=function)
    return loader_impl.parse_saved_model(folder).meta_graphs[0]


def lengths(tokenizer, texts):
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model_bytes)
    return [len(processor.encode(text)) for text in texts]


def test_each_side_is_counted_with_its_own_tokenizer(saved, tokenizers):
    counter = TokenCounter(saved)
    source, target = (sum(lengths(tokenizer, TEXTS)) for tokenizer in tokenizers)
    assert source != target
    assert (counter.count_sources(ENCODED), counter.count_targets(ENCODED)) == (source, target)
    assert (counter.count_sources([]), counter.count_targets([])) == (0, 0)


def test_the_operations_are_found_at_the_top_of_a_graph_too(function, tokenizers):
    graph = meta_graph_pb2.MetaGraphDef(graph_def=function.graph.as_graph_def())
    counter = TokenCounter(graph)
    wanted = tuple(sum(lengths(tokenizer, TEXTS)) for tokenizer in tokenizers)
    assert (counter.count_sources(ENCODED), counter.count_targets(ENCODED)) == wanted


@pytest.mark.parametrize("count", [0, 1, 2, 15, 31])
def test_a_text_has_exactly_as_many_tokens_as_it_was_asked_for(saved, tokenizers, count):
    text = TokenCounter(saved).text_of(count).decode("utf-8")
    assert lengths(tokenizers[0], [text]) == [count]


def test_a_broken_character_is_counted_as_the_graph_does(saved, tokenizers):
    (ids,) = GraphTokenizer(tokenizers[0]).tokenize([b"a \xff dog"])
    assert TokenCounter(saved).count_sources([b"a \xff dog"]) == len(ids)


def test_without_a_tokenizer_nothing_is_counted():
    counter = TokenCounter(meta_graph_pb2.MetaGraphDef())
    assert (counter.count_sources(ENCODED), counter.count_targets(ENCODED)) == (0, 0)
    assert counter.text_of(3) == b"a a a" and counter.text_of(0) == b""
