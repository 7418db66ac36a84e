"""Who may import whom, read from the sources; what an import costs and loads."""

import ast
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys

import keras
import pytest

import keras_transformer
from keras_transformer.base.imports import LEVEL
from keras_transformer.base.impossible import HIDDEN
from keras_transformer.formats import FORMATS

PACKAGE = pathlib.Path(keras_transformer.__file__).parent

# Each part may import itself and the parts that are named, wherever in a file the import is.
OUTCOME = {"losses", "metrics", "schedules"}
BELOW_ENGINE = {"base", "formats", "text", "layers", "decoding", "models", "data", "runs"}
CORE = BELOW_ENGINE | OUTCOME | {"engine", "training", "export"}
# What the core does not import: each of these folders may be deleted.
EXTRAS = {
    *("analysis", "bulk", "cluster", "corpora", "documents", "markup", "serving", "web"),
    *("argos", "ctranslate2", "foreign", "hugging_face", "importing", "marian"),
}
PROGRAMS = {"argos", "ctranslate2", "hugging_face", "marian"}
MAY_IMPORT = {
    "base": set(),
    "formats": {"base"},
    "text": {"base"},
    "data": {"base", "text"},
    "layers": {"base"},
    **dict.fromkeys(sorted(OUTCOME), {"base", "layers"} | OUTCOME),
    "decoding": {"base", "layers"},
    "models": {"base", "layers"},
    "runs": {"base", "formats", "text", "decoding", "models"},
    "engine": BELOW_ENGINE,
    "training": CORE - {"export"},
    "export": CORE - {"training"},
    **dict.fromkeys(sorted(EXTRAS), CORE),
    "documents": CORE | {"markup"},  # Documents have tags and marks around words.
    "serving": CORE | {"documents"},
    "cluster": CORE | {"bulk", "serving"},
    "foreign": CORE | {"importing"},  # An export is read back.
    **dict.fromkeys(sorted(PROGRAMS), CORE | {"foreign"}),
    "argos": CORE | {"foreign", "ctranslate2"},  # A package has a model of CTranslate2.
    "importing": CORE | {"foreign"} | PROGRAMS,
    "cli": CORE | EXTRAS,
    "__main__": {"cli"},
}
# The files that import extras and formats late, although they lie below these parts.
DOORS = {
    "formats.py": {"engine", "export", "argos", "ctranslate2", "hugging_face", "marian", "web"},
    "data/pairs.py": {"corpora"},
    "training/training.py": {"corpora"},
    "engine/steps/text_steps.py": {"markup"},
    "extras/bulk/corpus.py": {"cluster"},
}
# The only files of the model's side that others may import.
ONLY = {"decoding": {"masks", "kv_cache"}, **dict.fromkeys(sorted(OUTCOME), {"masks"})}
# Run by Keras alone, on any backend, or without one.
KERAS_ONLY = {
    *("base", "text", "markup", "layers", "models", "decoding", "runs", "analysis"), *OUTCOME,
}  # fmt: skip


def part_of(path):
    """`layers` for `layers/blocks.py`, `web` for `extras/web/export.py`."""
    return part_of_name(module_name(path))


def part_of_name(module):
    """The part of a module, by its name."""
    _, *names = module.split(".")
    return names[1] if names[0] == "extras" and len(names) > 1 else names[0]


def sources(*parts):
    """The files of some parts of the package, or of all but its `__init__.py`."""
    paths = [p for p in sorted(PACKAGE.rglob("*.py")) if p != PACKAGE / "__init__.py"]
    return [p for p in paths if not parts or part_of(p) in parts]


def module_name(path):
    """`keras_transformer.layers` for `layers/__init__.py`."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path) for path in PACKAGE.rglob("*.py")}


def imports(path):
    """`(module, line, is late)` of every import of a file: late in a function or for types."""
    imported = []

    def visit(node, is_late):
        if isinstance(node, ast.Import):
            imported.extend((alias.name, node.lineno, is_late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: a relative import"
            modules = {f"{node.module}.{alias.name}" for alias in node.names} & MODULES
            imported.extend((name, node.lineno, is_late) for name in modules or {node.module})
        is_late = is_late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        is_late = is_late or isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for child in ast.iter_child_nodes(node):
            visit(child, is_late)

    visit(ast.parse(path.read_text(encoding="utf-8")), False)
    return imported


def opened_parts(path):
    """The parts that a file, if it is a door, may import late."""
    return DOORS.get(path.relative_to(PACKAGE).as_posix(), set())


def our_imports(path):
    """`(module, line)` of every import of another module of our own package, except a door's."""
    for name, line, is_late in imports(path):
        # The package's own names are imported with their first use.
        if name in MODULES - {PACKAGE.name, module_name(path)}:
            if not is_late or part_of_name(name) not in opened_parts(path):
                yield name, line


def is_allowed(part, module):
    """Whether a part may import a module."""
    below, name = part_of_name(module), module.split(".")[-1]
    if below == "layers" and part in ONLY:
        return name in ONLY[part]
    return below in MAY_IMPORT[part] | {part}


