"""Takes the pictures of the page of `serve`, by day and by night, with Chromium.

python docs/_ext/page_pictures.py http://127.0.0.1:8501/    # a server of a model from English
"""

import base64
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "extras" / "serving"))
from browser import Browser  # noqa: E402

TEXT = """The lake is three kilometres long and lies between two hills.

In summer people swim there. In winter, when it is cold enough, they skate on the ice."""
WIDTH = 640


def take(url: str, folder: pathlib.Path) -> None:
    """Writes `serve_light.png` and `serve_dark.png` of the page with a translated text."""
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(profile)
        sizes = {"width": WIDTH, "height": 400, "deviceScaleFactor": 1, "mobile": False}
        browser.call("Emulation.setDeviceMetricsOverride", **sizes)
        browser.open(url)
        browser.evaluate("document.getElementById('text').focus()")
        browser.type(TEXT)
        browser.press("Enter", 13, modifiers=2)
        browser.wait(lambda: browser.text("#translation") or browser.text("#error"))
        clip = {"x": 0, "y": 0, "width": WIDTH, "scale": 1}
        clip["height"] = browser.evaluate("document.querySelector('main').offsetHeight + 60")
        for scheme in ("light", "dark"):
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            browser.call("Emulation.setEmulatedMedia", features=features)
            picture = browser.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
            path = folder / f"serve_{scheme}.png"
            path.write_bytes(base64.b64decode(picture["data"]))
        browser.close()


if __name__ == "__main__":
    take(sys.argv[1], ROOT / "docs" / "_static")
