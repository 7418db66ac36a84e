import numpy as np
import pytest

from keras_transformer import Translator
from keras_transformer.engine.exports import ctranslate2 as engine_module
from keras_transformer.errors import InputError
from keras_transformer.ids import UNK_ID

pytestmark = pytest.mark.tensorflow

TEXTS = ["a man runs.", "two dogs", "the old clerk", "a girl", "läuft", "in Köln."]


@pytest.fixture(scope="module")
def translator(ctranslate2_report):
    return Translator.load(ctranslate2_report.folder)


def test_a_prefix_of_another_sentence_changes_no_score(translator, monkeypatch):
    # With this vocabulary everything is scored again: as with a large one nothing is here.
    monkeypatch.setattr(engine_module, "_FEW_TOKENS", 0)
    alone = translator.translate(TEXTS)
    together = translator.translate(TEXTS, target_prefixes=["A"] + [""] * (len(TEXTS) - 1))
    for received, expected in list(zip(together, alone, strict=True))[1:]:
        assert (received.text, received.score) == (expected.text, expected.score)


CONSTRAINED = [{"sampling": True, "n_best": 3, "temperature": 2.0, "top_k": 7}]
CONSTRAINED += [{"no_repeat_ngram_size": 2, "beam_size": 3, "n_best": 3}]
CONSTRAINED += [{"banned_ids": (7, 9), "min_length": 5, "beam_size": 3}]


@pytest.mark.parametrize("options", CONSTRAINED)
def test_constrained_log_probabilities_are_the_models_own(two_sided_engine, translator, options):
    pairs = [
        (text, hypothesis)
        for text, best in zip(TEXTS, translator.translate(TEXTS, **options), strict=True)
        for hypothesis in (best, *best.alternatives)
    ]
    expected = two_sided_engine.score([text for text, _ in pairs], [h.ids for _, h in pairs])
    sides = [hypothesis for _, hypothesis in pairs], expected
    received, scored = ([t.log_probability for t in side] for side in sides)
    np.testing.assert_allclose(received, scored, atol=1e-3)
    for _, hypothesis in pairs:
        assert not {7, 9} & set(hypothesis.ids) or "banned_ids" not in options
        assert len(hypothesis.ids) >= options.get("min_length", 1)
        bigrams = list(zip(hypothesis.ids, hypothesis.ids[1:], strict=False))
        assert len(set(bigrams)) == len(bigrams) or "no_repeat_ngram_size" not in options


LIMITS = [{"min_length": 24}, {"min_length": 40}]
LIMITS += [{"max_length_ratio": 0.2, "length_normalization": "marian"}]


@pytest.mark.parametrize("options", LIMITS)
def test_limits_that_it_refuses_are_the_trained_models(two_sided_engine, translator, options):
    options = {**options, "beam_size": 1, "alignment": True}
    expected = two_sided_engine.translate(TEXTS, **options)
    translations = translator.translate(TEXTS, **options)
    assert [translation.ids for translation in translations] == [best.ids for best in expected]
    assert len(translator.translate(TEXTS, sampling=True, top_k=1000)) == len(TEXTS)


def test_what_it_cannot_do_is_one_line_that_names_what_it_can(translator):
    rule = "`stream` needs a run folder: a CTranslate2 export can align, sample, score, translate"
    with pytest.raises(InputError, match=rule):
        translator.stream("a man")


def test_the_unknown_token_is_chosen_only_where_it_is_allowed(translator):
    # At this temperature all of the 53 tokens are nearly equally probable.
    options = {"sampling": True, "temperature": 100.0}
    allowed = translator.translate(TEXTS * 20, allow_unknown=True, **options)
    assert any(UNK_ID in t.ids for t in allowed)
    assert not any(UNK_ID in t.ids for t in translator.translate(TEXTS * 20, **options))
