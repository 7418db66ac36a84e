"""One export of random weights as a folder for browsers, and LiteRT.js from npm."""

import shutil
import subprocess

import pytest

from keras_transformer.errors import InputError


@pytest.fixture(scope="session")
def npm(made_once):
    """A folder with LiteRT.js, found as the export finds it or installed."""
    from keras_transformer.export.web.export import PACKAGES, find_packages

    try:
        return find_packages()[0]
    except InputError:
        pass
    if shutil.which("npm") is None:
        pytest.skip("needs npm: apt-get install npm")

    def install(folder):
        command = ["npm", "install", "--ignore-scripts", "--prefix", folder]
        command += [f"{name}@{series}" for name, series in PACKAGES.items()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if done.returncode:
            pytest.skip(f"npm could not install LiteRT.js: {done.stderr.strip()[-200:]}")

    return made_once("npm", install)


@pytest.fixture(scope="session")
def web_report(engine, npm, texts, exported_once):
    """The `ExportReport` of `engine` for browsers in float32."""
    pytest.importorskip("ai_edge_litert", reason="comes with the extra [litert]")
    from keras_transformer.export import export_web

    options = {"beam_size": 3, "length_penalty": 0.8, "source_lengths": [13], "npm": npm}
    return exported_once("web", export_web, engine, texts[:20], **options)
