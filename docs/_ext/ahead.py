"""Executes pages in parallel, a page a processor, before Sphinx reads them one by one.

Sphinx then finds their outputs in the cache of jupyter-cache. It executes a page that failed here
again, and says why it fails.
"""

import concurrent.futures
import contextlib
import os
import pathlib

from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from jupyter_cache.executors.utils import single_nb_execution
from notebooks import read


def execute(app) -> None:
    """Executes the pages whose programs are not in the cache, unless execution is off."""
    if app.config.nb_execution_mode == "off":
        return
    cache = get_cache(pathlib.Path(app.outdir).parent / ".jupyter_cache")
    pages = {}
    # Tutorials take longest: they begin.
    for name in sorted(app.config.nb_custom_formats, reverse=True):
        page = pathlib.Path(app.srcdir, name)
        notebook = read(page.read_text(encoding="utf-8"))
        with contextlib.suppress(KeyError):
            cache.match_cache_notebook(notebook)
            continue
        pages[page] = notebook
    seconds = app.config.nb_execution_timeout
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        running = {
            pool.submit(single_nb_execution, notebook, str(page.parent), seconds, False): page
            for page, notebook in pages.items()
        }
        for future in concurrent.futures.as_completed(running):
            page, result = running[future], future.result()
            if result.err is None:
                bundle = CacheBundleIn(pages[page], page, data={"execution_seconds": result.time})
                cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)


def setup(app) -> dict:
    """Connects it to Sphinx."""
    app.connect("builder-inited", execute)
    return {"parallel_read_safe": True}
