"""The file of a LiteRT model: signatures merged, weights stored once and in fewer bits.

The converter makes one file of one function. Here several become one file in which every array is
stored once, however many signatures read it, and weights are quantized so that the embedding
table stays one array: the products (`FULLY_CONNECTED`) and the look-up (`EMBEDDING_LOOKUP`) read
the same bytes with the same scale for each row. The converter's own quantization makes two tables
of it, and turns one of them back to float at each call.
"""

import tempfile
from pathlib import Path
from typing import NamedTuple

from keras_transformer.export.child_process import child_process
from keras_transformer.export.litert_packing import Buffers, code_index, packed
from keras_transformer.export.litert_quantization import Quantizer

FORMAT = "keras_transformer.litert"
"""What the `export.json` of a folder with such files names as its format."""

SECONDS_TO_START, SECONDS_PER_FUNCTION = 120, 600
"""The time that the converter gets. A function takes it 1 to 3 s with 2 million weights."""

_CONVERSION = Path(__file__).with_name("litert_conversion.py")


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


def convert(functions, custom_operations=False):
    """TensorFlow functions as `Part`s in float32, converted in a process of its own.

    Args:
        functions: Iterable of `(name, function)`: a signature's name, and a concrete function
            that gives a dict and holds its weights as constants. One is held at a time.
        custom_operations: Whether they may hold operations that LiteRT does not bring.

    Returns:
        A list of `Part`.

    Raises:
        VerificationError: TensorFlow's converter failed or took too long.
    """
    parts, requests = [], []
    with tempfile.TemporaryDirectory() as exchange:
        for name, function in functions:
            inputs = tuple(each.name.split(":")[0] for each in function.inputs)
            if len(inputs) != len(function.structured_input_signature[0]):
                raise ValueError(
                    f"{name}: a function to convert must hold what it needs as constants."
                )
            graph = Path(exchange) / f"{len(parts)}.pb"
            graph.write_bytes(function.graph.as_graph_def().SerializeToString())
            requests.append(
                {
                    "graph": str(graph),
                    "inputs": [each.name for each in function.inputs],
                    "outputs": [each.name for each in function.outputs],
                    "custom_operations": custom_operations,
                    "content": str(graph.with_suffix(".tflite")),
                }
            )
            parts.append(Part(name, inputs, tuple(sorted(function.structured_outputs)), b""))
        seconds = SECONDS_TO_START + SECONDS_PER_FUNCTION * len(requests)
        with child_process(_CONVERSION, requests, seconds) as wait:
            wait()
        return [
            part._replace(content=Path(request["content"]).read_bytes())
            for part, request in zip(parts, requests, strict=True)
        ]


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
    stored = Buffers(whole)
    for part in parts:
        model = schema.ModelT.InitFromPackedBuf(part.content, 0)
        first = len(whole.subgraphs)
        _append(whole, model, stored)
        for graph in whole.subgraphs[first:]:
            if quantize != "none":
                Quantizer(whole, graph, stored, quantize).run()
            _drop_unused_tensors(graph)
        whole.signatureDefs.append(_signature(schema, part, whole.subgraphs[first], first))
    stored.drop_unused()
    return packed(whole)


def custom_operations(content):
    """Names of the operations in a file that LiteRT does not bring, sorted.

    Args:
        content: The file, bytes.
    """
    from ai_edge_litert import schema_py_generated as schema

    model = schema.Model.GetRootAs(content, 0)
    codes = [model.OperatorCodes(i) for i in range(model.OperatorCodesLength())]
    return sorted({code.CustomCode().decode() for code in codes if code.CustomCode()})


def _append(whole, model, stored):
    """Puts the graphs of a model behind those of the whole."""
    codes = [code_index(whole.operatorCodes, code) for code in model.operatorCodes]
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
