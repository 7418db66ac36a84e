"""Batches that a replica runs: options by signature, rows of outputs, warm-up, errors, health."""

import asyncio
import math
import threading
import types

import numpy as np
import pytest

from keras_transformer import Translation, Translator
from keras_transformer.errors import InputError
from keras_transformer.serving import ServerOptions
from keras_transformer.serving.replica import Model, Replica, export_digest, signatures_of

NUMBERED = {"translation": "A", "score": 0.1, "log_probability": 0.0}
SAMPLING = {"temperature": [0.5], "top_k": [3], "top_p": [0.25]}


class Engine:
    """An engine that notes its calls: upper case, the word "bad" fails."""

    labels = None
    source_tokenizer = None
    capabilities = frozenset({"translate", "score", "sample", "align"})

    def __init__(self, format="ctranslate2", **manifest):
        self.manifest = {"format": f"keras_transformer.{format}", "beam_size": 2, **manifest}
        self.calls = []
        self.go = threading.Event()
        self.go.set()

    def translate(self, texts, **options):
        self.calls.append((list(texts), options))
        self.go.wait(20)
        if "bad" in texts:
            raise InputError("text 1 is bad.\nMore.")
        if "bug" in texts:
            raise RuntimeError("a bug")
        second = Translation("", -math.inf)
        return [
            Translation(
                text.upper(),
                0.1,
                alternatives=(second,) * (options.get("n_best", 1) - 1),
                tokens=(text, "</s>"),
                source_tokens=(text,),
                alignment=np.float32([[0.1], [0.9]]) if options.get("alignment") else None,
            )
            for text in texts
        ]

    def score(self, sources, targets):
        return [Translation(target, -0.5, -1.5) for target in targets]


class Classifier(Engine):
    labels = ["no", "yes"]
    capabilities = frozenset({"translate", "label"})

    def translate(self, texts, **options):
        assert options["n_best"] == 2
        return [Translation("yes", 0.75, alternatives=(Translation("no", 0.25),)) for _ in texts]


@pytest.fixture
def load(monkeypatch):
    """`load(engine)`: has `Translator.load` return it; gives a `Model`."""

    def load(engine, threads=1):
        loaded = types.SimpleNamespace(engine=engine)
        monkeypatch.setattr(Translator, "load", lambda folder, threads: loaded)
        return Model("folder", threads, 1000)

    return load


@pytest.mark.parametrize(
    ("name", "columns", "options", "row"),
    [
        ("serving_default", {}, {}, {"translation": "A", "score": 0.1}),
        (
            "greedy",
            {},
            {"beam_size": 1},
            {"translation": "A", "score": 0.1, "log_probability": 0.0},
        ),
        (
            "beam",
            {},
            {"n_best": 2},
            {"translation": ["A", ""], "score": [0.1, -math.inf], "log_probability": [0.0, 0.0]},
        ),
        (
            "align",
            {},
            {"alignment": True},
            {
                "translation": "A",
                "score": 0.1,
                "source_tokens": ["a"],
                "target_tokens": ["a", "</s>"],
                "alignment": [[0.1], [0.9]],  # Not 0.10000000149011612.
            },
        ),
        (
            "sample",
            SAMPLING,
            {"sampling": True, "temperature": 0.5, "top_k": 3, "top_p": 0.25},
            NUMBERED,
        ),
    ],
)
def test_a_signature_is_an_option_of_the_engine(load, name, columns, options, row):
    engine = Engine()
    assert load(engine).run(name, {"text": ["a"], **columns}) == [row]
    assert engine.calls == [(["a"], {"long_input": "truncate", **options})]


def test_scores_and_labels_are_rows_too(load):
    pairs = {"source": ["a"], "target": ["b"]}
    assert load(Engine()).run("score", pairs) == [{"score": -0.5, "log_probability": -1.5}]
    rows = load(Classifier()).run("serving_default", {"text": ["a"]})
    assert rows == [{"label": "yes", "probabilities": [0.25, 0.75]}]


