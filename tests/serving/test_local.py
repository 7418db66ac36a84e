"""A server on this machine, without Ray."""

import contextlib
import os
import pathlib
import shutil
import signal
import stat
import sys
from unittest import mock

import pytest

from keras_transformer.errors import InputError
from keras_transformer.serving import LocalOptions, ServerOptions, local
from keras_transformer.serving.server_options import MAX_REQUESTS, ServedExport

pytest.importorskip("psutil", reason="comes with the extra [serve]")
pytestmark = pytest.mark.tensorflow

HOSTS = [("127.0.0.2", None, None), ("localhost", None, None), ("0.0.0.0", None, "*")]
HOSTS += [("0.0.0.0", "a.example", "a.example")]


@pytest.mark.parametrize(("host", "names", "allowed_names"), HOSTS)
def test_a_server_for_other_machines_takes_any_host_name(
    monkeypatch, tmp_path, host, names, allowed_names
):
    def deploy(options, export, copy, files):
        assert options.allowed_hosts == allowed_names
        raise InputError("deployed")

    export = ServedExport(1, str(tmp_path), tmp_path, "any")
    monkeypatch.setattr(local, "served_export", lambda options: export)
    monkeypatch.setattr(local, "private_ray", lambda **_: contextlib.nullcontext())
    monkeypatch.setitem(sys.modules, "ray", mock.Mock())
    monkeypatch.setattr(signal, "signal", mock.Mock())
    monkeypatch.setattr(local, "_deploy", deploy)
    with pytest.raises(InputError, match="deployed"):
        options = LocalOptions(host=host, port=0, metrics_port=0)
        local.serve_here(ServerOptions(model="any", allowed_hosts=names), options)


HELD = [({}, "256"), ({"replicas": 3, "max_ongoing": 5}, "15")]
HELD += [({"replicas": "auto", "max_replicas": 2, "max_ongoing": 5}, "10")]


@pytest.mark.parametrize(("options", "limit"), HELD)
def test_rays_proxy_passes_on_as_many_requests_as_all_replicas_hold(
    monkeypatch, export, options, limit
):
    def private_ray(**_):  # Ray's processes inherit the environment of their start.
        raise InputError(os.environ[MAX_REQUESTS])

    monkeypatch.setenv(MAX_REQUESTS, "1")
    monkeypatch.setattr(local, "served_export", lambda options: export)
    monkeypatch.setattr(local, "private_ray", private_ray)
    with pytest.raises(InputError, match=f"^{limit}$"):
        local.serve_here(
            ServerOptions(model="any", **options), LocalOptions(port=0, metrics_port=0)
        )


def test_a_port_that_is_taken_while_ray_starts_is_one_line(monkeypatch, export):
    monkeypatch.setattr(local, "served_export", lambda options: export)
    monkeypatch.setattr(local, "private_ray", lambda **_: contextlib.nullcontext())
    ray = mock.Mock()
    cause = "ray::proxy\n  File 'proxy.py', line 7\nRuntimeError: Failed to bind to address 'a:1'."
    ray.serve.start.side_effect = RuntimeError(cause)
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(InputError) as caught:
        local.serve_here(ServerOptions(model="any"), LocalOptions(port=0))
    port = ray.serve.start.call_args.kwargs["http_options"]["port"]
    says = "Ray Serve cannot be started: Failed to bind to address 'a:1'."
    assert str(caught.value) == f"127.0.0.1:{port}: {says}"


@pytest.fixture
def export(tmp_path):
    """An export with a file, a file in a folder, a link to a file elsewhere, and a README."""
    folder, elsewhere = tmp_path / "1", tmp_path / "elsewhere"
    (folder / "assets").mkdir(parents=True)
    for path in ("model.bin", "assets/vocabulary", "README.md", "assets/README.md"):
        (folder / path).write_text(path)
    elsewhere.write_text("linked")
    (folder / "linked").symlink_to(elsewhere)
    return ServedExport(1, str(folder), folder, "any")


