"""What Ray and Ray Serve are asked for, and what becomes of their answers. No Ray is started."""

import asyncio
import inspect
import os
import pathlib
import re
import sys
import threading
import time
import types

import pytest

from keras_transformer.errors import InputError
from keras_transformer.serving import ServerOptions
from keras_transformer.serving.cluster import Cluster, Loaded, start_ray
from keras_transformer.serving.model import Version, folder_digest
from keras_transformer.serving.replica import Replica
from keras_transformer.serving.reporting import Rejection

REASON = "comes with the extra [serve]"
grpc = pytest.importorskip("grpc", reason=REASON)
ray = pytest.importorskip("ray", reason=REASON)
serve = pytest.importorskip("ray.serve", reason=REASON)

from ray.exceptions import RayActorError  # noqa: E402
from ray.serve.exceptions import RayServeException  # noqa: E402
from ray.serve.schema import (  # noqa: E402
    ApplicationStatusOverview,
    DeploymentStatusOverview,
    ServeStatus,
)

VERSION = Version(7, "/models/toy/7", ())


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 10))


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Without Ray's and XLA's settings, and put back afterwards."""
    kept = {name: value for name, value in os.environ.items() if "RAY" not in name}
    kept.pop("TF_XLA_FLAGS", None)
    monkeypatch.setattr(os, "environ", kept)
    return kept


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """What Ray was asked for: pairs of a function's name and its arguments by name."""
    calls = []

    def note(module, name, result=None):
        signature = inspect.signature(getattr(module, name))

        def noted(*values, **named):
            arguments = signature.bind(*values, **named).arguments
            further = arguments.pop("kwargs", {})
            calls.append((name, {**arguments, **further}))
            return result

        monkeypatch.setattr(module, name, noted)

    note(ray, "init")
    note(ray, "is_initialized", True)
    note(ray, "shutdown")
    for name in ("start", "delete", "shutdown"):
        note(serve, name)
    note(serve, "status", ServeStatus())
    return calls


def overview(message="", **deployments):
    """The status of an application; a deployment is its message and its replicas by state."""
    return ApplicationStatusOverview(
        status="RUNNING",
        message=message,
        last_deployed_time_s=0.0,
        deployments={
            name: DeploymentStatusOverview("HEALTHY", "UNSPECIFIED", states, told)
            for name, (told, states) in deployments.items()
        },
    )


def report(monkeypatch, **applications):
    """Lets Ray Serve tell of applications, whose names have `_` for `-` here."""
    names = {name.replace("_", "-"): each for name, each in applications.items()}
    monkeypatch.setattr(serve, "status", lambda: ServeStatus(applications=names))


def test_ray_is_started_for_this_machine_and_this_process_alone(calls, environment):
    start_ray(cpus=3)
    ((name, arguments),) = calls
    assert (name, arguments["address"], arguments["num_cpus"]) == ("init", "local", 3)
    assert arguments["_node_ip_address"] == "127.0.0.1"
    assert arguments["include_dashboard"] is False and arguments["log_to_driver"] is False
    assert environment["RAY_USAGE_STATS_ENABLED"] == "0"
    assert environment["RAY_AUTH_MODE"] == "token"
    first = environment["RAY_AUTH_TOKEN"]
    assert re.fullmatch("[0-9a-f]{64}", first)
    del environment["RAY_AUTH_MODE"]
    start_ray()
    assert environment["RAY_AUTH_TOKEN"] != first


def test_a_cluster_is_joined_as_it_is(calls, environment):
    start_ray("10.1.1.7:6379", cpus=3)
    ((_, arguments),) = calls
    assert arguments["address"] == "10.1.1.7:6379"
    # These are refused by Ray where it does not start anything.
    assert not {"num_cpus", "object_store_memory"} & set(arguments)
    assert "RAY_AUTH_TOKEN" not in environment


def test_what_the_user_has_set_stays(environment):
    wanted = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "1"}
    environment.update(wanted)
    start_ray()
    assert wanted.items() <= environment.items() and "RAY_AUTH_TOKEN" not in environment


@pytest.mark.parametrize("error", [ConnectionError, ValueError, Exception])
def test_a_ray_that_does_not_start_is_told_of(monkeypatch, error):
    def fail(**options):
        raise error("no node there")

    monkeypatch.setattr(ray, "init", fail)
    with pytest.raises(InputError, match="Ray cannot be started: no node there"):
        start_ray("10.1.1.7:6379")


def test_a_ray_that_is_not_installed_is_told_of(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=re.escape("pip install 'keras_transformer[serve]'")):
        start_ray()


class Handle:
    """A deployment's: `run` and `describe` give a result, raise an error, or never end."""

    def __init__(self, result=None, error=None, hangs=False):
        self.asked, self.cancelled = [], 0
        self.run = self.describe = types.SimpleNamespace(remote=self._remote)
        self._result, self._error, self._hangs = result, error, hangs

    def _remote(self, *values):
        self.asked.append(values)
        return self

    def __await__(self):
        return self._answer().__await__()

    async def _answer(self):
        if self._error is not None:
            raise self._error
        await asyncio.sleep(60 if self._hangs else 0)
        return self._result

    def cancel(self):
        self.cancelled += 1


