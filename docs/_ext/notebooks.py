"""Writes each tutorial as a notebook beside the site, for Jupyter and Colab, and links it there."""

import pathlib

import nbformat
from myst_nb.core.read import read_myst_markdown_notebook
from myst_parser.config.main import MdParserConfig

_FOLDER = "notebooks"
_INSTALL = """\
# In Colab: upload the wheel first, made by `pip wheel --no-deps .` in a checkout.
import importlib.util

if importlib.util.find_spec("keras_transformer") is None:
    %pip install --quiet keras_transformer_nmt*.whl ctranslate2 matplotlib"""


def add_link(app, name: str, source: list[str]) -> None:
    """Adds a link to the notebook under the title of a tutorial."""
    if not name.startswith("tutorials/"):
        return
    link = f"../{_FOLDER}/{pathlib.Path(name).name}.ipynb"
    title = next(line for line in source[0].split("\n") if line.startswith("# "))
    words = "This page as a notebook</a>, for Jupyter and Colab."
    raw = f'\n```{{raw}} html\n<p><a href="{link}" download>{words}</p>\n```\n'
    source[0] = source[0].replace(f"{title}\n", f"{title}\n{raw}", 1)


def write(app, error) -> None:
    """Writes the notebooks, without outputs, into the built site."""
    if error or app.builder.format != "html":
        return
    folder = pathlib.Path(app.outdir, _FOLDER)
    folder.mkdir(exist_ok=True)
    for page in sorted(pathlib.Path(app.srcdir, "tutorials").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        notebook = read_myst_markdown_notebook(text, MdParserConfig(), add_source_map=False)
        notebook.cells.insert(0, nbformat.v4.new_code_cell(_INSTALL))
        for number, cell in enumerate(notebook.cells):
            cell["id"] = f"cell-{number}"
        nbformat.write(notebook, folder / f"{page.stem}.ipynb")


def setup(app) -> dict:
    """Connects both to Sphinx."""
    app.connect("source-read", add_link)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True}
