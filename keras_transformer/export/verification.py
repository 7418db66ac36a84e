"""How an export is compared with the live model: on which texts, and what rounding may change."""

import dataclasses
import math
import random
import warnings
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from keras_transformer.config import EOS_ID
from keras_transformer.decoding import ModelEngine, Translation
from keras_transformer.decoding.results import NEG_INF
from keras_transformer.errors import VerificationError


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """What rounding may change.

    Attributes:
        score: Largest difference of two scores, absolute or relative.
        tie: Different translations whose scores are closer than this are near-ties: rounding
            decided which of two almost equally good hypotheses won.
        share_of_ties: How many of the translations may be near-ties.
        share_of_samples: How many of the samples may differ: where rounding decides a draw, all
            that follows is another text.
    """

    score: float
    tie: float
    share_of_ties: float
    share_of_samples: float


FLOAT32 = Tolerance(score=1e-3, tie=1e-4, share_of_ties=0.01, share_of_samples=0.02)
# Where GPUs choose another algorithm in another process, rounding differs more.
SIXTEEN_BIT = Tolerance(score=5e-2, tie=2e-2, share_of_ties=0.03, share_of_samples=0.3)


def compare(
    expected: Sequence[tuple[str, float]],
    received: Sequence[tuple[str, float]],
    tolerance: Tolerance = FLOAT32,
    rescore: Callable[[list[int]], list[float]] | None = None,
) -> dict[str, int | float]:
    """Compares `(text, score)` pair by pair; gives numbers of translations and of near-ties.

    Another text with almost the live model's score is a near-tie only if the live model, too, gives
    that text that score: an export that reports the right scores of wrong texts has none.
    `rescore` gives the live model's scores, by teacher forcing, of what was received at some
    places; without it near-ties are taken as they are, as of samples, of which most are no text's
    usual tokens. Raises `VerificationError`.
    """
    if len(expected) != len(received):
        raise VerificationError(
            "The export must give one translation for each text. "
            f"Received: {len(received)} for {len(expected)} texts."
        )
    ties, different, largest = {}, [], 0.0
    for place, pair in enumerate(zip(expected, received, strict=True)):
        (text, score), (other_text, other_score) = pair
        difference = abs(score - other_score)
        largest = max(largest, difference)
        near = math.isclose(score, other_score, rel_tol=tolerance.score, abs_tol=tolerance.score)
        if text == other_text and near:
            continue
        if difference <= tolerance.tie:
            ties[place] = pair
        else:
            different.append(pair)
    if different:
        raise VerificationError(_description("differ", different, len(expected)))
    if len(ties) > tolerance.share_of_ties * len(expected):
        raise VerificationError(
            _description("differ with almost equal scores", [*ties.values()], len(expected))
        )
    if ties and rescore is not None:
        for pair, score in zip(ties.values(), rescore([*ties]), strict=True):
            # Teacher forcing rounds otherwise than a search does.
            if not all(abs(score - reported) <= tolerance.score for _, reported in pair):
                what = f"differ, to which the live model gives the score {score:.6f},"
                raise VerificationError(_description(what, [pair], len(expected)))
    return {"texts": len(expected), "ties": len(ties), "largest_score_difference": largest}


def _description(what, pairs, count):
    (text, score), (other_text, other_score) = pairs[0]
    return (
        f"{len(pairs)} of {count} translations {what} between the live model and the export. "
        f"Received first: {other_text!r:.120} ({other_score:.6f}) "
        f"instead of {text!r:.120} ({score:.6f})."
    )


def accept_rounding_ties(
    expected: dict, received: dict, tolerance: Tolerance, others: Iterable[dict]
) -> tuple[dict, int]:
    """Lets the live model decide in batches of another size where it and the export differ.

    A beam may be cut between two hypotheses that are almost equally good. How a product is
    rounded, which depends on its rows, then decides what the search goes on with, and what it
    finds in the end may be far apart.

    `expected` are the live outputs of one call, a dict of lists, `others` those in batches of other
    sizes, made when they are needed. More differences than the share of ties, but for one, are
    none of rounding. Returns `expected` with the rows of `others` that agree with the export, and
    how many those are.
    """
    sizes = [{name: len(each[name]) for name in each} for each in (expected, received)]
    if sizes[0] != sizes[1]:
        return expected, 0  # Wrong in another way, which is told elsewhere.
    rows = len(expected["score"])
    left = [row for row in range(rows) if not _agree(expected, received, row, tolerance)]
    accepted = 0
    others = iter(others)
    while left and len(left) + accepted <= max(tolerance.share_of_ties * rows, 1):
        other = next(others, None)
        if other is None:
            break
        found = [row for row in left if _agree(other, received, row, tolerance)]
        expected = {
            name: [(other if row in found else expected)[name][row] for row in range(rows)]
            for name in expected
        }
        accepted += len(found)
        left = [row for row in left if row not in found]
    return expected, accepted


