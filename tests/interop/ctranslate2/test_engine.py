import hashlib
import json
import shutil
from unittest import mock

import numpy as np
import pytest
from device_plans import ONE_GRAPH

from keras_transformer import Tokenizer, Translator
from keras_transformer.engine import ModelEngine
from keras_transformer.errors import InputError
from keras_transformer.export import export_ctranslate2
from keras_transformer.ids import EOS_ID, UNK_ID
from keras_transformer.interop.ctranslate2 import engine as engine_module
from keras_transformer.interop.ctranslate2.export import write_vocabulary_map
from keras_transformer.text.languages import Languages
from keras_transformer.text.shortlist import Shortlist

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


LIMITS = [{"min_length": 16}, {"min_length": 17}]
LIMITS += [{"max_length_ratio": 0.2, "length_normalization": "marian"}]


@pytest.mark.parametrize("options", LIMITS)
def test_limits_that_it_refuses_are_the_trained_models(two_sided_engine, translator, options):
    options = {**options, "beam_size": 1, "alignment": True}
    expected = two_sided_engine.translate(TEXTS, **options)
    translations = translator.translate(TEXTS, **options)
    assert [translation.ids for translation in translations] == [best.ids for best in expected]
    assert len(translator.translate(TEXTS, sampling=True, top_k=1000)) == len(TEXTS)


def test_a_model_without_a_variable_is_refused_while_it_is_opened(ctranslate2_report, tmp_path):
    folder = tmp_path / "export"
    shutil.copytree(ctranslate2_report.folder, folder)
    manifest = json.loads((folder / "export.json").read_text("utf-8"))
    whole = (folder / "model.bin").read_bytes()
    for name in (b"encoder/layer_0/ffn/linear_0/weight", b"decoder/projection/weight"):
        changed = whole.replace(name + b"\0", name[:-1] + b"x\0")
        assert changed != whole
        (folder / "model.bin").write_bytes(changed)
        manifest["files"]["model.bin"] = hashlib.sha256(changed).hexdigest()
        (folder / "export.json").write_text(json.dumps(manifest), "utf-8")
        with pytest.raises(
            InputError, match="export: CTranslate2 cannot load it.*not found"
        ) as error:
            Translator.load(folder)
        assert "\n" not in str(error.value)


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


@pytest.fixture(scope="module")
def with_shortlist(listed_engine, texts, exported_once):
    export, options = export_ctranslate2, {"beam_size": 3, "shortlist": True}
    report = exported_once("ctranslate2_list", export, listed_engine, texts[:20], **options)
    return Translator.load(report.folder)


AMONG_CANDIDATES = [{"beam_size": 3, "n_best": 2}, {"batch_size": 1}, {"shortlist": False}]
AMONG_CANDIDATES += [{"no_repeat_ngram_size": 2, "min_length": 4}]
# Of these the engine searches the whole vocabulary.
IN_ALL_TOKENS = [{"target_prefixes": ["the river", "", "a", "", "in", ""]}]
IN_ALL_TOKENS += [{"banned_ids": (9, 17), "target_prefixes": None}]


@pytest.mark.parametrize("options", [*AMONG_CANDIDATES, *IN_ALL_TOKENS])
def test_it_searches_among_the_candidates_of_each_sentence(with_shortlist, listed_engine, options):
    options = {"beam_size": 1, "shortlist": True, "length_penalty": 0.0, **options}
    received = with_shortlist.translate(TEXTS, alignment=True, **options)
    expected = listed_engine.translate(TEXTS, **options)
    if "target_prefixes" in options:
        whole = {**options, "shortlist": False}
        from_all_tokens = listed_engine.translate(TEXTS, **whole)
        prefixes = options["target_prefixes"] or ["a"] * len(TEXTS)
        rows = zip(prefixes, from_all_tokens, expected, strict=True)
        expected = [from_all if prefix else listed for prefix, from_all, listed in rows]
    for ours, theirs in zip(received, expected, strict=True):
        for hypothesis, best in zip(
            (ours, *ours.alternatives), (theirs, *theirs.alternatives), strict=True
        ):
            assert hypothesis.ids == best.ids
            assert hypothesis.log_probability == pytest.approx(best.log_probability, abs=1e-4)
    scored = with_shortlist.score(TEXTS, ["a river"] * len(TEXTS))
    for ours, theirs in zip(scored, listed_engine.score(TEXTS, ["a river"] * 6), strict=True):
        assert ours.log_probability == pytest.approx(theirs.log_probability, abs=1e-4)