def test_every_part_has_its_arrows():
    assert {part_of(path) for path in sources()} == {*MAY_IMPORT, "extras"}


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_a_part_imports_only_what_lies_below_it(part):
    imported = [(path, *entry) for path in sources(part) for entry in our_imports(path)]
    assert [entry for entry in imported if not is_allowed(part, entry[1])] == []


def test_each_door_opens_all_of_its_parts():
    for door, parts in DOORS.items():
        late = {part_of_name(name) for name, _, is_late in imports(PACKAGE / door) if is_late}
        assert parts <= late, door


def test_no_files_import_each_other_in_a_circle_and_none_what_measures_them():
    needs = {module_name(path): {name for name, _ in our_imports(path)} for path in sources()}
    # Whatever needs nothing that is left is taken away.
    while free := {name for name, needed in needs.items() if not needed & needs.keys()}:
        needs = {name: needed for name, needed in needs.items() if name not in free}
    assert sorted(needs) == []
    assert "benchmarks" not in {name.split(".")[0] for p in sources() for name, *_ in imports(p)}


def test_what_keras_computes_and_texts_never_import_a_backend():
    backends = {"tensorflow", "tensorflow_text", "jax", "torch"}
    paths = set(sources(*KERAS_ONLY)) - {PACKAGE / "base/large_variables.py"}
    imported = {(path, *entry) for path in paths for entry in imports(path)}
    assert [entry for entry in imported if entry[1].split(".")[0] in backends] == []


# Beginnings and ends of names in patterns: `>>[`, `+<<`, `__[`, `{3}_[A-Z`. Whole tokens in a
# message, such as >>de<<, are none.
TOKEN_OF_LANGUAGE = re.compile(r">>(?!>|\w+<<)|(?<![\w<])<<|__[(\[]|[\])]__|_\[A-Z")


def texts(tree):
    """The strings of a program, without docstrings."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


# `extras.web.export:WebExporter`, which no checker of imports sees.
NAME_OF_CODE = re.compile(r"[a-z_]\w*(\.\w+)+:\w+")


def test_no_string_names_code_of_the_package():
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sources()}
    named = {path: set(filter(NAME_OF_CODE.fullmatch, texts(tree))) for path, tree in trees.items()}
    assert {path: names for path, names in named.items() if names} == {}


def test_only_one_module_knows_what_a_tag_looks_like():
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sources()}
    names = {
        path.relative_to(PACKAGE).as_posix(): text
        for path, tree in trees.items()
        for text in texts(tree)
        if TOKEN_OF_LANGUAGE.search(text)
    }
    assert set(names) == {"text/tags.py"}, names


def test_the_page_hides_a_token_by_the_number_of_the_models():
    script = (PACKAGE / "extras" / "web" / "static" / "shortlist.js").read_text("utf-8")
    assert float(re.search(r"HIDDEN = (\S+);", script)[1]) == HIDDEN


def names_in(tree):
    """Variables, attributes, arguments and strings of a program, without docstrings."""
    yield from texts(tree)
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name"):
            if isinstance(name := getattr(node, field, None), str):
                yield name


def test_options_lie_with_their_format_and_what_formats_share_names_no_option_of_a_door():
    folders = {
        name: {module.rpartition(".")[0] for module in modules}
        for name, modules in modules_of_formats().items()
        if "keras_transformer.export.options" not in modules  # Several formats have these options.
    }
    assert [name for name, modules in folders.items() if len(modules) > 1] == []
    options = {row.options() for row in FORMATS.values()}
    fields = {row: {field.name for field in dataclasses.fields(row)} for row in options}
    places = ("keras_transformer.extras.", "keras_transformer.export.litert.")
    of_extras = {row for row in options if row.__module__.startswith(places)}
    cores = set().union(*(fields[row] for row in options - of_extras))
    names_of_extras = set().union(*(fields[row] for row in of_extras)) - cores
    names_of_extras |= {row.__name__ for row in of_extras}
    assert {"npm", "package_version", "source_lengths", "WebOptions"} <= names_of_extras
    shared = [path for path in sources("export") if path.parent.name == "export"]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in shared}
    named = {path: names_of_extras & set(names_in(tree)) for path, tree in trees.items()}
    assert {path: names for path, names in named.items() if names} == {}


def modules_of_formats():
    """The modules that the methods of each format import, by the names of their classes."""
    tree = ast.parse((PACKAGE / "formats.py").read_text(encoding="utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return {
        node.name: {found.module for found in ast.walk(node) if isinstance(found, ast.ImportFrom)}
        for node in classes
    }


def renames_or_locks(node):
    """Whether a node of a program's syntax renames a file or a folder, or locks it."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = {getattr(node, "module", None), *(alias.name for alias in node.names)}
        return bool(names & {"fcntl", "filelock", "rename", "replace", "move"})
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr == "replace":
        # A text's has two arguments, and a dataclass' has names. `Path.replace` has one argument.
        return ast.unparse(node.func.value) == "os" or len(node.args) == 1 and not node.keywords
    return node.func.attr in ("rename", "renames", "move")


