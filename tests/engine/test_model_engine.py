"""`ModelEngine`: text in, text out, whatever the batches."""

import warnings

import numpy as np
import pytest
from decoding_oracles import VOCABULARY, NumberTokenizer, pad_to_few_shapes, varied_transformer
from translations import check_same

from keras_transformer import Transformer, TransformerConfig, Translator
from keras_transformer.decoding.search import search
from keras_transformer.engine import ModelEngine
from keras_transformer.errors import InputError
from keras_transformer.translation import Translation

FIRST, LAST = 4, VOCABULARY - 1
TARGET_LENGTH = 11


@pytest.fixture(scope="module")
def engine(varied):
    # Without XLA, which is none of these promises: TensorFlow never frees its programs.
    sizes = dict(max_target_length=TARGET_LENGTH, with_xla=False)
    return ModelEngine(varied("pre_norm"), NumberTokenizer(), **sizes)


@pytest.fixture
def texts(rng):
    """Sentences of 1 to 7 words."""
    words = [rng.integers(FIRST, LAST + 1, size=1 + i % 7) for i in range(13)]
    return [" ".join(str(word) for word in row) for row in words]


def expected(engine, texts, beam_size, n_best=1):
    """Results of `search` alone for each text: a list of (text, score)."""
    ids = pad_to_few_shapes(engine.source_tokenizer.tokenize(texts, add_eos=True))
    hypotheses = search(
        engine.model, ids, beam_size, n_best=n_best, max_length=engine.max_target_length
    )
    rows, scores = (np.asarray(hypotheses[i])[: len(texts)].tolist() for i in (0, 2))
    detokenize = engine.target_tokenizer.detokenize
    return [list(zip(detokenize(r), s, strict=True)) for r, s in zip(rows, scores, strict=True)]


@pytest.mark.slow(after=1)
@pytest.mark.tensorflow
@pytest.mark.parametrize("beam_size", [1, 3])
def test_translations_come_in_the_order_of_the_texts_in_any_batches(engine, texts, beam_size):
    received = engine.translate(texts, beam_size=beam_size)
    assert len({t.text for t in received}) > 5
    for best, ((text, score),) in zip(received, expected(engine, texts, beam_size), strict=True):
        assert best.text == text
        assert best.score == pytest.approx(score, abs=1e-5)
    check_same(engine.translate(texts[::-1], beam_size=beam_size), received[::-1])
    check_same(engine.translate(texts, beam_size=beam_size, batch_size=5), received)
    check_same(engine.translate(texts[:3], beam_size=beam_size, batch_size=1), received[:3])


@pytest.mark.tensorflow
def test_without_xla_nothing_is_compiled_and_the_translations_are_the_same(engine, texts):
    compiled = ModelEngine(engine.model, NumberTokenizer(), max_target_length=TARGET_LENGTH)
    check_same(engine.translate(texts, beam_size=1), compiled.translate(texts, beam_size=1))
    assert (engine.compilations, compiled.compilations) == (0, 1)


@pytest.mark.tensorflow
def test_an_engine_with_other_arguments_has_the_same_model_and_the_other_arguments(engine, texts):
    other = engine.with_(max_source_length=9, with_xla=True)
    assert other.model is engine.model and other.target_tokenizer is engine.target_tokenizer
    limits = other.max_source_length, other.max_target_length
    assert limits == (9, engine.max_target_length) and engine.max_source_length > 9
    check_same(other.translate(texts[:3], beam_size=1), engine.translate(texts[:3], beam_size=1))
    assert (engine.compilations, other.compilations) == (0, 1)


@pytest.mark.tensorflow
def test_blank_texts_give_empty_translations_and_leave_the_others_alone(engine, texts):
    assert engine.translate([]) == []
    assert engine.translate(["", " "]) == [Translation("", 0.0)] * 2
    translations = engine.translate(texts, beam_size=1)
    received = engine.translate(["", texts[0], " \t\n", *texts[1:], ""], beam_size=1)
    assert [received[i] for i in (0, 2, -1)] == [Translation("", 0.0)] * 3
    check_same([received[1], *received[3:-1]], translations)
    # Of strings in a dict, as in a table's column, 0 is no place.
    for texts_of_another_type in (dict.fromkeys(["", texts[0]]), iter(["", texts[0]])):
        blank, received = engine.translate(texts_of_another_type, beam_size=1)
        assert blank.text == ""
        check_same([received], translations[:1])


