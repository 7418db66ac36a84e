"""Downloads from a server on loopback, with the faults of a network."""

import contextlib
import hashlib
import os
from unittest import mock

import pytest
from model_servers import FileServer, make_zip

from keras_transformer.base.errors import InputError
from keras_transformer.cli.main import run
from keras_transformer.extras.importing.fetching import download as module
from keras_transformer.extras.importing.fetching import names
from keras_transformer.extras.importing.fetching.download import download, shown_url

pytest.importorskip("httpx2", reason="comes with the extra [import]")

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with FileServer().running() as server:
        server.files["/model.zip"] = CONTENT
        yield server


def test_after_a_connection_that_is_cut_a_download_starts_again(server, tmp_path):
    server.cuts["/model.zip"] = [4000, 1000]
    server.redirects["/old.zip"] = "/model.zip"
    digest = download(f"{server.url}/old.zip", tmp_path / "model.zip")
    assert (tmp_path / "model.zip").read_bytes() == CONTENT
    assert digest == hashlib.sha256(CONTENT).hexdigest()
    assert [path for _, path in server.requests] == ["/old.zip", "/model.zip"] * 3


class OfAnyPath:
    """Files of a server that has the same content at every path."""

    def __init__(self, content):
        self.content = content

    def __contains__(self, path):
        return True

    def __getitem__(self, path):
        return self.content


ODD_PATHS = ["", "/", "/model", "/download", "/?file=x.zip", "/..", "/a/../..", "/.", "/%2e%2e"]
ODD_PATHS += ["/" + "n" * 300, "/a%00b.zip", "/x.zip/", "/é.zip", "/-", "#x", "/a b/", "/files"]


@pytest.mark.parametrize("path", ODD_PATHS)
def test_every_path_of_a_url_gives_its_model(server, tmp_path, path):
    archive = make_zip(tmp_path / "archive", {"a/model.npz": b"weights"}).read_bytes()
    server.files = OfAnyPath(archive)
    with names.local_model(f"{server.url}{path}", tmp_path / "run", lambda folder: None) as model:
        assert (model.folder / "model.npz").read_bytes() == b"weights"
        (digest,) = model.origin()["files"].values()
        assert digest == hashlib.sha256(archive).hexdigest()
    assert os.listdir(tmp_path) == ["archive"]
    server.files = OfAnyPath(b"<!DOCTYPE html>")
    with pytest.raises(InputError, match=f"^{server.url}.*: expected a folder or an archive"):
        with names.local_model(f"{server.url}{path}", tmp_path / "run", lambda folder: None):
            pass


ODD_URLS = ["http://", "https://", "http://[", "http://[::1/x.zip", "http://a]b/", "http://:0/"]
ODD_URLS += [
    "http:///x.zip",
    "http://h:x/",
    "http://\u2100/x",
    "http://a..b/x",
    "http://127.0.0.1:9/",
]
ODD_URLS += ["http://me:secret@[/x?secret", "http://127.0.0.1:9/\n"]


@pytest.mark.parametrize("url", ODD_URLS)
def test_what_is_no_url_is_one_line(url, tmp_path, capsys):
    assert run(["import", url, "--output", str(tmp_path / "run")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert ": cannot be downloaded: " in line and "secret" not in line
    assert os.listdir(tmp_path) == []


FAULTS = {
    "401": "the server answered 401 Unauthorized. It needs a login",
    "403": "the server answered 403 Forbidden. It needs a permission",
    "404": "the server answered 404 Not Found. There is no such file",
    "500": "the server answered 500 Internal Server Error. Try again later",
    "a circle": "cannot be downloaded: Exceeded maximum allowed redirects",
    "always cut": "cannot be downloaded: ",
    "silent": "the server did not answer in 0 seconds",
    "no server": "cannot be downloaded: ",
    "no proxy": "cannot be downloaded: ",
    "a wrong proxy": "cannot be downloaded: ",
    "a full disk": "cannot be written: File too large",
    "another file": "expected a folder or an archive",
    "interrupted": "interrupted",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_line_and_leaves_nothing(
    server, tmp_path, monkeypatch, capsys, small_disk, fault
):
    url, disk = f"{server.url}/model.zip", contextlib.nullcontext()
    if fault.isdigit():
        server.statuses["/model.zip"] = int(fault)
    elif fault == "a circle":
        server.redirects["/model.zip"] = "/model.zip"
    elif fault == "always cut":
        server.cuts["/model.zip"] = [1] * 50
    elif fault == "silent":
        server.silent.add("/model.zip")
        monkeypatch.setattr(module, "_TIMEOUT_SECONDS", 0.2)
    elif fault == "no server":
        url = "http://127.0.0.1:9/model.zip"
    elif fault.endswith("proxy"):
        monkeypatch.setenv("http_proxy", "127.0.0.1:9" if fault == "no proxy" else "no proxy")
    elif fault == "a full disk":
        disk = small_disk(5000)
    elif fault == "interrupted":
        monkeypatch.setattr(names, "unpack", mock.Mock(side_effect=KeyboardInterrupt))
    with disk:
        code = run(["import", url, "--output", str(tmp_path / "runs" / "new")])
    assert code == (130 if fault == "interrupted" else 2)
    *progress, line = capsys.readouterr().err.splitlines()
    assert line.startswith("keras-transformer: ") and FAULTS[fault] in line
    assert not [line for line in progress if "sha256" not in line]
    assert os.listdir(tmp_path) == []


def test_a_file_of_any_size_is_not_received(server, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MAX_BYTES", 5000)
    with pytest.raises(InputError, match="is larger than"):
        download(f"{server.url}/model.zip", tmp_path / "model.zip")


def test_a_message_has_no_password_and_no_query():
    assert shown_url("https://me:secret@host:8/a/b.zip?key=secret#x") == "https://host:8/a/b.zip"
