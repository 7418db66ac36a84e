"""Decoding: one compiled loop on `keras.ops`, its strategies and constraints.

Keras is imported with the first name that needs it: `DecodingOptions` does without.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras_transformer.decoding.beam import Beam as Beam
    from keras_transformer.decoding.constrained_beam import ConstrainedBeam as ConstrainedBeam
    from keras_transformer.decoding.constraints import Constraints as Constraints
    from keras_transformer.decoding.loop import decode as decode
    from keras_transformer.decoding.options import DecodingOptions as DecodingOptions
    from keras_transformer.decoding.results import Hypotheses as Hypotheses
    from keras_transformer.decoding.results import length_penalty as length_penalty
    from keras_transformer.decoding.sampling import Greedy as Greedy
    from keras_transformer.decoding.sampling import Sampling as Sampling
    from keras_transformer.decoding.search import SearchModel as SearchModel

_MODULES = {
    "Beam": "beam",
    "ConstrainedBeam": "constrained_beam",
    "Constraints": "constraints",
    "DecodingOptions": "options",
    "Greedy": "sampling",
    "Hypotheses": "results",
    "Sampling": "sampling",
    "SearchModel": "search",
    "decode": "loop",
    "length_penalty": "results",
}
__all__ = list(_MODULES)


def __getattr__(name):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__():
    return [*globals(), *__all__]
