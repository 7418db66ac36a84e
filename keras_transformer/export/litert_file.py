"""The file of a LiteRT model: signatures merged, weights stored once and in fewer bits.

The converter makes one file of one function. Here several become one file in which every array is
stored once, however many signatures read it, and weights are quantized so that the embedding
table stays one array: the products (`FULLY_CONNECTED`) and the look-up (`EMBEDDING_LOOKUP`) read
the same bytes with the same scale for each row. The converter's own quantization makes two tables
of it, and turns one of them back to float at each call.
"""

import hashlib
from typing import NamedTuple

import numpy as np

FORMAT = "keras_transformer.litert"
"""What the `export.json` of a folder with such files names as its format."""

IDENTIFIER = b"TFL3"
"""What stands at the bytes 4 to 8 of every LiteRT file."""

QUANTIZATIONS = ("none", "float16", "int8")

# Smaller arrays win nothing by fewer bits.
_LEAST_VALUES = 1024
# The version of FULLY_CONNECTED whose float inputs are quantized by row at run time.
_DYNAMIC_RANGE_VERSION = 12


class Part(NamedTuple):
    """One function on its way into a file.

    Attributes:
        name: Of the signature.
        inputs: Names of its inputs, in the order of the function's.
        outputs: Names of its outputs, in the order of the function's.
        content: What the converter made of it, bytes.
    """

    name: str
    inputs: tuple
    outputs: tuple
    content: bytes


def convert(name, function, custom_operations=False):
    """A concrete TensorFlow function as a `Part`, in float32.

    Args:
        name: Of the signature.
        function: A concrete function that gives a dict.
        custom_operations: Whether it may hold operations that LiteRT does not bring.
    """
    import tensorflow as tf

    # Not `from_concrete_functions`, which asks for the object that holds the variables: all that
    # the function needs is in it, as constants.
    converter = tf.lite.TFLiteConverter([function])
    converter.allow_custom_ops = custom_operations
    inputs = tuple(each.name.split(":")[0] for each in function.inputs)
    if len(inputs) != len(function.structured_input_signature[0]):
        raise ValueError(f"{name}: a function to convert must hold what it needs as constants.")
    return Part(name, inputs, tuple(sorted(function.structured_outputs)), converter.convert())


def join(parts, quantize="none"):
    """One file of several functions.

    Args:
        parts: A list of `Part`.
        quantize: One of `QUANTIZATIONS`: how the weights of products are stored.

    Returns:
        Bytes.
    """
    from ai_edge_litert import schema_py_generated as schema

    whole = schema.ModelT()
    whole.version, whole.description = 3, "keras_transformer"
    whole.operatorCodes, whole.subgraphs, whole.signatureDefs = [], [], []
    whole.buffers, whole.metadata = [schema.BufferT()], []
    stored = _Buffers(whole)
    for part in parts:
        model = schema.ModelT.InitFromPackedBuf(part.content, 0)
        first = len(whole.subgraphs)
        _append(whole, model, stored)
        for graph in whole.subgraphs[first:]:
            if quantize != "none":
                _Quantizer(whole, graph, stored, quantize).run()
            _drop_unused_tensors(graph)
        whole.signatureDefs.append(_signature(schema, part, whole.subgraphs[first], first))
    stored.drop_unused()
    return _packed(whole)


def custom_operations(content):
    """Names of the operations in a file that LiteRT does not bring, sorted.

    Args:
        content: The file, bytes.
    """
    from ai_edge_litert import schema_py_generated as schema

    model = schema.Model.GetRootAs(content, 0)
    codes = [model.OperatorCodes(i) for i in range(model.OperatorCodesLength())]
    return sorted({code.CustomCode().decode() for code in codes if code.CustomCode()})


class _Buffers:
    """The arrays of a file, each stored once."""

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

    def values(self, tensor, dtype="float32"):
        """The content of a constant tensor, or `None`."""
        data = self.model.buffers[tensor.buffer].data
        if data is None:
            return None
        return data.view(dtype).reshape([int(each) for each in tensor.shape])

    def drop_unused(self):
        """Takes out the arrays that nothing reads any more."""
        graphs = self.model.subgraphs
        tensors = [tensor for graph in graphs for tensor in graph.tensors]
        used = sorted({0, *(tensor.buffer for tensor in tensors)})
        new = {old: place for place, old in enumerate(used)}
        self.model.buffers = [self.model.buffers[old] for old in used]
        for tensor in tensors:
            tensor.buffer = new[tensor.buffer]


def _append(whole, model, stored):
    """Puts the graphs of a model behind those of the whole."""
    codes = [_code_index(whole.operatorCodes, code) for code in model.operatorCodes]
    first = len(whole.subgraphs)
    kept = {int(each) for graph in model.subgraphs[:1] for each in (*graph.inputs, *graph.outputs)}
    for number, graph in enumerate(model.subgraphs):
        for place, tensor in enumerate(graph.tensors):
            tensor.buffer = stored.add(model.buffers[tensor.buffer].data)
            if number or place not in kept:
                tensor.name = None  # Only for people, and a tenth of a small file.
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


def _code_index(codes, code):
    """The index of an operator's code among `codes`, where it is put if it is not there."""
    key = (code.builtinCode, code.customCode, code.version)
    for place, each in enumerate(codes):
        if (each.builtinCode, each.customCode, each.version) == key:
            return place
    codes.append(code)
    return len(codes) - 1


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


