import concurrent.futures
import shutil
import subprocess
import sys

import numpy as np
import pytest

from keras_transformer import Translator
from keras_transformer.engine import ctranslate2 as engine_module
from keras_transformer.errors import InputError
from keras_transformer.export import export_ctranslate2
from keras_transformer.ids import UNK_ID

pytest.importorskip("ctranslate2", reason="comes with the extra [ctranslate2]")
pytestmark = pytest.mark.tensorflow

TEXTS = ["a man runs.", "two dogs", "", "the old clerk", "a girl", " ", "läuft", "in Köln."]
OWN_LENGTHS = {"max_length_ratio": 0.7}


@pytest.fixture(scope="module")
def live(make_engine, other_tokenizer):
    """A live engine with two vocabularies, whose translations depend on the source."""
    return make_engine(
        other_tokenizer, with_xla=False, normalize_first=True, tie_embeddings="decoder"
    )


@pytest.fixture(scope="module")
def folder(live, texts, tmp_path_factory):
    """The path of `live`, exported for CTranslate2 with beam size 3 and penalty 0.8."""
    folder = tmp_path_factory.mktemp("ctranslate2") / "model"
    export_ctranslate2(live, folder, texts[:20], beam_size=3, length_penalty=0.8)
    return folder


@pytest.fixture(scope="module")
def translator(folder):
    return Translator.load(folder)


def hypotheses(translations):
    return [
        [(each.text, each.tokens, each.ids) for each in (best, *best.alternatives)]
        for best in translations
    ]


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.2])
@pytest.mark.parametrize("options", [{"beam_size": 1}, {"beam_size": 3, "n_best": 2}, OWN_LENGTHS])
def test_its_hypotheses_and_scores_are_the_live_models(live, translator, length_penalty, options):
    """Padding and BOS, which CTranslate2's own probabilities leave out, keep their share."""
    options = {"beam_size": 3, **options, "length_penalty": length_penalty}
    expected, found = (each.translate(TEXTS, **options) for each in (live, translator))
    assert hypotheses(found) == hypotheses(expected)
    for name in ("score", "log_probability"):
        one, other = (
            [getattr(each, name) for best in every for each in (best, *best.alternatives)]
            for every in (found, expected)
        )
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_the_exports_beam_size_and_length_penalty_are_the_defaults(live, translator):
    expected = live.translate(TEXTS, beam_size=3, length_penalty=0.8)
    assert hypotheses(translator.translate(TEXTS)) == hypotheses(expected)


def test_its_alignments_are_the_live_models_in_any_batch(live, translator):
    options = {"alignment": True, "beam_size": 3, "n_best": 2}
    expected = live.translate(TEXTS, **options)
    for batch_size in (1, 8):
        found = translator.translate(TEXTS, **options, batch_size=batch_size)
        for one, other in zip(found, expected, strict=True):
            pairs = zip((one, *one.alternatives), (other, *other.alternatives), strict=True)
            for each, of_live in pairs:
                assert each.source_tokens == of_live.source_tokens
                if of_live.alignment is not None:
                    np.testing.assert_allclose(each.alignment, of_live.alignment, atol=1e-5)


def test_prefixes_begin_the_translations_of_the_live_model(live, translator):
    prefixes = ["A", "", "IN", "ON A", "", "", "TWO", "A"]
    options = {"target_prefixes": prefixes, "beam_size": 3, "length_penalty": 1.0}
    expected, found = (each.translate(TEXTS, **options) for each in (live, translator))
    assert hypotheses(found) == hypotheses(expected)
    np.testing.assert_allclose(
        [each.score for each in found], [each.score for each in expected], rtol=5e-3, atol=5e-3
    )


def test_scores_of_given_translations_are_the_live_models(live, translator):
    targets = ["A GIRL", "", "IN KÖLN.", "TWO", "A", "A", "ON", "A"]
    expected, found = (each.score(TEXTS, targets) for each in (live, translator))
    for one, other in zip(found, expected, strict=True):
        assert (one.ids, one.tokens) == (other.ids, other.tokens)
        np.testing.assert_allclose(
            one.token_log_probabilities, other.token_log_probabilities, atol=1e-4
        )


def test_a_prefix_of_another_sentence_changes_no_score(translator):
    texts = [text for text in TEXTS if text.strip()]
    # With this vocabulary everything is scored again: as with a large one nothing is here.
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(engine_module, "_FEW_TOKENS", 0)
        alone = translator.translate(texts)
        together = translator.translate(texts, target_prefixes=["A"] + [""] * (len(texts) - 1))
    for found, expected in list(zip(together, alone, strict=True))[1:]:
        assert (found.text, found.score) == (expected.text, expected.score)


