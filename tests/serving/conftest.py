"""A server that the tests of a process share, and its application without Ray."""

import types

import pytest
from live_server import LIMITS, RARE_LIMITS, Server, save_model
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
    command += [f"--set={name}={value}" for name, value in RARE_LIMITS.items()]
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
