"""Export as a SavedModel that takes text and gives text, or a label."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_transformer.base.errors import InputError, writing
from keras_transformer.decoding.search_options import exported_search_options
from keras_transformer.engine.model_engine import ModelEngine, TrainedEngine
from keras_transformer.export.child_process import KERAS, engine_process
from keras_transformer.export.exporter import (
    Exporter,
    check_tensorflow,
    log_step,
)
from keras_transformer.export.readme_languages import example_of
from keras_transformer.export.saved_model.export_options import SavedModelOptions
from keras_transformer.export.saved_model.session import graph_in, operations_of
from keras_transformer.export.signature import SIGNATURES, Signature
from keras_transformer.export.verification import TOLERANCES, verify


class SavedModelExporter(Exporter):
    """The format `saved_model`: a SavedModel with the tokenizers inside.

    Its signature `serving_default` takes `text`, string `(batch,)`, and returns `translation`,
    string `(batch,)`, and `score`, float32 `(batch,)`: the results of `engine.translate`. A
    classifier has only `serving_default`, which returns `label`, string `(batch,)`, and
    `probabilities`, float32 `(batch, labels)`, in the order of `labels` in `export.json`.
    """

    format_name = "saved_model"
    packages = ("tensorflow", "tensorflow-text", "keras")
    reading_packages = ("tensorflow", "tensorflow-text")
    has_quantized_layers = True

    def resolve_export_options(
        self, engine: TrainedEngine, options: SavedModelOptions
    ) -> dict[str, Any]:
        check_tensorflow("SavedModel")
        from keras_transformer.export.saved_model.graph_tokenizer import load_operations

        load_operations()  # Without them the export would fail after minutes.
        if engine.labels is not None:
            return {"signatures": ["serving_default"]}
        names = list(options.signatures)
        if "align" in names and not engine.model.config.heads_of("cross"):
            if options.signatures != tuple(SIGNATURES):
                rule = "The signature `align` needs attention, which the model lacks."
                raise InputError(f"{rule} Received: signatures={names}.")
            names.remove("align")
        return {**vars(options), "signatures": names}

    def write(self, engine: TrainedEngine, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
        from keras_transformer.export.saved_model.signatures import LabelSignatures, Signatures

        search_options = {name: value for name, value in options.items() if name != "signatures"}
        signatures: Signatures | LabelSignatures
        if isinstance(engine, ModelEngine):
            signatures = Signatures(engine, search_options)
        else:
            signatures = LabelSignatures(engine)
        shapes = signatures.shapes
        signature_fields = _save(engine, folder, signatures, options["signatures"])
        chunk_fields = {"n_best": 1, "largest_chunk": shapes.largest, "shapes": shapes._asdict()}
        return {**search_options, **chunk_fields, **signature_fields}

    def verify(
        self,
        engine: TrainedEngine,
        folder: Path,
        manifest: dict,
        texts: Sequence[str] | None,
        disposable_weights: bool = False,
    ) -> dict[str, Any]:
        dtype = engine.model.compute_dtype
        tolerance = TOLERANCES["none" if dtype == "float32" else "bfloat16"]
        options = {}  # of a classifier
        if engine.labels is None:
            options = exported_search_options(manifest)
            options["alignment"] = "align" in manifest["signatures"]
        with engine_process(folder, KERAS) as child:
            return verify(child, engine, texts, tolerance, disposable_weights, **options)

    def readme_fields(self, manifest: dict) -> dict[str, str]:
        signatures, shapes = manifest["signatures"], manifest["shapes"]
        rows = [
            f"| `{name}` | {_described(signature['inputs'])} | {_described(signature['outputs'])} "
            f"| {signature['meaning']} |"
            for name, signature in signatures.items()
        ]
        example = example_of(manifest)
        inputs = (f', {name}=tf.constant(["{code}"])' for name, code in example.inputs.items())
        return {
            "example": example.text_of_inputs,
            "language_inputs": "".join(inputs),
            "signatures": "\n".join(rows),
            "operations": ", ".join(f"`{name}`" for name in manifest["custom_ops"]),
            "rows": ", ".join(map(str, shapes["rows"])),
            "lengths": ", ".join(map(str, shapes["source_lengths"])),
        }


def _described(specs):
    def sizes(spec):
        return ", ".join("·" if size is None else str(size) for size in spec["shape"])

    return ", ".join(f"`{name}` {spec['dtype']} [{sizes(spec)}]" for name, spec in specs.items())


def trackable_variables(model):
    """Returns the weights of a Keras model as TensorFlow variables, for a SavedModel to track.

    Tracking the model itself gives each weight a second handle that nothing initializes: the
    Python loader works, but sessions (TensorFlow Serving, the C library) end with "uninitialized".
    """
    return [variable.value for variable in model.variables]


def _save(engine, folder, signatures, names):
    """Writes a SavedModel of some signatures; returns the manifest's fields about it."""
    import tensorflow as tf

    log_step(f"tracing and saving the signatures {', '.join(names)}")
    with _without_grappler():
        module = tf.Module()
        module.weights = trackable_variables(engine.model)
        functions = {name: signatures.concrete(name) for name in names}
        with writing(folder):
            tf.saved_model.save(module, os.fspath(folder), functions)
    return _operations(folder, functions, signatures.table)


@contextlib.contextmanager
def _without_grappler():
    """Switches Grappler off while signatures are traced and saved.

    XLA optimizes the compiled functions. Grappler would rewrite their loops before each first call,
    for seconds. All calls in the SavedModel keep the setting, also the calls that saving adds.
    """
    import tensorflow as tf

    name = "disable_meta_optimizer"
    before = tf.config.optimizer.get_experimental_options().get(name, False)
    tf.config.optimizer.set_experimental_options({name: True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({name: before})


def _operations(folder, functions, table: Mapping[str, Signature]):
    """Returns the manifest's fields about signatures and about operations in the folder."""
    custom_ops, used_ops = _custom_ops(), operations_of(graph_in(folder))
    return {
        "signatures": {
            name: {**_signature(function), "meaning": table[name].meaning}
            for name, function in functions.items()
        },
        "custom_ops": sorted(used_ops & custom_ops),
        "core_ops": sorted(used_ops - custom_ops),
    }


def _signature(function):
    def described(specs):
        return {
            name: {"dtype": spec.dtype.name, "shape": spec.shape.as_list()}
            for name, spec in sorted(specs.items())
        }

    # Parameters that TensorFlow takes by position have the name in the specification alone.
    positional, named = function.structured_input_signature
    inputs = {spec.name: spec for spec in positional} | named
    return {
        "inputs": described(inputs),
        "outputs": described(function.structured_outputs),
    }


def _custom_ops():
    """Returns the names of the operations that tensorflow-text brings."""
    import tensorflow as tf
    import tensorflow_text

    libraries = Path(tensorflow_text.__file__).parent.glob("python/ops/_*.so")
    # The libraries are loaded already: this only returns their Python wrappers, which have the
    # names of the operations.
    wrappers = {name for path in libraries for name in dir(tf.load_op_library(os.fspath(path)))}
    # The wrappers' modules hold other names too, such as `Any` of typing.
    return wrappers - set(dir(tf.raw_ops))
