"""`ModelEngine` beyond plain translation: prefixes, samples, alignments, scores, streams."""

import numpy as np
import pytest
from decoding_oracles import VOCABULARY
from naive_search import EOS
from test_engine import NumberTokenizer

from keras_transformer.decoding import ModelEngine, search, stages
from keras_transformer.decoding.forced import forced_targets
from keras_transformer.decoding.shapes import pad_to_few_shapes
from keras_transformer.errors import InputError
from keras_transformer.models import step_weights

TEXTS = ["5 7 11", "13", "4 4 8 15 16", "9 12", "6 5 14 10"]


class SentenceTokenizer(NumberTokenizer):
    """A full stop is a word: id 3."""

    def tokenize(self, texts, add_eos=False):
        return super().tokenize([text.replace(".", " 3") for text in texts], add_eos)


@pytest.fixture(scope="module")
def engine(varied):
    return ModelEngine(
        varied("pre_norm"), SentenceTokenizer(), max_source_length=16, max_target_length=23
    )


def at_once(model, texts, beam_size, **options):
    """`search` without an engine, without compiling: `(ids, score)` for each text."""
    ids = SentenceTokenizer().tokenize([*texts, texts[0]], add_eos=True)
    found = search(model, pad_to_few_shapes(ids), beam_size, **options)
    best = zip(np.asarray(found.ids)[:, 0].tolist(), np.asarray(found.scores)[:, 0], strict=True)
    return [(tuple(id for id in row if id), score) for row, score in best][: len(texts)]


def test_a_translation_says_what_it_is_made_of(engine):
    for text, each in zip(TEXTS, engine.translate(TEXTS, beam_size=3), strict=True):
        assert each.source_tokens == (*text.split(), str(EOS))
        assert each.tokens == tuple(str(id) for id in each.ids)
        assert " ".join(each.tokens[: len(each.text.split())]) == each.text
        assert len(each.token_log_probabilities) == len(each.ids)
        assert sum(each.token_log_probabilities) == pytest.approx(each.log_probability, abs=1e-5)
        assert each.alignment is None and each.parts == ()


@pytest.mark.parametrize("options", [dict(beam_size=3, n_best=2), dict(sampling=True, n_best=3)])
def test_scores_are_those_that_scoring_the_translations_gives(engine, options):
    found = engine.translate(TEXTS, length_penalty=1.0, **options)
    for place in (0, 1):
        chosen = [(each, *each.alternatives)[place] for each in found]
        scored = engine.score(TEXTS, [list(each.ids) for each in chosen], length_penalty=1.0)
        for ours, theirs in zip(chosen, scored, strict=True):
            assert theirs.text == ours.text and theirs.ids == ours.ids
            assert theirs.log_probability == pytest.approx(ours.log_probability, abs=1e-4)
            assert theirs.score == pytest.approx(ours.score, abs=1e-4)


def test_given_targets_are_scored_in_their_order_with_their_end(engine):
    targets = ["5", "7 8 9", "", "16 4", "5 5 5 5"]
    scored = engine.score(TEXTS, targets, length_penalty=0.0, batch_size=2)
    for text, target, each in zip(TEXTS, targets, scored, strict=True):
        source = np.array([[*map(int, text.split()), EOS]], "int32")
        ids = np.array([[*map(int, target.split()), EOS]], "int32")
        by_token, _ = forced_targets(engine.model, source, ids)
        assert each.text == target and each.ids == tuple(ids[0])
        assert each.log_probability == pytest.approx(float(np.sum(by_token)), abs=1e-4)
        assert each.score == pytest.approx(each.log_probability)


def test_scoring_wants_a_target_for_each_source(engine):
    with pytest.raises(InputError, match="2 sources and 1 targets"):
        engine.score(["5", "6"], ["7"])
    with pytest.raises(InputError, match="`sources` must have at most 16 tokens.*text 2"):
        engine.score(["5", " ".join(["6"] * 16)], ["7", "8"])


def test_alignments_are_asked_for_and_each_hypothesis_has_its_own(engine):
    found = engine.translate(
        TEXTS, beam_size=2, n_best=2, alignment=True, attention_layer=0, attention_heads=[1]
    )
    for text, best in zip(TEXTS, found, strict=True):
        for each in (best, *best.alternatives):
            source = np.array([[*map(int, text.split()), EOS]], "int32")
            _, expected = forced_targets(
                engine.model, source, np.array([each.ids], "int32"), 0, (1,)
            )
            assert each.alignment.shape == (len(each.tokens), len(each.source_tokens))
            np.testing.assert_allclose(each.alignment, np.asarray(expected)[0], atol=1e-5)


