"""Downloads files over HTTP; after a connection that is cut a download starts again."""

import hashlib
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from keras_transformer.base.errors import InputError, first_line, require, writing

_TIMEOUT_SECONDS = 30.0
_MAX_ATTEMPTS = 5
_MAX_BYTES = 16 << 30
_ADVICE = {
    401: "It needs a login: download the file in another way, and give its path",
    403: "It needs a permission: download the file in another way, and give its path",
    404: "There is no such file",
}


def shown_url(url: str) -> str:
    """Returns a URL without user, password and query, which may be secrets."""
    try:
        parts = urlsplit(url)
    except ValueError:  # `http://[`, where nothing tells a password from the rest
        return f"{url.partition(':')[0]}://..."
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def file_name(url: str) -> str:
    """Returns the last part of a URL's path, or `download` if it cannot name a file everywhere."""
    name = shown_url(url).rpartition("/")[2]
    return name if is_file_name(name) else "download"


def is_file_name(name: str) -> bool:
    """Returns whether a text from elsewhere may name a file: a short plain name, not `..`."""
    return bool(re.fullmatch(r"(?!\.)[\w.+%-]{1,100}", name, re.ASCII))


def download(url: str, path: Path) -> str:
    """Writes a file of a server to a new path; returns its SHA-256 checksum.

    Proxies of the environment are used. The progress bar needs a terminal.

    Raises:
        InputError: The file cannot be downloaded; the message names the reason.
    """
    httpx: Any = require("httpx2", "httpx2, which downloads,", "import")
    from tqdm import tqdm

    timeout = httpx.Timeout(_TIMEOUT_SECONDS)
    try:
        with (
            tqdm(desc=path.name, unit="B", unit_scale=True, file=sys.stderr, disable=None) as bar,
            httpx.Client(follow_redirects=True, timeout=timeout) as client,
            writing(path),
            open(path, "w+b") as file,
        ):
            _receive(client, url, file, bar)
            file.seek(0)
            return hashlib.file_digest(file, "sha256").hexdigest()
    except InputError:
        raise
    except httpx.TimeoutException:
        reason = f"the server did not answer in {_TIMEOUT_SECONDS:.0f} seconds"
    # ValueError: a proxy of the environment is no URL.
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        proxy = "the proxy refused: " if isinstance(error, httpx.ProxyError) else ""
        reason = f"{proxy}{first_line(error).rstrip('.'):.200}"
    raise InputError(f"{shown_url(url)}: cannot be downloaded: {reason}.")


def _receive(client, url, file, bar):
    """Receives a file, from its beginning again after a connection that was cut."""
    import httpx2

    for attempts_left in reversed(range(_MAX_ATTEMPTS)):
        file.seek(0)
        file.truncate()
        try:
            with client.stream("GET", url, headers={"Accept-Encoding": "identity"}) as response:
                _check(response, url)
                bar.reset(int(response.headers.get("content-length") or 0) or None)
                for block in response.iter_raw():
                    file.write(block)
                    bar.update(len(block))
                    if file.tell() > _MAX_BYTES:
                        raise InputError(f"{shown_url(url)}: is larger than 16 GiB.")
            return
        except httpx2.TransportError:
            if not attempts_left or not file.tell():
                raise


def _check(response, url):
    """Raises `InputError` unless a response has a file's content, over https for such a URL."""
    if url.startswith("https:") and response.url.scheme != "https":
        raise InputError(f"{shown_url(url)}: leads to an address without https.")
    if response.status_code != 200:
        status = f"{response.status_code} {response.reason_phrase}".strip()
        advice = _ADVICE.get(response.status_code, "Try again later")
        raise InputError(f"{shown_url(url)}: the server answered {status}. {advice}.")
