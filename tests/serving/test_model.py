"""Versions come, go and fail: what answers, and what is told of it. Ray is not needed here."""

import asyncio
import time
import types

import pytest

from keras_transformer.errors import InputError
from keras_transformer.serving import ServerOptions
from keras_transformer.serving.model import ServedModel
from keras_transformer.serving.rejection import Rejection
from keras_transformer.serving.signatures import Signature, Tensor
from keras_transformer.serving.versions import folder_digest

TEXT = Tensor("text:0", "string", "DT_STRING", (None,))


class Cluster:
    """Loads versions whose graph is not "broken"; their answers end in the version's number."""

    def __init__(self):
        self.loads, self.unloaded, self.broken = [], [], False
        self.go = asyncio.Event()
        self.go.set()

    async def load(self, version):
        self.loads.append(version.number)
        with open(f"{version.folder}/saved_model.pb") as file:
            content = file.read()
        if content == "broken" or self.broken:
            raise InputError("it is broken")

        async def run(signature, columns):
            await self.go.wait()
            mark = f" {version.number}".encode() + (b"" if content == "good" else content.encode())
            return {"outputs": {"t": [text + mark for text in columns["text"]]}, "tokens": (0, 0)}

        return types.SimpleNamespace(
            number=version.number,
            digest=folder_digest(version.folder),
            run=run,
            seconds=0.0,
            application=f"app-{version.number}",
            signatures={"serving_default": Signature({"text": TEXT}, {"t": TEXT})},
        )

    async def unload(self, loaded):
        self.unloaded.append(loaded.number)


def put(folder, number, content="good"):
    (folder / str(number)).mkdir(exist_ok=True)
    (folder / str(number) / "saved_model.pb").write_text(content)


def scenario(folder, test, **options):
    async def run():
        cluster = Cluster()
        options_ = ServerOptions(poll_seconds=0.01, batch_wait_ms=0.0, **options)
        model = ServedModel(folder, "m", options_, cluster)
        await model.load()
        following = asyncio.ensure_future(model.follow())
        try:
            async with asyncio.timeout(10):
                await test(model, cluster)
        finally:
            following.cancel()

    asyncio.run(run())


async def ask(model, text="a"):
    return (await model.predict("serving_default", {"text": [text.encode()]}, 1))["t"][0].decode()


async def until(condition):
    while not condition():
        await asyncio.sleep(0.005)


def test_a_higher_version_takes_over_and_the_old_one_finishes_first(tmp_path):
    put(tmp_path, 1)

    async def test(model, cluster):
        cluster.go.clear()
        held = asyncio.ensure_future(ask(model))
        await asyncio.sleep(0.01)
        put(tmp_path, 2)
        await until(lambda: model.number == 2)
        later = asyncio.ensure_future(ask(model))
        await asyncio.sleep(0.1)
        assert cluster.unloaded == []
        cluster.go.set()
        assert await held == "a 1" and await later == "a 2"
        await until(lambda: cluster.unloaded == [1])
        states = {each["version"]: each["state"] for each in model.states()["model_version_status"]}
        assert states == {"1": "END", "2": "AVAILABLE"}
        with pytest.raises(Rejection) as caught:
            model.check_version(1)
        assert caught.value.status == 404

    scenario(tmp_path, test)


def test_a_broken_version_is_refused_once_and_again_when_it_changes(tmp_path):
    put(tmp_path, 1)

    async def test(model, cluster):
        put(tmp_path, 2, "broken")
        await until(lambda: 2 in cluster.loads)
        await asyncio.sleep(0.1)
        assert (model.number, cluster.loads) == (1, [1, 2])
        (state,) = model.states(2)["model_version_status"]
        assert state["state"] == "END" and state["status"]["error_message"] == "it is broken"
        put(tmp_path, 2, "mended")
        await until(lambda: model.number == 2)
        assert await ask(model) == "a 2mended"

    scenario(tmp_path, test)


def test_a_version_that_could_not_be_loaded_is_tried_again_after_longer_and_longer(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("keras_transformer.serving.model._RETRY_SECONDS", 0.1)
    put(tmp_path, 1)

    async def test(model, cluster):
        cluster.broken = True
        put(tmp_path, 2)
        times = []
        for count in (1, 2, 3):
            await until(lambda count=count: cluster.loads.count(2) == count)
            times.append(time.monotonic())
        first, second = times[1] - times[0], times[2] - times[1]
        assert first >= 0.1 and second >= 0.2 and model.number == 1
        cluster.broken = False  # The same files, but whatever was missing is there.
        await until(lambda: model.number == 2)
        assert cluster.loads.count(2) == 4

    scenario(tmp_path, test)


def test_other_files_of_the_version_that_answers_are_loaded_beside_it(tmp_path):
    put(tmp_path, 1)
    put(tmp_path, 2)

    async def test(model, cluster):
        put(tmp_path, 2, "good")  # The same, written anew.
        await asyncio.sleep(0.1)
        assert cluster.loads == [2]
        put(tmp_path, 2, "other")
        await until(lambda: cluster.unloaded == [2])
        assert await ask(model) == "a 2other" and cluster.loads == [2, 2]
        (state,) = model.states(2)["model_version_status"]
        assert state["state"] == "AVAILABLE" and state["status"]["error_code"] == "OK"
        put(tmp_path, 2, "broken")
        await until(lambda: len(cluster.loads) == 3)
        await asyncio.sleep(0.1)
        # What was loaded goes on; whoever asks is told why, and no older version comes back.
        assert await ask(model) == "a 2other" and cluster.loads == [2, 2, 2]
        (state,) = model.states(2)["model_version_status"]
        assert state["state"] == "AVAILABLE" and state["status"]["error_message"] == "it is broken"

    scenario(tmp_path, test)


def test_a_server_starts_with_the_highest_version_that_loads(tmp_path):
    put(tmp_path, 1)
    put(tmp_path, 2, "broken")

    async def test(model, cluster):
        assert (model.number, cluster.loads) == (1, [2, 1])

    scenario(tmp_path, test)
    put(tmp_path, 1, "broken")
    with pytest.raises(InputError, match="it is broken"):
        scenario(tmp_path, test)


def test_a_version_that_is_taken_away_gives_way_to_the_one_before(tmp_path):
    put(tmp_path, 1)
    put(tmp_path, 2)

    async def test(model, cluster):
        assert await ask(model) == "a 2"
        (tmp_path / "2").rename(tmp_path / "gone")
        await until(lambda: model.number == 1)
        assert await ask(model) == "a 1"

    scenario(tmp_path, test)


def test_a_request_without_an_answer_is_told_so(tmp_path):
    put(tmp_path, 1)

    async def test(model, cluster):
        cluster.go.clear()
        with pytest.raises(Rejection, match="No answer within 0.05 seconds") as caught:
            await ask(model)
        assert caught.value.status == 504

    scenario(tmp_path, test, request_timeout=0.05)
