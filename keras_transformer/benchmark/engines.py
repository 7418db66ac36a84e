"""The engines by name, and which of them can be had here.

An engine is made with `(model, threads, text_engine)` and has a `name`, the `package` that it
needs, the `distribution` that brings it, the `extra` of this package that has it, a `note` on what
sets it apart, and `translate(source_ids, beam_size, steps)`; those of `FOR_A_CORPUS` can take a
trained run and have `translate_corpus(sentences, beam_size, length_penalty, batch_size)` too.
"""

import importlib.metadata
import importlib.util

from keras_transformer.benchmark.ctranslate2 import (
    CTranslate2Float32,
    CTranslate2InParts,
    CTranslate2Int8,
)
from keras_transformer.benchmark.keras_hub import KerasHubBart
from keras_transformer.benchmark.litert import LiteRTFloat32, LiteRTInt8
from keras_transformer.benchmark.ours import Ours
from keras_transformer.errors import InputError, did_you_mean

ENGINES = {
    engine.name: engine
    for engine in (
        Ours,
        LiteRTFloat32,
        LiteRTInt8,
        CTranslate2Float32,
        CTranslate2InParts,
        CTranslate2Int8,
        KerasHubBart,
    )
}
FOR_A_CORPUS = (Ours.name, CTranslate2Float32.name, CTranslate2Int8.name)


def choose_engines(names=None, corpus=False):
    """The classes of some engines, or of all.

    Args:
        names: Names of engines; all by default.
        corpus: Whether they must be able to take a trained run.

    Returns:
        A dict of name to class, and of those whose package is not installed a dict of name to
        the extra that brings it.

    Raises:
        InputError: A name is unknown or given twice, or the engine cannot take a trained run.
    """
    allowed = list(FOR_A_CORPUS if corpus else ENGINES)
    chosen, not_installed = {}, {}
    names = allowed if names is None else list(names)
    if not names:
        raise InputError(f"`engines` must name at least one of {', '.join(allowed)}.")
    for name in names:
        if name not in allowed:
            hint = did_you_mean(name, allowed)
            kind = "that can take a trained run " if corpus else ""
            raise InputError(
                f"The engines {kind}are {', '.join(allowed)}. Received: engine={name!r}.{hint}"
            )
        if names.count(name) > 1:
            raise InputError(f"An engine can be named once. Received: engine={name!r} twice.")
        package = ENGINES[name].package
        if package is not None and importlib.util.find_spec(package) is None:
            not_installed[name] = ENGINES[name].extra
        else:
            chosen[name] = ENGINES[name]
    return chosen, not_installed


def versions(engines):
    """Versions of what takes part, by distribution."""
    names = {"keras", "tensorflow", *(engine.distribution for engine in engines.values())}
    return {name: importlib.metadata.version(name) for name in sorted(names)}
