"""Executes pages in parallel, a page a processor, before Sphinx reads them one by one.

Sphinx then finds their outputs in the cache of jupyter-cache. It executes a page that failed here
again, and says why it fails.
"""

import pathlib

from jupyter_cache import get_cache
from jupyter_cache.executors import load_executor

_READER = {"type": "plugin", "name": "myst_nb_md"}


def execute(app) -> None:
    """Executes the pages whose programs are not in the cache, unless execution is off."""
    if app.config.nb_execution_mode == "off":
        return
    source = pathlib.Path(app.srcdir)
    cache = get_cache(pathlib.Path(app.outdir).parent / ".jupyter_cache")
    # Tutorials take longest: they begin.
    pages = sorted(source.glob("[!_]*/*.md"), reverse=True)
    pages = [page for page in pages if "\nfile_format: mystnb\n" in page.read_text("utf-8")]
    for page in pages:
        cache.add_nb_to_project(str(page), read_data=_READER)
    executor = load_executor("local-parallel", cache)
    executor.run_and_cache(
        filter_uris=list(map(str, pages)), timeout=app.config.nb_execution_timeout
    )


def setup(app) -> dict:
    """Connects it to Sphinx."""
    app.connect("builder-inited", execute)
    return {"parallel_read_safe": True}
