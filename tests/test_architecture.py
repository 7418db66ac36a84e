"""Who may import whom, read from the sources; what an import costs and loads."""

import ast
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import keras
import pytest

import keras_transformer

PACKAGE = pathlib.Path(keras_transformer.__file__).parent
TENSORFLOW = {"tensorflow", "tensorflow_text"}

# Each part may import itself and the parts that are named, wherever in a file the import is.
GROUND = {"errors", "files", "options", "ids", "lazy", "locks", "owned_folder", "quiet"}
OUTCOME = {"losses", "metrics", "schedules"}
BELOW_ENGINE = GROUND | {"text", "data", "layers", "decoding", "models"}
WRITERS = {"training", "export", "importing"}
MAY_IMPORT = {
    "errors": set(),
    "quiet": set(),
    "ids": set(),
    "lazy": set(),
    "files": {"errors"},
    "options": {"errors"},
    "locks": {"errors"},
    "owned_folder": {"errors", "files", "locks"},
    "text": GROUND,
    "data": GROUND,
    "layers": GROUND,
    **dict.fromkeys(sorted(OUTCOME), GROUND | OUTCOME | {"layers"}),
    "decoding": GROUND | {"layers"},
    "models": GROUND | {"layers"},
    "engine": BELOW_ENGINE,
    "analysis": BELOW_ENGINE | {"engine"},
    # A model of Marian is verified by importing it.
    "export": BELOW_ENGINE | {"engine", "analysis", "importing"},
    "importing": BELOW_ENGINE | {"engine", "analysis"},
    "training": BELOW_ENGINE | OUTCOME | {"engine", "analysis"},
    "serving": BELOW_ENGINE | WRITERS | {"engine", "analysis"},
    "cli": BELOW_ENGINE | WRITERS | {"engine", "analysis", "serving"},
    "__main__": {"cli"},
}
# The only files of the model's side that others may import.
ONLY = {"decoding": {"masks", "kv_cache"}, **dict.fromkeys(sorted(OUTCOME), {"masks"})}
# Run by Keras alone, on any backend. Decoding has one exception of its own.
KERAS_ONLY = {"layers", "models", "analysis", *OUTCOME, *GROUND}


def part_of(path):
    """`layers` for `layers/block.py`, `config` for `config.py`."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path):
    """`(module, line, inside a function)` of every import of a file, late ones too."""
    found = []

    def visit(node, inside):
        if isinstance(node, ast.Import):
            found.extend((alias.name, node.lineno, inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            names = names if node.module == PACKAGE.name else [node.module]
            found.extend((name, node.lineno, inside) for name in names)
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(ast.parse(path.read_text(encoding="utf-8")), False)
    return found


def sources(*parts):
    """The files of some parts of the package, or of all but its `__init__.py`."""
    paths = [p for p in sorted(PACKAGE.rglob("*.py")) if part_of(p) != "__init__"]
    return [p for p in paths if not parts or part_of(p) in parts]


def our_imports(path):
    """`(part, line)` of every import of our own package."""
    for name, line, _ in imports(path):
        head, *rest = name.split(".")
        if head == PACKAGE.name and rest:
            yield rest[0], line


def names(path, line, what):
    return f"{path.relative_to(PACKAGE)}:{line} imports {what}"


def test_every_part_has_its_arrows():
    assert {part_of(path) for path in sources()} == set(MAY_IMPORT)


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_a_part_imports_only_what_lies_below_it(part):
    broken = [
        names(path, line, imported)
        for path in sources(part)
        for imported, line in our_imports(path)
        if imported not in MAY_IMPORT[part] | {part}
    ]
    assert broken == []


@pytest.mark.parametrize("part", ONLY)
def test_a_part_imports_only_masks_and_caches_of_the_models_side(part):
    broken = [
        f"{path.relative_to(PACKAGE)} imports {module}"
        for path in sources(part)
        for module in modules_imported(path)
        if module.startswith(f"{PACKAGE.name}.layers") and module.split(".")[-1] not in ONLY[part]
    ]
    assert broken == []


def test_the_package_imports_nothing_that_measures_it():
    broken = [
        names(path, line, name)
        for path in sorted(PACKAGE.rglob("*.py"))
        for name, line, _ in imports(path)
        if name.split(".")[0] == "benchmarks"
    ]
    assert broken == []


def module_name(path):
    """`keras_transformer.layers` for `layers/__init__.py`."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules_imported(path):
    """Names of the package's modules that a file imports anywhere, also late or for types only."""
    modules = {module_name(each) for each in PACKAGE.rglob("*.py")}
    imported = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names}
            imported |= (submodules & modules) or {node.module}
    # The package's own names are imported with their first use.
    return (imported & modules) - {PACKAGE.name, module_name(path)}


def circles(needs):
    """The names that are left when whatever needs nothing that is left has been taken away."""
    while free := {name for name, others in needs.items() if not others & needs.keys()}:
        needs = {name: others for name, others in needs.items() if name not in free}
    return sorted(needs)


def test_no_files_import_each_other_in_a_circle():
    assert circles({module_name(path): modules_imported(path) for path in sources()}) == []


def test_no_folders_import_each_other_in_a_circle():
    needs = {part: set() for part in MAY_IMPORT}
    for path in sources():
        needs[part_of(path)] |= {imported for imported, _ in our_imports(path)} - {part_of(path)}
    assert circles(needs) == []


def test_a_circle_is_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]


def tensorflow_imports(paths):
    return [
        (path, line, inside, name)
        for path in paths
        for name, line, inside in imports(path)
        if name.split(".")[0] in TENSORFLOW
    ]


def test_the_core_never_imports_tensorflow():
    found = tensorflow_imports(sources(*KERAS_ONLY))
    assert [names(path, line, name) for path, line, _, name in found] == []


