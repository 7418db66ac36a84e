"""What a server does around its processes."""

import os
import shutil
import stat
from unittest import mock

import pytest

from keras_transformer.base.errors import InputError
from keras_transformer.extras.serving import LocalOptions, ServerOptions
from keras_transformer.extras.serving.server_options import ServedExport

server = pytest.importorskip(
    "keras_transformer.extras.serving.server", reason="comes with the extra [serve]"
)


HOSTS = [("127.0.0.2", None, None), ("localhost", None, None), ("0.0.0.0", None, "*")]
HOSTS += [("0.0.0.0", "a.example", "a.example")]


@pytest.mark.parametrize(("host", "names", "allowed_names"), HOSTS)
def test_a_server_for_other_machines_takes_any_host_name(
    monkeypatch, export, host, names, allowed_names
):
    class Supervisor:
        is_told_to_stop = True

        def __init__(self, config, listening, application):
            assert listening.getsockname()[1]
            ran.append(config.app.args[0].allowed_hosts)

        def run(self):
            pass

    ran = []
    monkeypatch.setattr(server, "served_export", lambda options: export)
    monkeypatch.setattr(server, "_Supervisor", Supervisor)
    monkeypatch.setenv(server.METRICS_FOLDER, "")  # to be restored
    options = ServerOptions(model="any", allowed_hosts=names)
    server.serve_here(options, LocalOptions(host=host, port=0))
    assert ran == [allowed_names]


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
    with server.private_copy(export) as copy:
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
    with server.private_copy(export._replace(path=str(export.folder / "model.bin"))) as copy:
        assert copy.path == str(copy.folder / "model.bin")
    error = OSError(28, "No space left on device")
    monkeypatch.setattr("os.link", mock.Mock(side_effect=error))
    monkeypatch.setattr("shutil.copyfile", mock.Mock(side_effect=error))
    with pytest.raises(InputError, match="^/.*: cannot be copied to .*: No space left.*TMPDIR"):
        with server.private_copy(export):
            pass