def test_signatures_are_those_that_the_engine_is_capable_of():
    engine = Engine("litert", n_best=3)
    engine.capabilities = frozenset({"translate"})
    found = signatures_of(engine)
    assert set(found) == {"serving_default", "greedy", "beam"}
    assert found["beam"].outputs["score"].shape == (3,)
    text = {"dtype": "string", "shape": [None]}
    listed = {"greedy": {"inputs": {"text": text}, "outputs": {"translation": text}}}
    assert set(signatures_of(Engine("saved_model", signatures=listed))) == {
        "serving_default",
        "greedy",
    }


def test_interpreters_of_litert_are_one_a_thread_and_other_engines_are_shared(monkeypatch):
    for kind, wanted in (("litert", [3, 1, 1, 1]), ("ctranslate2", [3])):
        loaded, engine = [], types.SimpleNamespace(engine=Engine(kind, n_best=1))

        def load(folder, threads, loaded=loaded, engine=engine):
            loaded.append(threads)
            return engine

        monkeypatch.setattr(Translator, "load", load)
        Model("folder", 3, 1000)
        assert loaded == wanted


def test_the_warm_up_runs_each_shape_that_is_compiled(load):
    engine = Engine("saved_model", shapes={"rows": [1, 2, 4, 8], "source_lengths": [16, 32, 48]})
    options = ServerOptions(model="folder", max_batch_size=3, warm_up_tokens=19)
    assert load(engine).warm_up(options) == 6
    shapes = {(len(texts), len(texts[0].split())) for texts, _ in engine.calls}
    assert shapes == {(rows, tokens) for rows in (1, 2, 4) for tokens in (15, 19)}
    assert load(Engine()).warm_up(ServerOptions(model="folder")) == 1
    assert load(Engine()).warm_up(ServerOptions(model="folder", warm_up_tokens=0)) == 0
    unknown = ServerOptions(model="folder", warm_up_signatures="score")
    with pytest.raises(InputError, match="must name signatures that take text alone.*score"):
        load(Engine()).warm_up(unknown)


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 20))


@pytest.fixture
def replica(load, tmp_path):
    """`replica(engine, **options)`."""

    def replica(engine, **options):
        load(engine)
        options = ServerOptions(model=str(tmp_path), threads=1, **options)
        return Replica(str(tmp_path), 7, export_digest(tmp_path), options)

    return replica


def test_a_replica_says_what_it_holds(replica):
    described = run(replica(Engine()).describe())
    assert (described["number"], described["hung"]) == (7, False)
    assert "serving_default" in described["signatures"]


@pytest.mark.parametrize(("text", "status"), [("bad", 400), ("bug", 500)])
def test_an_error_of_the_engine_is_the_requests_in_one_line(replica, text, status):
    answer = run(replica(Engine()).run("serving_default", {"text": ["a", text]}))
    assert (answer["error"].status, answer["error"].reason) == (status, "model")
    assert "\n" not in answer["error"].message
    assert ("traceback" in answer) == (status == 500)


def test_alignments_beyond_an_answer_are_the_requests_fault(replica):
    answer = run(replica(Engine(), max_answer_bytes=9).run("align", {"text": ["a"]}))
    assert (answer["error"].status, answer["error"].reason) == (413, "model")


def test_a_hung_batch_is_504_and_its_replica_takes_no_other_and_is_unhealthy(replica):
    engine = Engine()
    hung = replica(engine, batch_timeout=0.05)
    hung.check_health()
    engine.go.clear()
    answer = run(hung.run("serving_default", {"text": ["a"]}))
    assert (answer["error"].status, answer["error"].reason) == (504, "hung")
    assert run(hung.run("serving_default", {"text": ["b"]})) == {"again": True}
    assert run(hung.describe())["hung"]
    with pytest.raises(RuntimeError, match="more than 0.05 seconds"):
        hung.check_health()
    engine.go.set()


def test_a_replica_does_not_start_with_other_files_than_were_deployed(replica, tmp_path):
    (tmp_path / "weights").write_bytes(b"one")
    digest = export_digest(tmp_path)
    replica(Engine())
    (tmp_path / "weights").write_bytes(b"two")
    with pytest.raises(InputError, match="the files have changed since this version was deployed"):
        Replica(str(tmp_path), 7, digest, ServerOptions(model=str(tmp_path)))
