"""Downloads files over HTTP; a connection that is cut is continued or started again."""

import hashlib
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from keras_transformer.errors import InputError, first_line, require, writing

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
    """Receives a file in as many responses as a connection that is cut needs."""
    import httpx2

    validator = ""
    for attempts_left in reversed(range(_MAX_ATTEMPTS)):
        headers, start = {"Accept-Encoding": "identity"}, 0
        if validator and file.tell():
            headers |= {"Range": f"bytes={file.tell()}-", "If-Range": validator}
        try:
            with client.stream("GET", url, headers=headers) as response:
                if response.status_code == 416 and "Range" in headers and attempts_left:
                    if response.headers.get("content-range") == f"bytes */{file.tell()}":
                        return  # The connection was cut behind the last byte.
                    validator = ""  # The server has another file now: receive all of it.
                    continue
                start = _begin(response, url, file, bar)
                etag = response.headers.get("etag", "W/")
                is_strong = not etag.startswith("W/")
                validator = etag if is_strong else response.headers.get("last-modified", "")
                for block in response.iter_raw():
                    file.write(block)
                    bar.update(len(block))
                    if file.tell() > _MAX_BYTES:
                        raise InputError(f"{shown_url(url)}: is larger than 16 GiB.")
            return
        except httpx2.TransportError:
            if not attempts_left or file.tell() == start:
                raise


def _begin(response, url, file, bar):
    """Checks a response, moves to the position of its bytes in the file, and returns it."""
    if url.startswith("https:") and response.url.scheme != "https":
        raise InputError(f"{shown_url(url)}: leads to an address without https.")
    if response.status_code == 206 and file.tell():
        content_range = response.headers.get("content-range", "")
        if content_range.startswith(f"bytes {file.tell()}-"):
            return file.tell()
    if response.status_code != 200:
        status = f"{response.status_code} {response.reason_phrase}".strip()
        advice = _ADVICE.get(response.status_code, "Try again later")
        raise InputError(f"{shown_url(url)}: the server answered {status}. {advice}.")
    file.seek(0)
    file.truncate()
    bar.reset(int(response.headers.get("content-length") or 0) or None)
    return 0
