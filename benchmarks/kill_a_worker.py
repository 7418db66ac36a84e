"""Translates a large corpus over Ray, kills a worker and the command, and checks the output.

    python -m benchmarks.kill_a_worker --model RUN --text FILE --lines 100000 --work DIR

Beside the run with kills stand one without, and one of a process a worker without Ray. The corpus
is the text again and again, a number before each line of every further round, so that no two lines
are equal and a line out of place shows. What comes out must have as many lines, and be what the
model gives for the same lines without Ray, for a sample spread over the corpus. The result goes to
stdout as JSON.
"""

import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time


def make_corpus(text, count, shards, folder):
    """Writes `count` different lines into `shards` files and gives them as lists."""
    lines = [line for line in text.read_text(encoding="utf-8").split("\n") if line.strip()]
    corpus = [
        lines[i % len(lines)] if i < len(lines) else f"{i // len(lines)} {lines[i % len(lines)]}"
        for i in range(count)
    ]
    size = -(-count // shards)
    parts = [corpus[start : start + size] for start in range(0, count, size)]
    for number, part in enumerate(parts):
        (folder / f"part-{number:03}.txt").write_text("\n".join(part) + "\n", encoding="utf-8")
    return parts


def workers_of(process):
    """Ids of the Ray workers below a process that hold a model."""
    parents, found = {}, []
    for entry in os.listdir("/proc"):
        try:
            stat = pathlib.Path("/proc", entry, "stat").read_text()
            title = pathlib.Path("/proc", entry, "cmdline").read_bytes()
        except OSError:
            continue
        if entry.isdigit():
            parents[int(entry)] = int(stat.rpartition(")")[2].split()[1])
            if b"ray::MapWorker" in title:
                found.append(int(entry))

    def is_below(pid):
        while pid in parents and pid != process:
            pid = parents[pid]
        return pid == process

    return [pid for pid in found if is_below(pid)]


def lines_in(folder):
    """Lines that are translated so far."""
    done = [*folder.glob("*.txt"), *folder.glob(".parts/*/*.txt")]
    return sum(path.read_bytes().count(b"\n") for path in done if path.exists())


def alone(options, inputs):
    """Seconds of one process a worker without Ray, of one thread each, on equal shares."""
    command = [sys.executable, "-m", "keras_transformer", "translate", "--model", options.model]
    command += ["--threads", "1", "--beam-size", "1"]
    started, running = time.monotonic(), []
    for number in range(options.workers):
        texts = [pathlib.Path(path).read_bytes() for path in inputs[number :: options.workers]]
        text = options.work / f"alone-{number}"
        text.write_bytes(b"".join(texts))
        with open(text, "rb") as read, open(f"{text}.out", "wb") as written:
            running.append(subprocess.Popen(command, stdin=read, stdout=written))
    if any(each.wait() for each in running):
        sys.exit("a process without Ray has failed")
    return time.monotonic() - started


def over_ray(options, inputs, output, kills=()):
    """Seconds of the command; `kills` has `"worker"` and `"command"`, a third of the lines apart.

    After it was killed itself, the command is run again.
    """
    command = [sys.executable, "-m", "keras_transformer", "translate", "--model", options.model]
    command += ["--engine", "ray", "--workers", str(options.workers), "--threads", "1"]
    command += ["--beam-size", "1", "--output", str(output), "--input", *inputs]

    def start():
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    started, running = time.monotonic(), start()
    for third, victim in enumerate(kills, 1):
        while running.poll() is None and lines_in(output) < third * options.lines // 3:
            time.sleep(0.5)
        print(f"{victim} killed at line {lines_in(output)}", file=sys.stderr)
        if victim == "worker":
            os.kill(workers_of(running.pid)[0], signal.SIGKILL)
        else:
            running.kill()
            running.communicate()
            running = start()
    _, log = running.communicate()
    if running.returncode:
        sys.exit(log[-3000:])
    return time.monotonic() - started


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kill_a_worker", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", required=True, type=pathlib.Path)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sample", type=int, default=300)
    parser.add_argument("--work", required=True, type=pathlib.Path, help="folder to make")
    options = parser.parse_args()
    options.work.mkdir(parents=True)
    shards = make_corpus(options.text, options.lines, options.shards, options.work)
    inputs = sorted(map(str, options.work.glob("part-*.txt")))
    seconds = {
        "ray": over_ray(options, inputs, options.work / "whole"),
        "alone": alone(options, inputs),
        "killed": over_ray(options, inputs, options.work / "translated", ("worker", "command")),
    }
    report = {
        "seconds": {name: round(each, 1) for name, each in seconds.items()},
        "rate_of_alone": round(seconds["alone"] / seconds["ray"], 2),
        **check(options, shards),
    }
    print(json.dumps(report, indent=2))
    sys.exit(0 if report["complete"] and not report["different"] else 1)


def check(options, shards):
    """Compares the output with what the same model gives without Ray."""
    from keras_transformer import Translator

    translated = [
        (options.work / "translated" / f"part-{number:03}.txt").read_text("utf-8").split("\n")[:-1]
        for number in range(len(shards))
    ]
    chosen = [(shard, place) for shard, part in enumerate(shards) for place in range(len(part))]
    chosen = random.Random(1).sample(chosen, min(options.sample, len(chosen)))
    translator = Translator.load(options.model)
    alone = translator.translate([shards[shard][place] for shard, place in chosen], beam_size=1)
    different = sum(
        translated[shard][place] != " ".join(each.text.splitlines())
        for (shard, place), each in zip(chosen, alone, strict=True)
    )
    counts = [len(part) for part in translated]
    return {
        "lines": sum(counts),
        "complete": counts == [len(part) for part in shards],
        "compared": len(chosen),
        "different": different,
    }


if __name__ == "__main__":
    main()
