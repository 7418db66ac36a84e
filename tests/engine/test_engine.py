"""Engines refuse what they do not take, in one line."""

import numpy as np
import pytest

from keras_transformer.engine import Engine, LabelEngine
from keras_transformer.engine.inputs import encoded
from keras_transformer.engine.request import OptionRules
from keras_transformer.errors import InputError


class Export(Engine):
    manifest = {"beam_size": 3, "max_length_ratio": None}  # as it is read from a file

    option_rules = OptionRules(translate=["top_k"])

    def translate(self, texts, **options):
        self.check_fixed(options)
        return []


class Labels(LabelEngine):
    labels = ["no", "yes"]

    def probabilities(self, texts, batch_size=32, long_input="refuse"):
        raise AssertionError("The options are checked first.")


def test_what_an_engine_does_may_be_asked_for():
    Export().translate([], alignment=False, max_length=None, beam_size=3, top_k=7)
    Export().translate([], beam_size=None, max_length_ratio=2.0)
    Export().translate([], banned_ids=[], target_prefixes=None)
    assert Labels().translate(np.array([]), beam_size=1, sampling=False) == []


def test_only_an_engine_with_a_limit_shows_it():
    engine = Export()
    assert repr(engine) == "<Export: translate>"
    engine.max_source_length = 9
    assert repr(engine) == "<Export: translate, at most 9 tokens per source>"


@pytest.mark.parametrize(
    "engine, options, message",
    [
        (Export, {"beam_size": 4}, "`beam_size` is fixed at 3 in this export; a run folder takes"),
        (Export, {"alignment": True}, "`alignment` is fixed at False in this export"),
        (Export, {"max_lenght": 3}, "no option `max_lenght`. Did you mean `max_length`?"),
        (Export, {"seed": np.array([1, 2])}, "`seed` is fixed at 0 in this export"),
        (Export, {"zebra": 3}, "There is no option `zebra`."),
        (Labels, {"beam_size": 4}, "`beam_size` is fixed at 1 in a classifier. Received"),
        (Labels, {"beam_sise": 1}, "no option `beam_sise`. Did you mean `beam_size`?"),
    ],
)
def test_anything_else_is_refused(engine, options, message):
    with pytest.raises(InputError) as error:
        engine().translate(["a"], **options)
    assert message in str(error.value)


def test_half_a_surrogate_pair_is_no_text():
    assert encoded("texts", ["é"]) == [b"\xc3\xa9"]
    with pytest.raises(InputError, match="Text 2: `sources` must be valid Unicode"):
        encoded("sources", ["a", "a\ud800"])
