"""Joins the signatures of a LiteRT model in one file, with weights stored once and in fewer bits.

The converter makes one file per function. This module joins several functions in one file, which
stores every array once, however many signatures read it. Quantized weights keep one embedding
table: the products (`FULLY_CONNECTED`) and the look-up (`EMBEDDING_LOOKUP`) read the same bytes
with the same scale per row. The converter's quantization makes two tables and converts one table
to float at each call.

A file of several signatures repeats scales, shapes and lists of inputs. FlatBuffers allows many
references to one array, so equal arrays are written once. Sharing equal tables, of tensors and of
operators, would save less than 1% of a base-sized file.
"""

import math
import tempfile
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from keras_transformer.export.child_process import ChildProcess
from keras_transformer.export.exporter import log_step
from keras_transformer.export.litert.graph_editor import GraphEditor, code_index
from keras_transformer.export.litert.matrices import Matrix, digest
from keras_transformer.export.litert.quantization import GraphQuantizer

_SPARE_BYTES = 1 << 24  # of a file without its arrays
_LARGE_INPUTS = 1 << 24  # bytes of captured tensors, from which on memory counts more than time
IDENTIFIER = b"TFL3"
"""Bytes 4 to 8 of every LiteRT file."""
MATRIX = "_matrix"
"""Attribute of a captured tensor: the `Matrix` that it stands for."""


class Part(NamedTuple):
    """A converted signature: names of its tensors in the function's order, and its file.

    Inputs of the file that have no name are `weights`.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    content: bytes
    weights: tuple[Matrix | np.ndarray, ...] = ()


def traced(function: Callable, *specs):
    """Traces the concrete function of `tf.TensorSpec`s with the arguments' names, for `convert`."""
    import tensorflow as tf

    named = {spec.name: spec for spec in specs}
    return tf.function(function, autograph=False).get_concrete_function(**named)


def convert(functions: Iterable[tuple]) -> list[Part]:
    """Converts TensorFlow functions in a process of its own; returns `Part`s in float32.

    `functions` are pairs of a signature's name and a concrete function, which returns a dict.
    It holds its weights as constants, or captures tensors, which may stand for a `Matrix`. The next
    function is traced during a conversion.

    Raises:
        VerificationError: TensorFlow's converter failed or took too long.
    """
    parts: list[Part] = []
    # TensorFlow's converter leaks memory.
    with ChildProcess(f"{__name__}:{converter.__name__}") as child:
        child.start()  # It imports TensorFlow while the first function is traced.
        traced_functions = iter(functions)
        function = next(traced_functions, None)
        while function is not None:
            log_step(f"converting the signature {function[0]}")
            child.send(**_request(*function))
            converted, function = function, next(traced_functions, None)
            parts.append(_part(*converted, child.receive()))
    return parts


def converter() -> Callable[..., bytes]:
    """Returns the function that makes a LiteRT model, for a process of its own.

    `graph` is a serialized GraphDef without variables; `inputs` and `outputs` are the names of its
    tensors. For a function of large inputs, `through_saved_model` saves memory and costs time.
    """
    import tensorflow as tf

    def convert(graph, inputs, outputs, through_saved_model):
        definition = tf.compat.v1.GraphDef.FromString(graph)
        function = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(definition, name=""), [])
        tensors = (
            [function.graph.get_tensor_by_name(name) for name in names]
            for names in (inputs, outputs)
        )
        function = function.prune(*tensors)
        if not through_saved_model:
            return tf.lite.TFLiteConverter([function]).convert()
        specs = [
            tf.TensorSpec(tensor.shape, tensor.dtype, f"input_{number}")
            for number, tensor in enumerate(function.inputs)
        ]

        def named(*arguments):
            return {f"output_{number}": x for number, x in enumerate(function(*arguments))}

        # TensorFlow's optimizer would make an array of zeros for each input of a function, as many
        # bytes as the weights have.
        owner = tf.Module()
        owner.function = tf.function(named, input_signature=specs, autograph=False)
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
        with tempfile.TemporaryDirectory() as folder:
            tf.saved_model.save(owner, folder, owner.function.get_concrete_function(), options)
            return tf.lite.TFLiteConverter.from_saved_model(folder).convert()

    return convert


