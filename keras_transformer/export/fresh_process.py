"""Programs that run in a new process, in which packages that users may lack are hidden.

`child_process.ChildProcess` runs `python -P fresh_process.py DESCRIPTOR`, which answers requests
from a pipe. Only the program `named` imports this package.
"""

import contextlib
import ctypes
import importlib
import runpy
import signal
import sys
from multiprocessing.connection import Connection

_PR_SET_PDEATHSIG = 1  # of linux/prctl.h


def saved_model(folder, library):
    """Loads a SavedModel with TensorFlow and the operations of a shared object.

    Returns `call(texts, alignment)`, which returns a list: the outputs of `serving_default` for any
    number of texts, and with `alignment` the outputs of `align`, as dicts of arrays. It also takes
    lists of the languages that the signatures take.
    """
    import tensorflow as tf

    tf.load_op_library(library)
    module = tf.saved_model.load(folder)

    def call(texts, alignment=False, **options):
        names = ["serving_default", "align"] if alignment else ["serving_default"]
        _, inputs = module.signatures[names[0]].structured_input_signature
        values = {
            "text": texts,
            **{name: [code or "" for code in options[name]] for name in inputs if name in options},
        }
        tensors = {name: tf.constant(texts, tf.string) for name, texts in values.items()}
        all_outputs = [module.signatures[name](**tensors) for name in names]
        return [{name: value.numpy() for name, value in outputs.items()} for outputs in all_outputs]

    return call


def named(name, root, **arguments):
    """Returns what a function of this package makes of the arguments: it answers the requests.

    `name` is `MODULE:FUNCTION`; `root` is the directory with this package.
    """
    sys.path.insert(0, root)  # this package, even if another version is installed
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)(**arguments)


def script(path, function, **arguments):
    """Returns what a function of a script makes of the arguments, without this package."""
    return runpy.run_path(path)[function](**arguments)


def conversion():
    """Returns `convert(graph, inputs, outputs)`, which makes a LiteRT model.

    TensorFlow's converter leaks memory, so it runs here. `graph` is a serialized GraphDef without
    variables; `inputs` and `outputs` are the names of its tensors.
    """
    import tensorflow as tf

    def convert(graph, inputs, outputs):
        definition = tf.compat.v1.GraphDef.FromString(graph)
        function = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(definition, name=""), [])
        tensors = (
            [function.graph.get_tensor_by_name(name) for name in names]
            for names in (inputs, outputs)
        )
        # Not `from_concrete_functions`, which needs the object that holds the variables: this
        # function holds its weights as constants.
        return tf.lite.TFLiteConverter([function.prune(*tensors)]).convert()

    return convert


PROGRAMS = {
    "saved_model": saved_model,
    "named": named,
    "script": script,
    "conversion": conversion,
}


def end_with_parent():
    """Lets Linux end this process at once when its parent process ends."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(descriptor):
    with Connection(int(descriptor)) as pipe, contextlib.suppress(EOFError):
        program, hidden, arguments = pipe.recv()
        # None in `sys.modules` makes the import of a module raise ImportError.
        sys.modules.update(dict.fromkeys(hidden))
        answer = PROGRAMS[program](**arguments)
        while True:
            pipe.send(answer(**pipe.recv()))


if __name__ == "__main__":
    end_with_parent()
    main(sys.argv[1])
