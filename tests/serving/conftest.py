"""A server that the tests of a process share, and its application without Ray."""

import types

import pytest
from live_server import LIMITS, WORDS, Server, save_model, wait_for
from upper_case import Engine

from keras_transformer import Translator
from keras_transformer.files import MANIFEST
from keras_transformer.reading import digest_of
from keras_transformer.serving import ServerOptions
from keras_transformer.serving.model import Model
from keras_transformer.serving.server_options import served_export


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """A folder with version 1 of the small model."""
    folder = tmp_path_factory.mktemp("models") / "toy"
    save_model(folder / "1")
    return folder


@pytest.fixture(scope="module")
def server(toy, tmp_path_factory):
    """A server that the tests of a file share."""
    pytest.importorskip("ray", reason="comes with the extra [serve]")
    command = ["-m", "keras_transformer", "serve", f"--model={toy}", "--port=0"]
    command += [f"--{name}={value}" for name, value in LIMITS.items()]
    running = Server(command, tmp_path_factory.mktemp("server") / "log")
    # The replica that answers 503 is to be gone.
    running.wait(lambda: running.is_ready() and len(running.replicas()) == 1)
    yield running
    running.stop()


@pytest.fixture
def load(monkeypatch):
    """`load(engine)`: has `Translator.load` return it; gives a `Model`."""

    def load(engine, threads=1, **options):
        monkeypatch.setattr(Translator, "load", lambda folder, threads: Translator(engine))
        return Model("folder", threads, **options)

    return load


@pytest.fixture
def app_of(load, tmp_path, monkeypatch):
    """`app_of(engine, **options)`: the ASGI application of an engine, without Ray."""
    app = pytest.importorskip("keras_transformer.serving.app", reason="needs Ray")
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / MANIFEST).write_text("{}")
    context = types.SimpleNamespace()
    monkeypatch.setattr(app.serve, "get_replica_context", lambda: context)

    def app_of(engine=None, **options):
        load(engine or Engine())
        options = ServerOptions(model=str(tmp_path / "toy"), **options)
        export = served_export(options)
        context.servable_object = app._Api(export, digest_of(export.folder), options)
        return app._http()

    return app_of


@pytest.fixture(scope="session")
def light(tmp_path_factory):
    """An export that is loaded in a second: CTranslate2, random weights."""
    pytest.importorskip("ctranslate2", reason="comes with the extra [ctranslate2]")
    import numpy as np
    from decoding_oracles import ban_padding_and_bos, varied_transformer
    from naive_search import BOS

    from keras_transformer import Tokenizer
    from keras_transformer.engine import ModelEngine
    from keras_transformer.export import export_ctranslate2
    from keras_transformer.interop.ctranslate2.export import CTranslate2Exporter

    model = varied_transformer("post_norm")
    ban_padding_and_bos(model)
    # Its logits have moved: they are centred again, by the axis that bans.
    ids = np.random.default_rng(7).integers(3, 17, size=(2, 23, 19)).astype("int32")
    ids[1, :, 0] = BOS
    logits, table = np.asarray(model((*ids,))), np.array(model.target_embedding.embeddings)
    offsets = -logits.mean(axis=(0, 1)) / 30
    table[:, 0] += np.where(table[:, 0] == 0, offsets, 0)
    model.target_embedding.embeddings.assign(table)
    texts = [f"{one} {two}." for one in WORDS for two in WORDS]
    tokenizer = Tokenizer.train_from_texts(texts, model.config.vocabulary_size)
    engine = ModelEngine(model, tokenizer, max_source_length=31, max_target_length=17)
    folder = tmp_path_factory.mktemp("models") / "light"
    options = {"beam_size": 2, "length_penalty": 1.0}  # Without one a blank text would be best.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CTranslate2Exporter, "verify", lambda *_: {})  # as in tests/export
        export_ctranslate2(engine, folder, **options)
    return folder


@pytest.fixture(scope="session")
def left_behind():
    """Processes of a Ray whose driver was killed, to be gone at the end of all tests.

    Ray's agents try for a minute to report the end of their raylet.
    """
    processes = []
    yield processes
    wait_for(lambda: not any(process.is_running() for process in processes), 120)