def _agree(expected, received, row, tolerance):
    one, other = (
        _pairs({name: [values[row]] for name, values in each.items()})
        for each in (expected, received)
    )
    return len(one) == len(other) and all(
        math.isclose(score, other_score, rel_tol=tolerance.score, abs_tol=tolerance.score)
        if text == other_text
        else abs(score - other_score) <= tolerance.tie
        for (text, score), (other_text, other_score) in zip(one, other, strict=True)
    )


def check_signature(
    name: str,
    calls: Sequence[tuple[dict, dict, Sequence[str]]],
    tolerance: Tolerance,
    score: Callable[[list[str], list], list[float]],
) -> dict:
    """Compares all calls of one signature.

    `calls` are the live and the received outputs of each call, dicts of nested lists, and its
    texts; `score` gives the live model's scores of translations, texts or ids. Returns what
    `compare` does, and the batch sizes; raises `VerificationError`.
    """
    expected, found, contexts = [], [], []
    for live, received, texts in calls:
        expected += _pairs(live)
        found += _pairs(received)
        contexts += _contexts(texts, _pairs(live))
    sizes = [len(live["score"]) for live, *_ in calls]
    ids = "ids" in calls[0][0]

    def rescore(places):
        return _rescored([(*contexts[place], found[place][0]) for place in places], ids, score)

    if name == "sample":
        tolerance = dataclasses.replace(
            tolerance, tie=math.inf, share_of_ties=tolerance.share_of_samples
        )
        rescore = None
    try:
        comparison = compare(expected, found, tolerance, rescore)
        for live, received, _ in calls:
            _check_the_rest(live, received, tolerance)
    except VerificationError as error:
        raise VerificationError(f"Signature {name}: {error}") from None
    return {"batch_sizes": sizes, **comparison}


def _contexts(texts, live):
    """For each hypothesis its source and the score of each of the live model's hypotheses."""
    count = len(live) // max(len(texts), 1)
    found = []
    for place, text in enumerate(texts):
        known = dict(reversed(live[place * count : (place + 1) * count]))
        found += [(text, known)] * count
    return found


def _rescored(candidates, ids, score):
    """The live model's scores of `(source, scores of its hypotheses, text)`.

    What is one of its own hypotheses has its score: it need not be made of the text's usual tokens.
    """
    unknown = [(source, text) for source, known, text in candidates if text not in known]
    targets = [[int(each) for each in text.split()] if ids else text for _, text in unknown]
    scores = iter(score([source for source, _ in unknown], targets) if unknown else ())
    return [known[text] if text in known else next(scores) for _, known, text in candidates]


def _pairs(outputs):
    """What is found and its score, hypothesis by hypothesis."""
    scores = outputs["score"]
    if "ids" in outputs:
        # How far a batch is padded depends on its longest translation, which may be a tie.
        texts = [" ".join(str(each) for each in row if each) for row in outputs["ids"]]
    else:
        texts = outputs.get("translation", [""] * len(scores))
    if texts and isinstance(texts[0], list):
        texts, scores = sum(texts, []), sum(scores, [])
    return [
        # Not infinity: the difference of two is no number.
        (text, NEG_INF if score == -math.inf else score)
        for text, score in zip(texts, scores, strict=True)
    ]