def loaded(handle, timeout=5.0):
    return Loaded(7, {}, 0.0, handle, "toy-7-1", timeout, "digest")


def test_a_batch_goes_to_a_replica_and_its_answer_comes_back():
    handle = Handle({"outputs": {"text": [b"A"]}})
    columns = {"text": [b"a"]}
    assert run(loaded(handle).run("beam", columns)) == {"outputs": {"text": [b"A"]}}
    assert (handle.asked, handle.cancelled) == ([("beam", columns)], 0)


@pytest.mark.parametrize("error", [RayActorError(), RayServeException("gone"), grpc.RpcError()])
def test_a_batch_whose_replica_ends_is_not_sent_again(error):
    handle = Handle(error=error)
    with pytest.raises(Rejection, match=rf"send it again \({type(error).__name__}\)") as caught:
        run(loaded(handle).run("beam", {}))
    assert (caught.value.status, caught.value.reason) == (503, "replica")
    assert len(handle.asked) == 1


def test_a_batch_that_hangs_is_given_up():
    handle = Handle(hangs=True)
    with pytest.raises(Rejection, match="No answer within 0.05 seconds") as caught:
        run(loaded(handle, timeout=0.05).run("beam", {}))
    assert (caught.value.status, caught.value.reason) == (504, "timeout")
    assert (len(handle.asked), handle.cancelled) == (1, 1)


@pytest.fixture
def deploy(monkeypatch):
    """`deploy(result, error)`: lets `serve.run` give a handle or raise; notes what is deployed."""

    def deploy(result=None, error=None):
        deployed = []
        make = serve.deployment  # Ray Serve's own checks the options.

        def deployment(kind, **options):
            deployed.append((kind, options))
            return make(kind, **options)

        def start(bound, name, route_prefix):
            arguments = bound._bound_deployment.init_args
            deployed.append((name, route_prefix, arguments))
            if error is not None:
                raise error
            return Handle(result)

        monkeypatch.setattr(serve, "deployment", deployment)
        monkeypatch.setattr(serve, "run", start)
        return deployed

    return deploy


def test_a_version_is_loaded_into_as_many_replicas_as_wanted(deploy, tmp_path):
    deployed = deploy(({"beam": "a signature"}, 1.5))
    options = ServerOptions(replicas=3, threads=5, replica_cpus=0.5, request_timeout=11.0)
    (tmp_path / "saved_model.pb").write_bytes(b"graph")
    version = run(Cluster("toy", options).load(Version(7, str(tmp_path), ())))
    (kind, wanted), (application, route, arguments) = deployed
    assert kind is Replica and route is None
    assert (wanted["num_replicas"], wanted["max_ongoing_requests"]) == (3, 5)
    assert wanted["ray_actor_options"] == {"num_cpus": 0.5}
    assert (version.number, version.signatures) == (7, {"beam": "a signature"})
    assert (version.seconds, version.application) == (1.5, application)
    # Each replica compares the files that it has loaded with this.
    assert version.digest == folder_digest(tmp_path)
    assert arguments == (str(tmp_path), options, version.digest)
    assert version.timeout == 2 * 11.0  # So that the request's own comes first.


def test_a_version_that_is_loaded_again_has_a_name_of_its_own(deploy, calls):
    deploy(({}, 0.0))
    cluster = Cluster("toy", ServerOptions())
    first, second = (run(cluster.load(VERSION)) for _ in range(2))
    assert first.application != second.application
    run(cluster.unload(first))
    assert calls == [("delete", {"name": first.application})]


TRACEBACKS = """The deployment failed to start 2 times in a row. Error:
Traceback (most recent call last):
  File "/usr/lib/python3.11/x.py", line 3, in load
ValueError: the first
During handling of the above exception, another exception occurred:
  keras_transformer.errors.InputError: /models/toy/7: it is damaged.
"""


@pytest.mark.parametrize(
    ("application", "message"),
    [
        (overview(replica=(TRACEBACKS, {})), "/models/toy/7: it is damaged."),
        (overview("OSError: no room", replica=(TRACEBACKS, {})), "no room"),
        (overview("not\nready", replica=("too\n few CPUs", {})), "too few CPUs; not ready"),
        (overview("a" * 1000), "a" * 500),
        (None, "failed to deploy"),
    ],
    ids=["the last cause", "the application's", "no cause", "much text", "nothing"],
)
def test_a_version_that_does_not_load_is_told_of_and_nothing_of_it_stays(
    deploy, calls, monkeypatch, application, message
):
    deploy(error=RuntimeError("failed to deploy"))
    report(monkeypatch, **({} if application is None else {"toy_7_1": application}))
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        run(Cluster("toy", ServerOptions()).load(VERSION))
    assert str(caught.value) == message
    assert calls == [("delete", {"name": "toy-7-1"})]


