"""Files in, files out, over a Ray cluster."""

import hashlib
import os
import sys
import time

from keras_transformer.bulk.shards import Output, read_chunks
from keras_transformer.bulk.workers import Workers
from keras_transformer.errors import InputError

_REPORT_SECONDS = 10
# What a run folder also holds: it grows or changes without another answer of the model.
_NOT_THE_MODEL = {"checkpoints", "tensorboard", "history.csv", "metrics.json", "samples.txt"}


def translate_corpus(
    model,
    inputs,
    output,
    workers=1,
    threads=2,
    chunk_lines=1000,
    ray_address=None,
    **options,
):
    """Translates text files over a Ray cluster.

    Run again after a crash, it goes on: what was translated is not translated again.

    Args:
        model: Path of a run folder or an export, there on every machine of the cluster.
        inputs: Paths of the files, UTF-8, plain or `.gz`, read on this machine.
        output: Folder to make; each translated file has the name of its input, without `.gz`.
        workers: Processes that translate.
        threads: Threads, and CPUs of the cluster, that a worker takes.
        chunk_lines: Lines that a worker translates at a time.
        ray_address: Address of the cluster; None starts Ray on this machine.
        **options: As `Translator.translate` takes them.

    Returns:
        A dict fit for JSON: files, lines that were translated now, seconds.

    Raises:
        InputError: A file, the model or an option is not what it must be, or no worker can be
            started. What was translated until then stays, and a second run goes on from there.
    """
    from keras_transformer.serving.cluster import start_ray

    for name, value in (("workers", workers), ("threads", threads), ("chunk_lines", chunk_lines)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"`{name}` must be a positive integer. Received: {name}={value!r}.")
    model = os.path.abspath(model)
    if not os.path.exists(model):
        raise InputError(f"{model}: no such run or export folder.")
    inputs = [os.fspath(path) for path in inputs]
    job = {"model": _fingerprint(model), "options": options, "chunk_lines": chunk_lines}
    target = Output(output, inputs, job)
    started, lines = time.monotonic(), 0
    waiting = [shard for shard in range(len(inputs)) if not target.is_done(shard)]
    if waiting:
        start_ray(ray_address, None if ray_address else workers * threads)
        pool = Workers(workers, model, threads, options)
        try:
            lines = _translate(pool, target, inputs, waiting, chunk_lines)
        finally:
            pool.stop()
            _stop_ray()
    target.clean()
    return {
        "output": os.fspath(output),
        "files": len(inputs),
        "lines_translated": lines,
        "seconds": round(time.monotonic() - started, 1),
    }


def _translate(pool, target, inputs, waiting, chunk_lines):
    seen = {}  # Chunks of the files that were read to their end.
    pending = dict.fromkeys(waiting, 0)  # Chunks that are being translated, by file.
    lines = 0

    def chunks():
        for shard in waiting:
            count = 0
            for chunk in read_chunks(inputs[shard], shard, chunk_lines):
                count += 1
                if not target.has(chunk):
                    pending[shard] += 1
                    yield chunk
            seen[shard] = count
            finish(shard)

    def finish(shard):
        if shard in seen and not pending[shard] and not target.is_done(shard):
            target.finish(shard, seen[shard])

    started = reported = time.monotonic()
    for chunk, texts in pool.run(chunks(), inputs):
        target.write(chunk, texts)
        pending[chunk.shard] -= 1
        finish(chunk.shard)
        lines += len(texts)
        now = time.monotonic()
        if now - reported > _REPORT_SECONDS:
            reported = now
            print(
                f"keras-transformer: {lines} lines, {lines / (now - started):.0f} a second",
                file=sys.stderr,
                flush=True,
            )
    return lines


def _fingerprint(model):
    """A digest of all files of a model that decide its answers: not of logs and checkpoints."""
    # A file `*.tflite` needs those beside it: the tokenizer, the manifest.
    root = os.path.dirname(model) if os.path.isfile(model) else model
    digest = hashlib.sha256()
    for path in sorted(_files(root)):
        digest.update(os.path.relpath(path, root).encode("utf-8", "surrogateescape") + b"\0")
        with open(path, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _files(root):
    for folder, names, files in os.walk(root, followlinks=True):
        names[:] = [name for name in names if name not in _NOT_THE_MODEL and name[0] != "."]
        for name in files:
            path = os.path.join(folder, name)
            if name not in _NOT_THE_MODEL and name[0] != "." and os.path.isfile(path):
                yield path


def _stop_ray():
    import ray

    ray.shutdown()
