"""Proof that an exported SavedModel answers as the live model does, with TensorFlow alone."""

import contextlib
import functools
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from keras_transformer.engine import Engine
from keras_transformer.export.child_process import KERAS, ChildProcess
from keras_transformer.export.saved_model import IDS, SAMPLING, SIGNATURES, signature_inputs
from keras_transformer.export.saved_model.engine import rows_of, to_translation
from keras_transformer.export.texts import sample_texts, text_batches
from keras_transformer.export.verification import FLOAT32, SIXTEEN_BIT, LiveAnswers, Search, verify
from keras_transformer.translation import Translation

# XLA compiles a program for each shape of each search, in seconds: every signature goes through
# both loaders, and every shape of it through one. Signatures of one search share its programs:
# `serving_ids` gives the ids of the texts of `serving_default` without another program; of a blank
# text some tokenizers make ids, which are as good as others.
_BATCHES = {
    "session": {
        **dict.fromkeys(SIGNATURES, ("one", "none")),
        "serving_default": ("too_long", "all", "none"),
        "beam": ("many", "none"),
        "align": ("too_long", "none"),
        "serving_ids": ("too_long", "not_blank", "none"),
        IDS: ("one", "none"),
    },
    "module": {
        **dict.fromkeys(SIGNATURES, ("many", "none")),
        **dict.fromkeys(("score", "align"), ("few",)),
        **dict.fromkeys(("serving_ids", IDS), ("few", "none")),
    },
}


def verify_saved_model(
    folder: str | os.PathLike, engine: Any, manifest: dict, texts: Sequence[str] | None = None
) -> dict:
    """Calls every signature in fresh processes, through both loaders; see `verify`.

    Without `texts`, 200 or more to be telling, they are of random tokens.

    Raises:
        VerificationError: A SavedModel does not load, leaves variables uninitialized, needs Keras
            or this package, or answers differently.
    """
    texts = sample_texts(engine.source_tokenizer) if texts is None else list(texts)
    batches = text_batches(texts, engine.source_tokenizer, engine.max_source_length)
    models = {"": list(manifest["signatures"])}
    if "serving_ids" in manifest["signatures"]:
        models[IDS] = ["serving_ids"]
    is_float32 = engine.model.compute_dtype == "float32"
    artifacts: dict[str, dict] = {}
    with contextlib.ExitStack() as stack:
        for name, signatures in models.items():
            child = ChildProcess(
                "saved_model",
                (*KERAS, "keras_transformer"),
                folder=os.fspath(Path(folder) / name),
                with_operations=name != IDS,
                # Sessions rearrange arithmetic before XLA sees it, which doubles the time of each
                # program: one of the models shows that it may be done. In float32 that changes a
                # score by 1e-5; in bfloat16 by 1e-2 (measured), which can turn a search another way
                # and proves nothing about the export: there sessions leave the graph as it is.
                rewrite_graph=is_float32 and name == [*models][-1],
            )
            stack.enter_context(child)
            for loader, names in _BATCHES.items():
                call = functools.partial(child.ask, loader=loader)
                artifacts[f"{name} {loader}".strip()] = {
                    each: (
                        _Signature(each, call, engine),
                        _search(
                            each, engine, manifest, [batches[key] for key in names[name or each]]
                        ),
                    )
                    for each in signatures
                }
        live = LiveAnswers(engine, manifest.get("length_penalty", 0.0))
        return verify(artifacts, live, FLOAT32 if is_float32 else SIXTEEN_BIT)


def _search(signature, engine, manifest, batches):
    """The search that a signature must answer like the live model."""
    if engine.labels is not None:
        return Search(batches, {"n_best": len(engine.labels)})
    if signature == "score":
        targets = [signature_inputs("score", each, None)["target"] for each in batches]
        return Search(batches, targets=targets)
    common = {"length_penalty": manifest["length_penalty"]}
    options: dict[str, dict] = {
        "greedy": {"beam_size": 1},
        "beam": {"beam_size": manifest["beam_size"], "n_best": manifest["beam_size"]},
        "sample": {"sampling": True, **SAMPLING},
        "align": {"beam_size": manifest["beam_size"], "alignment": True},
    }
    beam = {"beam_size": manifest["beam_size"]}
    return Search(batches, {**common, **options.get(signature, beam)})


class _Signature(Engine):
    """One signature of a SavedModel in another process.

    Args:
        call: Takes `signature` and `inputs`, a dict of lists; gives a dict of arrays.
        live: Live engine: its tokenizers, its labels.
    """

    def __init__(self, name: str, call: Callable, live: Engine):
        self.name, self._call, self._live = name, call, live

    def translate(self, texts, n_best=1, **_):
        rows = self._rows(list(texts))
        if self.name == "serving_ids":
            return self._with_ids(rows)
        return [to_translation(row, n_best, self._live.labels) for row in rows]

    def score(self, sources, targets):
        return [
            Translation(text, float(row["score"]), float(row["log_probability"]))
            for text, row in zip(targets, self._rows(list(sources)), strict=True)
        ]

    def _with_ids(self, rows):
        found = [tuple(int(id) for id in row["ids"] if id) for row in rows]
        texts = self._live.target_tokenizer.detokenize([list(ids) for ids in found])
        return [
            Translation(text, float(row["score"]), math.nan, ids=ids)
            for text, row, ids in zip(texts, rows, found, strict=True)
        ]

    def _rows(self, texts):
        turns = self._live.turns
        if self.name == "serving_ids" and turns and turns.kept:
            # Ids are not divided into turns to read some of them.
            texts = [turns.join(turns.split(text)) for text in texts]
        inputs = signature_inputs(self.name, texts, self._live.source_tokenizer)
        return list(rows_of(self._call(signature=self.name, inputs=inputs), len(texts)))