def test_each_translation_begins_with_its_own_prefix(engine):
    prefixes = ["9 9", "", "4 16 5", "7", ""]
    plain = engine.translate(TEXTS, beam_size=2)
    found = engine.translate(TEXTS, beam_size=2, target_prefixes=prefixes)
    for prefix, each, other in zip(prefixes, found, plain, strict=True):
        assert each.text.startswith(prefix)
        if not prefix:
            assert each.text == other.text
    with pytest.raises(InputError, match="2 prefixes and 5 texts"):
        engine.translate(TEXTS, target_prefixes=["5", "6"])
    with pytest.raises(InputError, match="fewer tokens than a translation may, 3.*prefix 1"):
        engine.translate(["5"], target_prefixes=["5 5 5"], max_length=3)


def test_a_sample_depends_on_its_text_and_seed_alone(engine):
    options = dict(sampling=True, n_best=3, temperature=1.3, top_p=0.95)
    seeds = [3, 1, 4, 1, 5]
    together = engine.translate(TEXTS, seed=seeds, **options)
    assert len({each.text for each in together}) > 3
    for text, seed, wanted in zip(TEXTS, seeds, together, strict=True):
        (alone,) = engine.translate([text], seed=seed, **options)
        texts = [each.text for each in (alone, *alone.alternatives)]
        assert texts == [each.text for each in (wanted, *wanted.alternatives)]
    others = engine.translate(TEXTS, seed=7, **options)
    assert [each.text for each in others] != [each.text for each in together]
    with pytest.raises(InputError, match="Received: 2 for 5 texts"):
        engine.translate(TEXTS, seed=[1, 2], sampling=True)


