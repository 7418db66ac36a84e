"""Programs that run in a process of their own, where packages that an export must lack are hidden.

Run by its path, `python -P fresh_process.py DESCRIPTOR`, by `child_process.ChildProcess`: answers
requests from a pipe until it is closed. Two programs call exports; one converts graphs, because
TensorFlow's converter to LiteRT leaks. Only the program `engine` imports this package.
"""

import contextlib
import ctypes
import importlib.machinery
import os
import signal
import sys
from multiprocessing.connection import Connection

_PR_SET_PDEATHSIG = 1  # of linux/prctl.h


def folder_of(package):
    """Returns where a package lies, also while it is hidden; None if it is not installed."""
    spec = importlib.machinery.PathFinder.find_spec(package)
    return spec and spec.submodule_search_locations[0]


def load_operations(*libraries):
    """Registers tensorflow-text's operations from their shared objects.

    Not by `import tensorflow_text`, whose Python files import Keras and take seconds.
    """
    import tensorflow as tf

    folder = os.path.join(folder_of("tensorflow_text"), "python", "ops")
    for name in libraries:
        tf.load_op_library(os.path.join(folder, f"_{name}.so"))


def saved_model(folder, with_operations, rewrite_graph):
    """Loads a SavedModel through both of TensorFlow's loaders, with TensorFlow alone.

    `session` is the loader of TensorFlow Serving and the C library, `module` is
    `tf.saved_model.load`. With `with_operations` tensorflow-text's are loaded first, with
    `rewrite_graph` sessions may rearrange arithmetic, their default. Returns
    `call(loader, signature, inputs)`, which gives a dict of arrays.
    """
    if with_operations:
        load_operations("sentencepiece_tokenizer")
    # The session first, so that nothing that the other loader made can help it.
    session = load_in_session(folder, rewrite_graph, check_variables=True)
    calls = {"session": session, "module": _load_as_module(folder)}
    return lambda loader, signature, inputs: calls[loader](signature, inputs)


def load_in_session(folder, rewrite_graph=False, check_variables=False):
    """Loads a SavedModel by the TensorFlow 1 loader: tensors by name.

    It takes a fraction of the time of `tf.saved_model.load`, which makes Python objects of all
    operations of all functions. `check_variables` raises where one has no value; its operations
    make TensorFlow read the graph once more, a second. Returns `call(signature, inputs)`, which
    gives a dict of arrays.
    """
    import tensorflow as tf

    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = not rewrite_graph
    session = tf.compat.v1.Session(graph=tf.Graph(), config=config)
    with session.graph.as_default(), _quiet(tf.get_logger()):
        meta = tf.compat.v1.saved_model.loader.load(session, ["serve"], folder)
        if check_variables:
            _check_variables(session)

    def call(name, inputs):
        signature = meta.signature_def[name]
        given = {}
        for argument, values in inputs.items():
            info = signature.inputs[argument]
            shape = None if values else [0] * len(info.tensor_shape.dim)
            tensor = tf.make_tensor_proto(values, info.dtype, shape)
            given[info.name] = tf.make_ndarray(tensor)
        return session.run({key: each.name for key, each in signature.outputs.items()}, given)

    return call


def _check_variables(session):
    import tensorflow as tf

    handles = [each for each in session.graph.get_operations() if each.type == "VarHandleOp"]
    ready = session.run(
        {op.name: tf.raw_ops.VarIsInitializedOp(resource=op.outputs[0]) for op in handles}
    )
    if unready := [name for name, is_ready in ready.items() if not is_ready]:
        raise RuntimeError(f"session: {len(unready)} uninitialized variables, {unready[0]} first")


@contextlib.contextmanager
def _quiet(logger):
    """Keeps warnings back: TensorFlow calls its first loader deprecated."""
    level = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(level)


def _load_as_module(folder):
    """The TensorFlow 2 loader: the signature is a function."""
    import tensorflow as tf

    module = tf.saved_model.load(folder)

    def call(name, inputs):
        signature = module.signatures[name]
        given = {}
        for argument, spec in signature.structured_input_signature[1].items():
            values = inputs[argument]
            shape = None if values else [0] * spec.shape.rank
            given[argument] = tf.constant(values, spec.dtype, shape=shape)
        return {key: each.numpy() for key, each in signature(**given).items()}

    return call


def conversion(with_operations):
    """Returns `convert(graph, inputs, outputs)`, which makes a LiteRT model.

    `graph` is a serialized GraphDef without variables; `inputs` and `outputs` are the names of its
    tensors. With `with_operations` operations that LiteRT does not bring may stay.
    """
    import tensorflow as tf

    if with_operations:
        load_operations("sentencepiece_tokenizer", "fast_sentencepiece_tokenizer")

    def convert(graph, inputs, outputs):
        definition = tf.compat.v1.GraphDef.FromString(graph)
        whole = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(definition, name=""), [])
        tensors = (
            [whole.graph.get_tensor_by_name(name) for name in names] for names in (inputs, outputs)
        )
        # Not `from_concrete_functions`, which asks for the object that holds the variables: all
        # that the function needs is in it, as constants.
        converter = tf.lite.TFLiteConverter([whole.prune(*tensors)])
        converter.allow_custom_ops = with_operations
        return converter.convert()

    return convert


def engine(path, root):
    """Loads an export by its `Engine`; `root` is the folder with this package.

    Returns `call(method, arguments, options)` of the engine.
    """
    sys.path.append(root)
    from keras_transformer.translator import Translator

    loaded = Translator.load(path).engine
    return lambda method, arguments, options: getattr(loaded, method)(*arguments, **options)


PROGRAMS = {"saved_model": saved_model, "conversion": conversion, "engine": engine}


def end_with_parent():
    """Lets Linux end this process at once when the one that started it ends."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(descriptor):
    with Connection(int(descriptor)) as pipe, contextlib.suppress(EOFError):
        program, hidden, arguments = pipe.recv()
        # With None in a module's place its import ends in ImportError.
        sys.modules.update(dict.fromkeys(hidden))
        answer = PROGRAMS[program](**arguments)
        while True:
            pipe.send(answer(**pipe.recv()))


if __name__ == "__main__":
    end_with_parent()
    main(sys.argv[1])
