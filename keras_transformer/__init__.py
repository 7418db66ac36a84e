"""Transformers in Keras: from parallel text to a fast, verified translator.

The package's names are imported with their first use, so that the command line and the engines of
exports do without Keras. All classes are registered with Keras as soon as both are imported.
"""

import functools
import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras_transformer import layers as layers
    from keras_transformer.config import TransformerConfig as TransformerConfig
    from keras_transformer.losses import SmoothedCrossEntropy as SmoothedCrossEntropy
    from keras_transformer.metrics import Perplexity as Perplexity
    from keras_transformer.metrics import TokenAccuracy as TokenAccuracy
    from keras_transformer.metrics import TokenLoss as TokenLoss
    from keras_transformer.models import Transformer as Transformer
    from keras_transformer.schedules import TransformerSchedule as TransformerSchedule
    from keras_transformer.text import Tokenizer as Tokenizer
    from keras_transformer.translation import Translation as Translation
    from keras_transformer.translator import Translator as Translator

__version__ = "0.2.0"

# Modules of classes that `keras.models.load_model` looks up.
_REGISTERED = ("layers", "losses", "metrics", "models", "schedules")
_MODULES = {
    "Perplexity": "metrics",
    "SmoothedCrossEntropy": "losses",
    "TokenAccuracy": "metrics",
    "TokenLoss": "metrics",
    "Tokenizer": "text",
    "Transformer": "models",
    "TransformerConfig": "config",
    "TransformerSchedule": "schedules",
    "Translation": "translation",
    "Translator": "translator",
}
__all__ = [*_MODULES, "layers"]


def __getattr__(name):
    if name == "layers":
        return importlib.import_module(f"{__name__}.layers")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


class _RegisterWithKeras:
    """Import hook that registers all classes once Keras is imported, in whichever order.

    It waits for the end of the outermost import of Keras or of this package: in the middle of one
    the modules with the classes may be half imported.
    """

    def __init__(self):
        self._depth, self._is_searching = 0, False

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ("keras", __name__) or self._is_searching:
            return None
        self._is_searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_searching = False
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader.exec_module = functools.partial(self._load, spec.loader.exec_module)
        return spec

    def _load(self, exec_module, module):
        self._depth += 1
        try:
            exec_module(module)
        finally:
            self._depth -= 1
        if not self._depth and sys.modules.get("keras") and self in sys.meta_path:
            sys.meta_path.remove(self)
            _register()


def _register():
    for name in _REGISTERED:
        importlib.import_module(f"{__name__}.{name}")


if "keras" not in sys.modules:
    sys.meta_path.insert(0, _RegisterWithKeras())
elif sys.modules["keras"] is not None:  # None hides it.
    _register()