def _request(name, function):
    inputs = [tensor.name for tensor in function.inputs]
    if any(tensor.dtype != "float32" for tensor in function.captured_inputs):
        raise ValueError(f"{name}: a function to convert must not read variables.")
    graph = function.graph.as_graph_def().SerializeToString()
    captured_bytes = sum(4 * math.prod(tensor.shape) for tensor in function.captured_inputs)
    return {
        "through_saved_model": captured_bytes >= _LARGE_INPUTS,
        "graph": graph,
        "inputs": inputs,
        "outputs": [tensor.name for tensor in function.outputs],
    }


def _part(name, function, content):
    captured = function.captured_inputs
    # A view, not a copy, of the memory of a tensor that stands for itself.
    weights = tuple(getattr(t, MATRIX, None) or np.asarray(memoryview(t)) for t in captured)
    tensors = function.inputs[: len(function.inputs) - len(captured)]
    inputs = tuple(tensor.name.split(":")[0] for tensor in tensors)
    outputs = tuple(sorted(function.structured_outputs))
    return Part(name, inputs, outputs, bytes(content), weights)


def join(parts: Iterable[Part], quantize: str = "none") -> memoryview:
    """Joins several functions to one file; `quantize` is one of `QUANTIZATIONS`."""
    from ai_edge_litert import schema_py_generated as schema

    joined = schema.ModelT()
    joined.version, joined.description = 3, "keras_transformer"
    joined.operatorCodes, joined.subgraphs, joined.signatureDefs = [], [], []
    joined.buffers, joined.metadata = [schema.BufferT()], []
    buffers = Buffers(joined)
    for part in parts:
        model = schema.ModelT.InitFromPackedBuf(part.content, 0)
        first = len(joined.subgraphs)
        _put_in_order(model)
        _store_weights(schema, model, part)
        _append(schema, joined, model, buffers)
        for graph in joined.subgraphs[first:]:
            editor = GraphEditor(joined, graph)
            if quantize != "none":
                GraphQuantizer(editor, buffers, quantize).run()
            editor.drop_unused_tensors()
        joined.signatureDefs.append(_signature(schema, part, joined.subgraphs[first], first))
    buffers.drop_unused()
    return _packed(joined, buffers)


def custom_operations(content: bytes | memoryview) -> list[str]:
    """Returns the sorted names of a file's operations that LiteRT does not include."""
    from ai_edge_litert import schema_py_generated as schema

    model = schema.Model.GetRootAs(content, 0)
    codes = [model.OperatorCodes(i) for i in range(model.OperatorCodesLength())]
    return sorted({code.CustomCode().decode() for code in codes if code.CustomCode()})


def _put_in_order(model):
    """Puts the inputs and outputs of a converted function into its own order."""
    if not model.signatureDefs:  # It was no SavedModel, and has that order.
        return
    (signature,), graph = model.signatureDefs, model.subgraphs[0]
    for side in ("inputs", "outputs"):
        indices = {entry.name.decode(): entry.tensorIndex for entry in getattr(signature, side)}
        names = (f"{side[:-1]}_{number}" for number in range(len(indices)))
        setattr(graph, side, [indices[name] for name in names])


def _append(schema, joined, model, buffers):
    """Appends the graphs of a model to the joined model."""
    codes = [code_index(joined.operatorCodes, code) for code in model.operatorCodes]
    first = len(joined.subgraphs)
    signature_indices = {
        int(index) for graph in model.subgraphs[:1] for index in (*graph.inputs, *graph.outputs)
    }
    for number, graph in enumerate(model.subgraphs):
        for index, tensor in enumerate(graph.tensors):
            tensor.buffer = buffers.add(model.buffers[tensor.buffer].data)
            if number or index not in signature_indices:
                tensor.name = None  # Names take a tenth of a small file, and no program reads them.
                # An unknown size of `TOPK_V2` makes all later tensors dynamic, although the
                # inputs' sizes decide it. LiteRT plans dynamic tensors again and copies them twice
                # at each iteration of a `WHILE`.
                tensor.shapeSignature = None
            if tensor.quantization is not None and tensor.quantization.scale is None:
                tensor.quantization = None
        for operator in graph.operators:
            operator.opcodeIndex = codes[operator.opcodeIndex]
            operator.inputs, operator.outputs = list(operator.inputs), list(operator.outputs)
            if isinstance(loop := operator.builtinOptions, schema.WhileOptionsT):
                loop.condSubgraphIndex += first
                loop.bodySubgraphIndex += first
    joined.subgraphs += model.subgraphs


