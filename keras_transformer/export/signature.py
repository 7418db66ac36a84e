"""The table of the signatures: inputs, outputs and meanings, for exports, engines and servers."""

from typing import NamedTuple

from keras_transformer.decoding.search_options import FILTERS


class Tensor(NamedTuple):
    """An input or output: TensorFlow's name of its type, and sizes without the batch's.

    A variable size is None.
    """

    dtype: str
    shape: tuple[int | None, ...] = ()


class Signature(NamedTuple):
    """One function of a model.

    Attributes:
        name: Its name.
        inputs: Inputs by name.
        outputs: Outputs by name. Of several hypotheses, the first axis after the batch has each.
        meaning: What it returns, for people.
    """

    name: str
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    meaning: str = ""


TEXT = Tensor("string")
"""A text for each sentence."""
SAMPLING_INPUTS = {
    "seed": Tensor("int32"),
    **{name: Tensor(filter.dtype) for name, filter in FILTERS.items()},
}
"""Inputs of `sample` in addition to the text."""
_NUMBER, _TOKENS = Tensor("float32"), Tensor("string", (None,))
_BEST = {"translation": TEXT, "score": _NUMBER}
_RATED = {**_BEST, "log_probability": _NUMBER}
_ROWS = (
    Signature(
        "serving_default",
        {"text": TEXT},
        _BEST,
        "the best translation by beam search, and its score",
    ),
    Signature(
        "greedy", {"text": TEXT}, _RATED, "the best translation by greedy search, and its score"
    ),
    Signature(
        "beam",
        {"text": TEXT},
        {name: Tensor(tensor.dtype, (None,)) for name, tensor in _RATED.items()},
        'all hypotheses of the beam, best first; a missing one is "" with the score -inf',
    ),
    Signature(
        "sample",
        {"text": TEXT, **SAMPLING_INPUTS},
        _RATED,
        "a sample; the same text and seed give the same sample in any batch",
    ),
    Signature(
        "score",
        {"source": TEXT, "target": TEXT},
        {"log_probability": _NUMBER, "score": _NUMBER},
        "the log-probability of given translations",
    ),
    Signature(
        "align",
        {"text": TEXT},
        {
            **_RATED,
            "source_tokens": _TOKENS,
            "target_tokens": _TOKENS,
            "alignment": Tensor("float32", (None, None)),
        },
        "the best translation with its tokens, and the attention of each token to the source",
    ),
)
SIGNATURES = {row.name: row for row in _ROWS}
"""The signatures of a model that writes text. A model of several languages also takes their codes,
and a language model also gives numbers of the continuation."""
LABEL_SIGNATURES = {
    "serving_default": Signature(
        "serving_default",
        {"text": TEXT},
        {"label": TEXT, "probabilities": Tensor("float32", (None,))},
        "the most probable label, and the probabilities of all labels",
    )
}
"""The signature of a classifier."""
