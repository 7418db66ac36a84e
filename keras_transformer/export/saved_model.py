"""Export as a SavedModel that takes text and gives text."""

import dataclasses
import importlib.metadata
import json
import os
import time
from pathlib import Path

import keras

from keras_transformer.errors import InputError
from keras_transformer.export.staging import MANIFEST, staged_folder
from keras_transformer.export.text_to_text import CHUNK_SIZE, text_to_text, trackable_variables
from keras_transformer.export.verification import verify

FORMAT = "keras_transformer.saved_model"


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
    engine, output, beam_size=4, length_penalty=0.6, verification_texts=None, overwrite=False
):
    """Writes a SavedModel with the tokenizers inside, verified against the live model.

    Its signature `serving_default` takes `text`, string `(batch,)`, and gives `translation`,
    string `(batch,)`, and `score`, float32 `(batch,)`: the same as `engine.translate`. The folder
    gets its name after a fresh process, through both of TensorFlow's loaders, has given the
    live model's translations; until then, and after any failure, nothing is there.

    Args:
        engine: `ModelEngine`.
        output: Path of the folder to make.
        beam_size: Hypotheses that stay alive; 1 is greedy search. Fixed in the export.
        length_penalty: Exponent of the GNMT length penalty. Fixed in the export.
        verification_texts: A list of source sentences to verify with, 200 or more to be telling.
            By default texts of random pieces of the source vocabulary.
        overwrite: Whether an earlier export of that name is replaced.

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
    with staged_folder(output, overwrite) as folder:
        _save(engine, folder, beam_size, length_penalty)
        manifest = _manifest(engine, folder, beam_size, length_penalty)
        _write_json(folder / MANIFEST, manifest)
        (folder / "README.md").write_text(_readme(manifest), encoding="utf-8")
        verification = verify(folder, engine, verification_texts, beam_size, length_penalty)
        _write_json(folder / "verification.json", verification)
    seconds = time.perf_counter() - start
    return ExportReport(os.fspath(output), manifest, verification, seconds)


def _save(engine, folder, beam_size, length_penalty):
    import tensorflow as tf

    module = tf.Module()
    module.weights = trackable_variables(engine.model)
    signatures = {"serving_default": text_to_text(engine, beam_size, length_penalty)}
    tf.saved_model.save(module, os.fspath(folder), signatures)


def _manifest(engine, folder, beam_size, length_penalty):
    import keras_transformer

    packages = ("tensorflow", "tensorflow-text", "keras")
    return {
        "format": FORMAT,
        "format_version": 1,
        "beam_size": beam_size,
        "length_penalty": length_penalty,
        "n_best": 1,
        "max_source_length": engine.max_source_length,
        "max_target_length": engine.max_target_length,
        "largest_chunk": CHUNK_SIZE,
        "source_vocabulary_size": engine.source_tokenizer.vocabulary_size,
        "target_vocabulary_size": engine.target_tokenizer.vocabulary_size,
        "custom_ops": _custom_ops(folder),
        "versions": {
            "keras_transformer": keras_transformer.__version__,
            **{name: importlib.metadata.version(name) for name in packages},
        },
    }


def _custom_ops(folder):
    """Names of the operations in the SavedModel that tensorflow-text brings."""
    import tensorflow as tf
    import tensorflow_text
    from tensorflow.core.protobuf import saved_model_pb2

    libraries = Path(tensorflow_text.__file__).parent.glob("python/ops/_*.so")
    # Loaded already: this only gives the wrappers, which are named like the operations.
    brought = {name for path in libraries for name in dir(tf.load_op_library(os.fspath(path)))}
    saved = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    graph = saved.meta_graphs[0].graph_def
    # Not the list of operations in `meta_info_def`: it misses those in the body of a loop.
    nodes = [*graph.node, *(node for each in graph.library.function for node in each.node_def)]
    # The wrappers' modules hold more names than those, `Any` of typing for one.
    return sorted({node.op for node in nodes} & brought - set(dir(tf.raw_ops)))


def _write_json(path, content):
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _readme(manifest):
    versions = ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())
    operations = ", ".join(f"`{name}`" for name in manifest["custom_ops"])
    return _README.format(**{**manifest, "versions": versions, "custom_ops": operations})


_README = """\
# A translator as a SavedModel

Text in, text out: the tokenizers are inside. Load it with TensorFlow and tensorflow-text alone:

```python
import tensorflow as tf
import tensorflow_text  # registers the tokenizer's operations

model = tf.saved_model.load(".")  # this folder
result = model.signatures["serving_default"](text=tf.constant(["A text."]))
print(result["translation"].numpy()[0].decode("utf-8"), float(result["score"][0]))
```

| `serving_default` | name | type | meaning |
|---|---|---|---|
| input | `text` | string `[batch]` | UTF-8, one sentence each; any number of them, none too |
| output | `translation` | string `[batch]` | UTF-8; "" for a blank text |
| output | `score` | float32 `[batch]` | log-probability over length penalty; 0 for a blank text |

| fixed here | value |
|---|---|
| beam size | {beam_size} |
| length penalty | {length_penalty} |
| most tokens of a source | {max_source_length}, its end included; a longer text is cut there |
| most tokens of a translation | {max_target_length} |
| sentences searched at once | {largest_chunk}; a larger batch is divided inside |
| vocabulary, source and target | {source_vocabulary_size} and {target_vocabulary_size} |

Required operations beside TensorFlow's own:
{custom_ops},
from tensorflow-text (`python/ops/_sentencepiece_tokenizer.so`). The search is compiled by XLA,
which must be allowed: `tensorflow_model_server` needs `--xla_cpu_compilation_enabled=true`. The
first request of a new padded shape (a power of two of sentences, a multiple of 16 tokens) waits
for the compiler.

Made with {versions}.
`export.json` holds all this for programs, `verification.json` how the translations compared with
the live model's.
"""
