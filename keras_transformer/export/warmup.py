"""Requests that TensorFlow Serving replays when it loads a SavedModel.

A server compiles a program for each padded shape when it first occurs, which takes seconds; with
these requests it does so before it answers anybody. The file is a TFRecord of
`tensorflow.serving.PredictionLog`. The few messages of it that are needed are described here,
field by field as in TensorFlow Serving's `.proto` files, so that its Python package is not.
"""

import functools

from keras_transformer.decoding.compiled import length_buckets
from keras_transformer.export.graph_batches import ROWS
from keras_transformer.export.verification_texts import sample_texts

WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"
LENGTHS = (16, 32, 48)
"""The padded lengths that are compiled ahead for `serving_default`, with each number of rows."""

_PACKAGE = "keras_transformer.serving"
# Name, number, type, of: as in tensorflow_serving/apis/{model,predict,prediction_log}.proto.
_MESSAGES = {
    "ModelSpec": [("name", 1, "string"), ("signature_name", 3, "string")],
    "PredictRequest": [("model_spec", 1, "ModelSpec"), ("inputs", 2, "map of tensors")],
    "PredictResponse": [("outputs", 1, "map of tensors"), ("model_spec", 2, "ModelSpec")],
    "PredictLog": [("request", 1, "PredictRequest")],
    "PredictionLog": [("predict_log", 6, "PredictLog")],
}


@functools.cache
def serving_messages():
    """Classes of TensorFlow Serving's messages, compatible on the wire.

    Returns:
        A dict from the names in `_MESSAGES` to message classes.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from tensorflow.core.framework import tensor_pb2

    file = descriptor_pb2.FileDescriptorProto(
        name=f"{_PACKAGE}.proto",
        package=_PACKAGE,
        syntax="proto3",
        dependency=[tensor_pb2.DESCRIPTOR.name],
    )
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for name, number, kind in fields:
            _add_field(described, name, number, kind)
    pool = descriptor_pool.Default()
    pool.Add(file) if hasattr(pool, "Add") else pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _MESSAGES
    }


def _add_field(message, name, number, kind):
    from google.protobuf import descriptor_pb2

    types = descriptor_pb2.FieldDescriptorProto
    field = message.field.add(name=name, number=number, label=types.LABEL_OPTIONAL)
    if kind == "string":
        field.type = types.TYPE_STRING
        return
    field.type = types.TYPE_MESSAGE
    if kind != "map of tensors":
        field.type_name = f".{_PACKAGE}.{kind}"
        return
    entry = message.nested_type.add(name=f"{name.title()}Entry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=types.LABEL_OPTIONAL, type=types.TYPE_STRING)
    value = entry.field.add(name="value", number=2, label=types.LABEL_OPTIONAL)
    value.type, value.type_name = types.TYPE_MESSAGE, ".tensorflow.TensorProto"
    field.label, field.type_name = types.LABEL_REPEATED, f".{_PACKAGE}.{message.name}.{entry.name}"


def write_warmup(folder, engine, signatures):
    """Writes the requests into an export.

    Args:
        folder: `pathlib.Path` of the SavedModel.
        engine: The `ModelEngine` that was exported.
        signatures: Names of the export's signatures.

    Returns:
        A dict from each signature to its requests' shapes, lists of rows and padded length.
    """
    import tensorflow as tf

    path = folder / WARMUP_FILE
    path.parent.mkdir()
    texts = _texts_of_lengths(engine)
    shapes = {name: [[1, min(texts)]] for name in signatures}
    shapes["serving_default"] = [[rows, length] for length in texts for rows in ROWS]
    with tf.io.TFRecordWriter(str(path)) as writer:
        for name, each in shapes.items():
            for rows, length in each:
                inputs = _inputs(name, texts[length], rows, engine)
                writer.write(warmup_record(name, inputs).SerializeToString())
    return shapes


def warmup_record(signature, inputs):
    """One request as a `PredictionLog`.

    Args:
        signature: Name of the signature.
        inputs: A dict of arrays or lists.
    """
    import tensorflow as tf

    record = serving_messages()["PredictionLog"]()
    request = record.predict_log.request
    request.model_spec.signature_name = signature
    for name, values in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(values))
    return record


def _texts_of_lengths(engine):
    """For each of the first padded lengths a text that needs it."""
    words = sample_texts(engine.source_tokenizer, 48)
    buckets = length_buckets(engine.max_source_length)
    texts, text = {}, ""
    for word in words:
        text = f"{text} {word.split()[0]}".strip() if word.split() else text
        length = len(engine.source_tokenizer.tokenize(text)) + 1
        bucket = next((each for each in buckets if length <= each), None)
        if text and bucket is not None and (bucket in LENGTHS or bucket == buckets[0]):
            texts.setdefault(bucket, text)
    return texts


def _inputs(signature, text, rows, engine):
    import numpy as np

    if signature == "serving_ids":
        ids = engine.source_tokenizer.tokenize([text] * rows, add_eos=True)
        return {"source_ids": np.array(ids, "int32")}
    if signature == "score":
        return {"source": [text] * rows, "target": [text] * rows}
    inputs = {"text": [text] * rows}
    if signature == "sample":
        inputs["seed"] = np.arange(rows, dtype="int32")
        inputs["top_k"] = np.zeros(rows, "int32")
        inputs["temperature"] = inputs["top_p"] = np.ones(rows, "float32")
    return inputs
