"""Pages as notebooks: the site executes a page's programs, and offers tutorials to Jupyter.

Programs are ordinary fences. A comment on the line before one says what GitHub need not show:

    <!-- not executed -->     only shown
    <!-- no output -->        executed, its output is not shown
    <!-- file: NAME -->       written to a file
    <!-- tensorflow -->       executed on TensorFlow only
    <!-- jax -->              executed on JAX only

The pages are executed on TensorFlow. A page with one of the last two comments is executed a second
time at its end, on JAX, in a process of its own. This run fails the build, and shows no output.

A program in `<details>` is folded. Lines between `<!-- run` and `-->` are executed and not shown.
What is between `<!-- output -->` and `<!-- end -->` is for GitHub: `outputs.py` writes it, and the
site shows its own output instead.
"""

import pathlib
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import nbformat

_PROGRAM = re.compile(
    r"^(?:(?P<folded><details>\n<summary>[^\n]*</summary>\n\n)?"
    r"(?:<!-- (?P<comment>not executed|no output|tensorflow|jax|file: [^\n]+) -->\n)?"
    r"```(?P<language>\w+)\n(?P<program>.*?)^```\n(?(folded)\n</details>\n)"
    r"|<!-- run\n(?P<unseen>.*?)^-->\n)(?P<output>\n<!-- output -->\n.*?^<!-- end -->\n)?",
    re.MULTILINE | re.DOTALL,
)
_MAGIC = {"python": "", "bash": "%%bash\n"}
_ON_JAX = "%%script env KERAS_BACKEND=jax {__import__('sys').executable} -"
_FOLDER = "notebooks"
_INSTALL = """\
# In Colab: upload the wheel first, made by `pip wheel --no-deps .` in a checkout.
import importlib.util

if importlib.util.find_spec("keras_transformer") is None:
    %pip install --quiet keras_transformer_nmt*.whl ctranslate2 matplotlib"""


class Part(NamedTuple):
    """A piece of a page.

    Attributes:
        text: Markdown, without an output.
        source: Source of the cell that the text is; None for text that is not executed.
        tags: Tags of the cell.
        output: Markdown of the output that follows, with its comments.
    """

    text: str
    source: str | None = None
    tags: tuple[str, ...] = ()
    output: str = ""


def parts_of(page: str) -> list[Part]:
    """Splits a page between its programs."""
    parts, position = [], 0
    for match in _PROGRAM.finditer(page):
        groups = match.groupdict()
        output = groups.pop("output") or ""
        if (cell := _cell(**groups)) is not None:
            program = match[0].removesuffix(output)
            parts += [Part(page[position : match.start()]), Part(program, *cell, output)]
            position = match.end()
    return [*parts, Part(page[position:])]


def _cell(folded, comment, language, program, unseen):
    """Returns source and tags of a program's cell; None where it is not executed."""
    folds = ("hide-input",) if folded else ()
    if unseen is not None:
        return unseen.rstrip("\n"), ("remove-input",)
    if comment is not None and comment.startswith("file: "):
        name = comment.removeprefix("file: ")
        return f"%%writefile {name}\n{program}".rstrip("\n"), ("remove-output", *folds)
    if comment in ("not executed", "jax") or language not in _MAGIC:
        return None
    source = (_MAGIC[language] + program).rstrip("\n")
    return source, (("remove-output", *folds) if comment == "no output" else folds)


def jax_program(page: str) -> str | None:
    """Returns the Python programs of a page for JAX, or None if none is for one backend only."""
    programs, comments = [], set()
    for match in _PROGRAM.finditer(page):
        groups = match.groupdict()
        comments.add(groups["comment"])
        if groups["comment"] == "jax":
            groups["comment"] = None
        elif groups["comment"] == "tensorflow":
            continue
        del groups["output"]
        cell = _cell(**groups)
        if cell is not None and not cell[0].startswith("%"):
            programs.append(cell[0])
    return "\n\n".join(programs) if comments & {"tensorflow", "jax"} else None


def read(page: str) -> "nbformat.NotebookNode":
    """Reads a page as a notebook."""
    import nbformat

    notebook = nbformat.v4.new_notebook()
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    for part in parts_of(page):
        # Jupyter does not know GitHub's fence for equations.
        text = re.sub(r"^```math\n(.*?)^```$", r"$$\n\1$$", part.text, flags=re.M | re.S)
        if part.source is not None:
            metadata = {"tags": list(part.tags)} if part.tags else {}
            notebook.cells.append(nbformat.v4.new_code_cell(part.source, metadata=metadata))
        elif text.strip("\n"):
            notebook.cells.append(nbformat.v4.new_markdown_cell(text.strip("\n")))
    if program := jax_program(page):
        metadata = {"tags": ["remove-cell"]}
        source = f"{_ON_JAX}\n{program}"
        notebook.cells.append(nbformat.v4.new_code_cell(source, metadata=metadata))
    return notebook


def add_link(app, name: str, source: list[str]) -> None:
    """Adds a link to the notebook under the title of a tutorial."""
    if not name.startswith("tutorials/"):
        return
    link = f"../{_FOLDER}/{pathlib.Path(name).name}.ipynb"
    title = next(line for line in source[0].split("\n") if line.startswith("# "))
    words = "This page as a notebook</a>, for Jupyter and Colab."
    raw = f'\n<p><a href="{link}" download>{words}</p>\n'
    source[0] = source[0].replace(f"{title}\n", f"{title}\n{raw}", 1)


def hide_magic(app, document) -> None:
    """Shows a program of the shell or a file without the first line that Jupyter needs."""
    from docutils import nodes

    for block in document.findall(nodes.literal_block):
        magic, _, program = block.astext().partition("\n")
        if magic == "%%bash" or magic.startswith("%%writefile "):
            block.clear()
            block += nodes.Text(program)
            block.rawsource = program  # Sphinx colours a block whose text is its source.
            block["language"] = "bash" if magic == "%%bash" else "yaml"


def write(app, error) -> None:
    """Writes the notebooks, without outputs, into the built site."""
    import nbformat

    if error or app.builder.format != "html":
        return
    folder = pathlib.Path(app.outdir, _FOLDER)
    folder.mkdir(exist_ok=True)
    for page in sorted(pathlib.Path(app.srcdir, "tutorials").glob("*.md")):
        notebook = read(page.read_text(encoding="utf-8"))
        notebook.cells.insert(0, nbformat.v4.new_code_cell(_INSTALL))
        for number, cell in enumerate(notebook.cells):
            cell["id"] = f"cell-{number}"
        nbformat.write(notebook, folder / f"{page.stem}.ipynb")


def setup(app) -> dict:
    """Connects all to Sphinx."""
    app.connect("source-read", add_link)
    app.connect("doctree-read", hide_magic)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True}
