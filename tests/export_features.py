"""Engines × options: what each engine takes.

`engine/test_contract.py` checks each cell. `docs/_ext/reference.py` writes the table in
`docs/results/limits.md`.
"""

OF_A_CALL = {"alignment", "batch_size", "n_best"}
SAMPLING = {"sampling", "seed", "temperature", "top_k", "top_p"}
RANKING = {"beam_size", "length_penalty", "length_normalization", "word_penalty"}
LIMITS = {"min_length", "max_length", "max_length_ratio", "no_repeat_ngram_size"}
LIMITS |= {"allow_unknown", "banned_ids", "early_stopping"}
TAKES = {
    "saved_model": OF_A_CALL | SAMPLING,
    "litert": OF_A_CALL | {"long_input"},
    "ctranslate2": OF_A_CALL
    | RANKING
    | LIMITS
    | {"long_input", "target_prefixes"}
    | SAMPLING - {"seed"},
}
"""Options that the engine of a format takes. A run takes all options."""

CAN = {
    "saved_model": {"translate", "score", "sample", "align"},
    "litert": {"translate", "align"},
    "ctranslate2": {"translate", "score", "sample", "align"},
}
"""Capabilities of the engine of a format."""

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
"""Rows of the table of the page, with their options."""

_OF_THE_MODEL = {"glossary", "languages", "tag"}
_ALWAYS = {"greedy", "markup", "placeholders"}
_SET_BY_THE_EXPORT = {
    "another beam": "1 or the exported size",
    "another penalty": "the exported penalty",
    "banned ids": "the exported ids",
}


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
        table.append([feature, names, of_run, *(_cell(format, feature) for format in TAKES)])
    return table


def _cell(format, feature):
    if feature in _OF_THE_MODEL:
        return "if the model has it"
    if feature == "shortlist":
        return "no" if format == "saved_model" else "if exported with it"
    if feature in ("score", "stream"):
        return "yes" if feature in CAN[format] else "no"
    if (format, feature) == ("ctranslate2", "sampling"):
        return "yes, with random numbers of its own"
    if feature in _ALWAYS or FEATURES[feature].keys() <= TAKES[format]:
        return "yes"
    return _SET_BY_THE_EXPORT.get(feature, "no")
