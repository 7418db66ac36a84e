"""Formats × features: which export does what the trained model does, and what the others say.

The single source of `export/test_features.py`, which checks each cell, and of the table in
`docs/results/limits.md`, which `docs/_ext/reference.py` writes.
"""

FEATURES = {
    "greedy": {"beam_size": 1},
    "beam": {},
    "several hypotheses": {"n_best": 2},
    "another beam": {"beam_size": 2},
    "another penalty": {"length_penalty": 0.3},
    "sampling": {"sampling": True},
    "seed": {"sampling": True, "seed": 5},
    "alignment": {"alignment": True},
    "prefixes": {"target_prefixes": ["12", "", ""]},
    "phrases": {"phrases": [["12"], [], []]},
    "banned ids": {"banned_ids": [9]},
    "shortlist": {"shortlist": True},
    "parts of long texts": {"long_input": "split"},
    "markup": {"markup": "html"},
    "placeholders": {"markup": "placeholders"},
    "glossary": {"glossary": {"man": "12"}},
    "languages": {"target_language": "de"},
    "tag": {"tag": "bt"},
    "score": {},
    "stream": {},
}
"""Options of a call with each feature. The names are those of the rows of the table."""

OF_MODEL = {
    "glossary": "`glossary` needs a run folder, or a model trained with `data.glossary`",
    "languages": "need a model that names languages",
    "tag": "`tag` needs a model trained with tags",
}
"""Messages where a model without a feature is exported; the export of another model has it."""

EVERYWHERE = {
    "shortlist": "`shortlist` is fixed at False in a",
    "phrases": "`phrases` is fixed at None in a",
    "stream": "`stream` needs a run folder: a",
}
"""Messages of all exports without a feature. One with a shortlist has it."""

LACKS = {
    "saved_model": {
        "another beam": "`beam_size` is fixed at 3 in a SavedModel",
        "another penalty": "`length_penalty` is fixed at 0.8 in a SavedModel",
        "prefixes": "`target_prefixes` is fixed at None in a SavedModel",
        "banned ids": "`banned_ids` is fixed at .* in a SavedModel",
        "parts of long texts": "`long_input` is fixed at 'truncate' in a SavedModel",
    },
    "litert": {
        "another beam": "`beam_size` must be 1 or 3 in this export",
        "another penalty": "`length_penalty` is fixed at 0.8 in a LiteRT export",
        "sampling": "`sampling` is fixed at False in a LiteRT export",
        "seed": "is fixed at .* in a LiteRT export",
        "prefixes": "`target_prefixes` is fixed at None in a LiteRT export",
        "banned ids": "`banned_ids` is fixed at .* in a LiteRT export",
        "score": "`score` needs a run folder: a LiteRT export can align, translate",
    },
    "ctranslate2": {"seed": "`seed` is fixed at 0 in a CTranslate2 export"},
}
"""Messages of the exports of each format that lack a feature."""

OWN_CHANCE = {("ctranslate2", "sampling")}
"""CTranslate2 samples with random numbers of its own."""


SEARCHED = {"languages", "beam_size", "early_stopping"}
TAKES = {
    "saved_model": {*SEARCHED, "signatures"},
    "litert": {*SEARCHED, "shortlist", "quantize", "source_lengths", "n_best"},
    "web": {*SEARCHED, "shortlist", "quantize", "source_lengths"},
    "ctranslate2": {*SEARCHED, "shortlist", "quantize"},
    "marian": {"languages", "beam_size"},
    "hugging_face": SEARCHED,
    "argos": {"languages", "quantize", "package_version"},
}
"""Options of `export` that each format takes."""

_SET_BY_THE_EXPORT = {
    "another beam": "1 or the exported size",
    "another penalty": "the exported penalty",
    "banned ids": "the exported ids",
}


def message_of(format: str, feature: str) -> str | None:
    """Returns what an export without a feature says; None where it has the feature."""
    return {**OF_MODEL, **EVERYWHERE, **LACKS[format]}.get(feature)


def rows() -> list[list[str]]:
    """Returns the rows of the table: a feature, its options, and a cell for each format."""
    table = []
    for feature, options in FEATURES.items():
        shown = (
            name if isinstance(value, list | dict) else f"{name}={value!r}"
            for name, value in options.items()
        )
        names = ", ".join(f"`{option}`" for option in shown)
        if feature in ("score", "stream"):
            names = f"`Translator.{feature}`"
        of_run = "if the model has it" if feature in ("languages", "tag", "shortlist") else "yes"
        table.append([feature, names, of_run, *(_cell(format, feature) for format in LACKS)])
    return table


def _cell(format, feature):
    if feature in OF_MODEL:
        return "if the model has it"
    if feature == "shortlist" and feature in TAKES[format]:
        return "if exported with it"
    if (format, feature) in OWN_CHANCE:
        return "yes, with random numbers of its own"
    is_missing = message_of(format, feature) is not None
    return _SET_BY_THE_EXPORT.get(feature, "no") if is_missing else "yes"