@pytest.mark.parametrize("can_link", [True, False])
def test_the_served_files_are_those_of_the_start_whatever_replaces_them(
    export, tmp_path, monkeypatch, can_link
):
    if not can_link:  # Another file system.
        monkeypatch.setattr("os.link", mock.Mock(side_effect=OSError(18, "cross-device")))
    with local._private_copy(export) as copy:
        assert (copy.number, copy.name, copy.path) == (1, "any", str(copy.folder))
        assert stat.S_IMODE(copy.folder.stat().st_mode) == 0o700
        for name in ("model.bin", "linked", "assets/vocabulary"):
            (tmp_path / "new").write_text("new")
            os.replace(tmp_path / "new", (export.folder / name).resolve())
        shutil.rmtree(export.folder)
        contents = {
            path.relative_to(copy.folder).as_posix(): path.read_text()
            for path in copy.folder.rglob("*")
            if path.is_file()
        }
        names = ("model.bin", "assets/vocabulary", "assets/README.md")
        assert contents == {**{name: name for name in names}, "linked": "linked"}
    assert not copy.folder.exists()


def test_the_copy_of_a_file_of_an_export_has_its_path_and_a_full_disk_is_one_line(
    export, monkeypatch
):
    with local._private_copy(export._replace(path=str(export.folder / "model.bin"))) as copy:
        assert copy.path == str(copy.folder / "model.bin")
    error = OSError(28, "No space left on device")
    monkeypatch.setattr("os.link", mock.Mock(side_effect=error))
    monkeypatch.setattr("shutil.copyfile", mock.Mock(side_effect=error))
    with pytest.raises(InputError, match="^/.*: cannot be copied to .*: No space left.*TMPDIR"):
        with local._private_copy(export):
            pass


def watched(monkeypatch, export, statuses):
    """How `_watch` ends, and after how many seconds, if Ray has a status every five seconds."""
    clock, statuses = [0], iter(statuses)
    monkeypatch.setattr(local.time, "sleep", lambda seconds: clock.append(clock[-1] + seconds))
    monkeypatch.setattr(local.time, "monotonic", lambda: clock[-1])

    def status_of(name):
        states, trigger = next(statuses, ("stop", ""))
        if states == "stop":
            raise KeyboardInterrupt
        if states == "ended":
            raise ConnectionError("gone")
        message = f"a traceback\nerrors.InputError: {export.folder}: damaged\nmore"
        return mock.Mock(replica_states=states, status_trigger=trigger, message=message)

    monkeypatch.setattr(local, "_status_of", status_of)
    try:
        original = export._replace(folder=pathlib.Path("/models/toy"))
        local._watch(ServerOptions(model="toy"), original, export)
    except (InputError, KeyboardInterrupt) as error:
        return f"{type(error).__name__} {error}", clock[-1]


RUNNING = ({"RUNNING": 1}, "UNSPECIFIED")
ENDED = ("ended", "")
FAILED, STARTING = ({"STARTING": 1}, "REPLICA_STARTUP_FAILED"), ({"STARTING": 1}, "UNSPECIFIED")


@pytest.mark.parametrize(
    ("statuses", "ends", "seconds"),
    [
        ([RUNNING] * 9, "KeyboardInterrupt ", 50),
        ([RUNNING, STARTING, STARTING, RUNNING], "KeyboardInterrupt ", 25),
        ([STARTING] * 99, "KeyboardInterrupt ", 500),
        ([({"RUNNING": 1, "STARTING": 1}, "REPLICA_STARTUP_FAILED")] * 9, "KeyboardInterrupt ", 50),
        ([FAILED] * 4 + [RUNNING], "KeyboardInterrupt ", 30),
        ([FAILED] * 4 + [RUNNING] + [FAILED] * 4, "KeyboardInterrupt ", 50),
        (
            [RUNNING] + [FAILED] * 9,
            "InputError toy is no longer served: no replica starts: /models/toy: damaged",
            30,
        ),
        ([RUNNING, *[ENDED] * 9], "InputError toy is no longer served: Ray has ended: gone", 30),
        ([ENDED, ENDED, ENDED, RUNNING], "KeyboardInterrupt ", 25),
    ],
)
def test_a_server_ends_with_a_line_when_no_replica_can_be_started(
    monkeypatch, export, statuses, ends, seconds
):
    assert watched(monkeypatch, export, statuses) == (ends, seconds)
