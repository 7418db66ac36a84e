"""An engine whose translations are known."""

import math

import numpy as np
from fakes import FakeEngine

from keras_transformer import Translation
from keras_transformer.errors import InputError
from keras_transformer.serving.protocol import Rejection


class Engine(FakeEngine):
    """An engine that notes its calls: upper case, the word "bad" fails."""

    capabilities = frozenset({"translate", "score", "sample", "align"})

    def __init__(self, format="ctranslate2", **manifest):
        self.manifest = {"format": f"keras_transformer.{format}", "beam_size": 2, **manifest}
        self.calls = []

    def request(self, **options):
        if options.get("alignment") and "align" not in self.capabilities:
            raise InputError("no alignments")

    max_source_length = 10**9
    hypotheses = ("",)  # after the best

    def translate(self, texts, **options):
        self.calls.append((list(texts), options))
        if "bad" in texts:
            raise InputError("text 1 is bad.\nMore.")
        if "bug" in texts:
            raise RuntimeError("a bug")
        others = [
            Translation(text, -rank if text else -math.inf)
            for rank, text in enumerate(self.hypotheses, start=1)
        ]
        others += [Translation("", -math.inf)] * options.get("n_best", 1)
        fields = {"alternatives": tuple(others[: options.get("n_best", 1) - 1])}
        translations = []
        for text in texts:
            if options.get("alignment"):
                fields["alignment"] = np.float32([[0.1], [0.9]] * len(text))
            fields |= {"tokens": (text, "</s>"), "source_tokens": (text,)}
            upper = text.upper().replace("<PH_", "<ph_")
            translations.append(Translation(upper, 0.1, **fields))
        return translations

    def score(self, sources, targets):
        return [Translation(target, -0.5, -1.5) for target in targets]


def translations_of(model, name, rows, options=(), is_wanted=lambda: True):
    """The translation of each text of a request, in one batch per key."""

    def check():
        if not is_wanted():
            raise Rejection(504, "gone")

    work = model.prepare(name, rows, dict(options), check)
    translations = {}
    for key in dict.fromkeys(key for key, _ in work.rows):
        indices = [index for index, (other, _) in enumerate(work.rows) if other == key]
        batch = model.run(key, [work.rows[index][1] for index in indices], is_wanted)
        translations |= dict(zip(indices, batch, strict=True))
    return work.after([translations[index] for index in range(len(work.rows))])


def outputs_of(model, name, *arguments):
    """The outputs of a signature of each text of a request."""
    return model.outputs(name, translations_of(model, name, *arguments))
