"""Export as a SavedModel that takes text and gives text."""

import dataclasses
import os
import shutil
import time

import keras

from keras_transformer.errors import InputError
from keras_transformer.export.manifest import IDS, file_digests, make_manifest, write_json
from keras_transformer.export.readme import readme_of
from keras_transformer.export.signatures import SIGNATURES, Signatures, check_signatures
from keras_transformer.export.verification import verify
from keras_transformer.export.warmup import write_warmup
from keras_transformer.files import MANIFEST, staged_folder


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """What an export wrote and how it was checked.

    Attributes:
        folder: Path of the folder.
        manifest: The content of its `export.json`: options, sizes, operations, versions.
        verification: The content of its `verification.json`.
        seconds: Time that export and verification took.
    """

    folder: str
    manifest: dict
    verification: dict
    seconds: float


def export_saved_model(
    engine,
    output,
    beam_size=4,
    length_penalty=0.6,
    verification_texts=None,
    overwrite=False,
    signatures=SIGNATURES,
):
    """Writes a SavedModel with the tokenizers inside, verified against the live model.

    Its signature `serving_default` takes `text`, string `(batch,)`, and gives `translation`,
    string `(batch,)`, and `score`, float32 `(batch,)`: the same as `engine.translate`. With
    `serving_ids` a second SavedModel lies in the subfolder `ids`, from ids to ids, without
    tensorflow-text's operations, and the tokenizers' files beside it. The folder gets its name
    after fresh processes, through both of TensorFlow's loaders, have given the live model's
    answers; until then, and after any failure, nothing is there.

    Args:
        engine: `ModelEngine`.
        output: Path of the folder to make.
        beam_size: Hypotheses that stay alive; 1 is greedy search. Fixed in the export.
        length_penalty: Exponent of the GNMT length penalty. Fixed in the export.
        verification_texts: A list of source sentences to verify with, 200 or more to be telling.
            By default texts of random pieces of the source vocabulary.
        overwrite: Whether an earlier export of that name is replaced.
        signatures: Names from `SIGNATURES`; `serving_default` is always there.

    Returns:
        `ExportReport`.

    Raises:
        InputError: An option is out of range, `output` exists, or Keras runs on a backend other
            than TensorFlow.
        VerificationError: The export does not translate as the live model does.
    """
    start = time.perf_counter()
    if keras.backend.backend() != "tensorflow":
        raise InputError(
            "A SavedModel is exported on Keras' TensorFlow backend. "
            f"Received: backend={keras.backend.backend()!r}."
        )
    engine.translate([], beam_size=beam_size, length_penalty=length_penalty)  # Checks both.
    names = check_signatures(signatures)
    with staged_folder(output, overwrite) as folder:
        functions = _save(engine, folder, beam_size, length_penalty, names)
        warmed = write_warmup(folder, engine, names)
        manifest = make_manifest(folder, engine, beam_size, length_penalty, functions, warmed)
        manifest["files"] = file_digests(folder)
        write_json(folder / MANIFEST, manifest)
        (folder / "README.md").write_text(readme_of(manifest), encoding="utf-8")
        verification = verify(folder, engine, manifest, verification_texts)
        write_json(folder / "verification.json", verification)
    seconds = time.perf_counter() - start
    return ExportReport(os.fspath(output), manifest, verification, seconds)


def trackable_variables(model):
    """The weights of a Keras model as plain TensorFlow variables, for a SavedModel to track.

    Tracking the model itself gives each weight a second handle that nothing initializes: the
    Python loader works, sessions (TensorFlow Serving, the C library) end with "uninitialized".
    """
    return [variable.value for variable in model.variables]


def _save(engine, folder, beam_size, length_penalty, names):
    import tensorflow as tf

    module = tf.Module()
    module.weights = trackable_variables(engine.model)
    traced = Signatures(engine, beam_size, length_penalty)
    functions = {name: traced.concrete(name) for name in names}
    tf.saved_model.save(module, os.fspath(folder), functions)
    if "serving_ids" in functions:
        _save_ids(engine, folder, module, functions["serving_ids"])
    return functions


def _save_ids(engine, folder, module, function):
    """A SavedModel of its own: a graph that knows tensorflow-text's operations does not load
    where these are missing, whichever signature is asked for."""
    import tensorflow as tf

    ids = folder / IDS
    both = {"serving_default": function, "serving_ids": function}
    tf.saved_model.save(module, os.fspath(ids), both)
    # The same weights under the same names: one file on the disk for both.
    shutil.rmtree(ids / "variables")
    (ids / "variables").mkdir()
    for path in (folder / "variables").iterdir():
        _link(path, ids / "variables" / path.name)
    tokenizers = {"source_": engine.source_tokenizer, "target_": engine.target_tokenizer}
    if engine.source_tokenizer == engine.target_tokenizer:
        tokenizers = {"": engine.source_tokenizer}
    for side, tokenizer in tokenizers.items():
        tokenizer.save(ids / f"{side}tokenizer.model")


def _link(path, other):
    try:
        os.link(path, other)
    except OSError:  # a file system without hard links
        shutil.copyfile(path, other)
