"""Writes the outputs of executed pages into the pages, for readers on GitHub.

Run it after a build of the site, which executes the pages: `python docs/_ext/outputs.py`. An output
follows its program, between `<!-- output -->` and `<!-- end -->`. Plots are in `docs/plots`. Words
that describe a plot stay as they are. Times are left out, because they change.
"""

import base64
import pathlib
import re
import runpy

from jupyter_cache import get_cache
from nbformat import NotebookNode
from notebooks import parts_of, read

DOCS = pathlib.Path(__file__).parents[1]
PLOTS = DOCS / "plots"
_TIMES = re.compile(r", [\d,]+ tokens/s, [\d.]+ s$| \(\d+ s\)(?=\. Next: )", re.MULTILINE)


def markdown_of(output: NotebookNode, plot: str, page: str) -> str | None:
    """Returns an output as Markdown; None where GitHub cannot show it.

    Args:
        output: Output of a cell.
        plot: Name of the file if the output is a plot.
        page: Markdown of the page, which may describe the plot already.
    """
    if output.output_type == "stream":
        text = _TIMES.sub("", output.text.rstrip())
        return f"```text\n{text}\n```" if output.name == "stdout" else None
    if "text/markdown" in output.data:
        return output.data["text/markdown"]
    if "image/png" in output.data:
        (PLOTS / plot).write_bytes(base64.b64decode(output.data["image/png"]))
        described = re.search(rf"!\[(.*?)\]\(\.\./plots/{plot}\)", page)
        return f"![{described[1] if described else 'Plot'}](../plots/{plot})"
    return None if "text/html" in output.data else f"```text\n{output.data['text/plain']}\n```"


def with_outputs(page: str, name: str, notebook: NotebookNode) -> str:
    """Returns a page with the outputs of its notebook."""
    cells = iter([cell for cell in notebook.cells if cell.cell_type == "code"])
    text, number = "", 0
    for part in parts_of(page):
        text += part.text
        if part.source is None:
            continue
        shown = []
        for output in next(cells).outputs:
            number += "image/png" in output.get("data", {})
            shown.append(markdown_of(output, f"{name}_{number}.png", page))
        if "remove-output" in part.tags or not any(shown):
            text += part.output
        else:
            blocks = "\n\n".join(filter(None, shown)).replace("\n```\n\n```text\n", "\n")
            text += f"\n<!-- output -->\n{blocks}\n<!-- end -->\n"
    return text


def main() -> None:
    """Writes the outputs that the last build left in the cache."""
    PLOTS.mkdir(exist_ok=True)
    cache = get_cache(DOCS / ".jupyter_cache")
    for path in runpy.run_path(str(DOCS / "conf.py"))["nb_custom_formats"]:
        page = (DOCS / path).read_text(encoding="utf-8")
        try:
            _, notebook = cache.merge_match_into_notebook(read(page))
        except KeyError:
            print(f"{path}: was not executed since it was changed, so its outputs stay.")
            continue
        text = with_outputs(page, pathlib.Path(path).stem, notebook)
        (DOCS / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
