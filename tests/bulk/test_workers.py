"""Workers under a Ray that runs its actors here, and lets them die when it is told to."""

import sys
import traceback
import types

import pytest

from keras_transformer import Translation, Translator
from keras_transformer.bulk.shards import Chunk
from keras_transformer.bulk.workers import Worker, Workers
from keras_transformer.errors import InputError

pytestmark = pytest.mark.tensorflow


class RayActorError(Exception):
    """An actor ended before its task did."""


class Actor:
    """An object that is made when its first task is done, as Ray tells of both together."""

    def __init__(self, make):
        self._make, self._made, self._dead = make, None, False
        self.translate = types.SimpleNamespace(remote=lambda *task: (self, task))

    def do(self, task, deadly):
        if self._dead:
            raise RayActorError("The actor is dead.")
        try:
            self._made = self._made or self._make()
        except Exception:
            message = "The actor died because of an error raised in its creation task, "
            raise RayActorError(message + traceback.format_exc()) from None
        if deadly.get(task[0], 0):
            deadly[task[0]] -= 1
            self._dead = True
            raise RayActorError("The actor died unexpectedly.\n\tpid: 7")
        return self._made.translate(list(task[0]), *task[1:])


class Ray:
    """What `Workers` needs of Ray. Of the tasks that run, the one begun last is done first.

    Attributes:
        deadly: From a chunk's lines to how many of the actors that get them die of them.
        actors: All that were started.
        killed: Those that were ended.
        asked: The options that actors were started with.
    """

    exceptions = types.SimpleNamespace(RayActorError=RayActorError)

    def __init__(self):
        self.deadly, self.actors, self.killed, self.asked = {}, [], [], []

    def remote(self, kind):
        def options(**options):
            def start(*arguments):
                self.asked.append(options)
                self.actors.append(Actor(lambda: kind(*arguments)))
                return self.actors[-1]

            return types.SimpleNamespace(remote=start)

        return types.SimpleNamespace(options=options)

    def wait(self, references, num_returns):
        return references[-num_returns:], references[:-num_returns]

    def get(self, reference):
        actor, task = reference
        return actor.do(task, self.deadly)

    def kill(self, actor):
        self.killed.append(actor)


class Capitals:
    """A translator that knows upper case and refuses what is too long."""

    def translate(self, lines, **options):
        if any(len(line) > options["longest"] for line in lines):
            raise InputError("a text is too long.")
        return [Translation(line.upper(), -1.0) for line in lines]


@pytest.fixture
def ray(monkeypatch):
    ray = Ray()
    monkeypatch.setitem(sys.modules, "ray", ray)
    return ray


@pytest.fixture
def threads(monkeypatch):
    """What TensorFlow was told of threads: it takes no other number once it runs."""
    import tensorflow as tf

    told = {}
    for kind in ("intra", "inter"):
        monkeypatch.setattr(
            tf.config.threading,
            f"set_{kind}_op_parallelism_threads",
            lambda count, kind=kind: told.update({kind: count}),
        )
    return told


@pytest.fixture
def start(ray, threads, monkeypatch):
    """`start(count)`: that many workers with `Capitals`."""
    monkeypatch.setattr(Translator, "load", lambda model: Capitals())
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


def test_no_more_chunks_are_taken_than_are_translated(start):
    taken = []

    def chunks():
        for chunk in CHUNKS:
            taken.append(chunk)
            yield chunk

    results = start(2).run(chunks(), PATHS)
    counts = []
    for _ in results:
        counts.append(len(taken))
    assert counts == [2, 3, 4, 4]


def test_a_worker_has_its_threads_as_cpus_and_ray_does_not_restart_it(start, ray):
    start(2)
    assert ray.asked == [{"num_cpus": 3, "max_restarts": 0}] * 2


def test_what_a_dead_worker_had_is_done_next_by_a_new_one(start, ray, capsys):
    ray.deadly = {("c", "d"): 1}
    first, second, third, fourth = CHUNKS
    assert list(start(1).run(CHUNKS, PATHS)) == upper(first, second, third, fourth)
    assert len(ray.actors) == 2
    told = capsys.readouterr().err
    assert told == "keras-transformer: a worker died; a.txt, lines 3-4: again\n"


def test_each_chunk_may_cost_two_workers(start, ray):
    ray.deadly = {("a", "b"): 2, ("e", "f", "g"): 2}
    results = list(start(2).run(CHUNKS, PATHS))
    assert sorted(results) == sorted(upper(*CHUNKS))
    assert len(ray.actors) == 2 + 4


def test_a_chunk_that_three_workers_died_of_is_named(start, ray):
    ray.deadly = {("e", "f", "g"): 3}
    results = start(1).run(CHUNKS, PATHS)
    assert [next(results), next(results)] == upper(*CHUNKS[:2])
    with pytest.raises(InputError) as caught:
        next(results)
    message = "b.txt, lines 1-3: 3 workers died of them. Last: The actor died unexpectedly."
    assert str(caught.value).startswith(message)
    assert len(ray.actors) == 3


def test_a_model_that_cannot_be_loaded_is_told_once(ray, threads, tmp_path):
    workers = Workers(2, tmp_path / "no", 3, {})
    with pytest.raises(InputError) as caught:
        next(workers.run(CHUNKS, PATHS))
    assert str(caught.value) == f"{tmp_path / 'no'}: no such run or export folder."
    # No other worker could load it.
    assert len(ray.actors) == 2


def test_of_a_message_of_several_lines_the_first_is_told(ray, threads, monkeypatch):
    def load(model):
        raise InputError(f"{model}: cannot be read.\nThe last line says little.")

    monkeypatch.setattr(Translator, "load", load)
    with pytest.raises(InputError, match="^m: cannot be read.$"):
        next(Workers(1, "m", 3, {}).run(CHUNKS, PATHS))


def test_a_line_that_cannot_be_translated_is_told_with_its_place(start):
    chunks = [CHUNKS[0], Chunk(1, 7, 15, ("short", "longer", "x"))]
    with pytest.raises(InputError) as caught:
        list(start(1).run(chunks, PATHS))
    assert str(caught.value) == "b.txt, lines 15-17: a text is too long."


def test_stopping_ends_those_that_wait_and_those_that_work(start, ray):
    ray.deadly = {("c", "d"): 1}
    workers = start(3)
    next(workers.run(CHUNKS[:2], PATHS))
    dead = ray.actors[1]
    workers.stop()
    assert len(ray.actors) == 4
    assert [each for each in ray.actors if each not in ray.killed] == [dead]
    assert len(ray.killed) == 3


def test_a_worker_computes_with_its_threads_and_options(threads, monkeypatch):
    loaded = []
    monkeypatch.setattr(Translator, "load", lambda model: loaded.append(model) or Capitals())
    worker = Worker("model", 3, {"longest": 5})
    assert (loaded, threads) == (["model"], {"intra": 3, "inter": 3})
    assert worker.translate(["a", ""], 1, "a.txt") == ["A", ""]
    error = worker.translate(["a", "longer"], 8, "a.txt")
    assert isinstance(error, InputError)
    assert str(error) == "a.txt, lines 8-9: a text is too long."
