"""A server in processes of its own, and its application in the process of the tests."""

import contextlib
import functools

import pytest
from live_server import LIMITS, Server, fake_export
from upper_case import application_of


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server of two processes that the tests of a file share."""
    pytest.importorskip("uvicorn", reason="comes with the extra [serve]")
    model = fake_export(tmp_path_factory.mktemp("models") / "toy")
    running = Server(model, tmp_path_factory.mktemp("server") / "log", processes=2, **LIMITS)
    running.wait(lambda: running.log.count("answers after") == 2)
    yield running
    running.stop()


@contextlib.contextmanager
def applications(folder):
    """`application_of` in a folder; the applications end together."""
    apps = []

    def application(*engine, **options):
        apps.append(application_of(folder, *engine, **options))
        return apps[-1]

    yield application
    for app in apps:
        app.state.runner.close()


@pytest.fixture
def app_of(tmp_path, monkeypatch):
    """`app_of(engine, **options)`: the application of an engine, whose process does not end when a
    thread hangs."""
    ends = "keras_transformer.extras.serving.app.end_process"
    pytest.importorskip(ends.rpartition(".")[0], reason="comes with the extra [serve]")
    monkeypatch.setattr(ends, lambda: None)
    with applications(tmp_path / "toy") as app_of:
        yield app_of


@pytest.fixture(scope="module")
def one_app(tmp_path_factory):
    """`one_app(**options)`: an application that the cases of a table share."""
    with applications(tmp_path_factory.mktemp("models") / "toy") as app_of:
        made = functools.cache(lambda options: app_of(**dict(options)))
        yield lambda **options: made(tuple(options.items()))
