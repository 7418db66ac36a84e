"""How long a LiteRT call takes after a pause, and why.

    python export/litert_pause.py --exported FOLDER/model_ids.tflite

Medians in milliseconds of the first greedy call of one sentence with two threads, each after a
pause of 50 ms: with nothing before the pause; with other threads at work before it; and the same
with LiteRT's two threads held on two cores. The context switches of a call say what happens: where
two threads share a core they take turns on it, hundreds of times. Linux, two cores or more.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import resource
import statistics
import sys
import time

import numpy as np

PAUSE_SECONDS = 0.05


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--exported", required=True, help="model_ids.tflite of an export")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args(arguments)
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2 or options.rounds < 1:
        parser.error("two cores and one round are the least.")
    call, worker = load(options.exported)
    work = others()
    cases = {
        "pause": (lambda: None, False),
        "others, pause": (work, False),
        "others, pause, threads on two cores": (work, True),
    }
    report = {}
    for name, (before, apart) in cases.items():
        places = [{cores[0]}, {cores[1]}] if apart else [set(cores)] * 2
        found = []
        for _ in range(options.rounds):
            before()
            time.sleep(PAUSE_SECONDS)
            place([os.getpid(), worker], places)
            found.append(measured(call))
            place([os.getpid(), worker], [set(cores)] * 2)
        report[name] = dict(zip(("ms", "switches"), medians(found), strict=True))
    json.dump(report, sys.stdout, indent=2)
    print()


def place(tasks, places):
    for task, cores in zip(tasks, places, strict=True):
        os.sched_setaffinity(task, cores)


def load(path):
    """A function that translates one sentence, and the id of LiteRT's second thread."""
    from ai_edge_litert.interpreter import Interpreter

    before = threads()
    interpreter = Interpreter(path, num_threads=2)
    names = [name for name in interpreter.get_signature_list() if name.startswith("greedy_")]
    name = min(names, key=lambda each: int(each.split("_")[1]))
    run = interpreter.get_signature_runner(name)
    # Any ids: what counts is that the call is the same each time.
    source_ids = np.arange(3, 3 + int(name.split("_")[1]), dtype="int32")[None]
    run(source_ids=source_ids)
    return lambda: run(source_ids=source_ids), (threads() - before).pop()


def threads():
    return set(map(int, os.listdir("/proc/self/task")))


def others():
    """A function that keeps two other threads busy, and then this one."""
    pool, data = concurrent.futures.ThreadPoolExecutor(2), bytes(40_000_000)

    def digest(_=None):
        # Without the interpreter's lock, as native code computes.
        hashlib.sha256(data).digest()

    def work():
        list(pool.map(digest, range(2)))
        time.sleep(PAUSE_SECONDS)
        digest()

    return work


def measured(call):
    """Milliseconds of a call, and how often its threads gave up a core."""
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    call()
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    switches = (each.ru_nvcsw + each.ru_nivcsw for each in (after, before))
    return seconds * 1000, int.__sub__(*switches)


def medians(pairs):
    return [round(statistics.median(each), 1) for each in zip(*pairs, strict=True)]


if __name__ == "__main__":
    main()
