"""A server on this machine, without Ray."""

import contextlib
import signal
import sys
from unittest import mock

import pytest

from keras_transformer.errors import InputError
from keras_transformer.serving import LocalOptions, ServerOptions, local

pytest.importorskip("psutil", reason="comes with the extra [serve]")
pytestmark = pytest.mark.tensorflow

HOSTS = [("127.0.0.2", None, None), ("localhost", None, None), ("0.0.0.0", None, "*")]
HOSTS += [("0.0.0.0", "a.example", "a.example")]


@pytest.mark.parametrize(("host", "names", "allowed_names"), HOSTS)
def test_a_server_for_other_machines_takes_any_host_name(monkeypatch, host, names, allowed_names):
    def deploy(options, name):
        assert options.allowed_hosts == allowed_names
        raise InputError("deployed")

    monkeypatch.setattr(local, "served_export", lambda options: mock.Mock())
    monkeypatch.setattr(local, "private_ray", lambda **_: contextlib.nullcontext())
    monkeypatch.setitem(sys.modules, "ray", mock.Mock())
    monkeypatch.setattr(signal, "signal", mock.Mock())
    monkeypatch.setattr(local, "_deploy", deploy)
    with pytest.raises(InputError, match="deployed"):
        options = LocalOptions(host=host, port=0, metrics_port=0)
        local.serve_here(ServerOptions(model="any", allowed_hosts=names), options)