def test_only_one_module_renames_and_locks():
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sources()}
    names = {
        path.name for path, tree in trees.items() if any(map(renames_or_locks, ast.walk(tree)))
    }
    assert names == {"files.py"}


def run_python(code, *arguments, **environment):
    """What a new process prints as JSON, and what it writes to stderr."""
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    values = {key: os.environ[key] for key in os.environ.keys() - {LEVEL}}
    values["PYTHONPATH"] = str(PACKAGE.parent)
    values["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # Compiling is nearly all of its time.
    values |= environment
    finished = subprocess.run(command, env=values, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return json.loads(finished.stdout.splitlines()[-1]), finished.stderr


FIRST_IMPORT = """
import json, sys
import keras_transformer
from keras_transformer.base.imports import own_stderr

own_stderr()

without = [keras_transformer.Tokenizer, keras_transformer.TransformerConfig]
without += [keras_transformer.Translation, keras_transformer.Translator]
loaded = {"keras", "tensorflow"} & set(sys.modules)
keras_transformer.TokenLoss
import keras

loaded |= {"tensorflow_text", "sentencepiece"} & set(sys.modules)
names = type(model := keras.models.load_model(sys.argv[1])).__name__, type(model.loss).__name__
hooks = [finder for finder in sys.meta_path if "keras_transformer" in type(finder).__module__]
missing = [name for name in keras_transformer.__all__ if not getattr(keras_transformer, name)]
told = {"hooks": len(hooks), "loaded": sorted(loaded), "missing": missing, "names": names}
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Path of a compiled model."""
    from keras_transformer import SmoothedCrossEntropy, TransformerSchedule

    config = keras_transformer.TransformerConfig(
        23, 14, 2, 11, num_encoder_layers=1, num_decoder_layers=1
    )
    model = keras_transformer.Transformer(config)
    model.compile(keras.optimizers.Adam(TransformerSchedule(14)), SmoothedCrossEntropy())
    path = str(tmp_path_factory.mktemp("saved") / "model.keras")
    model.save(path)
    return path


@pytest.mark.slow
def test_names_are_imported_quietly_with_their_first_use_and_no_finder_stays(saved):
    expected = {"hooks": 0, "loaded": [], "missing": []}
    expected["names"] = ["Transformer", "SmoothedCrossEntropy"]
    assert run_python(FIRST_IMPORT, saved) == (expected, "")


# Two programs of a process that has imported Keras, each in a fork of it.
AFTER_KERAS = """
import json, os, sys, time
import keras

def after_keras():
    start = time.process_time()
    import keras_transformer
    assert time.process_time() - start <= 0.3
    loaded = {"tensorflow_text", "sentencepiece"} & set(sys.modules)
    model = keras.models.load_model(sys.argv[1])
    return [type(model).__name__, type(model.loss).__name__, sorted(loaded)]

def without_posix():
    for name in ("fcntl", "resource", "termios"):
        sys.modules[name] = None
    del os.geteuid, os.killpg
    import numpy as np
    import keras_transformer as kt
    from keras_transformer.extras.bulk import corpus
    from keras_transformer import data, decoding, export, layers, losses, models
    from keras_transformer.base.compilation_cache import enable_compilation_cache
    from keras_transformer.extras.ctranslate2.engine import CTranslate2Engine
    from keras_transformer.export.litert.engine import LiteRTEngine
    from keras_transformer.export.saved_model.engine import SavedModelEngine

    enable_compilation_cache()
    names = [name for name in kt.__all__ if not getattr(kt, name)]
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    model = kt.Transformer(kt.TransformerConfig(23, 14, 2, 11, **layers))
    model.compile("sgd", kt.SmoothedCrossEntropy(), run_eagerly=True)
    source, target = np.array([[3, 5, 2, 0]]), np.array([[1, 7, 11]])
    loss = model.fit((source, target), np.array([[7, 11, 2]]), verbose=0).history["loss"][0]
    return {"missing": names, "has_loss": loss > 0}

results = {}
for program in (after_keras, without_posix):
    reading, writing = os.pipe()
    if not os.fork():
        os.write(writing, json.dumps(program()).encode())
        os._exit(0)
    os.close(writing)
    assert os.wait()[1] == 0
    results[program.__name__] = json.loads(os.read(reading, 10_000))
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def after_keras(saved):
    return run_python(AFTER_KERAS, saved, KERAS_BACKEND=keras.backend.backend())[0]


@pytest.mark.slow
def test_an_import_after_keras_takes_no_time_and_loads_no_tokenizer(after_keras):
    assert after_keras["after_keras"] == ["Transformer", "SmoothedCrossEntropy", []]


@pytest.mark.slow
def test_layers_training_on_arrays_and_engines_do_without_posix(after_keras):
    assert after_keras["without_posix"] == {"missing": [], "has_loss": True}
