"""The application on clusters: config files, two applications side by side, two nodes."""

import os
import pathlib
import subprocess
import sys
import threading
import time

import pytest
import yaml
from live_server import Client, free_port

ray = pytest.importorskip("ray")

from ray import serve  # noqa: E402
from ray.serve.schema import ServeDeploySchema  # noqa: E402

from keras_transformer.serving import ServerOptions, build_app  # noqa: E402

pytestmark = pytest.mark.tensorflow

EXAMPLES = pathlib.Path(__file__).parents[2] / "export" / "ray_serve"


def test_the_examples_pass_rays_schema_and_are_one_configuration():
    config = yaml.safe_load((EXAMPLES / "config.yaml").read_text())
    service = yaml.safe_load((EXAMPLES / "ray_service.yaml").read_text())
    assert yaml.safe_load(service["spec"]["serveConfigV2"]) == config
    (application,) = ServeDeploySchema(**config).applications
    assert application.import_path == "keras_transformer.serving:build_app"
    ServerOptions(**application.args)


def client(cluster, prefix="", name="light"):
    return Client(cluster.port, f"{prefix}/v1/models/{name}")


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
        servers[name] = client(cluster, f"/{name}", model)
        servers[name].wait(servers[name].is_ready)
    first = servers["one"].translate("a man runs.", "")
    assert first == servers["two"].translate("a man runs.", "") and first[1] == ""
    assert first == servers["three"].translate("a man runs.", "")
    serve.delete("one")
    assert servers["two"].translate("a man runs.") == first[:1]
    assert servers["one"].get("/one/healthz").status == 404


def test_a_node_that_dies_under_load_costs_its_requests_alone(cluster, light):
    second = cluster.add_node(num_cpus=4)
    bound = build_app(options(light, "light", replicas=2, replica_cpus=3))  # One a node.
    serve.run(bound, name="spread", route_prefix="/")
    server = client(cluster)
    server.wait(server.is_ready)
    statuses, stop = [], threading.Event()

    def ask():
        while not stop.is_set():
            body = {"inputs": {"text": ["two dogs sleeps in the park."]}}
            statuses.append(server.predict(body).status)
            if statuses[-1] != 200:
                time.sleep(1)  # Retry-After

    asking = [threading.Thread(target=ask) for _ in range(8)]
    for each in asking:
        each.start()
    time.sleep(3)
    cluster.remove_node(second, allow_graceful=False)
    killed = len(statuses)
    # Until Ray has noticed, requests still go to the dead node.
    server.wait(lambda: len(statuses) > killed + 80 and set(statuses[-80:]) == {200})
    stop.set()
    for each in asking:
        each.join()
    # What the next test starts must not be sent there.
    server.wait(lambda: sum(node["Alive"] for node in ray.nodes()) == 1)
    assert killed
    # 500 is the answer of Ray's proxy where the replica was on the node.
    lost = len(statuses) - statuses.count(200)
    assert set(statuses) <= {200, 500, 503} and lost <= 64, lost


def test_serve_deploy_deploys_the_config_file_and_another_version_of_it(cluster, light, tmp_path):
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
    for version in (1, 2):
        application["args"]["version"] = version
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
        command = [pathlib.Path(sys.executable).parent / "serve", "deploy"]
        command += ["--address", cluster.dashboard, tmp_path / "config.yaml"]
        finished = subprocess.run(command, capture_output=True, text=True)
        assert finished.returncode == 0, finished.stderr
        server = client(cluster, name="translator")

        def answers(version=version, server=server):
            number = f'"{version}"'.encode()
            return server.is_ready() and number in server.get(f"{server.url}/metadata").body

        server.wait(answers)
        assert server.translate("a man runs.")
