"""Proof that a CTranslate2 export translates as the live model does."""

import itertools
import math
import os

from keras_transformer.config import EOS_ID
from keras_transformer.decoding import ModelEngine, Translation
from keras_transformer.errors import VerificationError
from keras_transformer.export.child_process import child_process
from keras_transformer.export.verification import (
    live_translations,
    sample_texts,
    teacher_forced,
    verification_batches,
)

SECONDS_TO_START, SECONDS_PER_TEXT = 120, 5
"""The time that the fresh process gets; a text takes it 1 to 10 ms with 2 million weights."""

TIE = 1e-4
"""Nats by which two hypotheses may differ for rounding to decide between them."""

_MAX_LENGTH = 128
# What the live model searches at once, when a batch of 32 found another translation.
_OTHER_SIZES = (8, 1)
# A beam that is cut between two equals may go on to another translation, better or worse. What it
# may lose on average, as a share of the live model's log-probability.
_MEAN_REGRET = 0.01
# Translations that may be others, ties of greedy search among them.
_SHARE_OF_OTHERS = 0.03


def verify_ctranslate2(
    folder: str | os.PathLike,
    engine: ModelEngine,
    beam_size: int = 4,
    texts: list[str] | None = None,
) -> dict:
    """Translates with the exported folder in a fresh process, and with the live model.

    Greedy search and beam search, both without a length penalty, which the two engines define
    differently. Where a translation differs, the live model scores what the export found: greedy
    search must have met a tie, beam search may lose little on average. Few may differ at all.

    Without `texts` they are of random tokens. Returns `compare`'s for `greedy` and `beam`.

    Raises:
        VerificationError: The folder does not load or run on its own, takes too long, or
            translates differently.
    """
    tokenizer = engine.source_tokenizer
    texts = sample_texts(tokenizer) if texts is None else list(texts)
    texts = sum(verification_batches(texts, tokenizer, engine.max_source_length), [])
    texts = [text for text in texts if text.strip() and tokenizer.tokenize(text)]  # as an engine
    sizes = {"greedy": 1, "beam": beam_size}
    max_length = min(_MAX_LENGTH, engine.max_target_length)
    request = {
        "folder": os.fspath(folder),
        "texts": texts,
        "beam_sizes": [*sizes.values()],
        "max_length": max_length,
    }
    seconds = SECONDS_TO_START + SECONDS_PER_TEXT * len(texts) * len(sizes)
    report = {}
    with child_process("ctranslate2", request, seconds) as wait:
        answers = wait()
    for (name, size), answer in zip(sizes.items(), answers, strict=True):
        try:
            found = compare(engine, texts, answer, size, max_length)
        except VerificationError as error:
            raise VerificationError(f"{name}: {error}") from None
        report[name] = {**found, "seconds": answer["seconds"]}
        check_differences(name, found, may_differ=size > 1)
    return report


def check_differences(name: str, found: dict, may_differ: bool) -> None:
    """Raises `VerificationError` if `compare` found more than rounding may change.

    Unless they `may_differ`, other translations must be ties.
    """
    others = found["ties"] + found["different"]
    too_many = len(others) > max(1, _SHARE_OF_OTHERS * found["sentences"])
    if (
        too_many
        or not found["mean_regret"] <= _MEAN_REGRET
        or (found["different"] and not may_differ)
    ):
        worst = max(others, key=lambda each: each["nats"])
        raise VerificationError(
            f"{name}: {len(others)} of {found['sentences']} translations differ between the live "
            f"model and the export. The worst: {worst['export']!r:.120} instead of "
            f"{worst['live']!r:.120}, less probable by {worst['nats']} nats."
        )


def compare(
    engine: ModelEngine, texts: list[str], answer: dict, beam_size: int, max_length: int
) -> dict:
    """What is equal, what is a tie, and what is neither, fit for JSON.

    `answer` holds `tokens` and `translations`, an element for each text; `max_length` counts EOS.
    """
    tokenizer = engine.target_tokenizer
    tokens = tokenizer.pieces_of(range(tokenizer.vocabulary_size))
    id_of = {token: id for id, token in enumerate(tokens)}
    ids = [tuple(id_of[token] for token in row) for row in answer["tokens"]]
    if tokenizer.detokenize([list(row) for row in ids]) != answer["translations"]:
        raise VerificationError("The export's tokenizer must be the live model's.")
    options = dict(beam_size=beam_size, length_penalty=0.0, max_length=max_length)
    options["max_length_ratio"] = math.inf
    live, left = [None] * len(texts), [*range(len(texts))]
    first = None
    for batch_size in (32, *_OTHER_SIZES):
        found = live_translations(
            engine, [texts[place] for place in left], batch_size=batch_size, **options
        )
        first = first or found
        for place, each in zip(left, found, strict=True):
            live[place] = each
        left = [place for place in left if _without_end(live[place].ids) != ids[place]]
    targets = [[*ids[place], EOS_ID][:max_length] for place in left]
    scored = teacher_forced(engine, [texts[place] for place in left], targets, 0.0)
    ties, different = [], []
    for place, theirs in zip(left, scored, strict=True):
        ours = first[place]
        nats = distance(ours, theirs, beam_size)
        each = {"source": texts[place], "live": ours.text, "export": theirs.text}
        each["nats"] = round(nats, 6)
        (ties if abs(nats) <= TIE else different).append(each)
    lost = sum(max(each["nats"], 0.0) for each in different)
    whole = sum(abs(each.log_probability) for each in first)
    return {
        "sentences": len(texts),
        "equal": len(texts) - len(left),
        "ties": ties,
        "different": different,
        "mean_regret": round(lost / max(whole, TIE), 6),
    }


def _without_end(ids):
    return tuple(id for id in ids if id != EOS_ID)


def distance(ours: Translation, theirs: Translation, beam_size: int) -> float:
    """How much more probable the live model's is; of greedy search, its first other token."""
    if beam_size > 1:
        return ours.log_probability - theirs.log_probability
    columns = (zip(each.ids, each.token_log_probabilities, strict=True) for each in (ours, theirs))
    for (id, value), (other_id, other) in itertools.zip_longest(*columns, fillvalue=(None, 0.0)):
        if id != other_id:
            return value - other
    return 0.0
