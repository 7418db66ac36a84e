"""One export of random weights as a folder for browsers, and LiteRT.js from npm."""

import dataclasses
import shutil
import subprocess

import pytest

from keras_transformer.errors import InputError


@pytest.fixture(scope="session")
def npm(tmp_path_factory):
    """A folder with LiteRT.js, found as the export finds it or installed."""
    from keras_transformer.export.web.export import PACKAGES, find_packages

    try:
        return find_packages()[0]
    except InputError:
        pass
    if shutil.which("npm") is None:
        pytest.skip("needs npm: apt-get install npm")
    folder = tmp_path_factory.mktemp("npm")
    command = ["npm", "install", "--ignore-scripts", "--prefix", folder]
    command += [f"{name}@{series}" for name, series in PACKAGES.items()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode:
        pytest.skip(f"npm could not install LiteRT.js: {done.stderr.strip()[-200:]}")
    return folder


@pytest.fixture(scope="session")
def web_report(engine, npm, texts, tmp_path_factory):
    """The `ExportReport` of `engine` for browsers in float32; its `folder` is a path."""
    pytest.importorskip("ai_edge_litert", reason="comes with the extra [litert]")
    from keras_transformer.export import export_web

    folder = tmp_path_factory.mktemp("web") / "toy"
    options = {"beam_size": 3, "length_penalty": 0.8, "source_lengths": [13]}
    report = export_web(engine, folder, texts[:20], npm=npm, **options)
    return dataclasses.replace(report, folder=folder)
