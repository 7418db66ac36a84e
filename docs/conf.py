"""Settings of the site: `pip install ".[docs]" && python -m sphinx docs docs/_build`."""

import pathlib
import sys

import keras_transformer

# The extension beside this file, and what measures: pages of it are executed in their own folder.
sys.path[:0] = [str(pathlib.Path(__file__).parent / "_ext")]

project = "keras_transformer"
version = release = keras_transformer.__version__
author = copyright = "the authors of keras_transformer"

extensions = [
    "myst_nb",
    "sphinx-mathjax-offline",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "ahead",
    "declarations",
    "notebooks",
]
exclude_patterns = ["_build*", "_live", "_work", "jupyter_execute", ".jupyter_cache"]  # built
html_theme = "furo"
html_title = "keras_transformer"
html_static_path = ["_static"]
# The translator of the first page, which the first tutorial makes where there is npm.
(pathlib.Path(__file__).parent / "_live").mkdir(exist_ok=True)
html_extra_path = ["_live"]
html_css_files = ["site.css"]

# A page whose program fails fails the build.
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_timeout = 600  # a cell, on a busy machine
nb_merge_streams = True
nb_output_stderr = "remove"  # messages of TensorFlow
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
suppress_warnings = ["myst-nb.lexer"]  # of cells that were not executed

# Docstrings are Google's, with `code` between single backticks.
default_role = "literal"
napoleon_use_ivar = True  # `Attributes` of a docstring, beside the members themselves
napoleon_use_rtype = False  # Our `Returns` may have a colon in its sentence.
napoleon_custom_sections = [("Call arguments", "params_style")]
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_inherit_docstrings = False  # Keras' words about `call` say nothing of a layer of ours.
python_maximum_signature_line_length = 90


def setup(app):
    """Leaves out the fields of named tuples, which their docstrings explain."""

    def is_field(app, what, name, value, skip, options):
        return skip or str(value.__doc__).startswith("Alias for field number")

    app.connect("autodoc-skip-member", is_field)
