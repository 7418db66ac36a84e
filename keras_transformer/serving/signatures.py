"""What an artifact takes and gives, as far as the server needs to know."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Tensor:
    """An input or output.

    Attributes:
        name: Its name in the graph, `"serving_default_text:0"`.
        dtype: TensorFlow's name of its type, `"string"`, `"float32"`, ...
        code: The same as protobuf has it, `"DT_STRING"`.
        shape: A tuple with None for what may vary.
    """

    name: str
    dtype: str
    code: str
    shape: tuple


@dataclasses.dataclass(frozen=True)
class Signature:
    """A function of the artifact.

    Attributes:
        inputs: Dict of `Tensor` by name.
        outputs: The same.
        padded: Whether zeros and empty texts at the end of a free axis are padding and nothing
            else, as in the exports of this package.
    """

    inputs: dict
    outputs: dict
    padded: bool = False

    @property
    def mixes(self):
        """Whether sentences of different requests may be in one batch.

        Where the longest sentence of a batch decides the shape of the others, only padding that
        is known to mean nothing leaves their answers as they are.
        """
        tensors = [*self.inputs.values(), *self.outputs.values()]
        return self.padded or not any(None in tensor.shape[1:] for tensor in tensors)


def read_signatures(graph, padded=False):
    """The signatures of a SavedModel whose every input and output is a batch.

    Args:
        graph: `MetaGraphDef`.
        padded: As in `Signature`.

    Returns:
        A dict of `Signature` by name.
    """
    found = {}
    for name, definition in graph.signature_def.items():
        # Batching divides along the first axis: what has none (`__saved_model_init_op`) is no
        # function that a server can offer.
        if all(map(_is_batched, (definition.inputs, definition.outputs))):
            inputs, outputs = _tensors(definition.inputs), _tensors(definition.outputs)
            found[name] = Signature(inputs, outputs, padded)
    return found


def metadata(signatures):
    """What TensorFlow Serving says of signatures: `SignatureDefMap` as JSON."""
    return {
        name: {
            "inputs": {key: _info(tensor) for key, tensor in signature.inputs.items()},
            "outputs": {key: _info(tensor) for key, tensor in signature.outputs.items()},
            "method_name": "tensorflow/serving/predict",
            "defaults": {},
        }
        for name, signature in signatures.items()
    }


def _is_batched(infos):
    shapes = [info.tensor_shape for info in infos.values()]
    return bool(shapes) and all(
        not shape.unknown_rank and shape.dim and shape.dim[0].size < 0 for shape in shapes
    )


def _tensors(infos):
    import tensorflow as tf

    tensors = {}
    for key in sorted(infos):
        info = infos[key]
        dtype = tf.dtypes.as_dtype(info.dtype)
        shape = tuple(None if dim.size < 0 else dim.size for dim in info.tensor_shape.dim)
        code = info.DESCRIPTOR.fields_by_name["dtype"].enum_type.values_by_number[info.dtype].name
        tensors[key] = Tensor(info.name, dtype.name, code, shape)
    return tensors


def _info(tensor):
    dims = [{"size": str(-1 if size is None else size), "name": ""} for size in tensor.shape]
    shape = {"dim": dims, "unknown_rank": False}
    return {"dtype": tensor.code, "tensor_shape": shape, "name": tensor.name}
