"""Translates stdin with a server that speaks TensorFlow Serving's REST protocol.

    python rest_client.py --url http://localhost:8501/v1/models/translator < in.txt > out.txt

One line in, one line out: line breaks inside a translation become spaces. It needs only the
standard library.
"""

import argparse
import itertools
import json
import sys
import urllib.error
import urllib.request


class ServerError(RuntimeError):
    """The server cannot be reached, refuses, or gives something else than translations."""


def predict(url, inputs, signature="serving_default", timeout_seconds=60.0):
    """Calls a signature in the column format.

    Args:
        url: Of the model, `http://HOST:PORT/v1/models/NAME`, or `…/versions/N`.
        inputs: A dict of lists, for `serving_default`: `{"text": ["A text."]}`.
        signature: Its name.
        timeout_seconds: After which the request fails.

    Returns:
        A dict of lists, for `serving_default`: `translation` and `score`.

    Raises:
        ServerError: See there.
    """
    body = json.dumps({"signature_name": signature, "inputs": inputs}).encode("utf-8")
    request = urllib.request.Request(
        f"{url}:predict", data=body, headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_seconds) as response:
            return json.load(response)["outputs"]
    except urllib.error.HTTPError as error:
        raise ServerError(f"{url}: {error.code}, {_reason(error)}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ServerError(f"{url}: {error}") from None


def _reason(error):
    text = error.read().decode("utf-8", "replace")
    try:
        return json.loads(text)["error"]
    except (ValueError, KeyError, TypeError):
        return text.strip()[:500]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://localhost:8501/v1/models/translator")
    parser.add_argument("--signature", default="serving_default")
    parser.add_argument("--batch", type=int, default=32, help="lines in one request")
    options = parser.parse_args()
    if options.batch < 1:
        parser.error(f"--batch must be a positive integer. Received: {options.batch}.")
    sys.stdin.reconfigure(encoding="utf-8-sig", newline="\n")
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    lines = (line.removesuffix("\n").removesuffix("\r") for line in sys.stdin)
    try:
        while texts := list(itertools.islice(lines, options.batch)):
            outputs = predict(options.url, {"text": texts}, options.signature)
            for translation in outputs["translation"]:
                print(" ".join(translation.splitlines()), flush=True)
    except (ServerError, UnicodeDecodeError) as error:
        sys.exit(f"rest_client: {error}")


if __name__ == "__main__":
    main()
