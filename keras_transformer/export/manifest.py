"""The file `export.json` of an exported SavedModel: what is in it, written and checked."""

import hashlib
import importlib.metadata
import json
import os
from pathlib import Path

from keras_transformer.decoding.compiled import length_buckets
from keras_transformer.errors import InputError, VerificationError
from keras_transformer.export.graph_batches import CHUNK_SIZE, ROWS
from keras_transformer.files import MANIFEST

FORMAT = "keras_transformer.saved_model"
IDS = "ids"
"""The subfolder with the SavedModel from ids to ids."""

_WANTED = {
    "beam_size": int,
    "length_penalty": (int, float),
    "n_best": int,
    "largest_chunk": int,
    "max_source_length": int,
}

_OF_OLDER_VERSIONS = {"serving_default": {"inputs": ["text"], "outputs": ["translation", "score"]}}


def make_manifest(folder, engine, beam_size, length_penalty, functions, warmed):
    """What a program wants to know of an export.

    Args:
        folder: Path of the SavedModel.
        engine: The `ModelEngine` that was exported.
        beam_size: As exported.
        length_penalty: As exported.
        functions: From each signature's name to its concrete function.
        warmed: What `write_warmup` gave.

    Returns:
        A dict fit for JSON.

    Raises:
        VerificationError: The SavedModel from ids to ids needs a custom operation.
    """
    import keras_transformer

    custom = _custom_ops()
    used = operations_in(folder)
    if (Path(folder) / IDS).exists() and (wrong := operations_in(Path(folder) / IDS) & custom):
        raise VerificationError(
            "The SavedModel from ids to ids must have core operations alone. "
            f"Received: {', '.join(sorted(wrong))}."
        )
    packages = ("tensorflow", "tensorflow-text", "keras")
    return {
        "format": FORMAT,
        "format_version": 2,
        "beam_size": beam_size,
        "length_penalty": length_penalty,
        "n_best": 1,
        "max_source_length": engine.max_source_length,
        "max_target_length": engine.max_target_length,
        "largest_chunk": CHUNK_SIZE,
        "source_vocabulary_size": engine.source_tokenizer.vocabulary_size,
        "target_vocabulary_size": engine.target_tokenizer.vocabulary_size,
        "signatures": {name: _signature(each, custom) for name, each in functions.items()},
        # XLA compiles a program for each pair of these, when it first occurs.
        "shapes": {
            "rows": list(ROWS),
            "source_lengths": length_buckets(engine.max_source_length),
            "target_lengths": length_buckets(engine.max_target_length),
        },
        "warmup": warmed,
        "custom_ops": sorted(used & custom),
        "core_ops": sorted(used - custom),
        "versions": {
            "keras_transformer": keras_transformer.__version__,
            **{name: importlib.metadata.version(name) for name in packages},
        },
    }


def _signature(function, custom):
    def described(specs):
        return {
            name: {"dtype": spec.dtype.name, "shape": spec.shape.as_list()}
            for name, spec in sorted(specs.items())
        }

    inputs = {spec.name: spec for spec in function.structured_input_signature[0]}
    return {
        "inputs": described(inputs),
        "outputs": described(function.structured_outputs),
        "custom_ops": sorted(_operations_of(function.graph.as_graph_def()) & custom),
    }


def _custom_ops():
    """Names of the operations that tensorflow-text brings."""
    import tensorflow as tf
    import tensorflow_text

    libraries = Path(tensorflow_text.__file__).parent.glob("python/ops/_*.so")
    # Loaded already: this only gives the wrappers, which are named like the operations.
    brought = {name for path in libraries for name in dir(tf.load_op_library(os.fspath(path)))}
    # The wrappers' modules hold more names than those, `Any` of typing for one.
    return brought - set(dir(tf.raw_ops))


def operations_in(folder):
    """Names of the operations in a SavedModel, those of its functions too."""
    from tensorflow.core.protobuf import saved_model_pb2

    content = (Path(folder) / "saved_model.pb").read_bytes()
    return _operations_of(saved_model_pb2.SavedModel.FromString(content).meta_graphs[0].graph_def)


def _operations_of(graph):
    # Not the list of operations in `meta_info_def`: it misses those in the body of a loop.
    functions = {function.signature.name for function in graph.library.function}
    nodes = [*graph.node, *(node for each in graph.library.function for node in each.node_def)]
    return {node.op for node in nodes} - functions


def file_digests(folder):
    """SHA-256 of each file under a folder, by its path there with `/` between names."""
    folder, known = Path(folder), {}
    digests = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            status = path.stat()
            inode = status.st_dev, status.st_ino  # hard links are read once
            if inode not in known:
                with open(path, "rb") as file:
                    known[inode] = hashlib.file_digest(file, "sha256").hexdigest()
            digests[path.relative_to(folder).as_posix()] = known[inode]
    return digests


def write_json(path, content):
    """Writes indented JSON."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_manifest(folder):
    """Reads `export.json` and checks the files that it names.

    Args:
        folder: Path of an export.

    Returns:
        The dict.

    Raises:
        InputError: The folder or the file is missing, damaged or of another kind, or a file is
            missing or not the one that was exported.
    """
    path = Path(folder) / MANIFEST
    expected = f"{os.fspath(folder)}: expected a SavedModel that this package exported."
    if not Path(folder).is_dir():
        raise InputError(f"{expected} Received: no such folder.")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{expected} Received: a folder without {MANIFEST}.") from None
    except (OSError, ValueError):
        raise InputError(f"{expected} Received: a {MANIFEST} that cannot be read.") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise InputError(f'{expected} Received: a {MANIFEST} whose "format" is another.')
    if missing := [name for name in _WANTED if name not in manifest]:
        raise InputError(f'{expected} Received: a {MANIFEST} without "{missing[0]}".')
    # What older versions did not write may be missing; what is there must be of its kind.
    signatures = manifest.setdefault("signatures", _OF_OLDER_VERSIONS)
    kinds = [isinstance(manifest[name], kind) for name, kind in _WANTED.items()]
    kinds.append(isinstance(manifest.setdefault("files", {}), dict))
    kinds.append(isinstance(signatures, dict) and all(map(_is_signature, signatures.values())))
    if not all(kinds):
        raise InputError(f"{expected} Received: a {MANIFEST} with values of other types.")
    _check_files(folder, manifest["files"])
    return manifest


def _is_signature(value):
    return isinstance(value, dict) and all(
        isinstance(value.get(side), (dict, list)) for side in ("inputs", "outputs")
    )


def _check_files(folder, digests):
    # Weights of another model have the same names and shapes: nothing else would notice them.
    try:
        found = file_digests(folder)
    except OSError as error:
        raise InputError(f"{os.fspath(folder)}: cannot be read: {error.strerror}.") from None
    for name, digest in digests.items():
        if found.get(name) != digest:
            what = "is missing" if name not in found else "is not the file that was exported"
            raise InputError(
                f"{os.fspath(folder)}: the SavedModel is incomplete or damaged. "
                f"Received: {name} {what}."
            )
