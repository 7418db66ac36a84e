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


class GraphQuantizer:
    """Stores the weights of a graph in fewer bits.

    Args:
        editor: `GraphEditor` of the graph.
        stored: `Buffers` of its model.
        kind: `"float16"` or `"int8"`.
    """

    def __init__(self, editor, stored, kind):
        self.editor, self.graph = editor, editor.graph
        self.codes, self.types = editor.schema.BuiltinOperator, editor.schema.TensorType
        self.stored, self.kind = stored, kind
        self.quantized_indices = {}

    def run(self):
        codes, operation = self.codes, self.editor.operation
        operators, self.graph.operators = self.graph.operators, []
        # The tensors that are matrices of products.
        matrices = {
            operator.inputs[1]
            for operator in operators
            if operation(operator) == codes.FULLY_CONNECTED
        }
        looked_up = {}  # look-ups by their output
        for operator in operators:
            code = operation(operator)
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
        if tensor.type != self.types.FLOAT32 or tensor.shape is None:
            return None
        return self.stored.values(tensor)

    def _quantize_product(self, operator):
        weight = self._smaller(operator.inputs[1])
        if self.kind == "float16":
            # XNNPACK fuses both operations and keeps no float32 weights.
            operator.inputs[1] = self.editor.add_tensor(self.types.FLOAT32, like=weight)
            self.editor.add(self.codes.DEQUANTIZE, 3, [weight], [operator.inputs[1]])
        else:
            operator.inputs[1] = weight
            operator.builtinOptions.asymmetricQuantizeInputs = True
            self.editor.replace(operator, self.codes.FULLY_CONNECTED, _DYNAMIC_RANGE_VERSION)
        self.graph.operators.append(operator)

    def _quantize_look_up(self, operator):
        table, rows = operator.inputs
        table, outputs = self._smaller(table), operator.outputs[0]
        self.graph.operators.append(operator)
        if self.kind == "float16":
            # Only the rows that were looked up become float32, not the table.
            half = self.editor.add_tensor(self.types.FLOAT16, like=outputs)
            operator.inputs[0], operator.outputs[0] = table, half
            self.editor.add(self.codes.DEQUANTIZE, 3, [half], [outputs])
        else:
            operator.inputs = [rows, table]
            self.editor.replace(operator, self.codes.EMBEDDING_LOOKUP, 4)
            operator.builtinOptionsType, operator.builtinOptions = 0, None

    def _quantize_product_with_rows(self, product, look_up):
        """Multiplies with int8 rows of a table, and the results with the scales of these rows."""
        types, schema, add_tensor = self.types, self.editor.schema, self.editor.add_tensor
        table, rows = look_up.inputs
        quantized_table = self.graph.tensors[self._smaller(table)]
        # A look-up has one scale for all rows.
        one, buffer = np.ones(1, "float32"), quantized_table.buffer
        look_up.inputs = [add_tensor(types.INT8, like=table, buffer=buffer, scales=one), rows]
        matrix = add_tensor(types.INT8, like=look_up.outputs[0], scales=one)
        look_up.outputs, product.inputs[1] = [matrix], matrix
        # LiteRT keeps sums of rows for asymmetric inputs, and does not see that the rows change.
        product.builtinOptions.asymmetricQuantizeInputs = False
        self.editor.replace(product, self.codes.FULLY_CONNECTED, _DYNAMIC_RANGE_VERSION)
        (outputs,) = product.outputs
        product.outputs = [add_tensor(types.FLOAT32, like=outputs)]
        scales = add_tensor(types.FLOAT32, like=rows)
        values = np.asarray(quantized_table.quantization.scale, "float32")
        all_scales = add_tensor(types.FLOAT32, like=rows, buffer=self.stored.add(values))
        self.graph.tensors[all_scales].shape = np.array(values.shape, "int32")
        self.graph.tensors[all_scales].shapeSignature = None
        look_up_scales = copy.copy(look_up)
        look_up_scales.inputs, look_up_scales.outputs = [all_scales, rows], [scales]
        self.graph.operators += [look_up, product, look_up_scales]
        scaling = self.editor.add(self.codes.MUL, 1, [product.outputs[0], scales], [outputs])
        scaling.builtinOptionsType = schema.BuiltinOptions.MulOptions
        scaling.builtinOptions = schema.MulOptionsT()

    def _smaller(self, index):
        """Returns the index of a tensor with the same values in fewer bits."""
        if index in self.quantized_indices:
            return self.quantized_indices[index]
        values = self.stored.values(self.graph.tensors[index])
        if not isinstance(values, Matrix):
            values = Matrix.of(values)
        if self.kind == "float16":
            numbers = values.changed("float16", lambda rows: rows.astype("float16"))
            kind, scales = self.types.FLOAT16, None
        else:
            scales = np.concatenate([*map(_scales, values.rows())])
            kind, numbers = self.types.INT8, values.changed("int8", _codes)
        buffer = self.stored.add(numbers)
        new = self.editor.add_tensor(kind, like=index, buffer=buffer, scales=scales)
        self.quantized_indices[index] = new
        return new


def _scales(rows):
    """Returns the scale of each row; symmetric, which is what dynamic-range products take."""
    largest = np.maximum(rows.max(axis=1), -rows.min(axis=1))
    return (np.maximum(largest, 1e-12) / np.float32(127)).astype("float32")


def _codes(rows):
    return np.rint(rows / _scales(rows)[:, None]).astype("int8")
