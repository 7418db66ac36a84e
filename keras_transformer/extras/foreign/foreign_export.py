"""Base of the formats of other programs, which `import_model` reads again."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.base.errors import InputError
from keras_transformer.base.impossible import BANNED
from keras_transformer.decoding.search_options import exported_search_options
from keras_transformer.engine.translation import Translation
from keras_transformer.export.child_process import ChildProcess
from keras_transformer.export.exporter import Exporter
from keras_transformer.export.supported import check_portable, check_transformer
from keras_transformer.export.verification import TOLERANCES, verify

if TYPE_CHECKING:
    from keras_transformer.engine import ModelEngine

# A trained model gives padding and BOS some probability: with label smoothing each token has at
# least 0.1 / vocabulary. With 60 tokens scores of random weights were 1% off.
_LOST_SHARE = 0.02
_VALUES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("num_kv_heads", "sliding_window"), (None,)),
    **dict.fromkeys(("encoder_heads", "decoder_heads", "cross_heads"), (None,)),
    "whole_words": (False,),
    "source_eos": (True,),
}


def translate_of(path: str, max_lengths: Sequence[int]) -> Callable[..., list[Translation]]:
    """Imports a model; returns the method `translate` of its engine, for lengths of both sides."""
    from keras_transformer.engine import ModelEngine
    from keras_transformer.extras.importing.importing import import_model

    model, source, target, _ = import_model(path)
    source_length, target_length = max_lengths
    engine = ModelEngine(model, source, target, source_length, target_length, with_xla=False)
    return engine.translate


def imported_process(path: Path, *max_lengths: int) -> ChildProcess:
    """Returns the process of `translate_of`."""
    function = f"{__name__}:{translate_of.__name__}"
    return ChildProcess(function, path=str(path), max_lengths=max_lengths)


def gives_probability(engine: "ModelEngine", id: int) -> bool:
    """Returns whether a model may give a target id probability: its bias is not `BANNED`."""
    bias = engine.model.output_bias
    # Training moves a bias a little.
    return bias is None or bool(np.asarray(bias)[id] > BANNED / 2)


class ForeignExporter(Exporter):
    """Base class: checks the model's fields, and verifies the folder by importing it.

    Attributes:
        purpose: Subject of a sentence about the format.
        rule: Beginning of a sentence about a field, before its name and its values.
        advice: Sentence about a model that the format does not have.
        values: Values of fields and options that the format has.
    """

    purpose: str
    rule: str
    advice = ""
    values: Mapping[str, tuple[Any, ...]]

    def resolve_export_options(self, engine: "ModelEngine", options: Any) -> dict[str, Any]:
        config = engine.model.config
        check_transformer(config, self.purpose)
        check_portable(config, self.purpose)
        # First: a model such as M2M100 has other positions than the format, too.
        if engine.languages is not None and not engine.languages.are_tags_of(
            engine.source_tokenizer
        ):
            rule = f"{self.purpose} names languages by tokens in texts, such as >>de<<"
            tokens = ", ".join([*engine.languages.tokens.values()][:3])
            advice = "Export for saved_model, litert or ctranslate2"
            raise InputError(f"{rule}. Received: {tokens}. {advice}.")
        whole_words = {"whole_words": engine.source_tokenizer.whole_words}
        received = vars(config) | vars(options) | whole_words
        for name, allowed in (_VALUES | dict(self.values)).items():
            if received[name] not in allowed:
                rule = f"{self.rule} `{name}` {' or '.join(map(repr, allowed))}"
                raise InputError(f"{rule}. Received: {received[name]!r}.{self.advice}")
        return dict(vars(options))

    def difference(self, engine: "ModelEngine") -> str:
        """Returns why the folder computes other probabilities than the model, or nothing.

        The text also advises the user of an export that fails the verification.
        """
        return ""

    def verify(
        self,
        engine: "ModelEngine",
        folder: Path,
        manifest: dict,
        texts: Sequence[str] | None,
        disposable_weights: bool = False,
    ) -> dict[str, Any]:
        tolerance = TOLERANCES["none" if engine.model.compute_dtype == "float32" else "bfloat16"]
        if advice := self.difference(engine):
            score = max(tolerance.score, _LOST_SHARE)
            tolerance = dataclasses.replace(tolerance, score=score, advice=advice)
        with imported_process(folder, engine.max_source_length, engine.max_target_length) as child:
            return verify(
                child,
                engine,
                texts,
                tolerance,
                disposable_weights,
                **exported_search_options(manifest),
            )
