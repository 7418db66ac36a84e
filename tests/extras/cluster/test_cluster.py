"""One Ray on this machine: the server as its deployment, files over Ray Data, and its end."""

import contextlib
import json
import pathlib

import pytest
import yaml
from live_server import WORDS, Client, free_port, wait_for

ray = pytest.importorskip("ray", reason="comes with the extra [cluster]")

from ray import serve  # noqa: E402
from ray.serve.schema import ServeDeploySchema  # noqa: E402

from keras_transformer import Translator  # noqa: E402
from keras_transformer.cli.main import run  # noqa: E402
from keras_transformer.extras.cluster import ClusterOptions, build_app, files  # noqa: E402
from keras_transformer.extras.cluster.files import private_ray  # noqa: E402

pytestmark = pytest.mark.tensorflow

EXPORT = pathlib.Path(__file__).parents[3] / "export"


def test_the_examples_pass_rays_schema_and_are_one_configuration():
    config = yaml.safe_load((EXPORT / "ray_serve" / "config.yaml").read_text())
    service = yaml.safe_load((EXPORT / "ray_serve" / "ray_service.yaml").read_text())
    assert yaml.safe_load(service["spec"]["serveConfigV2"]) == config
    (application,) = ServeDeploySchema(**config).applications
    assert application.import_path == "keras_transformer.extras.cluster:build_app"
    ClusterOptions(**application.args)


MISTAKES = [("--workers=1", "b.txt, line 2: expected UTF-8 text")]
MISTAKES += [("--beam-size=0", "`--beam-size` must be a positive integer below 2**31. Received")]


@pytest.mark.slow
def test_ray_answers_as_the_server_does_translates_files_and_ends(
    light, tmp_path, capsys, monkeypatch
):
    lines = [f"a {word} man." for word in WORDS[:7]]
    expected = [translation.text for translation in Translator.load(light).translate(lines)]
    assert len(set(expected)) > 3
    (tmp_path / "mono.txt").write_text("".join(line + "\n" for line in lines))
    port = free_port()
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # Ray has been imported before its settings.
    with private_ray(4, 200 * 2**20):
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        options = ClusterOptions(model=str(light), replicas="auto", max_replicas=2)
        serve.run(build_app(options), name="light", route_prefix="/")
        client = Client(port, "/v1/models/light")
        wait_for(client.is_ready)
        assert client.translate(*lines) == expected
        assert client.predict({"inputs": [1]}).status == 400
        assert client.get("/metrics").status == 200
        serve.shutdown()
        # Commands of this process use this Ray where they would start another.
        nothing = contextlib.nullcontext()
        monkeypatch.setattr(files, "private_ray", lambda *_, **__: nothing)
        command = [
            "synthesize",
            "--set=chunk_lines=3",
            f"--model={light}",
            "--back",
            "--engine=ray",
        ]
        command += ["--workers=2", str(tmp_path / "mono.txt"), f"--output={tmp_path / 'out'}"]
        capsys.readouterr()
        assert run(command) == 0
        assert json.loads(capsys.readouterr().out)["lines_translated"] == 7
        pairs = [f"{pair[0]},{pair[1]}" for pair in zip(expected, lines, strict=True)]
        assert (tmp_path / "out" / "mono.txt.csv").read_text().splitlines() == pairs
        for number, (option, message) in enumerate(MISTAKES):
            (tmp_path / "b.txt").write_bytes(b"one\n\xff\n" if "line" in message else b"one\n")
            command = ["translate", f"--model={light}", "--engine=ray", "--workers=1", option]
            command += [f"--output={tmp_path / f'bad{number}'}", str(tmp_path / "b.txt")]
            assert run(command) == 2
            captured = capsys.readouterr()
            assert "Traceback" not in captured.err and captured.out == ""
            assert message in captured.err.splitlines()[-1]
            assert "line" in message or not (tmp_path / f"bad{number}").exists()
    assert not ray.is_initialized()
    with pytest.raises(OSError):
        client.get("/healthz")
