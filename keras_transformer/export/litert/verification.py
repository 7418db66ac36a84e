"""Proof that LiteRT files translate as the live model does, without it."""

import os
import statistics
from typing import NamedTuple

from keras_transformer.decoding import ModelEngine
from keras_transformer.errors import VerificationError
from keras_transformer.export.child_process import child_process
from keras_transformer.export.manifest import phase
from keras_transformer.export.verification import (
    FLOAT32,
    compare,
    fitting_texts,
    live_translations,
    sample_texts,
    teacher_forced,
    verification_batches,
)

SECONDS_TO_START, SECONDS_PER_TEXT = 300, 5
"""The time that the fresh process gets; a text takes it 1 to 10 ms with 2 million weights."""


class _Bounds(NamedTuple):
    """What weights in fewer bits may change, as shares of the live model's mean score.

    `score`: mean difference between the export's score of its translation and the live model's.
    `regret`, `worst_regret`: by how much the live model scores its own translation higher than the
    export's, on average and at most.
    """

    score: float
    regret: float
    worst_regret: float


# Int8 of Multi30k's run after 7 epochs, beam 4, on 240 of its sentences: `score` 0.002, regret
# -0.005 on average and 0.10 at most; of other sentences' translations 1.9 and 3.8. The bounds lie
# between, far above the former: texts of random tokens and untrained models differ by more.
_BOUNDS = {
    "float16": _Bounds(0.005, 0.02, 1.0),
    "int8": _Bounds(0.08, 0.15, 2.0),
}
_LEAST_DIFFERENCE = 0.02
# The two files hold the same weights in the same bits, but are padded and so rounded differently.
_SHARE_OF_OTHER_TEXTS = 0.02


def verify_litert(
    folder: os.PathLike, engine: ModelEngine, manifest: dict, texts: list[str] | None = None
) -> dict:
    """Translates with the exported files in a fresh process, and with the live model.

    Every signature is run, of ids at every length of a source. In float32 the translations must
    be the live model's. With weights in fewer bits they need not; then the live model scores what
    the export translated: that must be what the export says, and not far below the score of the
    live model's own translation. `model.tflite` must give the texts of the ids.

    `engine` has the export's limits; without `texts` they are of random tokens.

    Raises:
        VerificationError: A file does not load or run on its own, takes too long, or translates
            differently.
    """
    tokenizer = engine.source_tokenizer
    texts = sample_texts(tokenizer) if texts is None else list(texts)
    batches = [*verification_batches(texts, tokenizer, engine.max_source_length)]
    lengths = [None] * len(batches)  # the shortest that fits
    for length in manifest["source_lengths"]:
        batches.append(fitting_texts(texts, tokenizer, length))
        lengths.append(length)
    sources = [text for batch in batches for text in batch]
    with _fresh_process(folder, batches, lengths, len(manifest["searches"])) as wait:
        with phase("the live model's answers, while a fresh process gives the files'"):
            every = {name: _live(engine, sources, name, manifest) for name in manifest["searches"]}
        with phase("waited for the files' answers"):
            answers = wait()
    report = {"batch_sizes": [len(batch) for batch in batches]}
    for search in manifest["searches"]:
        live = every[search]
        found = {kind: _pairs(answer, search) for kind, answer in answers.items()}
        ids = _joined(answers["ids"], search, "ids")
        for kind, answer in answers.items():
            pairs = found[kind]
            try:
                if len(pairs) != len(live):
                    raise VerificationError(f"{len(pairs)} for {len(live)} texts.")
                if manifest["quantize"] == "none":
                    targets = ids if kind == "ids" else [text for text, _ in pairs]
                    comparison = _exact(live, pairs, engine, sources, targets, manifest)
                elif kind == "ids":
                    comparison = _close(live, pairs, engine, sources, ids, manifest)
                else:
                    comparison = _same(found["ids"], pairs, manifest)
            except VerificationError as error:
                raise VerificationError(f"{kind}, {search}: {error}") from None
            seconds = answer["searches"][search]["call_seconds"]
            loaded = answer["load_seconds"]
            report[f"{kind}, {search}"] = {
                **comparison,
                "load_seconds": loaded,
                "call_seconds": seconds,
            }
    return report


def _joined(answer, search, name):
    """What all batches of a search gave, in one list."""
    return [each for result in answer["searches"][search]["results"] for each in result[name]]


