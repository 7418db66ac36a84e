"""Bergamot's own engine, that of Firefox, in a process of another interpreter.

Its wheel is for Python 3.10, and the package's `__init__` needs a network. So the Python of an
environment with `pip install bergamot` runs this file. It loads the extension module itself, reads
lists of texts from stdin and writes their translations, a line of JSON each.
"""

import contextlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

MODULE = "_bergamot"
# Firefox's own options, for one core.
CONFIG = """
models: [{model}]
vocabs: [{vocabulary}, {vocabulary}]
{shortlist}
beam-size: 1
normalize: 1.0
word-penalty: 0
max-length-break: 128
mini-batch-words: {words}
workspace: 128
max-length-factor: 2.5
skip-cost: true
cpu-threads: 0
quiet: true
quiet-translation: true
gemm-precision: int8shiftAlphaAll
"""
_WITH_ALIGNMENTS = "alignment: soft\n"


class Bergamot:
    """Translates in a process until it is closed.

    Args:
        python: Path of the interpreter.
        model: Directory with `model.*.bin`, `vocab.*.spm` and `lex.*.bin`.
        with_shortlist: Whether it uses the list.
        words: Maximum number of words of a batch.
        html: Whether texts are HTML, whose tags are put around the aligned words.
        threads: Number of threads that share the texts of a call.
    """

    def __init__(
        self,
        python: str | os.PathLike,
        model: pathlib.Path,
        with_shortlist: bool,
        words: int,
        html: bool = False,
        threads: int = 1,
    ):
        files = [next(model.glob(f"{name}.*")) for name in ("model", "vocab", "lex")]
        shortlist = f"shortlist: [{files[2]}, false]" if with_shortlist else ""
        config = CONFIG.format(
            model=files[0], vocabulary=files[1], shortlist=shortlist, words=words
        )
        config += _WITH_ALIGNMENTS if html else ""
        # Isolated (-I): this file would hide the package of its name.
        command = [os.fspath(python), "-I", "-u", __file__, config, str(threads)]
        self._process: Any = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, texts: list[str]) -> list[str]:
        with contextlib.suppress(BrokenPipeError):  # The answer is missing then.
            self._process.stdin.write(json.dumps(texts) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("Bergamot's process has ended; its message is above.")
        return json.loads(line)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def serve(config: str, threads: int) -> None:
    """Answers lists of texts in this process."""
    package: Any = importlib.util.find_spec("bergamot")
    if package is None:
        sys.exit(f"{sys.executable}: Bergamot is not installed. Run pip install bergamot there.")
    (file,) = pathlib.Path(package.submodule_search_locations[0]).glob(f"{MODULE}*.so")
    spec: Any = importlib.util.spec_from_file_location(MODULE, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    service = module.Service(module.ServiceConfig(threads, 0, "off"))
    model = service.modelFromConfig(config)
    html = config.endswith(_WITH_ALIGNMENTS)
    # Without quality scores and a list of sentences.
    options = module.ResponseOptions(False, html, html, False)
    for line in sys.stdin:
        texts = module.VectorString()
        for text in json.loads(line):
            texts.append(text)
        responses = service.translate(model, texts, options)
        print(json.dumps([response.target.text for response in responses]), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