class _Quantizer:
    """Stores the weights of one graph in fewer bits."""

    def __init__(self, model, graph, stored, kind):
        from ai_edge_litert import schema_py_generated as schema

        self.schema, self.model, self.graph = schema, model, graph
        self.stored, self.kind = stored, kind
        self.done = {}

    def run(self):
        codes = self.schema.BuiltinOperator
        operators, self.graph.operators = self.graph.operators, []
        for operator in operators:
            code = self.model.operatorCodes[operator.opcodeIndex].builtinCode
            if code == codes.FULLY_CONNECTED and self._is_weight(operator.inputs[1]):
                self._quantize_product(operator)
            elif code == codes.GATHER and self._is_weight(operator.inputs[0]):
                self._quantize_look_up(operator)
            else:
                self.graph.operators.append(operator)

    def _is_weight(self, place):
        tensor = self.graph.tensors[place]
        values = (
            self.stored.values(tensor) if tensor.type == self.schema.TensorType.FLOAT32 else None
        )
        return values is not None and values.ndim == 2 and values.size >= _LEAST_VALUES

    def _quantize_product(self, operator):
        weight = self._smaller(operator.inputs[1])
        if self.kind == "float16":
            # XNNPACK takes the two together and keeps no float32 of it.
            operator.inputs[1] = self._new(self.schema.TensorType.FLOAT32, like=weight)
            self._dequantize(weight, operator.inputs[1])
        else:
            operator.inputs[1] = weight
            operator.builtinOptions.asymmetricQuantizeInputs = True
            operator.opcodeIndex = self._code("FULLY_CONNECTED", _DYNAMIC_RANGE_VERSION)
        self.graph.operators.append(operator)

    def _quantize_look_up(self, operator):
        table, rows = operator.inputs
        table, outputs = self._smaller(table), operator.outputs[0]
        self.graph.operators.append(operator)
        if self.kind == "float16":
            # The rows that were found become float32, not the table.
            half = self._new(self.schema.TensorType.FLOAT16, like=outputs)
            operator.inputs[0], operator.outputs[0] = table, half
            self._dequantize(half, outputs)
        else:
            operator.inputs = [rows, table]
            operator.opcodeIndex = self._code("EMBEDDING_LOOKUP", 4)
            operator.builtinOptionsType, operator.builtinOptions = 0, None

    def _smaller(self, place):
        """The index of a tensor with the same values in fewer bits."""
        if place in self.done:
            return self.done[place]
        types = self.schema.TensorType
        values = self.stored.values(self.graph.tensors[place])
        if self.kind == "float16":
            new = self._new(types.FLOAT16, like=place)
            data = values.astype("float16")
        else:
            new = self._new(types.INT8, like=place)
            # Symmetric, a scale for each row: what dynamic-range products take.
            scales = np.maximum(np.abs(values).max(axis=1), 1e-12) / np.float32(127)
            data = np.rint(values / scales[:, None]).astype("int8")
            quantization = self.schema.QuantizationParametersT()
            quantization.scale = scales.astype("float32")
            quantization.zeroPoint = np.zeros(len(scales), "int64")
            quantization.quantizedDimension = 0
            self.graph.tensors[new].quantization = quantization
        self.graph.tensors[new].buffer = self.stored.add(data)
        self.done[place] = new
        return new

    def _dequantize(self, half, float32):
        operator = self.schema.OperatorT()
        operator.opcodeIndex = self._code("DEQUANTIZE", 3)
        operator.inputs, operator.outputs = [half], [float32]
        self.graph.operators.append(operator)

    def _new(self, kind, like):
        other, tensor = self.graph.tensors[like], self.schema.TensorT()
        tensor.type, tensor.shape, tensor.shapeSignature = kind, other.shape, other.shapeSignature
        tensor.hasRank, tensor.buffer = True, 0
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def _code(self, name, version):
        code = self.schema.OperatorCodeT()
        code.builtinCode = getattr(self.schema.BuiltinOperator, name)
        code.deprecatedBuiltinCode, code.version = min(code.builtinCode, 127), version
        return _code_index(self.model.operatorCodes, code)


def _packed(model):
    import flatbuffers

    size = sum(0 if each.data is None else len(each.data) + 64 for each in model.buffers)
    # Large enough from the start: growing copies all.
    builder = _sharing_builder(flatbuffers)(size + 2**20)
    builder.Finish(model.Pack(builder), IDENTIFIER)
    return bytes(builder.Output())


def _sharing_builder(flatbuffers):
    class Builder(flatbuffers.Builder):
        """Equal arrays are written once: the same scales and shapes stand in many graphs."""

        def __init__(self, size):
            super().__init__(size)
            self._written = {}

        def CreateNumpyVector(self, values):  # noqa: N802
            key = values.dtype.str, values.tobytes()
            if key not in self._written:
                self._written[key] = self._write(values)
            return self._written[key]

        def _write(self, values):
            if values.dtype != np.uint8:
                return super().CreateNumpyVector(values)
            # What LiteRT's schema demands of buffers: they begin at multiples of 16 bytes.
            self.StartVector(1, values.size, 16)
            self.head -= values.size
            self.Bytes[self.head : self.head + values.size] = values.tobytes()
            self.vectorNumElems = values.size
            return self.EndVector()

    return Builder
