import math
from copy import copy as copy_object

import pytest

from keras_transformer import Translator
from keras_transformer.engine.evaluation import evaluate_model
from keras_transformer.errors import InputError
from keras_transformer.translation import Translation

pytestmark = pytest.mark.tensorflow


@pytest.mark.slow
def test_a_blank_text_gives_an_empty_translation(exported):
    for options in ({}, {"beam_size": 1}, {"alignment": True}, {"sampling": True}):
        assert exported.translate([" \n"], **options) == [Translation("", 0.0)]


def test_too_long_references_have_no_perplexity(exported, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(Translator, "load", lambda path, **options: Translator(exported))
    pairs, options = tmp_path / "pairs.tsv", {"perplexity": True}
    pairs.write_text("a man\tthe girl\na girl\ta man #\n", encoding="utf-8")
    assert evaluate_model("any", pairs, **options)["unknown_word_share"] == 0.2
    assert len(tokenizer.tokenize("two dogs " * 9, add_eos=True)) > exported.max_target_length == 17
    pairs.write_text(f"a man\t{'two dogs ' * 9}\n", encoding="utf-8")
    with pytest.raises(
        InputError, match="pairs.tsv, line 1: .*`references` must have at most 17 tokens.* 'two"
    ):
        evaluate_model("any", pairs, **options)


def test_an_export_scores_with_the_options_that_it_was_made_with(exported):
    pairs = ["a man"], ["the girl"]
    fixed = {"length_normalization": "gnmt", "alignment": False}
    assert exported.score(*map(iter, pairs), **fixed) == exported.score(*pairs)
    with pytest.raises(InputError, match="`word_penalty` is fixed at 0.0"):
        exported.score(*pairs, word_penalty=1.0)


def test_an_export_with_fewer_signatures_says_what_it_lacks(exported):
    fewer = copy_object(exported)
    fewer._signatures, fewer.capabilities = ("serving_default",), frozenset({"translate"})
    (best,) = fewer.translate(["a man"])
    assert best.text == exported.translate(["a man"])[0].text and math.isnan(best.log_probability)
    needed = {"beam": {"n_best": 2}, "sample": {"sampling": True}, "align": {"alignment": True}}
    for name, options in needed.items():
        with pytest.raises(InputError, match=f"needs the signature `{name}`"):
            fewer.translate(["a man"], **options)
    with pytest.raises(InputError, match="`score` needs the signature `score`"):
        fewer.score(["a"], ["b"])
    with pytest.raises(InputError, match="`beam_size` is fixed at 3"):
        fewer.translate(["a man"], beam_size=1)