def _pairs(answer, search):
    texts, scores = (_joined(answer, search, name) for name in ("translation", "score"))
    return list(zip(texts, scores, strict=True))


def _live(engine, texts, search, manifest):
    beam_size = 1 if search == "greedy" else manifest["beam_size"]
    options = dict(beam_size=beam_size, length_penalty=manifest["length_penalty"])
    # Each text once and all together, which are few programs: its batch-mates do not matter.
    different = list(dict.fromkeys(texts))
    found = dict(zip(different, live_translations(engine, different, **options), strict=True))
    return [found[text] for text in texts]


def _exact(live, received, engine, sources, targets, manifest):
    def rescore(places):
        return _rescored(engine, sources, targets, places, manifest)

    expected = [(each.text, each.score) for each in live]
    return compare(expected, received, FLOAT32, rescore)


def _rescored(engine, sources, targets, places, manifest):
    """The live model's scores of what was found at some places."""
    pairs = [[values[place] for place in places] for values in (sources, targets)]
    return [each.score for each in teacher_forced(engine, *pairs, manifest["length_penalty"])]


def _close(live, received, engine, sources, ids, manifest):
    """The live model's opinion of the ids that an export in fewer bits found."""
    bounds = _BOUNDS[manifest["quantize"]]
    for source, ours, row, text, (theirs, _) in zip(
        sources, live, ids, engine.target_tokenizer.detokenize(ids), received, strict=True
    ):
        if bool(ours.ids) != bool(row) or text != theirs:
            raise VerificationError(
                f"the text must be that of the ids, and empty for a blank source. Received: "
                f"{theirs!r:.120} instead of {text!r:.120} for {source!r:.120}."
            )
    places = [place for place, row in enumerate(ids) if row]
    expected = _rescored(engine, sources, ids, places, manifest)
    differences = [
        abs(score - received[place][1]) for place, score in zip(places, expected, strict=True)
    ]
    regrets = [live[place].score - score for place, score in zip(places, expected, strict=True)]
    size = _mean(abs(live[place].score) for place in places)
    for what, value, share in (
        ("the live model's score of a translation, mean difference", _mean(differences), bounds[0]),
        ("how far a translation scores below the live model's, mean", _mean(regrets), bounds[1]),
        ("how far a translation scores below the live model's, most", max(regrets), bounds[2]),
    ):
        _check_bound(what, value, share * size + _LEAST_DIFFERENCE, len(live))
    return {
        "texts": len(live),
        "same_translation": sum(a.text == b for a, (b, _) in zip(live, received, strict=True)),
        "mean_score_difference": round(_mean(differences), 6),
        "largest_score_difference": round(max(differences), 6),
        "mean_live_score": round(-size, 6),
        "mean_regret": round(_mean(regrets), 6),
        "largest_regret": round(max(regrets), 6),
    }


def _same(expected, received, manifest):
    """Compares the two files in fewer bits."""
    differences = [abs(a - b) for (_, a), (_, b) in zip(expected, received, strict=True)]
    size = _mean(abs(score) for _, score in expected)
    most = _BOUNDS[manifest["quantize"]].score * size + _LEAST_DIFFERENCE
    _check_bound(
        "score, mean difference from that of the ids", _mean(differences), most, len(received)
    )
    others = [pair for pair in zip(expected, received, strict=True) if pair[0][0] != pair[1][0]]
    if len(others) > max(1, _SHARE_OF_OTHER_TEXTS * len(received)):
        (text, _), (other, _) = others[0]
        raise VerificationError(
            f"the texts must be those of the ids. Received: {len(others)} of {len(received)} "
            f"others, first {other!r:.120} instead of {text!r:.120}."
        )
    return {
        "texts": len(received),
        "same_translation": len(received) - len(others),
        "mean_score_difference": round(_mean(differences), 6),
        "largest_score_difference": round(max(differences), 6),
    }


def _mean(values):
    return statistics.fmean([*values] or [float("nan")])


def _check_bound(what, value, most, count):
    if not value <= most:
        raise VerificationError(
            f"{what}: expected at most {most:.4f}. Received: {value:.4f} on {count} texts."
        )


def _fresh_process(folder, batches, lengths, searches):
    seconds = SECONDS_TO_START + SECONDS_PER_TEXT * searches * sum(map(len, batches))
    request = {"folder": os.fspath(folder), "batches": batches, "lengths": lengths}
    return child_process("litert", request, seconds)
