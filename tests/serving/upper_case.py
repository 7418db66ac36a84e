"""An engine whose translations are known."""

import math

import numpy as np
from fakes import FakeEngine

from keras_transformer import Translation
from keras_transformer.errors import InputError


class Engine(FakeEngine):
    """An engine that notes its calls: upper case, the word "bad" fails."""

    capabilities = frozenset({"translate", "score", "sample", "align"})

    def __init__(self, format="ctranslate2", **manifest):
        self.manifest = {"format": f"keras_transformer.{format}", "beam_size": 2, **manifest}
        self.calls = []

    def request(self, **options):
        if options.get("alignment") and "align" not in self.capabilities:
            raise InputError("no alignments")

    def translate(self, texts, **options):
        self.calls.append((list(texts), options))
        if "bad" in texts:
            raise InputError("text 1 is bad.\nMore.")
        if "bug" in texts:
            raise RuntimeError("a bug")
        second = Translation("", -math.inf)
        fields = {"alternatives": (second,) * (options.get("n_best", 1) - 1)}
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