def test_the_replicas_that_run_are_counted(monkeypatch):
    starting = {"RUNNING": 2, "STARTING": 3}
    report(
        monkeypatch,
        toy_7_1=overview(replica=("", starting), other=("", {"RUNNING": 5})),
        toy_8_2=overview(replica=("", {"RUNNING": 11})),
    )
    cluster = Cluster("toy", ServerOptions())
    numbers = [run(cluster.running(name)) for name in ("toy-7-1", "toy-8-2", "toy-9-3")]
    assert numbers == [2 + 5, 11, 0]


def test_a_status_is_not_read_while_a_deployment_is_made(deploy, monkeypatch):
    # Ray Serve 2.60 does not stand it: "… is not registered for pickle by value".
    deploy(({}, 0.0))
    busy, overlaps = threading.Lock(), []

    def alone(function):
        def called(*values, **options):
            overlaps.append(not busy.acquire(blocking=False))
            time.sleep(0.05)
            if not overlaps[-1]:
                busy.release()
            return function(*values, **options)

        return called

    for name in ("deployment", "status"):
        monkeypatch.setattr(serve, name, alone(getattr(serve, name)))
    cluster = Cluster("toy", ServerOptions())

    async def scenario():
        await asyncio.gather(
            *(cluster.load(VERSION) for _ in range(3)), *(cluster.running("x") for _ in range(3))
        )

    run(scenario())
    assert overlaps == [False] * 6


def test_compiled_programs_are_shared_in_a_folder_that_nobody_else_reads(environment, calls):
    environment["TF_XLA_FLAGS"] = "--tf_xla_auto_jit=0"
    cluster = Cluster("toy", ServerOptions())
    cluster.start()
    assert [name for name, _ in calls] == ["init", "start"]
    kept, _, folder = environment["TF_XLA_FLAGS"].partition(" --tf_xla_persistent_cache_directory=")
    assert kept == "--tf_xla_auto_jit=0"
    assert os.stat(folder).st_mode & 0o777 == 0o700
    (pathlib.Path(folder) / "program").write_bytes(b"x")
    cluster.stop()
    assert not os.path.exists(folder)


def test_somebody_elses_folder_of_programs_is_used_and_left(environment, tmp_path):
    environment["TF_XLA_FLAGS"] = f"--tf_xla_persistent_cache_directory={tmp_path}"
    before = environment["TF_XLA_FLAGS"]
    cluster = Cluster("toy", ServerOptions())
    cluster.start()
    assert environment["TF_XLA_FLAGS"] == before
    cluster.stop()
    assert tmp_path.exists()


def test_requests_do_not_go_through_rays_own_server(calls):
    cluster = Cluster("toy", ServerOptions(ray_address="10.1.1.7:6379"))
    cluster.start()
    (_, joined), (_, started) = calls
    assert joined["address"] == "10.1.1.7:6379"
    assert started["proxy_location"] == "Disabled"
    assert "TF_XLA_FLAGS" not in os.environ  # The replicas may be on other machines.


def names_of(calls):
    return [name for name, _ in calls if name != "is_initialized"]


def test_a_ray_of_its_own_ends_with_the_server(calls):
    Cluster("toy", ServerOptions()).stop()
    assert names_of(calls) == ["shutdown", "shutdown"]


def test_on_a_cluster_nothing_ends_but_its_own_applications(calls, monkeypatch):
    mine, other = overview(), overview()
    report(monkeypatch, toy_7_1=mine, toy_11_13=mine, toys_7_1=other, toy_fast_7_1=other, t=other)
    Cluster("toy", ServerOptions(ray_address="10.1.1.7:6379")).stop()
    assert names_of(calls) == ["delete", "delete", "shutdown"]
    assert [each["name"] for name, each in calls if name == "delete"] == ["toy-7-1", "toy-11-13"]


def test_a_ray_that_is_gone_is_not_started_to_be_ended(calls, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    Cluster("toy", ServerOptions()).stop()
    assert calls == []


def test_an_error_at_the_end_leaves_no_ray_behind(calls, monkeypatch):
    def fail():
        raise RuntimeError("no controller")

    monkeypatch.setattr(serve, "shutdown", fail)
    Cluster("toy", ServerOptions()).stop()
    assert names_of(calls) == ["shutdown"]


def test_a_ray_that_does_not_end_is_not_waited_for(monkeypatch):
    go = threading.Event()
    monkeypatch.setattr(serve, "shutdown", lambda: go.wait(10))
    monkeypatch.setattr("keras_transformer.serving.cluster._STOP_SECONDS", 0.05)
    stopping = threading.Thread(target=Cluster("toy", ServerOptions()).stop)
    stopping.start()
    stopping.join(5)
    assert not stopping.is_alive()
    go.set()