def _check_the_rest(live, received, tolerance):
    """The outputs beside translation and score, where the translations are the same."""
    if set(live) != set(received):
        raise VerificationError(
            f"The outputs must be {sorted(live)}. Received: {sorted(received)}."
        )
    for place, score in enumerate(live["score"]):
        texts = [each.get("translation", each["score"])[place] for each in (live, received)]
        if "translation" in live and texts[0] != texts[1]:
            continue  # a tie
        for name in set(live) - {"translation", "ids", "score"}:
            one, other = live[name][place], received[name][place]
            if name.endswith("_tokens"):
                same = [each for each in one if each] == [each for each in other if each]
            else:
                one, other = np.array(one, "float32"), np.array(other, "float32")
                if one.ndim == 2:
                    other = other[: one.shape[0], : one.shape[1]]
                error = tolerance.score
                same = np.allclose(one, other, rtol=error, atol=error)
            if not same:
                raise VerificationError(
                    f"`{name}` differs where the score is {score}. "
                    f"Received: {other!r:.120} instead of {one!r:.120}."
                )


def teacher_forced(
    engine: ModelEngine,
    sources: Sequence[str],
    targets: Sequence,
    length_penalty: float,
    found: bool = False,
) -> list[Translation]:
    """The live model's scores of targets, texts or lists of ids, cut as exports cut them.

    Targets that were `found` by a language model's search begin with their sources.
    """
    source_ids = engine.source_tokenizer.tokenize(sources, add_eos=True)
    target_ids = [
        engine.target_tokenizer.tokenize(each, add_eos=True) if isinstance(each, str) else each
        for each in targets
    ]
    source_ids = [cut(each, engine.max_source_length) for each in source_ids]
    starts = [len(each) - 1 if engine.continues_source else 0 for each in source_ids]
    if found:
        target_ids = [ids[start:] for ids, start in zip(target_ids, starts, strict=True)]
    most = engine.max_target_length
    target_ids = [cut(ids, most - start) for ids, start in zip(target_ids, starts, strict=True)]
    return engine.score(source_ids, target_ids, length_penalty=length_penalty)


def live_translations(engine: ModelEngine, texts: Sequence[str], **options) -> list[Translation]:
    """The live model's translations; what is too long is cut as exports cut it, without a word."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return engine.translate(texts, long_input="truncate", **options)


def cut(ids: list[int], limit: int) -> list[int]:
    """At most `limit` ids, the last of which is the end."""
    return [*ids[: limit - 1], EOS_ID] if len(ids) > limit else ids


def sample_texts(tokenizer, count: int = 200) -> list[str]:
    """Texts of 1 to 24 random tokens, for models whose corpus is not at hand."""
    chance = random.Random(7)
    ids = range(4, tokenizer.vocabulary_size)  # The first four are the special ones.
    return tokenizer.detokenize([chance.choices(ids, k=1 + i % 24) for i in range(count)])


def verification_batches(
    texts: Sequence[str], tokenizer, max_source_length: int
) -> list[list[str]]:
    """The texts in batches of several sizes, with the ones that servers get wrong among them.

    An empty batch, batches of one (a text that is cut, the empty string, a text), of 3, of 33, and
    of all the others.
    """
    too_long = " ".join(sample_texts(tokenizer, 24))
    while len(tokenizer.tokenize(too_long)) <= max_source_length:
        too_long = f"{too_long} {too_long}"
    foreign = ["Grüße, señor!", "你好，世界 😀", "e\u0301\u200b\u00a0ﬁ", "a\x00b\tc\nd"]
    blank = ["", " \t\n", "\u3000\u00a0"]
    rest = [*blank[:2], *foreign, *texts, *blank[1:], *texts[:1]]
    batches = [[], [too_long], [""], texts[:1] or foreign[:1]]
    for size in (3, 33):
        batches.append(rest[:size])
        rest = rest[size:]
    return [*batches, rest] if rest else batches


def fitting_texts(texts: Sequence[str], tokenizer, length: int, count: int = 8) -> list[str]:
    """An empty text, the longest that fit into `length` tokens including EOS, and words that fill
    it."""
    sizes = [len(each) + 1 for each in tokenizer.tokenize(texts)]
    fitting = sorted(
        (size, text) for size, text in zip(sizes, texts, strict=True) if size <= length
    )
    words = " ".join(texts).split()[:length]  # A word has one token or more.
    while words and len(tokenizer.tokenize(" ".join(words))) >= length:
        words.pop()
    return ["", *(text for _, text in fitting[-count:]), " ".join(words)]
