"""Writes the requests that TensorFlow Serving replays when it loads a SavedModel.

    pip install ".[serving-api]"
    python export/tf_serving/warmup.py RUN FOLDER

RUN is the run that the SavedModel in FOLDER was exported from. XLA compiles a search for each
padded shape at its first request, which takes seconds. With these requests the server compiles the
common shapes before it answers.
"""

import json
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow, which tells its start

try:
    import tensorflow as tf
    from tensorflow_serving.apis import prediction_log_pb2
except ImportError as error:
    sys.exit(f"warmup: {error}: pip install tensorflow-serving-api")

LENGTHS = (16, 32, 48)
"""Padded lengths of `serving_default`, with each number of rows; other signatures have one."""


def write_requests(folder, tokenizer, sentences):
    """Writes the requests into an export.

    Args:
        folder: Path of the export.
        tokenizer: Source tokenizer of the model.
        sentences: Texts in the source language, whose words the requests have.

    Returns:
        A list of each request's signature, number of rows and padded length.
    """
    folder = pathlib.Path(folder)
    manifest = json.loads((folder / "export.json").read_bytes())
    texts = texts_of_lengths(tokenizer, sentences, manifest["shapes"]["source_lengths"])
    shapes = [(name, 1, min(texts)) for name in manifest["signatures"] if name != "serving_default"]
    rows = manifest["shapes"]["rows"]
    shapes += [("serving_default", count, length) for length in texts for count in rows]
    path = folder / "assets.extra" / "tf_serving_warmup_requests"
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for name, count, length in shapes:
            values = values_of_inputs(texts[length], manifest)
            record = prediction_log_pb2.PredictionLog()
            request = record.predict_log.request
            request.model_spec.signature_name = name
            for argument, spec in manifest["signatures"][name]["inputs"].items():
                rows_of_input = [values[argument]] * count
                request.inputs[argument].CopyFrom(
                    tf.make_tensor_proto(rows_of_input, spec["dtype"])
                )
            writer.write(record.SerializeToString())
    return shapes


def texts_of_lengths(tokenizer, sentences, padded_lengths):
    """Returns a dict from padded lengths to texts that need them."""
    texts, text = {}, ""
    for word in " ".join(sentences).split():
        text = f"{text} {word}".strip()
        length = len(tokenizer.tokenize(text)) + 1  # with the end
        padded_length = next((size for size in padded_lengths if length <= size), None)
        if padded_length is None or padded_length > max(LENGTHS):
            break
        if padded_length in LENGTHS or padded_length == padded_lengths[0]:
            texts.setdefault(padded_length, text)
    return texts


def values_of_inputs(text, manifest):
    """Returns a dict from the inputs of all signatures to a value for one text."""
    from keras_transformer.decoding.search_options import FILTERS, DecodingOptions

    values = {
        "text": text,
        "source": text,
        "target": text,  # Any text can be the target of a source.
        "seed": 0,
        **{name: getattr(DecodingOptions, name) for name in FILTERS},
    }
    # Any language that the model knows.
    for code in list(manifest.get("language_tokens", {}).get("tokens", {}))[:1]:
        values |= {"source_language": code, "target_language": code}
    return values


def main(run, folder):
    from keras_transformer import Translator
    from keras_transformer.export.verification import SENTENCES

    tokenizer = Translator.load(run).engine.source_tokenizer
    for name, count, length in write_requests(folder, tokenizer, SENTENCES):
        print(f"{name}: {count} x {length} tokens")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