def _store_weights(schema, model, part):
    """Makes constants of the inputs that stand for weights."""
    graph, first = model.subgraphs[0], len(part.inputs)
    buffers = {}
    for index, values in zip(graph.inputs[first:], part.weights, strict=True):
        buffers[int(index)] = len(model.buffers)
        model.buffers.append(schema.BufferT(values))
    GraphEditor(model, graph).replace_inputs(buffers)


def _signature(schema, part, graph, index):
    signature = schema.SignatureDefT()
    signature.signatureKey, signature.subgraphIndex = part.name, index
    for side, names, tensors in (
        ("inputs", part.inputs, graph.inputs),
        ("outputs", part.outputs, graph.outputs),
    ):
        entries = []
        for name, tensor in zip(names, tensors, strict=True):
            entry = schema.TensorMapT()
            entry.name, entry.tensorIndex = name, int(tensor)
            entries.append(entry)
        setattr(signature, side, entries)
    return signature


class Buffers:
    """Stores equal arrays and matrices of a model (`ModelT` of LiteRT's schema) once."""

    def __init__(self, model):
        self.model, self.indices = model, {}
        self._matrices: dict[int, tuple[np.ndarray, Matrix]] = {}  # by the identity of the array

    def add(self, data):
        """Stores an array or a `Matrix`, and returns its index; 0 without data."""
        from ai_edge_litert import schema_py_generated as schema

        if data is None:
            return 0
        if is_matrix := isinstance(data, Matrix):
            key, size = data.key, data.size * data.dtype.itemsize
        else:
            array = np.ascontiguousarray(data).view("uint8").reshape(-1)
            key, size = digest(array), len(array)
        if size == 0:
            return 0
        if key not in self.indices:
            if is_matrix:
                array = np.broadcast_to(np.uint8(0), (size,))  # stands for it, without memory
                self._matrices[id(array)] = array, data
            self.indices[key] = len(self.model.buffers)
            self.model.buffers.append(schema.BufferT(array))
        return self.indices[key]

    def values(self, tensor):
        """Returns the float32 content of a constant tensor, an array or a `Matrix`, or `None`."""
        data = self.model.buffers[tensor.buffer].data
        if data is None:
            return None
        if (matrix := self.matrix_of(data)) is not None:
            return matrix
        return data.view("float32").reshape([int(size) for size in tensor.shape])

    def matrix_of(self, array):
        """Returns the matrix that an array stands for, or None."""
        return self._matrices.get(id(array), (None, None))[1]

    def drop_unused(self):
        """Removes the arrays that no tensor reads."""
        graphs = self.model.subgraphs
        tensors = [tensor for graph in graphs for tensor in graph.tensors]
        used = sorted({0, *(tensor.buffer for tensor in tensors)})
        new_indices = {old: index for index, old in enumerate(used)}
        self.model.buffers = [self.model.buffers[old] for old in used]
        for tensor in tensors:
            tensor.buffer = new_indices[tensor.buffer]


def _packed(model, buffers):
    """Returns the file of a model, whose graphs cannot be used after that."""
    from keras_transformer.export.litert.builder import SharingBuilder

    for graph in model.subgraphs:
        for operator in graph.operators:
            # An equal list would be written again; an equal array is shared.
            operator.inputs = np.array(operator.inputs, "int32")
            operator.outputs = np.array(operator.outputs, "int32")
    size = sum(0 if buffer.data is None else len(buffer.data) + 64 for buffer in model.buffers)
    # The whole size, because growing copies the buffer.
    builder = SharingBuilder(size + _SPARE_BYTES, buffers.matrix_of)
    builder.Finish(model.Pack(builder), IDENTIFIER)
    return memoryview(builder.Bytes)[builder.Head() :]