def test_decoding_imports_tensorflow_late_and_in_one_file_only():
    found = tensorflow_imports(sources("decoding"))
    assert {(path.name, inside) for path, _, inside, _ in found} == {("programs.py", True)}


def run_python(code, *arguments, **environment):
    """What a new process prints as JSON."""
    finished = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={
            **os.environ,
            "PYTHONPATH": str(PACKAGE.parent),
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # Compiling is nearly all of its time.
            **environment,
        },
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return json.loads(finished.stdout.splitlines()[-1])


FIRST_IMPORT = """
import json, sys
hooks = list(sys.meta_path)
import keras_transformer

hooks = [each for each in sys.meta_path if each not in hooks]
without = [keras_transformer.Tokenizer, keras_transformer.TransformerConfig]
without += [keras_transformer.Translation, keras_transformer.Translator]
loaded = {"keras", "tensorflow"} & set(sys.modules)
import keras

keras_transformer.TokenLoss
loaded |= {"tensorflow_text", "sentencepiece"} & set(sys.modules)
names = type(model := keras.models.load_model(sys.argv[1])).__name__, type(model.loss).__name__
missing = [name for name in keras_transformer.__all__ if not getattr(keras_transformer, name)]
told = {"hooks": len(hooks), "loaded": sorted(loaded), "missing": missing, "names": names}
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Path of a compiled model."""
    from keras_transformer import SmoothedCrossEntropy, TransformerSchedule

    config = keras_transformer.TransformerConfig(23, 14, 2, 11, 1, 1)
    model = keras_transformer.Transformer(config)
    model.compile(keras.optimizers.Adam(TransformerSchedule(14)), SmoothedCrossEntropy())
    path = str(tmp_path_factory.mktemp("saved") / "model.keras")
    model.save(path)
    return path


def test_names_are_imported_with_their_first_use_and_without_a_hook(saved):
    expected = {"hooks": 0, "loaded": [], "missing": []}
    expected["names"] = ["Transformer", "SmoothedCrossEntropy"]
    assert run_python(FIRST_IMPORT, saved) == expected


LOADED = """
import json, sys, time
{imports}
loaded = {{"tensorflow_text", "sentencepiece"}} & set(sys.modules)
model = keras.models.load_model({path!r})
print(json.dumps([type(model).__name__, type(model.loss).__name__, sorted(loaded)]))
"""

AFTER_KERAS = """
import keras
start = time.process_time()
import keras_transformer
assert time.process_time() - start <= 0.3
"""


@pytest.mark.parametrize(
    "imports",
    [
        AFTER_KERAS,
        "from keras_transformer import layers; import keras",
    ],
    ids=["after-keras-in-three-tenths-of-a-second", "a-part-before-keras"],
)
def test_imports_in_any_order_register_the_classes_and_load_no_tokenizer(imports, saved):
    code = LOADED.format(imports=imports, path=saved)
    assert run_python(code) == ["Transformer", "SmoothedCrossEntropy", []]


WITHOUT_POSIX = """
import json, os, sys

for name in ("fcntl", "resource", "termios"):
    sys.modules[name] = None
del os.geteuid, os.killpg
import keras
import numpy as np
import keras_transformer as kt
from keras_transformer.serving import bulk
from keras_transformer import data, decoding, export, layers, losses, models
from keras_transformer.engine.compilation_cache import enable_compilation_cache
from keras_transformer.engine import CTranslate2Engine, LiteRTEngine, SavedModelEngine

enable_compilation_cache()
names = [name for name in kt.__all__ if not getattr(kt, name)]
model = kt.Transformer(kt.TransformerConfig(23, 14, 2, 11, 1, 1))
model.compile("sgd", kt.SmoothedCrossEntropy(), run_eagerly=True)
source, target = np.array([[3, 5, 2, 0]]), np.array([[1, 7, 11]])
loss = model.fit((source, target), np.array([[7, 11, 2]]), verbose=0).history["loss"][0]
print(json.dumps({"missing": names, "has_loss": loss > 0}))
"""


def test_layers_training_on_arrays_and_engines_do_without_posix():
    expected = {"missing": [], "has_loss": True}
    assert run_python(WITHOUT_POSIX, KERAS_BACKEND=keras.backend.backend()) == expected


WITHOUT_TENSORFLOW = """
import json, sys


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tensorflow", "tensorflow_text"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Blocked())
import keras
import numpy as np
import keras_transformer as kt

model = kt.Transformer(kt.TransformerConfig(23, 14, 2, 11, 1, 1))
source, target = np.array([[3, 5, 2, 0]] * 2), np.array([[1, 7, 11]] * 2)
shape = tuple(model((source, target)).shape)
schedule = kt.TransformerSchedule(14, warmup_steps=5)
metrics = [kt.TokenLoss(), kt.TokenAccuracy(), kt.Perplexity()]
model.compile(keras.optimizers.Adam(schedule), kt.SmoothedCrossEntropy(), metrics=metrics)
before = model.get_weights()[0].copy()
loss = model.fit((source, target), np.array([[7, 11, 2]] * 2), verbose=0).history["loss"][0]
moved = float(np.abs(model.get_weights()[0] - before).max())
found = [name for name in sys.modules if name.split(".")[0] == "tensorflow"]
print(json.dumps({"shape": shape, "loss": loss, "moved": moved, "tensorflow": found}))
"""


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs JAX")
def test_without_tensorflow_the_model_runs_and_trains_on_jax():
    result = run_python(WITHOUT_TENSORFLOW, KERAS_BACKEND="jax")
    assert result["shape"] == [2, 3, 23]
    assert 0 < result["loss"] < 20
    assert result["moved"] > 0
    assert result["tensorflow"] == []
