"""The file of a LiteRT model: signatures merged, weights stored once and in fewer bits.

The converter makes one file of one function. Here several become one file in which every array is
stored once, however many signatures read it, and weights are quantized so that the embedding
table stays one array: the products (`FULLY_CONNECTED`) and the look-up (`EMBEDDING_LOOKUP`) read
the same bytes with the same scale for each row. The converter's own quantization makes two tables
of it, and turns one of them back to float at each call.

A file of several signatures repeats arrays, scales and shapes, and tables of tensors, operators and
their options. FlatBuffers lets any number of places refer to one table: equal content is written
once.
"""

import hashlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from keras_transformer.export.child_process import ChildProcess
from keras_transformer.export.exporter import log_step
from keras_transformer.export.litert.quantization import GraphQuantizer, code_index

IDENTIFIER = b"TFL3"
"""The bytes 4 to 8 of every LiteRT file."""


class Part(NamedTuple):
    """A signature on its way into a file: names in the function's order, and what is converted."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    content: bytes


def traced(function: Callable, *specs):
    """The concrete function of some `tf.TensorSpec`s, for `convert`."""
    import tensorflow as tf

    return tf.function(function, specs, autograph=False).get_concrete_function()


def convert(functions: Iterable[tuple]) -> list[Part]:
    """Converts TensorFlow functions in a process of its own; returns `Part`s in float32.

    `functions` are pairs of a signature's name and a concrete function that gives a dict and holds
    its weights as constants; one is traced while the one before is converted.

    Raises:
        VerificationError: TensorFlow's converter failed or took too long.
    """
    parts = []
    with ChildProcess("conversion") as child:
        traced_functions = iter(functions)
        function = next(traced_functions, None)
        while function is not None:
            log_step(f"converting the signature {function[0]}")
            child.send(**_request(*function))
            converted, function = function, next(traced_functions, None)
            parts.append(_part(*converted, child.receive()))
    return parts


def _request(name, function):
    inputs = [each.name for each in function.inputs]
    if len(inputs) != len(function.structured_input_signature[0]):
        raise ValueError(f"{name}: a function to convert must hold what it needs as constants.")
    graph = function.graph.as_graph_def().SerializeToString()
    return {
        "graph": graph,
        "inputs": inputs,
        "outputs": [each.name for each in function.outputs],
    }


def _part(name, function, content):
    inputs = tuple(each.name.split(":")[0] for each in function.inputs)
    return Part(name, inputs, tuple(sorted(function.structured_outputs)), bytes(content))


def join(parts: Iterable[Part], quantize: str = "none") -> bytes:
    """One file of several functions; `quantize` is one of `QUANTIZATIONS`."""
    from ai_edge_litert import schema_py_generated as schema

    whole = schema.ModelT()
    whole.version, whole.description = 3, "keras_transformer"
    whole.operatorCodes, whole.subgraphs, whole.signatureDefs = [], [], []
    whole.buffers, whole.metadata = [schema.BufferT()], []
    stored = Buffers(whole)
    for part in parts:
        model = schema.ModelT.InitFromPackedBuf(part.content, 0)
        first = len(whole.subgraphs)
        _append(whole, model, stored)
        for graph in whole.subgraphs[first:]:
            if quantize != "none":
                GraphQuantizer(whole, graph, stored, quantize).run()
            _drop_unused_tensors(graph)
        whole.signatureDefs.append(_signature(schema, part, whole.subgraphs[first], first))
    stored.drop_unused()
    return _packed(whole)


def custom_operations(content: bytes) -> list[str]:
    """Names of the operations in a file that LiteRT does not bring, sorted."""
    from ai_edge_litert import schema_py_generated as schema

    model = schema.Model.GetRootAs(content, 0)
    codes = [model.OperatorCodes(i) for i in range(model.OperatorCodesLength())]
    return sorted({code.CustomCode().decode() for code in codes if code.CustomCode()})


def _append(whole, model, stored):
    """Appends the graphs of a model to the whole."""
    codes = [code_index(whole.operatorCodes, code) for code in model.operatorCodes]
    first = len(whole.subgraphs)
    kept = {int(each) for graph in model.subgraphs[:1] for each in (*graph.inputs, *graph.outputs)}
    for number, graph in enumerate(model.subgraphs):
        for place, tensor in enumerate(graph.tensors):
            tensor.buffer = stored.add(model.buffers[tensor.buffer].data)
            if number or place not in kept:
                tensor.name = None  # Only for people, and a tenth of a small file.
                # `TOPK_V2` of a size that is unknown here makes all behind it dynamic, although the
                # inputs' sizes decide it: planned anew and copied twice at each turn of a `WHILE`.
                tensor.shapeSignature = None
            if tensor.quantization is not None and tensor.quantization.scale is None:
                tensor.quantization = None
        for operator in graph.operators:
            operator.opcodeIndex = codes[operator.opcodeIndex]
            operator.inputs, operator.outputs = list(operator.inputs), list(operator.outputs)
            options = operator.builtinOptions
            for name in ("condSubgraphIndex", "bodySubgraphIndex"):
                if hasattr(options, name):
                    setattr(options, name, getattr(options, name) + first)
    whole.subgraphs += model.subgraphs


def _drop_unused_tensors(graph):
    """Takes out what no operator reads or writes: the weights in more bits."""
    sides = [graph, *graph.operators]
    used = {int(each) for side in sides for each in (*side.inputs, *side.outputs) if each >= 0}
    new = {-1: -1, **{old: place for place, old in enumerate(sorted(used))}}
    graph.tensors = [graph.tensors[old] for old in sorted(used)]
    for side in sides:
        side.inputs = [new[int(each)] for each in side.inputs]
        side.outputs = [new[int(each)] for each in side.outputs]


def _signature(schema, part, graph, place):
    signature = schema.SignatureDefT()
    signature.signatureKey, signature.subgraphIndex = part.name, place
    for side, names, tensors in (
        ("inputs", part.inputs, graph.inputs),
        ("outputs", part.outputs, graph.outputs),
    ):
        maps = []
        for name, tensor in zip(names, tensors, strict=True):
            each = schema.TensorMapT()
            each.name, each.tensorIndex = name, int(tensor)
            maps.append(each)
        setattr(signature, side, maps)
    return signature


class Buffers:
    """The arrays of a model (`ModelT` of LiteRT's schema), each stored once."""

    def __init__(self, model):
        self.model, self.places = model, {}

    def add(self, data):
        """The index of an array of bytes; 0 for none."""
        from ai_edge_litert import schema_py_generated as schema

        if data is None or len(data) == 0:
            return 0
        data = np.ascontiguousarray(data).view("uint8").reshape(-1)
        key = hashlib.sha256(data).digest()
        if key not in self.places:
            buffer = schema.BufferT()
            buffer.data = data
            self.places[key] = len(self.model.buffers)
            self.model.buffers.append(buffer)
        return self.places[key]

    def values(self, tensor):
        """The content of a constant tensor of float32, or `None`."""
        data = self.model.buffers[tensor.buffer].data
        if data is None:
            return None
        return data.view("float32").reshape([int(each) for each in tensor.shape])

    def drop_unused(self):
        """Takes out the arrays that nothing reads any more."""
        graphs = self.model.subgraphs
        tensors = [tensor for graph in graphs for tensor in graph.tensors]
        used = sorted({0, *(tensor.buffer for tensor in tensors)})
        new = {old: place for place, old in enumerate(used)}
        self.model.buffers = [self.model.buffers[old] for old in used]
        for tensor in tensors:
            tensor.buffer = new[tensor.buffer]


def _packed(model):
    """The file of a model, whose graphs are of no other use afterwards."""
    import flatbuffers

    for graph in model.subgraphs:
        for tensor in graph.tensors:
            tensor.quantization = tensor.quantization and _Shared(tensor.quantization)
        for operator in graph.operators:
            # Lists would be written each by itself.
            operator.inputs = np.array(operator.inputs, "int32")
            operator.outputs = np.array(operator.outputs, "int32")
            operator.builtinOptions = operator.builtinOptions and _Shared(operator.builtinOptions)
        graph.tensors = [_Shared(each) for each in graph.tensors]
        graph.operators = [_Shared(each) for each in graph.operators]
    size = sum(0 if each.data is None else len(each.data) + 64 for each in model.buffers)
    # Large enough from the start: growing copies all.
    builder = _sharing_builder(flatbuffers)(size + 2**20)
    builder.Finish(model.Pack(builder), IDENTIFIER)
    return bytes(builder.Output())


class _Shared:
    """A table that is written where the first of its equals was."""

    def __init__(self, table):
        self.table, self.key = table, _key(table)

    def Pack(self, builder):  # noqa: N802
        return builder.shared(self)


def _key(value):
    """A hashable value, equal for tables of equal content."""
    if isinstance(value, _Shared):
        return value.key
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tobytes()
    if isinstance(value, (list, tuple)):
        return tuple(_key(each) for each in value)
    if hasattr(value, "__dict__"):
        fields = sorted(vars(value).items())
        return type(value).__name__, *((name, _key(each)) for name, each in fields)
    return value


def _sharing_builder(flatbuffers):
    class Builder(flatbuffers.Builder):
        """Equal arrays and tables are written once."""

        def __init__(self, size):
            super().__init__(size)
            self._written = {}

        def shared(self, table):
            if table.key not in self._written:
                self._written[table.key] = table.table.Pack(self)
            return self._written[table.key]

        def CreateNumpyVector(self, values):  # noqa: N802
            key = _key(values)
            if key not in self._written:
                self._written[key] = self._write(values)
            return self._written[key]

        def _write(self, values):
            if values.dtype != np.uint8:
                return super().CreateNumpyVector(values)
            # LiteRT's schema demands that buffers begin at multiples of 16 bytes.
            self.StartVector(1, values.size, 16)
            self.head -= values.size
            self.Bytes[self.head : self.head + values.size] = values.tobytes()
            self.vectorNumElems = values.size
            return self.EndVector()

    return Builder
