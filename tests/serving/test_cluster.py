"""One cluster: config files, applications side by side, two nodes, files over Ray Data."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import threading
import time
import urllib.request

import pytest
import yaml
from live_server import WORDS, Client, free_port, wait_for

ray = pytest.importorskip("ray", reason="comes with the extra [serve]")

from ray import serve  # noqa: E402
from ray.serve.schema import ServeDeploySchema  # noqa: E402

from keras_transformer import Translator  # noqa: E402
from keras_transformer.bulk import over_ray  # noqa: E402
from keras_transformer.cli.main import run  # noqa: E402
from keras_transformer.serving import ServerOptions, build_app, local  # noqa: E402

pytestmark = pytest.mark.tensorflow

EXAMPLES = pathlib.Path(__file__).parents[2] / "export" / "ray_serve"


def test_the_examples_pass_rays_schema_and_are_one_configuration():
    config = yaml.safe_load((EXAMPLES / "config.yaml").read_text())
    service = yaml.safe_load((EXAMPLES / "ray_service.yaml").read_text())
    assert yaml.safe_load(service["spec"]["serveConfigV2"]) == config
    upstream = f"server 127.0.0.1:{config['http_options']['port']};"
    assert upstream in (EXAMPLES / "nginx.conf").read_text()
    (application,) = ServeDeploySchema(**config).applications
    assert application.import_path == "keras_transformer.serving:build_app"
    ServerOptions(**application.args)


def ready_client(cluster, prefix="", name="light"):
    client = Client(cluster.port, f"{prefix}/v1/models/{name}")
    wait_for(client.is_ready)
    return client


@pytest.fixture(autouse=True)
def nothing_is_left(request):
    yield
    if "cluster" in request.fixturenames:
        for name in list(serve.status().applications):
            serve.delete(name)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A node on this machine, with Ray's proxy at `port`; a test may add others."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Ray notices in two seconds that a node has died.
    os.environ |= {"RAY_health_check_period_ms": "500", "RAY_health_check_failure_threshold": "3"}
    dashboard = free_port()
    head = {"include_dashboard": True, "dashboard_port": dashboard}
    head["dashboard_agent_listen_port"] = free_port()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, **head})
    cluster.port, cluster.dashboard = free_port(), f"http://127.0.0.1:{dashboard}"
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    http = {"host": "127.0.0.1", "port": cluster.port}
    serve.start(proxy_location="HeadOnly", http_options=http)
    yield cluster
    serve.shutdown()
    ray.shutdown()
    cluster.shutdown()


def options(model, name, **more):
    return ServerOptions(model=str(model), name=name, warm_up_tokens=3, **more)


def test_applications_of_one_model_and_under_another_name_live_side_by_side(cluster, light):
    servers = {}
    for name, model in (("one", "light"), ("two", "light"), ("three", "other")):
        serve.run(build_app(options(light, model)), name=name, route_prefix=f"/{name}")
        servers[name] = ready_client(cluster, f"/{name}", model)
    first = servers["one"].translate("a man ran.", "")
    assert first == servers["two"].translate("a man ran.", "") and first[1] == ""
    assert first == servers["three"].translate("a man ran.", "")
    serve.delete("one")
    assert servers["two"].translate("a man ran.") == first[:1]
    assert servers["one"].get("/one/healthz").status == 404


def test_a_node_that_dies_under_load_costs_its_requests_alone(cluster, light):
    second = cluster.add_node(num_cpus=4)
    bound = build_app(options(light, "light", replicas=2, replica_cpus=3))  # One a node.
    serve.run(bound, name="spread", route_prefix="/")
    server = ready_client(cluster)
    statuses, stop = [], threading.Event()

    def ask():
        while not stop.is_set():
            body = {"inputs": {"text": ["stars start a tram."]}}
            statuses.append(server.predict(body).status)
            if statuses[-1] != 200:
                time.sleep(1)  # Retry-After

    asking = [threading.Thread(target=ask) for _ in range(8)]
    for thread in asking:
        thread.start()
    wait_for(lambda: len(statuses) > 80)
    cluster.remove_node(second, allow_graceful=False)
    killed = len(statuses)
    # Until Ray has noticed, requests still go to the dead node.
    wait_for(lambda: len(statuses) > killed + 80 and set(statuses[-80:]) == {200})
    stop.set()
    for thread in asking:
        thread.join()
    # What the next test starts must not be sent there.
    wait_for(lambda: sum(node["Alive"] for node in ray.nodes()) == 1)
    assert killed
    # 500 is the answer of Ray's proxy where the replica was on the node.
    lost = len(statuses) - statuses.count(200)
    assert set(statuses) <= {200, 500, 503} and lost <= 64, lost


def test_the_config_file_is_deployed_and_another_version_of_it(cluster, light, tmp_path):
    models = tmp_path / "models"
    models.mkdir()
    for number in ("1", "2"):
        (models / number).symlink_to(light)
    config = yaml.safe_load((EXAMPLES / "config.yaml").read_text())
    config["http_options"] = {"host": "127.0.0.1", "port": cluster.port}
    config["proxy_location"] = "HeadOnly"
    (application,) = config["applications"]
    more = {"model": str(models), "replicas": 1, "replica_cpus": 0}
    application["args"] |= {**more, "name": "translator"}
    server = Client(cluster.port, "/v1/models/translator")
    for version in (1, 2):
        application["args"]["version"] = version
        url = f"{cluster.dashboard}/api/serve/applications/"  # as `serve deploy` does
        request = urllib.request.Request(url, json.dumps(config).encode(), method="PUT")
        request.add_header("content-type", "application/json")
        urllib.request.urlopen(request, timeout=60).close()
        number = f'"{version}"'.encode()
        wait_for(server.is_ready)
        wait_for(lambda number=number: number in server.get(f"{server.url}/metadata").body)
        assert server.translate("a man ran.")


@pytest.fixture
def joined(cluster, monkeypatch):
    """Commands of this process use the cluster where they would start Ray."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for module in (local, over_ray):
        monkeypatch.setattr(module, "private_ray", lambda *_, **__: contextlib.nullcontext())
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_an_export_that_does_not_load_is_one_line_and_exit_code_2(joined, light, tmp_path, capsys):
    damaged = shutil.copytree(light, tmp_path / "damaged")
    # One byte more: the digest of the manifest is another.
    with open(damaged / "model.bin", "ab") as file:
        file.write(b"\x00")
    assert run(["serve", f"--model={damaged}", "--port=0"]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert "damaged is not served" in line and "not the file that was exported" in line


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--workers=1", "b.txt, line 2: expected UTF-8 text"),
        ("--beam-size=0", "`--beam-size` must be a positive integer below 2**31. Received: 0."),
    ],
)
def test_a_mistake_ends_the_command_in_one_line(joined, light, tmp_path, capsys, option, message):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "b.txt").write_bytes(b"one\n\xff\n" if "line" in message else b"one\n")
    command = ["translate", f"--model={light}", "--engine=ray", "--workers=1", option]
    command += [f"--output={tmp_path / 'out'}", *map(str, tmp_path.glob("?.txt"))]
    assert run(command) == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err and captured.out == ""
    assert message in captured.err.splitlines()[-1]
    assert "line" in message or not (tmp_path / "out").exists()


def test_two_workers_make_pairs(joined, light, tmp_path, capsys):
    lines = [f"a {word} man." for word in WORDS[:7]]
    text = tmp_path / "mono.txt"
    text.write_text("".join(line + "\n" for line in lines))
    command = ["synthesize", "--set=chunk_lines=3", f"--model={light}", "--back"]
    command += ["--engine=ray", "--workers=2", str(text), f"--output={tmp_path / 'out'}"]
    assert run(command) == 0
    assert json.loads(capsys.readouterr().out)["lines_translated"] == 7
    translations = [translation.text for translation in Translator.load(light).translate(lines)]
    assert len(set(translations)) > 3
    pairs = [f"{pair[0]},{pair[1]}" for pair in zip(translations, lines, strict=True)]
    assert (tmp_path / "out" / "mono.txt.csv").read_text().splitlines() == pairs
