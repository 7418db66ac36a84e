"""Proof that LiteRT files translate as the live model does, without TensorFlow."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_transformer.engine import Engine
from keras_transformer.export.child_process import remote_engine
from keras_transformer.export.litert.engine import IDS_FILE, TEXT_FILE
from keras_transformer.export.texts import fitting_texts, sample_texts, text_batches
from keras_transformer.export.verification import FLOAT32, Bound, LiveAnswers, Search, verify

# Int8 of Multi30k's run after 7 epochs, beam 4, on 240 of its sentences: `score` 0.002, regret
# -0.005 on average and 0.10 at most; of other sentences' translations 1.9 and 3.8. The bounds lie
# between, far above the former: texts of random tokens and untrained models differ by more.
_ANY = {"worst_score": 1e6, "others": 1.0, "floor": 0.02}
BOUNDS = {
    "none": FLOAT32,
    "float16": Bound(score=0.005, regret=0.02, worst_regret=1.0, **_ANY),
    "int8": Bound(score=0.08, regret=0.15, worst_regret=2.0, **_ANY),
}
# Bounds of probabilities, which are the scores of labels.
LABEL_BOUNDS = {
    name: Bound(score=0, worst_score=0, regret=0, worst_regret=0, others=1.0, floor=most)
    for name, most in (("none", 1e-3), ("float16", 0.02), ("int8", 0.2))
}


def verify_litert(
    folder: str | os.PathLike,
    engine: Any,
    manifest: dict,
    texts: Sequence[str] | None = None,
) -> dict:
    """Translates with the exported files in fresh processes, and with the live model.

    Every signature is run, of ids at every length of a source. Without `texts` they are of random
    tokens.

    Raises:
        VerificationError: A file does not load or run on its own, takes too long, or translates
            differently.
    """
    texts = sample_texts(engine.source_tokenizer) if texts is None else list(texts)
    if engine.labels is None:
        from keras_transformer.export.litert.export import with_limits

        engine = with_limits(engine, manifest)
        bound, searches = BOUNDS[manifest["quantize"]], _searches(engine, manifest, texts)
    else:
        bound = LABEL_BOUNDS[manifest["quantize"]]
        batches = text_batches(texts, engine.source_tokenizer, engine.max_source_length)
        every = [batch for batch in batches.values() if batch]
        searches = {"labels": Search(every, {"n_best": len(engine.labels)})}
    live = LiveAnswers(engine, manifest.get("length_penalty", 0.0))
    with contextlib.ExitStack() as stack:
        artifacts: dict[str, dict[str, tuple[Engine, Search]]] = {}
        for name in (IDS_FILE, TEXT_FILE):
            if (file := Path(folder) / name).exists():
                tested = stack.enter_context(remote_engine(file))
                artifacts[name] = {key: (tested, each) for key, each in searches.items()}
        return verify(artifacts, live, bound)


def _searches(engine, manifest, texts):
    batches = text_batches(texts, engine.source_tokenizer, engine.max_source_length)
    every = [batches[name] for name in ("all", "too_long", "one", "none")]
    every += [
        fitting_texts(texts, engine.source_tokenizer, length)
        for length in manifest["source_lengths"]
    ]
    common = {"length_penalty": manifest["length_penalty"]}
    sizes = {"greedy": 1, "beam": manifest["beam_size"]}
    return {
        name: Search(every, {**common, "beam_size": sizes[name]}) for name in manifest["searches"]
    }
