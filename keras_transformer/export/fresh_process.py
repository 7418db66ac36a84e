"""Programs that run in a new process, in which packages that users may lack are hidden.

`child_process.ChildProcess` runs `python -P fresh_process.py DESCRIPTOR`, which answers requests
from a pipe. Only the programs `engine` and `imported` import this package.
"""

import contextlib
import ctypes
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


def engine(path, root):
    """Loads an export with its `Engine`; `root` is the directory with this package.

    Returns its method `translate`.
    """
    sys.path.insert(0, root)  # this package, even if another version is installed
    from keras_transformer.engine.translator import Translator

    return Translator.load(path).engine.translate


def imported(path, max_lengths, root):
    """Imports a model of Marian; returns the method `translate` of its engine."""
    sys.path.insert(0, root)
    from keras_transformer.engine import ModelEngine
    from keras_transformer.interop.importing import import_model

    model, *tokenizers, _ = import_model(path)
    return ModelEngine(model, *tokenizers, *max_lengths, with_xla=False).translate


def argos(package, limits):
    """Loads an unpacked package of Argos Translate.

    Returns `translate(texts, beam_size, length_penalty)`, which returns a list of texts with their
    scores; `limits` are arguments of CTranslate2.
    """
    import ctranslate2
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=f"{package}/sentencepiece.model")
    translator = ctranslate2.Translator(f"{package}/model")

    def translate(texts, beam_size, length_penalty, **_):
        search = {"beam_size": beam_size, "length_penalty": length_penalty}
        results = translator.translate_batch(
            processor.encode(texts, out_type=str),
            replace_unknowns=True,
            return_scores=True,
            **search,
            **limits,
        )
        return [(processor.decode(result.hypotheses[0]), result.scores[0]) for result in results]

    return translate


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
    "engine": engine,
    "imported": imported,
    "argos": argos,
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
