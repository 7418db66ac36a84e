"""A real browser, driven over Chrome's DevTools protocol."""

import contextlib
import functools
import http.server
import itertools
import json
import pathlib
import shutil
import subprocess
import threading
import time
import urllib.request

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --disable-dev-shm-usage "
    "--remote-debugging-port=0 --window-size=900,900"
).split()


def find_chromium():
    """Path of the browser, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """One tab.

    Args:
        profile: A fresh folder.
    """

    def __init__(self, profile):
        from websockets.sync.client import connect

        command = [find_chromium(), *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        nowhere = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
        self._process = subprocess.Popen(command, **nowhere)
        file = pathlib.Path(profile, "DevToolsActivePort")
        self.wait(lambda: file.exists() and file.read_text().count("\n"))
        port = file.read_text().splitlines()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as tabs:
            (tab,) = [target for target in json.load(tabs) if target["type"] == "page"]
        self._open = contextlib.ExitStack()
        address = tab["webSocketDebuggerUrl"]
        self._socket = self._open.enter_context(connect(address, max_size=None))
        self._numbers = itertools.count()
        self.complaints = []  # of the page's console, once `Runtime` and `Log` are enabled

    def call(self, method, **parameters):
        """Returns the result of a command of the protocol."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv(timeout=120))
            self._note(answer)
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def _note(self, event):
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif event.get("method") == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.complaints.append(str(params["args"]))
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(params["entry"]["text"])

    def evaluate(self, expression):
        """The value of JavaScript."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait(lambda: self.evaluate("document.readyState") == "complete")
        self.wait(lambda: self.evaluate("location.href") == url)

    def type(self, text):
        """Types into what has the focus."""
        self.call("Input.insertText", text=text)

    def press_enter(self):
        self.press("Enter", 13, text="\r")

    def press(self, key, code, **event):
        """Presses a key of a name and a number; `modifiers` is 2 for Ctrl and 8 for Shift."""
        for kind in ("keyDown", "keyUp"):
            fields = {"type": kind, "key": key, "windowsVirtualKeyCode": code, **event}
            self.call("Input.dispatchKeyEvent", **fields)

    def text(self, selector):
        """The visible text of an element, "" if it is hidden."""
        element = f"document.querySelector({json.dumps(selector)})"
        return self.evaluate(f"{element}.checkVisibility() ? {element}.innerText : ''")

    def wait(self, condition, seconds=120):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def close(self):
        self._open.close()
        self._process.terminate()
        self._process.wait(timeout=30)


class Static:
    """A plain static server; `asked` are the paths that were asked for."""

    def __init__(self, folder):
        self.asked = asked = []

        class Handler(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *_):
                asked.append(self.path)

        handler = functools.partial(Handler, directory=folder)
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self):
        self._server.shutdown()
        self._server.server_close()
