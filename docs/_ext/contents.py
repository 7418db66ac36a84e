"""Makes the site's navigation of the lists on the first page, which GitHub shows as they are.

Links to Markdown outside the site lead to the repository.
"""

import os.path
import pathlib
import re
import tomllib

_LISTS = re.compile(r"^### (.*)\n\n((?:- \[.*\]\(.*\.md\)\n)+)", re.MULTILINE)
_OUTSIDE = re.compile(r"(?<=\]\()(?:\.\./)+[^)\s#]+\.md(?=[#)])")
_ROOT = pathlib.Path(__file__).parents[2]


def add_navigation(app, name: str, source: list[str]) -> None:
    """Adds a hidden tree for each list under a heading of the first page."""
    if name != "index":
        return
    reference = sorted(path.name for path in (_ROOT / "docs" / "reference").glob("*.md"))
    for caption, links in _LISTS.findall(source[0]):
        pages = re.findall(r"\]\((.*)\.md\)$", links, re.MULTILINE)
        if caption == "Reference":  # Its other pages are built.
            pages += [f"reference/{name.removesuffix('.md')}" for name in reference]
        pages = "\n".join(pages)
        source[0] += f"\n```{{toctree}}\n:caption: {caption}\n:hidden:\n\n{pages}\n```\n"


def lead_outside(app, name: str, source: list[str]) -> None:
    """Gives Markdown that is not a page of the site its address in the repository."""
    tools = tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
    address = tools["keras-transformer"]["repository"]

    def absolute(match):
        path = os.path.normpath(f"docs/{os.path.dirname(name)}/{match[0]}")
        return match[0] if path.startswith("docs/") else f"{address}/blob/HEAD/{path}"

    source[0] = _OUTSIDE.sub(absolute, source[0])


def setup(app) -> dict:
    """Connects it to Sphinx."""
    app.connect("source-read", add_navigation)
    app.connect("source-read", lead_outside)
    return {"parallel_read_safe": True}
