"""A server that the tests of a process share."""

import pytest
from live_server import Server, save_model


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """A folder with version 1 of the small model."""
    folder = tmp_path_factory.mktemp("models") / "toy"
    save_model(folder / "1")
    return folder


@pytest.fixture(scope="session")
def server(toy, tmp_path_factory):
    """A server that all tests of a process share."""
    pytest.importorskip("ray")
    running = Server(toy, tmp_path_factory.mktemp("server") / "log")
    yield running
    running.stop()
