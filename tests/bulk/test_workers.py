"""Workers under a Ray that runs its actors here, and lets them fail when it is told to."""

import sys
import traceback
import types
import warnings

import pytest

from keras_transformer import Translation, Translator
from keras_transformer.bulk.workers import Chunk, Worker, Workers
from keras_transformer.errors import InputError

pytestmark = pytest.mark.tensorflow


class RayActorError(Exception):
    """An actor ended before its task did."""


class RayTaskError(Exception):
    """What a task itself raised."""


class Others:
    """Ray's other errors that end with a worker, by name."""


FAILURES = ["WorkerCrashedError", "OutOfMemoryError", "NodeDiedError", "ObjectLostError"]
for name in FAILURES:
    setattr(Others, name, type(name, (Exception,), {}))


class Actor:
    """An object that is made when its first task is done, as Ray tells of both together."""

    def __init__(self, make):
        self._make, self._made, self._dead = make, None, False
        self.translate = types.SimpleNamespace(remote=lambda *task: (self, task))
        self.__ray_ready__ = types.SimpleNamespace(remote=lambda: (self, None))

    def do(self, task, deadly, error):
        if self._dead:
            raise RayActorError("The actor is dead.")
        try:
            self._made = self._made or self._make()
        except Exception:
            message = "The actor died because of an error raised in its creation task, "
            raise RayActorError(message + traceback.format_exc()) from None
        if task is None:
            return None
        if deadly.get(task[0], 0):
            deadly[task[0]] -= 1
            self._dead = error is RayActorError
            raise error("The actor died unexpectedly.\n\tpid: 7")
        return self._made.translate(list(task[0]), *task[1:])


