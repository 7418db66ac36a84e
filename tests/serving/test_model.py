"""Versions come, go and fail: what answers, and what is told of it. Ray is not needed here."""

import asyncio
import time
import types

import pytest

from keras_transformer.errors import InputError
from keras_transformer.serving import ServerOptions
from keras_transformer.serving.model import (
    ServedModel,
    check_model,
    find_versions,
    folder_digest,
    model_name,
)
from keras_transformer.serving.reporting import Rejection
from keras_transformer.serving.signatures import Signature, Tensor

TEXT = Tensor("string", (None,))


class Cluster:
    """Loads versions whose graph is not "broken"; their answers end in the version's number."""

    def __init__(self):
        self.loads, self.times, self.unloaded, self.broken = [], [], [], False
        self.go = asyncio.Event()
        self.go.set()

    async def load(self, version):
        self.loads.append(version.number)
        self.times.append(time.monotonic())
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


def test_a_folder_that_was_emptied_since_the_start_is_one_line(tmp_path):
    model = ServedModel(tmp_path, "m", ServerOptions(), Cluster())
    with pytest.raises(InputError, match="there is no version any more"):
        asyncio.run(model.load())


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
        await until(lambda: cluster.loads == [1, 2, 2, 2])
        _, first, second, third = cluster.times
        assert second - first >= 0.1 and third - second >= 0.2 and model.number == 1
        cluster.broken = False  # The same files, but whatever was missing is there.
        await until(lambda: model.number == 2)
        assert cluster.loads == [1, 2, 2, 2, 2]

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


def make_version(folder):
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(b"graph")
    return folder


def test_the_highest_number_comes_first_and_other_folders_are_passed_over(tmp_path):
    for name in ("2", "10", "03", "x", "1.5", "٣"):
        make_version(tmp_path / name)
    (tmp_path / "11").mkdir()  # Not copied yet.
    assert [version.number for version in find_versions(tmp_path)] == [10, 3, 2]


def test_a_version_may_be_given_itself(tmp_path):
    folder = make_version(tmp_path / "translator" / "7")
    assert [version.number for version in find_versions(folder)] == [7]
    assert [version.number for version in find_versions(make_version(tmp_path / "plain"))] == [1]
    assert model_name(folder) == model_name(folder.parent) == "translator"
    assert model_name(tmp_path / "plain") == "plain"


def test_the_stamp_changes_with_any_file(tmp_path):
    folder = make_version(tmp_path / "1")
    (before,) = find_versions(tmp_path)
    assert find_versions(tmp_path) == [before]
    (folder / "variables").mkdir()
    (folder / "variables" / "data").write_bytes(b"x")
    (after,) = find_versions(tmp_path)
    assert after.stamp != before.stamp


def test_a_folder_with_nothing_to_serve_is_told_of(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        check_model(tmp_path / "none")
    with pytest.raises(InputError, match="numbered folders"):
        check_model(tmp_path)
    make_version(tmp_path / "1")
    check_model(tmp_path)
