"""Wrong options of several hosts are refused."""

import pathlib
import tempfile

import pytest

from keras_transformer.base.errors import InputError
from keras_transformer.cli.main import run
from keras_transformer.training.hosts import Host, join_hosts

RECIPE = pathlib.Path(__file__).parents[2] / "training/recipes/multi30k_en_de.yaml"

pytestmark = pytest.mark.tensorflow


def test_several_hosts_on_tensorflow_or_an_index_without_hosts_are_refused(capsys):
    arguments = ["train", str(RECIPE), "--output", "run", "--hosts", "a:1,b:1"]
    assert run([*arguments, "--host-index", "0"]) == 2
    said = capsys.readouterr().err
    assert "MultiWorkerMirroredStrategy does not work with `fit`" in said
    assert "set KERAS_BACKEND=jax" in said
    assert run(["train", str(RECIPE), "--output", "run", "--host-index", "1"]) == 2
    assert "--host-index needs --hosts" in capsys.readouterr().err


WRONG_HOSTS = [("a:1,b", 0, "Received: 'b'"), ("a:1,b:2", 2, "must be 0 to 1, .* Received: 2")]
WRONG_HOSTS += [("a:1,b:2", None, "must be 0 to 1, .* Received: None")]


@pytest.mark.parametrize(("hosts", "index", "expected"), WRONG_HOSTS)
def test_a_wrong_address_or_index_is_a_users_mistake(hosts, index, expected, monkeypatch):
    monkeypatch.setattr("keras.backend.backend", lambda: "jax")
    with pytest.raises(InputError, match=expected):
        join_hosts(hosts, index)


def test_the_copy_of_a_host_that_was_killed_is_removed_by_the_next_one(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "keras_transformer_host-1-0123abcd"
    left.mkdir()
    folder = Host(1).folder("run", False)
    assert folder.parent.parent == tmp_path and not left.exists()


def test_without_a_launcher_the_addresses_are_asked_for(monkeypatch):
    pytest.importorskip("jax", reason="comes with the extra [jax]")
    monkeypatch.setattr("keras.backend.backend", lambda: "jax")
    with pytest.raises(InputError, match="did not meet: .* give the address of each host"):
        join_hosts("auto", None)
