"""Export for browsers: a static folder with a page, an ES module, the model and LiteRT.js."""

import hashlib
import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.errors import InputError, VerificationError
from keras_transformer.export.exporter import (
    Exporter,
    log_duration,
    write_tokenizers,
)
from keras_transformer.export.litert.engine import IDS_FILE
from keras_transformer.export.litert.export import (
    check_custom_ops,
    description,
    ids_to_ids,
    resolve_search_options,
    verify_litert,
    with_limits,
)
from keras_transformer.export.litert.file import convert, join, traced
from keras_transformer.export.options import WebOptions
from keras_transformer.export.texts import fitting_texts, sample_texts
from keras_transformer.files import file_digests
from keras_transformer.inputs import pad

SOURCE_LENGTHS = (32, 96)
"""Tokens of a source that signatures are made for, where nothing else is asked for.

Few: a browser prepares all signatures when it loads, 0.2 s and 15 MB each of a small model. What is
longer than the last is split.
"""
BATCH_SIZES = (1, 4)  # LiteRT.js takes no batch of variable size.
PACKAGES = {
    "@litertjs/core": "2.5",
    "@litertjs/wasm-utils": "2.5",
    "@huggingface/tokenizers": "0.2",
}
"""Packages of npm, and the series of each that this was tried with."""
_STATIC = Path(__file__).with_name("static")
_UTILITIES = "@litertjs/wasm-utils"
_LIBRARIES = {
    "litert/index.js": "@litertjs/core/dist/index.js",
    "litert/wasm-utils.js": "@litertjs/wasm-utils/dist/bundle.js",
    "tokenizers.js": "@huggingface/tokenizers/dist/tokenizers.min.mjs",
    "LICENSE.txt": "@huggingface/tokenizers/LICENSE",
}
# Sum of a row's differences, mean and largest: a row's weights sum to 1, so that another row
# differs by up to 2, however long it is. Int8 moves 0.0003 a weight of Multi30k's run, in rows of
# about 16.
_MOST = {"none": (1e-3, 1e-2), "float16": (1e-2, 1e-1), "int8": (5e-2, 1.0)}
_BUILDS = [  # With relaxed SIMD and without.
    f"litert_wasm_{build}internal.{end}" for build in ("", "compat_") for end in ("js", "wasm")
]


class WebExporter(Exporter):
    """The format `web`: a folder that any static file server serves.

    `index.html` translates what is typed, `translator.js` is an ES module for other pages; both run
    `model_ids.tflite` by LiteRT.js in a worker and fetch nothing from elsewhere. A text of more
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
        (folder / IDS_FILE).write_bytes(content)
        tokenizers = write_tokenizers(engine, folder)
        _write_tokenizers_for_javascript(folder, tokenizers)
        _copy_files(folder, modules)
        return {
            "max_source_length": engine.max_source_length,
            **options,
            "batch_sizes": list(BATCH_SIZES),
            "align_lengths": steps,
            **tokenizers,
            "files": _described(folder),
        }

    def verify(
        self, engine: Any, folder: Path, manifest: dict, texts: Sequence[str] | None
    ) -> dict[str, Any]:
        texts = texts or sample_texts(engine.source_tokenizer)
        report = verify_litert(folder, engine, manifest, texts)
        with log_duration("alignments verified"):
            return {**report, **verify_alignment(folder, engine, manifest, texts)}

    def readme_fields(self, manifest: dict) -> dict[str, str]:
        files = sorted(manifest["files"].items(), key=lambda item: -item[1]["bytes"])
        large = [item for item in files if item[1]["bytes"] > 20_000]
        npm = ", ".join(f"`{name}` {version}" for name, version in manifest["npm"].items())
        return {
            "files": "\n".join(f"| `{name}` | {each['bytes']:,} |" for name, each in large),
            "npm": npm,
            "length": manifest["source_lengths"][-1],
        }


def npm_command() -> str:
    """Returns the command that installs `PACKAGES` in the working directory."""
    return " ".join(["npm install", *(f"{name}@{series}" for name, series in PACKAGES.items())])


def find_packages(npm: str | os.PathLike | None = None) -> tuple[Path, dict[str, str]]:
    """The `node_modules` that has `PACKAGES`, and the version of each; or `InputError`."""
    here = Path.cwd()
    parents = [here, *here.parents] if npm is None else [Path(npm)]
    folders = [folder for parent in parents for folder in (parent / "node_modules", parent)]
    folder = next((each for each in folders if (each / "@litertjs/core").is_dir()), None)
    expected = f"LiteRT.js is needed: {npm_command()}, and --npm with that folder."
    if folder is None:
        where = f"{here} and the folders above" if npm is None else npm
        raise InputError(f"{expected} Received: none in {where}.")
    versions = {}
    for name, series in PACKAGES.items():
        try:
            version = json.loads((folder / name / "package.json").read_text("utf-8"))["version"]
        except (OSError, ValueError, KeyError):
            raise InputError(f"{expected} Received: no {name} in {folder}.") from None
        if not str(version).startswith(f"{series}."):
            raise InputError(f"{expected} Received: {name} {version} in {folder}.")
        versions[name] = version
    return folder, versions


def _model(engine, options):
    """The content of the model's file, and how many tokens of a translation `align` takes."""
    import tensorflow as tf

    from keras_transformer.export.litert.model import LiteRTAlignment

    most, lengths = engine.max_target_length, options["source_lengths"]
    # Beside each length of a source as many tokens as a search may find.
    steps = {length: min(2 * length + 10, most) for length in lengths}
    align = LiteRTAlignment(engine.model, max(lengths[-1], most))

    def alignments():
        for length, target_length in steps.items():
            shapes = {"source_ids": length, "target_ids": target_length}
            specs = [tf.TensorSpec((1, size), tf.int32, name=name) for name, size in shapes.items()]
            yield f"align_1x{length}", traced(align.__call__, *specs)

    parts = convert(itertools.chain(ids_to_ids(engine, options, BATCH_SIZES), alignments()))
    content = join(parts, options["quantize"])
    check_custom_ops(content, [])
    return content, steps


