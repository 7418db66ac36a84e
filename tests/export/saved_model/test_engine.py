import math
from copy import copy as copy_object

import pytest

from keras_transformer import Translator
from keras_transformer.base.errors import InputError
from keras_transformer.base.ids import EOS_ID
from keras_transformer.engine.evaluation import evaluate_model

pytestmark = pytest.mark.tensorflow


def test_too_long_references_have_no_perplexity(exported, other_tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(Translator, "load", lambda path, **options: Translator(exported))
    pairs, options = tmp_path / "pairs.tsv", {"perplexity": True}
    pairs.write_text("a man\tTHE GIRL\na girl\tA MAN #\n", encoding="utf-8")
    assert evaluate_model("any", pairs, **options)["unknown_word_share"] == 0.2
    long = "TWO DOGS " * 9
    assert len(other_tokenizer.tokenize(long, add_eos=True)) > exported.max_target_length == 17
    pairs.write_text(f"a man\t{long}\n", encoding="utf-8")
    with pytest.raises(
        InputError, match="pairs.tsv, line 1: .*`references` must have at most 17 tokens.* 'TWO"
    ):
        evaluate_model("any", pairs, **options)


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


@pytest.mark.slow
def test_a_target_that_is_too_long_is_truncated_before_its_language_is_forced(
    engine_of_languages, folder_of_languages
):
    exported, trained = (
        Translator.load(folder_of_languages("saved_model")).engine,
        engine_of_languages(),
    )
    long = " ".join(["TWO DOGS NEAR THE RIVER."] * 30)
    (ids,) = trained.target_tokenizer.tokenize([long])
    named = {"source_language": "en", "target_language": "de"}
    expected = trained.score(["a girl"], [[*ids[:16], EOS_ID]], **named)
    (received,) = exported.score(["a girl"], [long], **named)
    assert received.log_probability == pytest.approx(expected[0].log_probability, abs=1e-3)
