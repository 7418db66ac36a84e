"""Settings of the site: `pip install ".[docs]" && python -m sphinx docs docs/_build`."""

import keras_transformer

project = "keras_transformer"
version = release = keras_transformer.__version__
author = copyright = "the authors of keras_transformer"

extensions = ["myst_nb", "sphinx-mathjax-offline"]
exclude_patterns = ["_build", "jupyter_execute", ".jupyter_cache"]  # made by the build
html_theme = "furo"
html_title = "keras_transformer"

# A page whose program fails fails the build.
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True
myst_enable_extensions = ["dollarmath"]