class Ray:
    """What `Workers` needs of Ray. Of the tasks that run, the one begun last is done first.

    Attributes:
        deadly: From a chunk's lines to how many of the actors that get them fail on them.
        error: What such an actor fails with.
        cpus: CPUs of the cluster; actors beyond them wait.
        seconds: The time, which goes on only where nothing else does.
        actors: All that were started.
        killed: Those that were ended.
        asked: The options that actors were started with.
    """

    exceptions = types.SimpleNamespace(
        RayActorError=RayActorError, **{name: getattr(Others, name) for name in FAILURES}
    )

    def __init__(self):
        self.deadly, self.actors, self.killed, self.asked = {}, [], [], []
        self.error, self.cpus, self.seconds = RayActorError, 100, 0.0

    def remote(self, kind):
        def options(**options):
            def start(*arguments):
                self.asked.append(options)
                self.actors.append(Actor(lambda: kind(*arguments)))
                return self.actors[-1]

            return types.SimpleNamespace(remote=start)

        return types.SimpleNamespace(options=options)

    def wait(self, references, num_returns, timeout):
        placed = [actor for actor in self.actors if actor not in self.killed]
        placed = placed[: self.cpus // self.asked[0]["num_cpus"]]
        ready = [reference for reference in references if reference[0] in placed]
        if not ready:
            assert timeout is not None, "would wait for ever"
            self.seconds += timeout
        return ready[-num_returns:], [each for each in references if each not in ready[-1:]]

    def cluster_resources(self):
        return {"CPU": float(self.cpus)}

    def available_resources(self):
        return self.cluster_resources()

    def get(self, reference):
        actor, task = reference
        return actor.do(task, self.deadly, self.error)

    def kill(self, actor):
        self.killed.append(actor)

    def shutdown(self):
        pass


class Capitals:
    """A translator that knows upper case, warns of "cut" and refuses what is too long."""

    def translate(self, lines, **options):
        if any(len(line) > options["longest"] for line in lines):
            raise InputError("a text is too long.")
        if "cut" in lines:
            warnings.warn("a text\nwas cut.", stacklevel=2)
        return [Translation(line.upper(), -1.0) for line in lines]


@pytest.fixture
def ray(monkeypatch):
    ray = Ray()
    monkeypatch.setitem(sys.modules, "ray", ray)
    clock = types.SimpleNamespace(monotonic=lambda: ray.seconds)
    monkeypatch.setattr("keras_transformer.bulk.workers.time", clock)
    return ray


@pytest.fixture
def start(ray, monkeypatch):
    """`start(count)`: that many workers with `Capitals`."""
    monkeypatch.setattr(Translator, "load", lambda model, threads: Capitals())
    return lambda count: Workers(count, "model", 3, {"longest": 5})


PATHS = ["a.txt", "b.txt"]
CHUNKS = [
    Chunk(0, 0, 1, ("a", "b")),
    Chunk(0, 1, 3, ("c", "d")),
    Chunk(1, 0, 1, ("e", "f", "g")),
    Chunk(1, 1, 4, ("h",)),
]


def upper(*chunks):
    return [(chunk, [line.upper() for line in chunk.lines]) for chunk in chunks]


def test_chunks_come_as_they_are_done(start):
    first, second, third, fourth = CHUNKS
    # The first worker has the first chunk to the end; the other does all the rest.
    assert list(start(2).run(CHUNKS, PATHS)) == upper(second, third, fourth, first)


def test_one_chunk_more_is_taken_than_there_are_workers(start):
    taken = []

    def chunks():
        for chunk in CHUNKS:
            taken.append(chunk)
            yield chunk

    results = start(2).run(chunks(), PATHS)
    counts = []
    for _ in results:
        counts.append(len(taken))
    assert counts == [3, 4, 4, 4]


def test_a_worker_has_its_threads_as_cpus_and_ray_does_not_restart_it(start, ray):
    start(2)
    assert ray.asked == [{"num_cpus": 3, "max_restarts": 0}] * 2


@pytest.mark.parametrize("error", [RayActorError, *(getattr(Others, n) for n in FAILURES)])
def test_what_a_failed_worker_had_is_done_next_by_a_new_one(start, ray, capsys, error):
    ray.deadly, ray.error = {("c", "d"): 1}, error
    first, second, third, fourth = CHUNKS
    assert list(start(1).run(CHUNKS, PATHS)) == upper(first, second, third, fourth)
    assert len(ray.actors) == 2
    # Where only the answer was lost, the old one would keep its CPUs.
    assert ray.killed == ray.actors[:1]
    told = capsys.readouterr().err
    name = error.__name__
    assert told == f"keras-transformer: a worker failed ({name}); a.txt, lines 3-4: again\n"


def test_what_the_model_raises_is_not_tried_again(start, ray):
    ray.deadly, ray.error = {("a", "b"): 1}, RayTaskError
    with pytest.raises(RayTaskError):
        list(start(1).run(CHUNKS, PATHS))
    assert len(ray.actors) == 1


def test_the_names_of_failures_are_those_of_ray():
    exceptions = pytest.importorskip("ray").exceptions
    for name in ["RayActorError", *FAILURES]:
        assert issubclass(getattr(exceptions, name), exceptions.RayError)


def test_workers_that_have_cpus_do_the_work_of_those_that_have_none(start, ray, capsys):
    ray.cpus = 4  # A worker takes three.
    first, second, third, fourth = CHUNKS
    workers = start(3)
    assert list(workers.run(CHUNKS, PATHS)) == upper(first, second, third, fourth)
    workers.stop()
    assert sorted(map(id, ray.killed)) == sorted(map(id, ray.actors))
    assert capsys.readouterr().err == ""


def test_a_cluster_without_the_cpus_of_one_worker_is_an_error(start, ray, capsys):
    ray.cpus = 2
    with pytest.raises(InputError) as caught:
        list(start(3).run(CHUNKS, PATHS))
    cpus = "each takes 3 of a machine's CPUs (`threads`); the cluster has 2, 2 of them free"
    assert str(caught.value) == f"No worker has started in 600 seconds: {cpus}."
    told = capsys.readouterr().err
    assert told == f"keras-transformer: 3 workers have not started yet: {cpus}\n"
    assert ray.seconds == 600


def test_workers_whose_processes_do_not_start_are_tried_three_times(start, ray, monkeypatch):
    def fail(*arguments):
        raise ImportError("no keras_transformer here")

    monkeypatch.setattr(Worker, "__init__", fail)
    with pytest.raises(InputError, match="cannot be started.*no keras_transformer here"):
        list(start(1).run(CHUNKS, PATHS))
    assert len(ray.actors) == 3


def test_each_chunk_may_cost_two_workers(start, ray):
    ray.deadly = {("a", "b"): 2, ("e", "f", "g"): 2}
    results = list(start(2).run(CHUNKS, PATHS))
    assert sorted(results) == sorted(upper(*CHUNKS))
    assert len(ray.actors) == 2 + 4


def test_a_chunk_that_three_workers_failed_on_is_named(start, ray):
    ray.deadly = {("e", "f", "g"): 3}
    results = start(1).run(CHUNKS, PATHS)
    assert [next(results), next(results)] == upper(*CHUNKS[:2])
    with pytest.raises(InputError) as caught:
        next(results)
    message = "b.txt, lines 1-3: 3 workers failed on them. Last: The actor died unexpectedly."
    assert str(caught.value).startswith(message)
    assert len(ray.actors) == 3


def test_a_model_that_cannot_be_loaded_is_told_once(ray, tmp_path):
    workers = Workers(2, tmp_path / "no", 3, {})
    with pytest.raises(InputError) as caught:
        next(workers.run(CHUNKS, PATHS))
    assert str(caught.value) == f"{tmp_path / 'no'}: no such run or export folder."
    # No other worker could load it.
    assert len(ray.actors) == 2


def test_a_line_that_cannot_be_translated_is_told_with_its_place(start):
    chunks = [CHUNKS[0], Chunk(1, 7, 15, ("short", "longer", "x"))]
    with pytest.raises(InputError) as caught:
        list(start(1).run(chunks, PATHS))
    assert str(caught.value) == "b.txt, lines 15-17: a text is too long."


def test_warnings_of_a_worker_are_printed_with_their_lines(start, capsys):
    chunks = [Chunk(1, 0, 1, ("short", "cut")), Chunk(1, 1, 3, ("x",)), Chunk(1, 2, 4, ("cut",))]
    assert list(start(1).run(chunks, PATHS)) == upper(*chunks)
    message = "keras-transformer: b.txt, lines {}: a text was cut.\n"
    assert capsys.readouterr().err == message.format("1-2") + message.format("4-4")


def test_stopping_ends_those_that_wait_and_those_that_work(start, ray):
    ray.deadly = {("c", "d"): 1}
    workers = start(3)
    next(workers.run(CHUNKS[:2], PATHS))
    workers.stop()
    assert len(ray.actors) == 4
    assert sorted(map(id, ray.killed)) == sorted(map(id, ray.actors))


def test_a_worker_loads_once_and_computes_with_its_threads_and_options(monkeypatch):
    loaded = []
    monkeypatch.setattr(Translator, "load", lambda *asked: loaded.append(asked) or Capitals())
    worker = Worker("model", 3, {"longest": 5})
    assert loaded == []
    assert worker.translate(["a", ""], 1, "a.txt") == (["A", ""], [])
    error = worker.translate(["a", "longer"], 8, "a.txt")
    assert loaded == [("model", 3)]
    assert isinstance(error, InputError)
    assert str(error) == "a.txt, lines 8-9: a text is too long."