def test_samples_are_candidates(with_shortlist, listed_engine):
    sampled = with_shortlist.translate(TEXTS, sampling=True, top_k=50, temperature=100.0)
    sources = listed_engine.source_tokenizer.tokenize(TEXTS)
    for source, translation in zip(sources, sampled, strict=True):
        assert set(translation.ids) <= set(listed_engine.shortlist.candidates_of([*source, EOS_ID]))


@pytest.fixture(scope="module")
def of_languages(make_engine, texts):
    """A trained model with a shortlist, whose decoder reads the token of a language.

    Its translations are as short as they may be.
    """
    model = make_engine(output_bias=True).model
    model.output_bias.assign(np.where(np.arange(53) == EOS_ID, 9.0, 0.0))
    tokens = {code: f">>{code}<<" for code in ("de", "en")}
    tokenizer = Tokenizer.train_from_texts(texts, vocabulary_size=53, languages=tokens.values())
    return ModelEngine(
        model,
        tokenizer,
        max_source_length=13,
        max_target_length=17,
        **ONE_GRAPH,
        shortlist=Shortlist([], [*np.random.default_rng(7).integers(4, 53, (53, 4))]),
        languages=Languages(tokens, source_prefix="source", target_prefix="target"),
    )


@pytest.mark.slow
def test_after_a_forced_language_there_is_no_shortlist_and_lengths_are_of_the_translation(
    of_languages, texts, tmp_path, capsys
):
    # It is verified.
    options = {"beam_size": 2, "length_penalty": 0.0, "shortlist": True}
    report = export_ctranslate2(of_languages, tmp_path / "new", texts[:20], **options)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("CTranslate2 has no shortlist after a forced token, such as")
    assert report.manifest["shortlist"] is False and not list(tmp_path.glob("*/vmap.txt"))
    exported = Translator.load(tmp_path / "new")
    named = {"source_language": "en", "target_language": "de", "beam_size": 1}
    for length in (0, 1, 2, 6, 14):
        for prefixes in (None, ["the river", "", "a", "", "in", ""]):
            lengths = {"min_length": length, "target_prefixes": prefixes, "length_penalty": 0.0}
            expected = of_languages.translate(TEXTS, **lengths, **named)
            received = exported.translate(TEXTS, **lengths, **named)
            assert [row.ids for row in received] == [row.ids for row in expected]
            assert min(len(row.ids) for row in received) == max(1, length)
    # Ratios are of a source with the tokens of its languages.
    marian = {"min_length": 17, "max_length_ratio": 1.0, "length_normalization": "marian"}
    sources = of_languages.source_tokenizer.tokenize(TEXTS, add_eos=True)
    for translate in (of_languages.translate, exported.translate):
        lengths = [len(row.ids) for row in translate(TEXTS, **marian, **named)]
        assert lengths == [len(source) + 1 for source in sources]


def test_tokens_that_the_map_of_candidates_cannot_hold_are_refused(make_engine, tmp_path):
    engine = make_engine()
    engine.shortlist, engine.target_tokenizer = Shortlist([], [[5]]), mock.MagicMock()
    engine.target_tokenizer.pieces_of.return_value = ["a\tb"]
    with pytest.raises(InputError, match=r"no tokens with spaces, tabs or new lines. Received"):
        write_vocabulary_map(engine, tmp_path / "vmap.txt")
