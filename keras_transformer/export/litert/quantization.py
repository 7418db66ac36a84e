"""Weights of a LiteRT graph in float16, or in int8 with a scale for each row.

This module turns the 9.7 MB of Multi30k's float32 `model.tflite` into 2.7 MB. `ai-edge-quantizer`
0.10 makes 58.7 MB, because it leaves the table of `GATHER` in float32 and writes the weights once
per graph. With `EMBEDDING_LOOKUP` and a name for each tensor it shares one int8 table. This file
still has 4.9 MB without the packing of `file.py`. `ai-edge-quantizer` also installs SciPy, 150 MB,
and pins `ai-edge-litert`.
"""

import numpy as np

# Fewer bits do not pay for smaller arrays.
_LEAST_VALUES = 1024
# The version of FULLY_CONNECTED whose float inputs are quantized by row at run time.
_DYNAMIC_RANGE_VERSION = 12


def code_index(codes, code):
    """Returns the index of an operator's code in `codes`, and appends a missing code."""
    key = (code.builtinCode, code.customCode, code.version)
    for index, known_code in enumerate(codes):
        if (known_code.builtinCode, known_code.customCode, known_code.version) == key:
            return index
    codes.append(code)
    return len(codes) - 1


class GraphQuantizer:
    """Stores the weights of a subgraph of a model in fewer bits: `"float16"` or `"int8"`.

    `model` is a `ModelT` of LiteRT's schema, and `stored` is its `Buffers`.
    """

    def __init__(self, model, graph, stored, kind):
        from ai_edge_litert import schema_py_generated as schema

        self.schema, self.model, self.graph = schema, model, graph
        self.stored, self.kind = stored, kind
        self.quantized_indices = {}

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

    def _is_weight(self, index):
        values = self._constant(index)
        return values is not None and values.ndim == 2 and values.size >= _LEAST_VALUES

    def _constant(self, index):
        tensor = self.graph.tensors[index]
        if tensor.type != self.schema.TensorType.FLOAT32 or tensor.shape is None:
            return None
        return self.stored.values(tensor)

    def _quantize_product(self, operator):
        weight = self._smaller(operator.inputs[1])
        if self.kind == "float16":
            # XNNPACK fuses both operations and keeps no float32 weights.
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
            # Only the rows that were looked up become float32, not the table.
            half = self._new(self.schema.TensorType.FLOAT16, like=outputs)
            operator.inputs[0], operator.outputs[0] = table, half
            self._dequantize(half, outputs)
        else:
            operator.inputs = [rows, table]
            operator.opcodeIndex = self._code("EMBEDDING_LOOKUP", 4)
            operator.builtinOptionsType, operator.builtinOptions = 0, None

    def _smaller(self, index):
        """Returns the index of a tensor with the same values in fewer bits."""
        if index in self.quantized_indices:
            return self.quantized_indices[index]
        types = self.schema.TensorType
        values = self.stored.values(self.graph.tensors[index])
        if self.kind == "float16":
            new = self._new(types.FLOAT16, like=index)
            self.graph.tensors[new].buffer = self.stored.add(values.astype("float16"))
        else:
            new = self._new(types.INT8, like=index)
            # Symmetric, a scale for each row: what dynamic-range products take.
            scales = np.maximum(np.abs(values).max(axis=1), 1e-12) / np.float32(127)
            self._set_int8(new, np.rint(values / scales[:, None]), scales.astype("float32"))
        self.quantized_indices[index] = new
        return new

    def _set_int8(self, index, values, scales):
        tensor = self.graph.tensors[index]
        tensor.quantization = self.schema.QuantizationParametersT()
        tensor.quantization.scale = scales
        # LiteRT demands one zero point per scale.
        tensor.quantization.zeroPoint = np.zeros(len(scales), "int64")
        tensor.quantization.quantizedDimension = 0
        tensor.buffer = self.stored.add(values.astype("int8"))

    def _dequantize(self, half, float32):
        operator = self.schema.OperatorT()
        operator.opcodeIndex = self._code("DEQUANTIZE", 3)
        operator.inputs, operator.outputs = [half], [float32]
        self.graph.operators.append(operator)

    def _new(self, kind, like):
        template, tensor = self.graph.tensors[like], self.schema.TensorT()
        tensor.type, tensor.shape, tensor.shapeSignature = (
            kind,
            template.shape,
            template.shapeSignature,
        )
        tensor.hasRank, tensor.buffer = True, 0
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def _code(self, name, version):
        code = self.schema.OperatorCodeT()
        code.builtinCode = getattr(self.schema.BuiltinOperator, name)
        code.deprecatedBuiltinCode, code.version = min(code.builtinCode, 127), version
        return code_index(self.model.operatorCodes, code)
