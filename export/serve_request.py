"""Sends texts to a server of `keras-transformer serve`, with only Python's standard library.

keras-transformer serve --model FOLDER --name translator --port 8501
python export/serve_request.py http://localhost:8501/v1/models/translator "A text." "Another."
"""

import json
import sys
import time
import urllib.error
import urllib.parse
import urllib.request


def wait_until_ready(url, timeout_seconds=300.0):
    """Waits while the server loads the model and compiles its search."""
    ready = urllib.parse.urljoin(url, "/readyz")
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            with urllib.request.urlopen(ready, timeout=5):
                return
        except OSError:  # Nothing listens yet, or the status is 503.
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def translate(url, texts, **fields):
    """Returns the translations of a list of texts.

    Args:
        url: `http://HOST:PORT/v1/models/NAME`.
        texts: List of strings. The server makes batches of the sentences of all its clients, so
            requests with a single text are fine.
        **fields: Fields for all texts, such as `markup="html"`, `tag="2de"` or
            `glossary={"rack": "Gestell"}`.
    """
    body = json.dumps({"instances": texts, **fields}).encode("utf-8")
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}:predict", body, headers)
    for _ in range(5):
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return [row["translation"] for row in json.load(response)["predictions"]]
        except urllib.error.HTTPError as error:
            if error.code != 503:  # 400 says which field is wrong, 413 what is too long.
                raise ValueError(error.read().decode("utf-8")) from None
            # The server is full or starts. It has not translated, so the request is sent again.
            time.sleep(float(error.headers.get("Retry-After", 1)))
    raise TimeoutError(f"{url}: busy. Send fewer requests at once, or start more processes.")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    url, *texts = sys.argv[1:]
    wait_until_ready(url)
    print(*translate(url, texts), sep="\n")
