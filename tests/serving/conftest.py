"""A server in processes of its own, and its application in the process of the tests."""

import pytest
from live_server import LIMITS, RARE_LIMITS, InProcess, Server, fake_export, save_model
from upper_case import Engine

from keras_transformer import Translator
from keras_transformer.files import MANIFEST
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
def server(tmp_path_factory):
    """A server of two processes that the tests of a file share."""
    pytest.importorskip("uvicorn", reason="comes with the extra [serve]")
    model = fake_export(tmp_path_factory.mktemp("models") / "toy")
    running = Server(model, tmp_path_factory.mktemp("server") / "log", processes=2, **LIMITS)
    running.wait(lambda: running.log.count("answers after") == 2)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def client(toy):
    """A client of the application with the small model."""
    app = pytest.importorskip(
        "keras_transformer.serving.app", reason="comes with the extra [serve]"
    )
    testclient = pytest.importorskip("starlette.testclient", reason="comes with the extra [test]")
    values = {name.replace("-", "_"): value for name, value in LIMITS.items()}
    options = ServerOptions(model=str(toy), **values, **RARE_LIMITS)
    application = app.application(app.Api(served_export(options), options))
    arguments = {"base_url": "http://localhost", "raise_server_exceptions": False}
    with testclient.TestClient(application, **arguments) as test_client:
        yield InProcess(test_client)


@pytest.fixture
def load(monkeypatch):
    """`load(engine)`: has `Translator.load` return it; gives a `Model`."""

    def load(engine, threads=1, **options):
        monkeypatch.setattr(Translator, "load", lambda folder, threads: Translator(engine))
        return Model("folder", threads, **options)

    return load


@pytest.fixture
def app_of(load, tmp_path, monkeypatch):
    """`app_of(engine, **options)`: the application of an engine.

    Its process does not end when a thread hangs; `app_of.ends` counts how often it would.
    """
    app = pytest.importorskip(
        "keras_transformer.serving.app", reason="comes with the extra [serve]"
    )
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / MANIFEST).write_text("{}")
    monkeypatch.setattr(app, "end_process", lambda: app_of.ends.append(1))

    def app_of(engine=None, **options):
        load(engine or Engine())
        options = ServerOptions(model=str(tmp_path / "toy"), **options)
        return app.application(app.Api(served_export(options), options))

    app_of.ends = []
    return app_of
