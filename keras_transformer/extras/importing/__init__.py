"""A name, an address, an archive or a folder of another program's model becomes a run.

`fetching` downloads; a folder of `extras` per program reads.
"""

from typing import TYPE_CHECKING

from keras_transformer.base.imports import lazy_names

if TYPE_CHECKING:
    from keras_transformer.extras.importing.fetching import check_name as check_name
    from keras_transformer.extras.importing.fetching import list_models as list_models
    from keras_transformer.extras.importing.fetching import local_model as local_model
    from keras_transformer.extras.importing.importing import ImportedModel as ImportedModel
    from keras_transformer.extras.importing.importing import import_model as import_model
    from keras_transformer.extras.importing.importing import import_run as import_run
    from keras_transformer.extras.importing.local_folder import LocalModel as LocalModel

_MODULES = {
    "ImportedModel": "importing",
    "LocalModel": "local_folder",
    "check_name": "fetching",
    "import_model": "importing",
    "import_run": "importing",
    "list_models": "fetching",
    "local_model": "fetching",
}
__all__ = list(_MODULES)
__getattr__, __dir__ = lazy_names(__name__, _MODULES)
