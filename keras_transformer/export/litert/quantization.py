"""Weights of a LiteRT graph in float16, or in int8 with a scale for each row.

This module turns the 9.9 MB of Multi30k's float32 `model.tflite` into 2.9 MB. `ai-edge-quantizer`
0.10 makes 58.7 MB, because it leaves the table of `GATHER` in float32 and writes the weights once
per graph. With `EMBEDDING_LOOKUP` and a name for each tensor it shares one int8 table. This file
still has 4.9 MB without the shared arrays of `file.py`. `ai-edge-quantizer` also installs SciPy,
150 MB, and pins `ai-edge-litert`.
"""

import copy

import numpy as np

from keras_transformer.export.litert.matrices import Matrix

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

        self.schema, self.codes = schema, schema.BuiltinOperator
        self.model, self.graph = model, graph
        self.stored, self.kind = stored, kind
        self.quantized_indices = {}

    def run(self):
        codes = self.codes
        operators, self.graph.operators = self.graph.operators, []
        matrices, looked_up = self._matrices(operators), {}  # look-ups by their output
        for operator in operators:
            code = self.model.operatorCodes[operator.opcodeIndex].builtinCode
            if code == codes.FULLY_CONNECTED and self._is_weight(operator.inputs[1]):
                self._quantize_product(operator)
            elif code == codes.FULLY_CONNECTED and operator.inputs[1] in looked_up:
                self._quantize_product_with_rows(operator, looked_up[operator.inputs[1]])
            elif code == codes.GATHER and self._is_weight(operator.inputs[0]):
                if self.kind == "int8" and operator.outputs[0] in matrices:
                    looked_up[operator.outputs[0]] = operator
                else:
                    self._quantize_look_up(operator)
            else:
                self.graph.operators.append(operator)

    def _is_weight(self, index):
        values = self._constant(index)
        return values is not None and len(values.shape) == 2 and values.size >= _LEAST_VALUES

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
            operator.opcodeIndex = self._code(self.codes.FULLY_CONNECTED, _DYNAMIC_RANGE_VERSION)
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
            operator.opcodeIndex = self._code(self.codes.EMBEDDING_LOOKUP, 4)
            operator.builtinOptionsType, operator.builtinOptions = 0, None

    def _matrices(self, operators):
        """Returns the tensors that are matrices of products."""
        code = self.codes.FULLY_CONNECTED
        codes = self.model.operatorCodes
        return {
            operator.inputs[1]
            for operator in operators
            if codes[operator.opcodeIndex].builtinCode == code
        }

    def _quantize_product_with_rows(self, product, look_up):
        """Multiplies with int8 rows of a table, and the results with the scales of these rows."""
        types = self.schema.TensorType
        table, rows = look_up.inputs
        quantized_table = self.graph.tensors[self._smaller(table)]
        # A look-up has one scale for all rows.
        look_up.inputs = [self._new(types.INT8, like=table), rows]
        matrix = self._new(types.INT8, like=look_up.outputs[0])
        self.graph.tensors[look_up.inputs[0]].buffer = quantized_table.buffer
        for index in (look_up.inputs[0], matrix):
            self.graph.tensors[index].quantization = self._quantization(np.ones(1, "float32"))
        look_up.outputs, product.inputs[1] = [matrix], matrix
        # LiteRT keeps sums of rows for asymmetric inputs, and does not see that the rows change.
        product.builtinOptions.asymmetricQuantizeInputs = False
        product.opcodeIndex = self._code(self.codes.FULLY_CONNECTED, _DYNAMIC_RANGE_VERSION)
        (outputs,) = product.outputs
        product.outputs = [self._new(types.FLOAT32, like=outputs)]
        scales = self._new(types.FLOAT32, like=rows)
        all_scales = self._new(types.FLOAT32, like=rows)
        values = np.asarray(quantized_table.quantization.scale, "float32")
        self.graph.tensors[all_scales].shape = np.array(values.shape, "int32")
        self.graph.tensors[all_scales].shapeSignature = None
        self.graph.tensors[all_scales].buffer = self.stored.add(values)
        look_up_scales = copy.copy(look_up)
        look_up_scales.inputs, look_up_scales.outputs = [all_scales, rows], [scales]
        scaling = self.schema.OperatorT()
        scaling.opcodeIndex = self._code(self.codes.MUL, 1)
        scaling.inputs, scaling.outputs = [product.outputs[0], scales], [outputs]
        scaling.builtinOptionsType = self.schema.BuiltinOptions.MulOptions
        scaling.builtinOptions = self.schema.MulOptionsT()
        self.graph.operators += [look_up, product, look_up_scales, scaling]

    def _smaller(self, index):
        """Returns the index of a tensor with the same values in fewer bits."""
        if index in self.quantized_indices:
            return self.quantized_indices[index]
        types = self.schema.TensorType
        values = self.stored.values(self.graph.tensors[index])
        if not isinstance(values, Matrix):
            values = Matrix.of(values)
        if self.kind == "float16":
            new = self._new(types.FLOAT16, like=index)
            numbers = values.changed("float16", lambda rows: rows.astype("float16"))
            self.graph.tensors[new].buffer = self.stored.add(numbers)
        else:
            new = self._new(types.INT8, like=index)
            scales = np.concatenate([*map(_scales, values.rows())])
            self.graph.tensors[new].quantization = self._quantization(scales)
            self.graph.tensors[new].buffer = self.stored.add(values.changed("int8", _codes))
        self.quantized_indices[index] = new
        return new

    def _quantization(self, scales):
        quantization = self.schema.QuantizationParametersT()
        # LiteRT demands one zero point per scale.
        quantization.scale, quantization.zeroPoint = scales, np.zeros(len(scales), "int64")
        quantization.quantizedDimension = 0
        return quantization

    def _dequantize(self, half, float32):
        operator = self.schema.OperatorT()
        operator.opcodeIndex = self._code(self.codes.DEQUANTIZE, 3)
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

    def _code(self, number, version):
        code = self.schema.OperatorCodeT()
        code.builtinCode = number
        code.deprecatedBuiltinCode, code.version = min(code.builtinCode, 127), version
        return code_index(self.model.operatorCodes, code)


def _scales(rows):
    """Returns the scale of each row; symmetric, which is what dynamic-range products take."""
    largest = np.maximum(rows.max(axis=1), -rows.min(axis=1))
    return (np.maximum(largest, 1e-12) / np.float32(127)).astype("float32")


def _codes(rows):
    return np.rint(rows / _scales(rows)[:, None]).astype("int8")
