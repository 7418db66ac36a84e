"""Requests that TensorFlow Serving replays when it loads a SavedModel, before it answers requests.

A server compiles a function for each padded shape when it first occurs, which takes seconds.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import tensorflow as tf

from keras_transformer.decoding.search_options import FILTERS, DecodingOptions
from keras_transformer.engine.inputs import length_buckets, pad
from keras_transformer.engine.model_engine import ModelEngine
from keras_transformer.errors import writing
from keras_transformer.export.verification import SENTENCES
from keras_transformer.text.per_text import LANGUAGE_OPTIONS

WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"


LENGTHS = (16, 32, 48)
"""Padded lengths that are compiled ahead for `serving_default`, with each number of rows."""

SAMPLING = {"temperature": 0.75, "top_k": 7, "top_p": 0.875}
"""Options of the samples in warm-up requests."""


def write_warmup(
    folder: Path, engine: ModelEngine, signatures: Iterable[str], rows: Sequence[int]
) -> dict[str, list]:
    """Writes the requests into an export, if TensorFlow Serving's messages are installed.

    They come with the extra `serving-api`. Batches of the export are padded to one of `rows`.

    Returns:
        A dict from each signature to its requests' shapes, lists of rows and padded length; empty
        without the package.
    """
    try:
        from tensorflow_serving.apis import prediction_log_pb2
    except ImportError:
        return {}
    path = folder / WARMUP_FILE
    path.parent.mkdir()
    texts = _texts_of_lengths(engine)
    shapes = {name: [[1, min(texts)]] for name in signatures}
    shapes["serving_default"] = [[count, length] for length in texts for count in rows]
    with writing(path), tf.io.TFRecordWriter(str(path)) as writer:
        for name, signature_shapes in shapes.items():
            for count, length in signature_shapes:
                record = prediction_log_pb2.PredictionLog()
                request = record.predict_log.request
                request.model_spec.signature_name = name
                inputs = signature_inputs(name, [texts[length]] * count, engine.source_tokenizer)
                inputs |= _language_inputs(engine, name, count)
                for argument, values in inputs.items():
                    request.inputs[argument].CopyFrom(tf.make_tensor_proto(values))
                writer.write(record.SerializeToString())
    return shapes


def _texts_of_lengths(engine):
    """Returns a dict from padded lengths to texts that need them."""
    buckets = length_buckets(engine.max_source_length)
    texts, text = {}, ""
    for word in " ".join(SENTENCES).split():
        text = f"{text} {word}".strip()
        length = len(engine.source_tokenizer.tokenize(text)) + 1
        bucket = next((size for size in buckets if length <= size), None)
        if bucket is None:
            break
        if bucket in LENGTHS or bucket == buckets[0]:
            texts.setdefault(bucket, text)
    return texts


def _language_inputs(engine, signature, count):
    """Returns the languages of the first direction, where the signature takes languages."""
    if engine.languages is None or signature == "serving_ids":
        return {}
    codes = zip(LANGUAGE_OPTIONS, engine.languages.directions[0], strict=True)
    return {name: [code] * count for name, code in codes if name in engine.languages.inputs}


def signature_inputs(signature: str, texts: list[str], tokenizer) -> dict[str, list]:
    """Makes the inputs of a call of a signature from texts, as nested lists."""
    if signature == "serving_ids":
        rows = tokenizer.tokenize(texts, add_eos=True)
        return {"source_ids": pad(rows, len(rows), max(map(len, rows), default=0)).tolist()}
    if signature == "score":
        # Any text can be the target of a source.
        return {"source": texts, "target": [" ".join(text.split()[::-1]) for text in texts]}
    if signature == "sample":
        filters = {name: getattr(DecodingOptions, name) for name in FILTERS} | SAMPLING
        inputs = {name: [value] * len(texts) for name, value in filters.items()}
        return {"text": texts, "seed": [7919 * i for i in range(len(texts))], **inputs}
    return {"text": texts}
