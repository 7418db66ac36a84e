"""How a LiteRT file is written: what is equal stands in it once.

A file of several signatures says most things several times: the same arrays, scales and shapes, and
tables of tensors, operators and their options with the same content. FlatBuffers lets any number
of places refer to one of them.
"""

import hashlib

import numpy as np

IDENTIFIER = b"TFL3"
"""What stands at the bytes 4 to 8 of every LiteRT file."""


class Buffers:
    """The arrays of a model, each stored once.

    Args:
        model: `ModelT` of LiteRT's schema, whose buffers these are.
    """

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


def code_index(codes, code):
    """The index of an operator's code among `codes`, where it is put if it is not there."""
    key = (code.builtinCode, code.customCode, code.version)
    for place, each in enumerate(codes):
        if (each.builtinCode, each.customCode, each.version) == key:
            return place
    codes.append(code)
    return len(codes) - 1


def packed(model):
    """The file of a model.

    Args:
        model: `ModelT` of LiteRT's schema. Its graphs are of no other use afterwards.

    Returns:
        Bytes.
    """
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
    """Equal for tables with the same content."""
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
            # What LiteRT's schema demands of buffers: they begin at multiples of 16 bytes.
            self.StartVector(1, values.size, 16)
            self.head -= values.size
            self.Bytes[self.head : self.head + values.size] = values.tobytes()
            self.vectorNumElems = values.size
            return self.EndVector()

    return Builder
