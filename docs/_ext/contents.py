"""Makes the site's navigation of the lists on the first page, which GitHub shows as they are."""

import re

_LISTS = re.compile(r"^### (.*)\n\n((?:- \[.*\]\(.*\.md\)\n)+)", re.MULTILINE)


def add_navigation(app, name: str, source: list[str]) -> None:
    """Adds a hidden tree for each list under a heading of the first page."""
    if name != "index":
        return
    for caption, links in _LISTS.findall(source[0]):
        pages = "\n".join(re.findall(r"\((.*)\.md\)", links))
        source[0] += f"\n```{{toctree}}\n:caption: {caption}\n:hidden:\n\n{pages}\n```\n"


def setup(app) -> dict:
    """Connects it to Sphinx."""
    app.connect("source-read", add_navigation)
    return {"parallel_read_safe": True}