@pytest.mark.tensorflow
def test_a_longer_text_is_refused_by_name_or_cut_with_a_warning(varied):
    sizes = dict(max_source_length=5, max_target_length=11, with_xla=False)
    engine = ModelEngine(varied("pre_norm"), NumberTokenizer(), **sizes)
    fitting, long = "4 5 6 7", "4 5 6 7 8 9 10"  # five tokens, the end included, and more
    with pytest.raises(InputError, match="Text 2: .*at most 5 tokens.* 8 tokens, '4 5 6 7"):
        engine.translate(["9", long], beam_size=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        uncut = engine.translate([fitting, "9"], beam_size=1)
    with pytest.warns(UserWarning, match="1 of 2 texts are longer than 5 tokens.* cut") as caught:
        check_same(engine.translate([long, "9"], beam_size=1, long_input="truncate"), uncut)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("texts", ["5 6", None, 5, ["5", None], ["5", 6], [b"5"]])
def test_texts_must_be_a_list_of_strings(engine, texts):
    with pytest.raises(InputError, match="texts"):
        engine.translate(texts, beam_size=1)
    for size in (0, True, 1.0):
        with pytest.raises(InputError, match=f"`batch_size`.*Received: batch_size={size}"):
            engine.translate(["5"], batch_size=size)
    with pytest.raises(InputError, match="`n_best`.*Received: n_best=3, beam_size=2"):
        engine.translate(["5"], beam_size=2, n_best=3)


def small_transformer(**fields):
    sizes = dict(model_dim=8, num_heads=2, intermediate_dim=11)
    layers = dict(num_encoder_layers=1, num_decoder_layers=1)
    return Transformer(TransformerConfig(VOCABULARY, **sizes, **layers, **fields))


class OtherTokenizer(NumberTokenizer):
    vocabulary_size = 13


@pytest.mark.tensorflow
def test_each_side_has_its_own_tokenizer_of_its_size():
    model = small_transformer(tie_embeddings="none", target_vocabulary_size=13)
    source, target = NumberTokenizer(), OtherTokenizer()
    engine = ModelEngine(model, source, target, 32, 7, with_xla=False)
    assert engine.target_tokenizer is target
    translations = engine.translate(["16 15", "14"], beam_size=2)
    assert all(3 <= int(word) < 13 for t in translations for word in t.text.split())
    with pytest.raises(InputError, match="source tokenizer has 13 ids, the model 17"):
        ModelEngine(model, target, target)
    with pytest.raises(InputError, match="target tokenizer has 17 ids, the model 13"):
        ModelEngine(model, source)


@pytest.mark.tensorflow
def test_learned_positions_bound_the_lengths():
    # 13 is no multiple of what lengths are padded to.
    model = small_transformer(positions="learned", max_length=13)
    engine = ModelEngine(model, NumberTokenizer(), with_xla=False)
    assert (engine.max_source_length, engine.max_target_length) == (13, 13)
    with pytest.warns(UserWarning, match="longer than 13"):
        cut = engine.translate([" ".join(["7"] * 19), "5"], beam_size=1, long_input="truncate")
    assert all(np.isfinite(t.score) for t in cut)


def test_changed_weights_are_seen(texts):
    model = varied_transformer("post_norm")
    engine = ModelEngine(model, NumberTokenizer(), max_target_length=5, with_xla=False)
    before = engine.translate(texts[:2], beam_size=1)
    for weight in model.weights:
        weight.assign(0.5 * weight)
    (((text, score),),) = expected(engine, texts[:1], 1)
    after = engine.translate(texts[:2], beam_size=1)
    assert after[0].text == text and after[0].score == pytest.approx(score, abs=1e-5)
    assert abs(after[0].score - before[0].score) > 1e-3


@pytest.mark.tensorflow
def test_a_sentence_of_a_text_has_the_text_and_the_score_that_it_has_alone(varied, texts):
    class MarkedTokenizer(NumberTokenizer):
        """Reads a mark at the end of a sentence as nothing."""

        def tokenize(self, texts, add_eos=False):
            return super().tokenize([text.strip(".") for text in texts], add_eos)

        def split_tags(self, text):
            return "", text

    rules = {"split_sentences": True, "copy_symbols": False}
    sizes = dict(max_target_length=TARGET_LENGTH, with_xla=False)
    translator = Translator(ModelEngine(varied("pre_norm"), MarkedTokenizer(), **sizes))
    sentences = [f"{text}." for text in texts[1:5]]
    alone = translator.translate(sentences, beam_size=2, n_best=2)
    (together,) = translator.translate(["\n".join(sentences)], beam_size=2, n_best=2, **rules)
    assert together.text == "\n".join(translation.text for translation in alone)
    assert [part.score for part in together.parts] == [one.score for one in alone]
    assert together.score == pytest.approx(sum(one.score for one in alone))
    best_other = max(one.alternatives[0].score - one.score for one in alone)
    assert together.alternatives[0].score == pytest.approx(together.score + best_other)
