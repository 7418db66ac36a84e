"""How the outputs of an export compare with the live model's."""

import dataclasses
import math

import numpy as np

from keras_transformer.decoding.results import IMPOSSIBLE
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


@dataclasses.dataclass(frozen=True)
class Comparison:
    """How the translations of an export compare with the live model's.

    Attributes:
        texts: Number of translations compared.
        ties: Number that differ in text while the scores agree within `Tolerance.tie`.
        largest_score_difference: Over all texts.
    """

    texts: int
    ties: int
    largest_score_difference: float


def compare(expected, received, tolerance=FLOAT32, rescore=None):
    """Compares translations pair by pair.

    Another text with almost the live model's score is a near-tie only if the live model, too, gives
    that text that score: an export that reports the right scores of wrong texts has none.

    Args:
        expected: A list of `(text, score)`.
        received: A list of `(text, score)`.
        tolerance: `Tolerance`.
        rescore: From a list of places to the live model's scores of what was received there, by
            teacher forcing. None: near-ties are taken without it, as samples are, of which most
            are no text's usual tokens.

    Returns:
        `Comparison`.

    Raises:
        VerificationError: A translation or a score differs, or too many are near-ties.
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
    return Comparison(len(expected), len(ties), largest)


def _description(what, pairs, count):
    (text, score), (other_text, other_score) = pairs[0]
    return (
        f"{len(pairs)} of {count} translations {what} between the live model and the export. "
        f"Received first: {other_text!r:.120} ({other_score:.6f}) "
        f"instead of {text!r:.120} ({score:.6f})."
    )


def settle(expected, received, tolerance, others):
    """Lets the live model decide in batches of another size where it and the export differ.

    A beam may be cut between two hypotheses that are almost equally good. How a product is
    rounded, which depends on its rows, then decides what the search goes on with, and what it
    finds in the end may be far apart.

    Args:
        expected: The live outputs of one call, a dict of lists.
        received: Those of the export.
        tolerance: `Tolerance`; more differences than its share of ties, but for one, are none of
            rounding.
        others: Iterable of live outputs of the same call, made in batches of other sizes; one is
            taken only if it is needed.

    Returns:
        `expected` with the rows of `others` that agree with the export, and how many those are.
    """
    sizes = [{name: len(each[name]) for name in each} for each in (expected, received)]
    if sizes[0] != sizes[1]:
        return expected, 0  # Wrong in another way, which is told elsewhere.
    rows = len(expected["score"])
    left = [row for row in range(rows) if not _agree(expected, received, row, tolerance)]
    settled = 0
    others = iter(others)
    while left and len(left) + settled <= max(tolerance.share_of_ties * rows, 1):
        other = next(others, None)
        if other is None:
            break
        found = [row for row in left if _agree(other, received, row, tolerance)]
        expected = {
            name: [(other if row in found else expected)[name][row] for row in range(rows)]
            for name in expected
        }
        settled += len(found)
        left = [row for row in left if row not in found]
    return expected, settled


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


def check_signature(name, outputs, tolerance, sources, score):
    """Compares all calls of one signature.

    Args:
        name: The signature.
        outputs: A list of (live outputs, received outputs), each a dict of nested lists.
        tolerance: `Tolerance`.
        sources: The source texts of each of these calls.
        score: From a list of source texts, and a list of translations or of ids, to the live
            model's scores.

    Returns:
        The `Comparison` as a dict, with the batch sizes.

    Raises:
        VerificationError: They differ.
    """
    pairs, contexts = [[], []], []
    for (live, received), texts in zip(outputs, sources, strict=True):
        for side, each in zip(pairs, (live, received), strict=True):
            side += _pairs(each)
        contexts += _contexts(texts, _pairs(live))

    def rescore(places):
        return _rescored([(*contexts[place], pairs[1][place][0]) for place in places], ids, score)

    if name == "sample":
        tolerance = dataclasses.replace(
            tolerance, tie=math.inf, share_of_ties=tolerance.share_of_samples
        )
        rescore = None
    ids = "ids" in outputs[0][0]
    try:
        comparison = compare(*pairs, tolerance, rescore)
        for live, received in outputs:
            _check_the_rest(live, received, tolerance)
    except VerificationError as error:
        raise VerificationError(f"Signature {name}: {error}") from None
    sizes = [len(live["score"]) for live, _ in outputs]
    return {"batch_sizes": sizes, **dataclasses.asdict(comparison)}


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
        (text, IMPOSSIBLE if score == -math.inf else score)
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
