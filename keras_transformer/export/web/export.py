"""Export for browsers: a static folder with a page, an ES module, the model and LiteRT.js."""

import hashlib
import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_transformer.engine.exports.litert import MODEL_FILE
from keras_transformer.errors import InputError
from keras_transformer.export.exporter import Exporter
from keras_transformer.export.litert.export import (
    check_custom_ops,
    described_files,
    ids_to_ids,
    resolve_search_options,
    search_options,
    verify_litert,
    with_limits,
)
from keras_transformer.export.litert.file import convert, join, traced
from keras_transformer.export.options import WebOptions
from keras_transformer.export.tokenizer_json import write_all_tokenizers
from keras_transformer.files import write_whole
from keras_transformer.reading import file_digests

SOURCE_LENGTHS = (32, 96)
"""Numbers of source tokens that signatures are made for by default.

They are few, because a browser prepares all signatures when it loads the page: 0.2 s and 15 MB per
signature of a small model. A text longer than the last length is split.
"""
BATCH_SIZES = (1, 4)  # LiteRT.js takes no batch of variable size.
PACKAGES = {
    "@litertjs/core": "2.5",
    "@litertjs/wasm-utils": "2.5",
    "@huggingface/tokenizers": "0.2",
}
"""Packages of npm, and the series of each package that the page was tried with."""
_STATIC = Path(__file__).with_name("static")
_UTILITIES = "@litertjs/wasm-utils"
_LIBRARIES = {
    "litert/index.js": "@litertjs/core/dist/index.js",
    "litert/wasm-utils.js": "@litertjs/wasm-utils/dist/bundle.js",
    "tokenizers.js": "@huggingface/tokenizers/dist/tokenizers.min.mjs",
    "LICENSE.txt": "@huggingface/tokenizers/LICENSE",
}
_BUILDS = [  # With relaxed SIMD and without.
    f"litert_wasm_{build}internal.{end}" for build in ("", "compat_") for end in ("js", "wasm")
]


class WebExporter(Exporter):
    """The format `web`: a folder that any static file server serves.

    `index.html` translates what is typed, `translator.js` is an ES module for other pages; both run
    `model.tflite` by LiteRT.js in a worker and fetch nothing from elsewhere. A text of more
    tokens than the largest of `source_lengths` is split.
    """

    name = "web"
    packages = ("ai-edge-litert", "tensorflow", "keras")
    template = "web.md"
    options = WebOptions

    def resolve_export_options(self, engine: Any, options: WebOptions) -> dict[str, Any]:
        resolved = resolve_search_options(engine, options, SOURCE_LENGTHS, n_best=1)
        modules, versions = find_packages(options.npm)
        return {**resolved, "npm": versions, "modules": modules}

    def write(self, engine: Any, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
        options = dict(options)
        modules = options.pop("modules")
        engine = with_limits(engine, options)
        content, steps = _model(engine, options)
        write_whole(folder / MODEL_FILE, content)
        tokenizers = write_all_tokenizers(engine, folder)
        _copy_files(folder, modules)
        return {
            "max_source_length": engine.max_source_length,
            **options,
            "batch_sizes": list(BATCH_SIZES),
            "align_lengths": steps,
            **tokenizers,
            "files": described_files(folder),
        }

    def verify(
        self, engine: Any, folder: Path, manifest: dict, texts: Sequence[str] | None
    ) -> dict[str, Any]:
        return verify_litert(folder, engine, manifest, texts)

    def readme_fields(self, manifest: dict) -> dict[str, str]:
        files = sorted(manifest["files"].items(), key=lambda entry: -entry[1]["bytes"])
        large = [entry for entry in files if entry[1]["bytes"] > 20_000]
        npm = ", ".join(f"`{name}` {version}" for name, version in manifest["npm"].items())
        return {
            "files": "\n".join(f"| `{name}` | {entry['bytes']:,} |" for name, entry in large),
            "npm": npm,
            "length": manifest["source_lengths"][-1],
        }


def npm_command() -> str:
    """Returns the command that installs `PACKAGES` in the working directory."""
    return " ".join(["npm install", *(f"{name}@{series}" for name, series in PACKAGES.items())])


def find_packages(npm: str | os.PathLike | None = None) -> tuple[Path, dict[str, str]]:
    """Returns the `node_modules` that has `PACKAGES`, and their versions; or `InputError`."""
    current = Path.cwd()
    parents = [current, *current.parents] if npm is None else [Path(npm)]
    folders = [folder for parent in parents for folder in (parent / "node_modules", parent)]
    folder = next(
        (candidate for candidate in folders if (candidate / "@litertjs/core").is_dir()), None
    )
    rule = f"LiteRT.js is needed: {npm_command()}, and --npm with that folder."
    if folder is None:
        where = f"{current} and the folders above" if npm is None else npm
        raise InputError(f"{rule} Received: none in {where}.")
    versions = {}
    for name, series in PACKAGES.items():
        try:
            version = json.loads((folder / name / "package.json").read_text("utf-8"))["version"]
        except (OSError, ValueError, KeyError):
            raise InputError(f"{rule} Received: no {name} in {folder}.") from None
        if not str(version).startswith(f"{series}."):
            raise InputError(f"{rule} Received: {name} {version} in {folder}.")
        versions[name] = version
    return folder, versions


def _model(engine, options):
    """Returns the model's file, and target lengths of `align` by source length."""
    import tensorflow as tf

    from keras_transformer.export.litert.alignment import LiteRTAlignment

    longest, lengths = engine.max_target_length, options["source_lengths"]
    search = search_options(engine, options)

    def limit(length):  # Maximum number of tokens of a translation.
        return min(int(search.max_length_ratio * length) + search.length_margin, longest)

    steps = {length: limit(length) for length in lengths}
    align = LiteRTAlignment(engine.model, max(lengths[-1], longest))

    def alignments():
        for length, target_length in steps.items():
            shapes = {"source_ids": length, "target_ids": target_length}
            specs = [tf.TensorSpec((1, size), tf.int32, name=name) for name, size in shapes.items()]
            yield f"align_1x{length}", traced(align.__call__, *specs)

    parts = convert(itertools.chain(ids_to_ids(engine, options, BATCH_SIZES), alignments()))
    content = join(parts, options["quantize"])
    check_custom_ops(content)
    return content, steps


def _copy_files(folder, modules):
    """Copies the page and the libraries, and writes file digests into the service worker.

    The worker caches these files, and replaces them when its version changes.
    """
    (folder / "litert").mkdir()
    builds = {f"litert/{name}": f"@litertjs/core/wasm/{name}" for name in _BUILDS}
    for name, path in {**_LIBRARIES, **builds}.items():
        content = (modules / path).read_bytes()
        if name == "litert/index.js":
            # Workers know no import maps.
            content = content.replace(_UTILITIES.encode(), b"./wasm-utils.js")
        write_whole(folder / name, content)
    for path in sorted(_STATIC.iterdir()):
        write_whole(folder / path.name, path.read_bytes())
    # A page needs neither the licence nor the tokenizers' models, which Python reads.
    digests = {
        name: digest
        for name, digest in file_digests(folder).items()
        if Path(name).suffix not in (".model", ".txt")
    }
    worker = folder / "service-worker.js"
    version = hashlib.sha256(json.dumps(digests).encode()).hexdigest()[:16]
    del digests[worker.name]
    head = f"const VERSION = {json.dumps(version)};\nconst FILES = {json.dumps(digests)};\n"
    write_whole(worker, head + worker.read_text("utf-8"))
