"""Archives, and servers on loopback: files, with faults of a network, and a hub of models."""

import contextlib
import hashlib
import http.server
import io
import json
import tarfile
import threading
import time
import urllib.parse
import zipfile

COMMITS = {"main": "a" * 40, "refs/pr/1": "b" * 40}


class FileServer(http.server.ThreadingHTTPServer):
    """Serves bytes by path.

    Attributes:
        files: Content of each path.
        requests: Method and path of each request.
        statuses: Status of a path that is not served.
        cuts: Numbers of bytes after which the connections of a path are cut, one per request.
        redirects: New address of a path.
        silent: Paths that are never answered.
    """

    daemon_threads = True

    def __init__(self, handler=None):
        super().__init__(("127.0.0.1", 0), handler or FileHandler)
        self.files, self.statuses, self.redirects, self.cuts = {}, {}, {}, {}
        self.requests, self.silent = [], set()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    @contextlib.contextmanager
    def running(self):
        """Answers requests in a thread of its own."""
        thread = threading.Thread(target=self.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            thread.join()
            self.server_close()

    def handle_error(self, *arguments):
        """Clients that go away are expected."""


class FileHandler(http.server.BaseHTTPRequestHandler):
    """Answers one request; see `FileServer`."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server, path = self.server, self.path
        server.requests.append((self.command, path))
        if path in server.silent:
            time.sleep(2)
            self.close_connection = True
        elif path in server.redirects:
            self.answer(302, {"Location": server.redirects[path]})
        elif path in server.statuses or path not in server.files:
            self.answer(server.statuses.get(path, 404))
        else:
            self.answer_file(server.files[path])

    do_HEAD = do_GET

    def answer_file(self, content, headers=None):
        etag = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"'}
        self.answer(200, {**etag, **(headers or {})}, content)

    def answer(self, status, headers=None, content=b""):
        self.send_response(status)
        for name, value in {"Content-Length": len(content), **(headers or {})}.items():
            self.send_header(name, str(value))
        self.end_headers()
        cuts = self.server.cuts.get(self.path)
        if self.command != "HEAD":
            self.wfile.write(content[: cuts.pop(0)] if cuts else content)
        self.close_connection = cuts is not None

    def log_message(self, *arguments):
        """Tests read `requests`."""


class Hub(FileServer):
    """Hub with the interface that `huggingface_hub` reads: revisions, trees of files, files.

    Attributes:
        models: Files of a repository's revision, by `ORGANIZATION/NAME@REVISION`.
        gated: Repositories whose files need a token.
    """

    def __init__(self):
        super().__init__(HubHandler)
        self.models, self.gated = {}, set()


class HubHandler(FileHandler):
    """Answers one request of `huggingface_hub`."""

    def do_GET(self):
        self.server.requests.append((self.command, urllib.parse.unquote(self.path)))
        parts = [urllib.parse.unquote(part) for part in self.path.split("?")[0].split("/")[1:]]
        if parts[:2] == ["api", "models"]:  # api/models/A/B/revision/main
            repository, (kind, name) = "/".join(parts[2:4]), parts[4:6] or ("revision", "main")
        else:  # A/B/resolve/main/FILE
            repository, kind, name = "/".join(parts[:2]), *parts[2:4]
        revisions = {commit: revision for revision, commit in COMMITS.items()}
        files = self.server.models.get(f"{repository}@{revisions.get(name, name)}")
        commit = COMMITS.get(name, name)
        if f"{repository}@main" not in self.server.models:
            self.refuse(401, "RepoNotFound")  # also for a private repository
        elif files is None:
            self.refuse(404, "RevisionNotFound")
        elif kind == "revision":
            names = [{"rfilename": file} for file in files]
            self.answer_json({"id": repository, "sha": commit, "siblings": names})
        elif kind == "tree":
            self.answer_json([self.entry(*file) for file in files.items()])
        elif repository in self.server.gated and "Authorization" not in self.headers:
            self.refuse(403, "GatedRepo")
        elif (path := "/".join(parts[4:])) not in files:
            self.refuse(404, "EntryNotFound")
        else:
            self.answer_file(files[path], {"X-Repo-Commit": commit})

    do_HEAD = do_GET

    def entry(self, path, content):
        digest = hashlib.sha256(content).hexdigest()
        return {"type": "file", "path": path, "size": len(content), "oid": digest}

    def answer_json(self, value):
        self.answer(200, {"Content-Type": "application/json"}, json.dumps(value).encode())

    def refuse(self, status, code):
        self.answer(status, {"X-Error-Code": code, "X-Error-Message": code})


def make_zip(path, members, mode=0):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            member = zipfile.ZipInfo(name)
            member.external_attr, member.compress_type = mode << 16, zipfile.ZIP_DEFLATED
            file.writestr(member, content)
    return path


def make_tar(path, members, kind=tarfile.REGTYPE, headers=None):
    with tarfile.open(path, "w:gz") as file:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.type, member.size, member.linkname = kind, len(content), "/etc/passwd"
            member.pax_headers = headers or {}
            file.addfile(member, io.BytesIO(content))
    return path
