"""Translates stdin with TensorFlow Serving over gRPC.

    pip install ".[serving-api]"
    python grpc_client.py --address localhost:8500 < in.txt > out.txt

A line in, a line out: line breaks inside a translation become spaces.
"""

import argparse
import itertools
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow, which tells its start

try:
    import grpc
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc
except ImportError as error:
    sys.exit(f"grpc_client: {error}: pip install grpcio tensorflow-serving-api")


def predict(channel, inputs, model="translator", signature="serving_default", timeout_seconds=60.0):
    """Calls a signature.

    Args:
        channel: `grpc.Channel` to the server.
        inputs: A dict of lists, for `serving_default`: `{"text": ["A text."]}`.
        model: Name of the model.
        signature: Name of the signature.
        timeout_seconds: After which the call fails.

    Returns:
        A dict of NumPy arrays, for `serving_default`: `translation` (bytes) and `score`.

    Raises:
        grpc.RpcError: The server cannot be reached or refuses.
    """
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    for name, values in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(values))
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    response = stub.Predict(request, timeout=timeout_seconds)
    return {name: tf.make_ndarray(each) for name, each in response.outputs.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", default="localhost:8500")
    parser.add_argument("--model", default="translator")
    parser.add_argument("--signature", default="serving_default")
    parser.add_argument("--batch", type=int, default=32, help="lines in one request")
    options = parser.parse_args()
    if options.batch < 1:
        parser.error(f"--batch must be a positive integer. Received: {options.batch}.")
    sys.stdin.reconfigure(encoding="utf-8-sig", newline="\n")
    lines = (line.removesuffix("\n").removesuffix("\r") for line in sys.stdin)
    with grpc.insecure_channel(options.address) as channel:
        try:
            while texts := list(itertools.islice(lines, options.batch)):
                outputs = predict(channel, {"text": texts}, options.model, options.signature)
                for translation in outputs["translation"].tolist():
                    line = " ".join(translation.decode("utf-8").splitlines())
                    sys.stdout.buffer.write(line.encode("utf-8") + b"\n")
                sys.stdout.buffer.flush()
        except grpc.RpcError as error:
            sys.exit(f"grpc_client: {options.address}: {error.code().name}, {error.details()}")
        except UnicodeDecodeError as error:
            sys.exit(f"grpc_client: {error}")


if __name__ == "__main__":
    main()