def test_banned_ids_and_biases_are_obeyed_and_leave_log_probabilities_alone(engine):
    plain = engine.translate(TEXTS, beam_size=3)
    used = {id for each in plain for id in each.ids} - {EOS}
    banned = sorted(used)[: len(used) // 2]
    for each in engine.translate(TEXTS, beam_size=3, banned_ids=banned):
        assert not set(banned) & set(each.ids)
    lifted = engine.translate(TEXTS, beam_size=3, logit_bias={4: 50.0}, max_length=7)
    for text, each in zip(TEXTS, lifted, strict=True):
        assert set(each.ids) - {EOS} == {4} and each.score > 0
        (scored,) = engine.score([text], [list(each.ids)])
        assert each.log_probability == pytest.approx(scored.log_probability, abs=1e-4)


def test_limits_on_the_length_are_absolute_or_relative_to_the_source(engine):
    for each in engine.translate(TEXTS, beam_size=1, min_length=9, max_length=12):
        assert 9 <= len(each.ids) <= 12
    tokens = [len(text.split()) + 1 for text in TEXTS]
    found = engine.translate(TEXTS, beam_size=2, min_length_ratio=3.0, max_length_ratio=4.0)
    for count, each in zip(tokens, found, strict=True):
        assert min(3 * count, 23) <= len(each.ids) <= min(4 * count + 10, 23)
    with pytest.raises(InputError, match="`max_length` must be at most 23.*max_length=24"):
        engine.translate(["5"], max_length=24)


def test_no_bigram_occurs_twice(engine):
    def bigrams(ids):
        return list(zip(ids, ids[1:], strict=False))

    plain = engine.translate(TEXTS, beam_size=2, min_length=20)
    assert any(len(set(bigrams(each.ids))) < len(bigrams(each.ids)) for each in plain)
    for each in engine.translate(TEXTS, beam_size=2, min_length=20, no_repeat_ngram_size=2):
        assert len(set(bigrams(each.ids))) == len(bigrams(each.ids))


def test_an_unknown_option_is_an_error_that_names_the_nearest(engine):
    with pytest.raises(InputError, match="no option `beam_sise`. Did you mean `beam_size`"):
        engine.translate(["5"], beam_sise=2)
    with pytest.raises(InputError, match="no option `num_beams`"):
        engine.warmup(num_beams=2)


LONG = "5 6 7. 8 9 10 11. 12 13 14 15 16. 4 5"


def test_a_long_text_is_split_at_sentence_ends_with_a_warning(engine):
    parts = ["5 6 7. 8 9 10 11. 12 13 14 15 16.", "4 5"]
    *wanted, alone = engine.translate([*parts, "5"], beam_size=2)
    with pytest.warns(UserWarning, match="1 of 2 texts are longer than 16 tokens and were split"):
        found, other = engine.translate([LONG, "5"], beam_size=2, long_input="split")
    assert found.text == " ".join(each.text for each in wanted)
    assert [each.text for each in found.parts] == [each.text for each in wanted]
    total = sum(each.log_probability for each in wanted)
    assert found.log_probability == pytest.approx(total, abs=1e-4)
    assert other.text == alone.text and other.parts == ()


def test_a_sentence_too_long_to_be_split_is_refused(engine):
    with pytest.raises(InputError, match="'5 5 5 5"):
        engine.translate([" ".join(["5"] * 19)], long_input="split")
    with pytest.raises(InputError, match="`long_input` must be one of.*long_input='cut'"):
        engine.translate(["5"], long_input="cut")


def test_a_stream_ends_with_the_translation_and_grows_on_the_way(engine):
    for options in (dict(min_length=6), dict(min_length=6, sampling=True, seed=11)):
        (whole,) = engine.translate(TEXTS[:1], **{"beam_size": 1, **options})
        texts = list(engine.stream(TEXTS[0], **options))
        assert texts[-1] == whole.text and len(texts) == len(whole.text.split()) > 3
        for shorter, longer in zip(texts, texts[1:], strict=False):
            assert longer.startswith(shorter) and longer != shorter


def test_a_stream_of_a_split_text_goes_through_its_parts(engine):
    with pytest.warns(UserWarning, match="split"):
        (whole,) = engine.translate([LONG], beam_size=1, long_input="split")
    with pytest.warns(UserWarning, match="split"):
        *_, last = engine.stream(LONG, long_input="split")
    assert last == whole.text


def test_what_cannot_be_streamed_is_refused_at_once(engine):
    with pytest.raises(InputError, match="Only one hypothesis.*beam_size=4"):
        engine.stream("5", beam_size=4)
    with pytest.raises(InputError, match="at most 16 tokens"):
        engine.stream(" ".join(["5"] * 19))
    assert list(engine.stream(" ")) == []


def test_after_a_warmup_nothing_is_compiled(varied):
    engine = ModelEngine(
        varied("post_norm"), NumberTokenizer(), max_source_length=48, max_target_length=40
    )
    assert engine.compilations == 0
    compiled = engine.warmup(lengths=(16, 20), batch_size=2, beam_size=1)
    # Sources of 16 and of 32 tokens; room for 32 tokens and for 40.
    assert compiled == engine.compilations == 4
    rng = np.random.default_rng(0)
    texts = [" ".join(map(str, rng.integers(4, VOCABULARY, n))) for n in range(1, 31)]
    for length_penalty in (0.0, 1.0):
        engine.translate(texts, beam_size=1, batch_size=2, length_penalty=length_penalty)
    engine.translate(texts, beam_size=1, batch_size=2, min_length=39)
    assert engine.compilations == 4
    assert engine.warmup(lengths=(16,), batch_size=2, beam_size=1) == 0


@pytest.mark.parametrize("variant, beam_size", [("pre_norm", 1), ("untied", 1), ("untied", 3)])
@pytest.mark.parametrize("together", [1, 2])
def test_kept_weights_give_the_same(varied, monkeypatch, variant, beam_size, together):
    monkeypatch.setattr(stages, "FIRST_CAPACITY", 8)
    monkeypatch.setattr(step_weights, "_LEAST_SPLIT", 1)
    model = varied(variant)
    sizes = dict(max_source_length=16, max_target_length=20)
    frozen = ModelEngine(model, SentenceTokenizer(), frozen=True, **sizes)
    options = dict(beam_size=beam_size, min_length=12, max_length_ratio=20.0)
    wanted = at_once(model, TEXTS[:2], max_length=20, **options)
    layouts, lay_out = [], model.step_weights
    monkeypatch.setattr(
        model, "step_weights", lambda layout="many": layouts.append(layout) or lay_out(layout)
    )
    found = []
    for start in range(0, 2, together):
        found += frozen.translate(TEXTS[start : start + together], **options)
    one_row = together == beam_size == 1
    assert layouts == ["one, kept" if one_row else "many, kept"]  # once for all calls and stages
    for each, (ids, score) in zip(found, wanted, strict=True):
        assert each.ids == ids and len(ids) >= 12  # rooms of 8, 16 and perhaps 20 tokens
        assert each.score == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("beam_size", [1, 2])
def test_a_single_sentence_goes_through_all_stages(varied, monkeypatch, beam_size):
    monkeypatch.setattr(stages, "FIRST_CAPACITY", 8)
    model, limits = varied("post_norm"), dict(max_source_length=16, max_target_length=20)
    engine = ModelEngine(model, SentenceTokenizer(), **limits)
    options = dict(min_length=18, max_length_ratio=20.0)
    (alone,) = engine.translate(TEXTS[:1], beam_size=beam_size, **options)
    assert len(alone.ids) >= 18  # rooms of 8, 16 and 20 tokens
    assert engine.compilations == 3
    ((ids, _),) = at_once(model, TEXTS[:1], beam_size, max_length=20, **options)
    assert alone.ids == ids


@pytest.mark.parametrize("options", [dict(banned_ids=[99]), dict(attention_layer=1)])
def test_options_that_the_model_has_no_place_for_are_refused(engine, options):
    with pytest.raises(InputError, match=f"`{next(iter(options))}`"):
        engine.translate(["5"], **options)


def test_alternatives_that_do_not_exist_are_left_out(engine):
    # One token, one of three words or the end.
    banned = [id for id in range(VOCABULARY) if id not in (EOS, 5, 7, 11)]
    (found,) = engine.translate(["5 7"], beam_size=7, n_best=7, max_length=1, banned_ids=banned)
    texts = [each.text for each in (found, *found.alternatives)]
    assert sorted(texts) == ["", "11", "5", "7"]
    assert all(each.score > -100 for each in (found, *found.alternatives))


@pytest.mark.filterwarnings("ignore:.*were split")
def test_a_split_text_has_its_prefix_once_and_alternatives_and_an_alignment(engine):
    parts = ["5 6 7. 8 9 10 11. 12 13 14 15 16.", "4 5"]
    options = dict(beam_size=3, n_best=2, alignment=True)
    first, second = engine.translate(parts, target_prefixes=["9 9 9", ""], **options)
    (whole,) = engine.translate([LONG], target_prefixes=["9 9 9"], long_input="split", **options)
    assert whole.text == f"{first.text} {second.text}" and whole.text.startswith("9 9 9")
    sums = sorted(
        a.score + b.score
        for a in (first, *first.alternatives)
        for b in (second, *second.alternatives)
    )
    assert whole.alternatives[0].score == pytest.approx(sums[-2], abs=1e-4)
    rows, columns = first.alignment.shape
    assert whole.alignment.shape == (len(whole.tokens), len(whole.source_tokens))
    np.testing.assert_allclose(whole.alignment[:rows, :columns], first.alignment, atol=1e-5)
    np.testing.assert_allclose(whole.alignment[rows:, columns:], second.alignment, atol=1e-5)
    assert not whole.alignment[rows:, :columns].any()
    *_, streamed = engine.stream(LONG, target_prefix="9 9 9", long_input="split")
    (greedy,) = engine.translate([LONG], beam_size=1, target_prefixes=["9 9 9"], long_input="split")
    assert streamed == greedy.text


def test_a_warmup_takes_what_translate_takes(varied):
    engine = ModelEngine(
        varied("post_norm"), NumberTokenizer(), max_source_length=16, max_target_length=20
    )
    options = dict(beam_size=1, batch_size=2, alignment=True, long_input="split")
    compiled = engine.warmup(lengths=(16,), target_prefixes=["5", "7 7 7"], **options)
    # A search for sentences with a prefix; alignments of up to 16 and 20 tokens.
    assert compiled == 3
    engine.translate(["5 7", "8"], target_prefixes=["", "9 9"], min_length=18, **options)
    engine.translate(["5 7", "8"], target_prefixes=["", "9 9"], max_length=3, **options)
    assert engine.compilations == 3
    with pytest.raises(InputError, match="`long_input` must be"):
        engine.warmup(long_input="cut")
    with pytest.raises(InputError, match="`attention_heads` must be some"):
        engine.warmup(attention_heads=())
