"""Changes a graph of a LiteRT model: its operators, its tensors and its inputs."""

import itertools

import numpy as np


class GraphEditor:
    """Adds, replaces and drops operators and tensors of a subgraph of a model.

    Args:
        model: `ModelT` of LiteRT's schema.
        graph: Its subgraph.
    """

    def __init__(self, model, graph):
        from ai_edge_litert import schema_py_generated as schema

        self.schema, self.model, self.graph = schema, model, graph

    def operation(self, operator) -> int:
        """Returns the number of an operator's operation in `BuiltinOperator`."""
        return self.model.operatorCodes[operator.opcodeIndex].builtinCode

    def add(self, operation, version, inputs, outputs):
        """Adds an operator at the end, and returns it."""
        operator = self.schema.OperatorT()
        operator.inputs, operator.outputs = inputs, outputs
        self.replace(operator, operation, version)
        self.graph.operators.append(operator)
        return operator

    def replace(self, operator, operation, version):
        """Replaces the operation of an operator."""
        code = self.schema.OperatorCodeT()
        code.builtinCode, code.version = operation, version
        code.deprecatedBuiltinCode = min(operation, 127)
        operator.opcodeIndex = code_index(self.model.operatorCodes, code)

    def add_tensor(self, kind, like, buffer=0, scales=None) -> int:
        """Adds a tensor with the shape of another one, and returns its index.

        Args:
            kind: Its `TensorType`.
            like: Index of the other tensor.
            buffer: Index of the buffer of a constant.
            scales: A scale for each row of int8, or one for all.
        """
        template, tensor = self.graph.tensors[like], self.schema.TensorT()
        tensor.type, tensor.hasRank, tensor.buffer = kind, True, buffer
        tensor.shape, tensor.shapeSignature = template.shape, template.shapeSignature
        if scales is not None:
            tensor.quantization = self.schema.QuantizationParametersT()
            # LiteRT demands one zero point per scale.
            tensor.quantization.zeroPoint = np.zeros(len(scales), "int64")
            tensor.quantization.scale, tensor.quantization.quantizedDimension = scales, 0
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def replace_inputs(self, buffers: dict[int, int]) -> None:
        """Replaces inputs by constants, also in the graphs of its loops, which pass them on.

        Args:
            buffers: Indices of buffers by indices of tensors.
        """
        for index, buffer in buffers.items():
            self.graph.tensors[index].buffer = buffer
        self.graph.inputs = [index for index in self.graph.inputs if int(index) not in buffers]
        for operator in self.graph.operators:
            indices = list(map(int, operator.inputs))
            is_loop = self.operation(operator) == self.schema.BuiltinOperator.WHILE
            if not is_loop or buffers.keys().isdisjoint(indices):
                continue
            options = operator.builtinOptions
            condition, body = (
                self.model.subgraphs[number]
                for number in (options.condSubgraphIndex, options.bodySubgraphIndex)
            )
            changes = [index not in buffers for index in indices]
            body.outputs = list(itertools.compress(body.outputs, changes))
            operator.inputs = list(itertools.compress(operator.inputs, changes))
            operator.outputs = list(itertools.compress(operator.outputs, changes))
            for loop in (condition, body):
                pairs = zip(loop.inputs, indices, strict=True)
                held = {int(inner): buffers[index] for inner, index in pairs if index in buffers}
                GraphEditor(self.model, loop).replace_inputs(held)

    def drop_unused_tensors(self) -> None:
        """Drops the tensors that no operator reads or writes: the weights before quantization."""
        graph = self.graph
        sides = [graph, *graph.operators]
        used = {int(index) for side in sides for index in (*side.inputs, *side.outputs)} - {-1}
        new_indices = {-1: -1, **{old: index for index, old in enumerate(sorted(used))}}
        graph.tensors = [graph.tensors[old] for old in sorted(used)]
        for side in sides:
            side.inputs = [new_indices[int(index)] for index in side.inputs]
            side.outputs = [new_indices[int(index)] for index in side.outputs]


def code_index(codes, code):
    """Returns the index of an operator's code in `codes`, and appends a missing code."""
    key = (code.builtinCode, code.customCode, code.version)
    for index, known_code in enumerate(codes):
        if (known_code.builtinCode, known_code.customCode, known_code.version) == key:
            return index
    codes.append(code)
    return len(codes) - 1