def _write_tokenizers_for_javascript(folder, manifest):
    from keras_transformer.export.litert.text import without_needless_rules
    from keras_transformer.export.tokenizer_json import tokenizer_json
    from keras_transformer.text import Tokenizer

    for name in {manifest["source_tokenizer"], manifest["target_tokenizer"]}:
        smaller = without_needless_rules(Tokenizer.load(folder / name).model_bytes)
        content = json.dumps(tokenizer_json(Tokenizer(smaller)), ensure_ascii=False)
        (folder / name).with_suffix(".json").write_text(content, encoding="utf-8")


def _copy_files(folder, modules):
    """The page and the libraries; the service worker knows what to keep and when it is new."""
    (folder / "litert").mkdir()
    builds = {f"litert/{name}": f"@litertjs/core/wasm/{name}" for name in _BUILDS}
    for name, path in {**_LIBRARIES, **builds}.items():
        content = (modules / path).read_bytes()
        if name == "litert/index.js":
            # Workers know no import maps.
            content = content.replace(_UTILITIES.encode(), b"./wasm-utils.js")
        (folder / name).write_bytes(content)
    for path in sorted(_STATIC.iterdir()):
        (folder / path.name).write_bytes(path.read_bytes())
    # A page needs neither the licence nor the tokenizers' models, which Python reads.
    wanted = {
        name: digest
        for name, digest in file_digests(folder).items()
        if Path(name).suffix not in (".model", ".txt")
    }
    worker = folder / "service-worker.js"
    version = hashlib.sha256(json.dumps(wanted).encode()).hexdigest()[:16]
    del wanted[worker.name]
    head = f"const VERSION = {json.dumps(version)};\nconst FILES = {json.dumps(wanted)};\n"
    worker.write_text(head + worker.read_text("utf-8"), "utf-8")


def _described(folder):
    described = {
        name: {"bytes": (folder / name).stat().st_size, "sha256": digest}
        for name, digest in file_digests(folder).items()
    }
    return {**described, IDS_FILE: description((folder / IDS_FILE).read_bytes())}


def verify_alignment(folder: Path, engine: Any, manifest: dict, texts: Sequence[str]) -> dict:
    """Compares each signature with the live model on a few texts; raises as others do."""
    from ai_edge_litert.interpreter import Interpreter

    from keras_transformer.decoding.search import score_targets

    interpreter = Interpreter(str(folder / IDS_FILE))
    report, most = {}, _MOST[manifest["quantize"]]
    for columns, steps in manifest["align_lengths"].items():
        chosen = fitting_texts(texts, engine.source_tokenizer, columns, 4)[1:]
        sources = engine.source_tokenizer.tokenize(chosen, add_eos=True)
        # Any target will do: the texts themselves.
        targets = engine.target_tokenizer.tokenize(chosen, add_eos=True)
        align, differences = interpreter.get_signature_runner(f"align_1x{columns}"), []
        for source, target in zip(sources, targets, strict=True):
            ids = [pad([source], 1, columns), pad([target[:steps]], 1, steps)]
            found = align(source_ids=ids[0], target_ids=ids[1])["alignment"]
            expected = np.asarray(score_targets(engine.model, *ids)[1])
            real = np.s_[0, : len(target), : len(source)]
            differences += np.abs(found - expected)[real].sum(axis=1).tolist()  # of each row
        sizes = [float(each(differences or [0.0])) for each in (np.mean, np.max)]
        if not (sizes[0] <= most[0] and sizes[1] <= most[1]):
            raise VerificationError(
                f"align_1x{columns}: a token's weights may differ from the live model's by "
                f"{most[0]} in all on average, and by {most[1]} at most. "
                f"Received: {sizes[0]:.6f} and {sizes[1]:.6f}."
            )
        names = "texts", "mean_difference", "largest_difference"
        report[f"align_1x{columns}"] = dict(zip(names, (len(chosen), *sizes), strict=True))
    return report
