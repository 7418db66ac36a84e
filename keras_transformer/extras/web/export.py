"""Export for browsers: a static folder with a page, an ES module, the model and LiteRT.js."""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_transformer.base.errors import InputError
from keras_transformer.base.files import SHORTLIST_FILE, write_whole
from keras_transformer.base.reading import file_digests, read_json
from keras_transformer.export.exporter import Exporter
from keras_transformer.export.litert.engine import LIST_MULTIPLE, MODEL_FILE
from keras_transformer.export.litert.export import (
    described_files,
    model_file,
    resolve_search_options,
    search_options,
    verify_litert,
    with_limits,
)
from keras_transformer.export.litert.tokenizer_json import write_all_tokenizers
from keras_transformer.export.readme_languages import example_of
from keras_transformer.extras.web.export_options import WebOptions

if TYPE_CHECKING:
    from keras_transformer.engine import ModelEngine

SOURCE_LENGTHS = (32, 96)
"""Numbers of source tokens that signatures are made for by default.

They are few, because a browser prepares all signatures when it loads the page: 0.2 s and 15 MB per
signature of a small model. A text longer than the last length is split.
"""
SOURCE_LENGTHS_WITH_SHORTLIST = (12, 16, 20, 24, 32, 48, 96)
"""The default with a shortlist, which needs no signatures for batches.

Six more lengths take 35 MB and 0.4 s to load for a student of 17 M parameters.
"""
BATCH_SIZES = (1, 4)  # LiteRT.js takes no batch of variable size.
BATCH_SIZES_WITH_SHORTLIST = (1,)  # A batch's list is longer: a sentence would take as long.
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

    format_name = "web"
    packages = ("ai-edge-litert", "tensorflow", "keras")

    def resolve_export_options(self, engine: "ModelEngine", options: WebOptions) -> dict[str, Any]:
        listed = options.shortlist
        lengths = SOURCE_LENGTHS_WITH_SHORTLIST if listed else SOURCE_LENGTHS
        resolved = resolve_search_options(engine, options, lengths, n_best=1)
        resolved["batch_sizes"] = [*(BATCH_SIZES_WITH_SHORTLIST if listed else BATCH_SIZES)]
        if listed:
            resolved["list_sizes"] = _list_sizes(engine.shortlist, resolved["source_lengths"])
        modules, versions = find_packages(options.npm)
        return {**resolved, "npm": versions, "modules": modules}

    def write(self, engine: "ModelEngine", folder: Path, options: dict[str, Any]) -> dict[str, Any]:
        options = dict(options)
        modules = options.pop("modules")
        engine = with_limits(engine, options)
        if options["shortlist"] and engine.shortlist is not None:
            engine.shortlist.save(folder / SHORTLIST_FILE)
        options["align_shape"] = _align_shape(engine, options)
        batch_sizes, align_shape = options["batch_sizes"], options["align_shape"]
        write_whole(folder / MODEL_FILE, model_file(engine, options, batch_sizes, align_shape))
        tokenizers = write_all_tokenizers(engine, folder)
        _copy_files(folder, modules)
        return {
            "max_source_length": engine.max_source_length,
            **options,
            **_language_table(engine),
            **tokenizers,
            "files": described_files(folder),
        }

    def verify(
        self,
        engine: "ModelEngine",
        folder: Path,
        manifest: dict,
        texts: Sequence[str] | None,
        disposable_weights: bool = False,
    ) -> dict[str, Any]:
        return verify_litert(folder, engine, manifest, texts, disposable_weights)

    def readme_fields(self, manifest: dict) -> dict[str, str]:
        files = sorted(manifest["files"].items(), key=lambda entry: -entry[1]["bytes"])
        large = [entry for entry in files if entry[1]["bytes"] > 20_000]
        npm = ", ".join(f"`{name}` {version}" for name, version in manifest["npm"].items())
        example = example_of(manifest)
        options = (
            f', {name.removesuffix("_language")}: "{code}"' for name, code in example.inputs.items()
        )
        return {
            "example": example.text_of_inputs,
            "language_options": "".join(options),
            "files": "\n".join(f"| `{name}` | {entry['bytes']:,} |" for name, entry in large),
            "npm": npm,
            "length": manifest["source_lengths"][-1],
            "tokens": "candidates of `shortlist.npy`" if manifest["shortlist"] else "all",
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
    rule = f"LiteRT.js is needed: {npm_command()}, and `npm` with that folder."
    if folder is None:
        where = f"{current} and the folders above" if npm is None else npm
        raise InputError(f"{rule} Received: none in {where}.")
    versions = {}
    for name, series in PACKAGES.items():
        try:
            version = read_json(folder / name / "package.json")["version"]
        except (InputError, KeyError):
            raise InputError(f"{rule} Received: no {name} in {folder}.") from None
        if not str(version).startswith(f"{series}."):
            raise InputError(f"{rule} Received: {name} {version} in {folder}.")
        versions[name] = version
    return folder, versions


def _language_table(engine):
    """Returns the manifest's field with the `DirectionTable`: `names`, and ids by their place."""
    if engine.languages is None or not engine.languages.tokens:
        return {}
    id_of = engine.source_tokenizer.id_of, engine.target_tokenizer.id_of
    names, ids = engine.languages.table(*id_of)
    places = ids._asdict().items()
    return {"language_table": {"names": names} | {place: c[0] for place, c in places if c}}


def _list_sizes(shortlist, lengths):
    """Returns the number of candidates by the shape of source ids, enough for any sentence."""
    sizes = {f"1x{length}": shortlist.largest_size(length) for length in lengths}
    return {shape: -(-size // LIST_MULTIPLE) * LIST_MULTIPLE for shape, size in sizes.items()}


def _align_shape(engine, options):
    """Returns the numbers of source and target tokens of `align`.

    It has only the largest length, because each signature takes memory.
    """
    decoding_options, length = search_options(engine, options), options["source_lengths"][-1]
    # Maximum number of tokens of a translation.
    steps = int(decoding_options.max_length_ratio * length) + decoding_options.length_margin
    steps = min(steps, engine.max_target_length)
    return [length, steps + engine.has_target_prefix]  # A forced token has a position, too.


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