@pytest.mark.parametrize(
    "options",
    [
        {"sampling": True, "n_best": 3, "temperature": 2.0, "top_k": 7},
        {"no_repeat_ngram_size": 2, "beam_size": 3, "n_best": 3},
        {"banned_ids": (7, 9), "min_length": 5, "beam_size": 3},
    ],
)
def test_log_probabilities_under_constraints_are_the_models_own(live, translator, options):
    texts = [text for text in TEXTS if text.strip()]
    found = translator.translate(texts, **options)
    pairs = [
        (text, each)
        for text, best in zip(texts, found, strict=True)
        for each in (best, *best.alternatives)
    ]
    expected = live.score([text for text, _ in pairs], [each.ids for _, each in pairs])
    np.testing.assert_allclose(
        [each.log_probability for _, each in pairs],
        [each.log_probability for each in expected],
        atol=1e-3,
    )
    for _, each in pairs:
        assert not {7, 9} & set(each.ids) or "banned_ids" not in options
        assert len(each.ids) >= options.get("min_length", 1)
        pairs_of_ids = list(zip(each.ids, each.ids[1:], strict=False))
        assert len(set(pairs_of_ids)) == len(pairs_of_ids) or "no_repeat_ngram_size" not in options


def test_a_long_text_is_refused_cut_or_split(live, translator):
    text = "a man runs. two dogs. a girl runs."
    with pytest.raises(InputError, match="at most 13 tokens"):
        translator.translate([text])
    for long_input in ("truncate", "split"):
        with pytest.warns(UserWarning, match="longer than 13 tokens"):
            (found,) = translator.translate([text], long_input=long_input)
        with pytest.warns(UserWarning, match="longer than 13 tokens"):
            options = {"beam_size": 3, "length_penalty": 0.8}
            (expected,) = live.translate([text], long_input=long_input, **options)
        assert found.text == expected.text and len(found.parts) == len(expected.parts)


def test_several_threads_get_the_answers_of_one(translator):
    expected = hypotheses(translator.translate(TEXTS))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: hypotheses(translator.translate(TEXTS)), range(12)))
    assert found == [expected] * 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 3, "sampling": True}, "`seed` is fixed at 0 in a CTranslate2 export; a run"),
        ({"logit_bias": {5: 1.0}}, "`logit_bias` is fixed at"),
        ({"early_stopping": False}, "`early_stopping` is fixed at True"),
        ({"max_length": 99}, "`max_length` must be at most 17"),
        ({"beam_size": 0}, "`beam_size` must be a positive integer"),
        ({"n_best": 4, "beam_size": 3}, "`n_best` must be at most `beam_size`"),
        ({"nonsense": 1}, "There is no option `nonsense`"),
    ],
)
def test_an_option_that_it_does_not_have_is_one_line(translator, options, message):
    with pytest.raises(InputError, match=message):
        translator.translate(["a man"], **options)


WITHOUT_KERAS = """
import sys
# With None in a module's place its import ends in ImportError.
sys.modules.update(dict.fromkeys(["keras", "tensorflow", "tensorflow_text"]))
sys.argv = ["keras-transformer", "translate", "--model", sys.argv[1]]
from keras_transformer.cli.main import main
main()
"""


def test_the_command_translates_without_tensorflow_or_keras(folder, translator):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_KERAS, str(folder)],
        input="".join(f"{text}\n" for text in TEXTS),
        capture_output=True,
        text=True,
    )
    expected = [each.text for each in translator.translate(TEXTS)]
    assert (done.returncode, done.stdout.splitlines()) == (0, expected)


def test_what_it_cannot_do_is_one_line_that_names_what_it_can(translator):
    rule = "`stream` needs a run folder: a CTranslate2 export can align, sample, score, translate"
    with pytest.raises(InputError, match=rule):
        translator.stream("a man")


def test_a_damaged_or_incomplete_folder_is_refused(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    content = bytearray((copy / "model.bin").read_bytes())
    content[len(content) // 2] ^= 1
    (copy / "model.bin").write_bytes(content)
    with pytest.raises(InputError, match="model.bin is not the file that was exported"):
        Translator.load(copy)
    (copy / "export.json").unlink()
    with pytest.raises(InputError, match="expected a CTranslate2 model"):
        Translator.load(copy)


def test_the_error_without_ctranslate2_names_the_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(InputError, match=r"keras-transformer-nmt\[ctranslate2\]"):
        Translator.load(folder)


def test_the_unknown_token_is_chosen_only_where_it_is_allowed(translator):
    # At this temperature all of the 53 tokens are nearly equally probable.
    options = {"sampling": True, "temperature": 100.0}
    allowed = translator.translate(TEXTS * 20, allow_unknown=True, **options)
    assert any(UNK_ID in each.ids for each in allowed)
    assert not any(UNK_ID in each.ids for each in translator.translate(TEXTS * 20, **options))
