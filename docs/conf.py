"""Settings of the site: `pip install ".[docs]" && python -m sphinx docs docs/_build`."""

import pathlib
import sys

import keras_transformer

_FOLDER = pathlib.Path(__file__).parent
sys.path[:0] = [str(_FOLDER / "_ext")]

project = "keras_transformer"
version = release = keras_transformer.__version__
author = copyright = "the authors of keras_transformer"

extensions = [
    "myst_nb",
    "sphinx-mathjax-offline",
    "ahead",
    "contents",
    "notebooks",
    "reference",
]
exclude_patterns = ["_build*", "_live", "_work", "jupyter_execute", ".jupyter_cache"]  # built
html_theme = "furo"
html_title = "keras_transformer"
html_static_path = ["_static"]
# The translator of the first page, which the first tutorial makes where there is npm.
(_FOLDER / "_live").mkdir(exist_ok=True)
html_extra_path = ["_live"]
html_css_files = ["site.css"]
html_js_files = ["translator.js"]

# These pages are executed. A page whose program fails fails the build.
_EXECUTED = [f"design/{name}.md" for name in ("decoding", "training", "verification")]
_EXECUTED += [f"howto/{name}.md" for name in ("control_output", "decode", "export", "fine_tune")]
_EXECUTED += [f"howto/{name}.md" for name in ("from_corpora_to_a_server", "train", "use_layers")]
_EXECUTED.append("howto/coming_from_keras_hub.md")
_EXECUTED += sorted(f"tutorials/{path.name}" for path in _FOLDER.glob("tutorials/*.md"))
nb_custom_formats = dict.fromkeys(_EXECUTED, "notebooks.read")
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_timeout = 600  # a cell, on a busy machine
nb_merge_streams = True
nb_output_stderr = "remove"  # messages of TensorFlow
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
smartquotes_action = "qe"  # Without dashes: `--` begins an option.
suppress_warnings = ["myst-nb.lexer"]  # of cells that were not executed
