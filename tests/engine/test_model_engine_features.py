"""`ModelEngine` beyond plain translation: prefixes, samples, alignments, scores, streams.

Most tests search five sentences with the same strategy, so that few programs are compiled.
"""

import dataclasses
import functools
import itertools
import re
import typing

import keras
import numpy as np
import pytest
from decoding_oracles import (
    VOCABULARY,
    NumberTokenizer,
    as_graph,
    pad_to_few_shapes,
    varied_transformer,
)
from device_plans import ONE_GRAPH
from naive_search import BOS, EOS, penalty

from keras_transformer import Tokenizer, Transformer, TransformerConfig, Translator
from keras_transformer.decoding.search import score_targets, search
from keras_transformer.engine import ModelEngine
from keras_transformer.engine.scheduler import Scheduler
from keras_transformer.errors import InputError, TooLongError
from keras_transformer.models import step_weights
from keras_transformer.text.dialog import Turns
from keras_transformer.text.languages import Direction, Languages
from keras_transformer.text.shortlist import Shortlist

TEXTS = ["5 7 11", "13", "4 4 8 15 16", "9 12", "6 5 14 10"]
BEAM = dict(beam_size=2, n_best=2)
# The engine has no code of its own for a backend: JAX runs what streams, samples and warms up.


class SentenceTokenizer(NumberTokenizer):
    """A full stop is a word: id 3."""

    def tokenize(self, texts, add_eos=False):
        return super().tokenize([text.replace(".", " 3") for text in texts], add_eos)


def engine_of(model):
    # Batches and programs are none of these promises.
    sizes = dict(max_source_length=16, max_target_length=23)
    return ModelEngine(model, SentenceTokenizer(), **sizes, **ONE_GRAPH)


@pytest.fixture(scope="module")
def engine(varied):
    return engine_of(varied("pre_norm"))


@pytest.mark.tensorflow
def test_a_translation_says_what_it_is_made_of(engine):
    for text, best in zip(TEXTS, engine.translate(TEXTS, **BEAM), strict=True):
        assert best.source_tokens == (*text.split(), str(EOS))
        assert best.tokens == tuple(str(id) for id in best.ids)
        assert " ".join(best.tokens[: len(best.text.split())]) == best.text
        assert len(best.token_log_probabilities) == len(best.ids)
        assert sum(best.token_log_probabilities) == pytest.approx(best.log_probability, abs=1e-5)
        assert best.alignment is None and best.parts == ()


@pytest.mark.tensorflow
@pytest.mark.parametrize("options", [BEAM, dict(sampling=True, n_best=3)])
def test_scores_are_those_that_scoring_the_translations_gives(engine, options):
    translations = engine.translate(TEXTS, length_penalty=1.0, **options)
    for index in (0, 1):
        chosen = [(best, *best.alternatives)[index] for best in translations]
        scored = engine.score(TEXTS, [list(t.ids) for t in chosen], length_penalty=1.0)
        for ours, theirs in zip(chosen, scored, strict=True):
            assert theirs.text == ours.text and theirs.ids == ours.ids
            assert theirs.log_probability == pytest.approx(ours.log_probability, abs=1e-4)
            assert theirs.score == pytest.approx(ours.score, abs=1e-4)


class LanguageTokenizer(NumberTokenizer):
    def id_of(self, token):
        return int(token[1:])


class Places(typing.NamedTuple):
    """Where a model reads the tokens of languages, and the sides whose token is in each place."""

    languages: dict
    before: tuple
    after: tuple = ()
    forced: tuple = ()


PLACES = {
    "one": Places(dict(source_prefix="target"), before=("target",)),
    "all": Places(
        dict(source_prefix="source", source_suffix="target", target_prefix="target"),
        before=("source",),
        after=("target",),
        forced=("target",),
    ),
}
in_each = pytest.mark.parametrize(
    "name", [pytest.param("one", marks=pytest.mark.tensorflow), "all"]
)
NAMED = {"source_language": ["en", "de", "fr", "en"], "target_language": ["de", "en", "en", "fr"]}
EN_DE = {"source_language": "en", "target_language": "de"}


@pytest.fixture(scope="module")
def translator_with(engine):
    """`translator_with(name)`: a translator between three languages, of the engine's model."""
    sizes = dict(max_source_length=9, max_target_length=23, **ONE_GRAPH)

    @functools.cache
    def make(name):
        languages = Languages({"en": "t8", "de": "t12", "fr": "t15"}, **PLACES[name].languages)
        return Translator(
            ModelEngine(engine.model, LanguageTokenizer(), languages=languages, **sizes)
        )

    return make


@pytest.mark.slow(after=1)
@in_each
def test_tokens_of_languages_are_read_and_are_no_part_of_results(engine, translator_with, name):
    translator, places, texts = translator_with(name), PLACES[name], TEXTS[:4]
    translations = translator.translate(texts, **NAMED, alignment=True, **BEAM)
    assert len({best.text for best in translations}) > 2
    scored = translator.score(texts, [list(t.ids) for t in translations], alignment=True, **NAMED)
    for index, (best, again) in enumerate(zip(translations, scored, strict=True)):
        codes = {side: NAMED[f"{side}_language"][index] for side in ("source", "target")}
        tokens = {side: {"en": 8, "de": 12, "fr": 15}[code] for side, code in codes.items()}
        before, after, forced = (
            [tokens[side] for side in sides]
            for sides in (places.before, places.after, places.forced)
        )
        text = [int(word) for word in texts[index].split()]
        source = np.array([[*before, *text, EOS, *after]], "int32")
        target = np.array([[*forced, *best.ids]], "int32")
        by_token, attention = (
            np.asarray(x)[0, len(forced) :] for x in score_targets(engine.model, source, target)
        )
        attention = attention[:, len(before) : len(before) + len(text) + 1]
        score = by_token.sum() / penalty(len(best.ids), 0.6)
        for result in (best, again):
            np.testing.assert_allclose(result.token_log_probabilities, by_token, atol=1e-4)
            np.testing.assert_allclose(result.alignment, attention, atol=1e-4)
            assert result.source_tokens == (*texts[index].split(), str(EOS))
            assert result.score == pytest.approx(score, abs=1e-4)


@pytest.mark.slow
@in_each
def test_languages_may_be_named_once_or_for_each_text(translator_with, name):
    translator, texts = translator_with(name), TEXTS[:4]
    assert set(translator.directions) == set(itertools.permutations(["en", "de", "fr"], 2))
    expected = [best.ids for best in translator.translate(texts, **NAMED, **BEAM)]
    as_arrays = {name: np.array(values) for name, values in NAMED.items()}
    for named in (as_arrays, {name: iter(values) for name, values in NAMED.items()}):
        assert [best.ids for best in translator.translate(texts, **named, **BEAM)] == expected
    translator.check_options(**as_arrays)
    assert translator.translate([], source_language=[], target_language=np.array([])) == []
    for text, *codes in zip(texts, *NAMED.values(), strict=True):
        named = dict(zip(NAMED, codes, strict=True))
        (streamed, *_) = reversed(list(translator.stream(text, **named)))
        assert streamed == translator.translate([text], beam_size=1, **named)[0].text


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("texts", "named", "message"),
    [
        *(
            (TEXTS[:4], {**NAMED, "target_language": wrong}, "must be a code. Received: ")
            for wrong in ([5] * 4, [["de"]] * 4, [{"de": 1}] * 4)
        ),
        (
            TEXTS[:4],
            {**NAMED, "target_language": ["de", "en", "fr", "fr"]},
            "Text 3: .*direction: .* Received: fr-fr",
        ),
        (["5 " * 8], EN_DE, "at most [78] tokens"),  # with those of the languages
    ],
)
@in_each
def test_a_wrong_language_is_one_line(translator_with, name, texts, named, message):
    with pytest.raises(InputError, match=message):
        translator_with(name).translate(texts, **named)


@pytest.mark.parametrize("prefix, limit", [(None, 19), ("target", 18)])
def test_a_forced_token_takes_one_of_the_positions_that_a_model_has(prefix, limit):
    tokens = {code: f">>{code}<<" for code in ("de", "en")}
    texts = ["two dogs sit", "a man sits in the park"] * 9
    tokenizer = Tokenizer.train_from_texts(texts, 30, languages=tokens.values())
    sizes = dict(model_dim=8, num_heads=2, intermediate_dim=8, max_length=19, positions="learned")
    sizes |= dict(num_encoder_layers=1, num_decoder_layers=1)
    languages = Languages(tokens, source_prefix="target", target_prefix=prefix)
    engine = ModelEngine(
        Transformer(TransformerConfig(30, **sizes)), tokenizer, languages=languages
    )
    assert (engine.max_source_length, engine.max_target_length) == (19, limit)


def test_a_model_that_names_no_languages_takes_none(engine):
    with pytest.raises(InputError, match="names languages. Received: None and 'de'"):
        Translator(engine).check_options(target_language="de")


@pytest.mark.tensorflow
def test_few_pairs_are_scored_at_once_where_logits_would_fill_the_memory(engine, monkeypatch):
    """A pair has logits for its targets' padded length; one that has too many is alone."""
    targets, rows = ["5 6", "7 8 9", "10", "16 4", " ".join("5" * 17)], []
    expected = engine.score(TEXTS, targets)
    columns = 0  # the padded length, which is not the sources'
    for pairs, most in ((None, 8), (4, 4), (0, 1)):
        logits = None if pairs is None else pairs * columns * VOCABULARY
        plan = dataclasses.replace(ONE_GRAPH["plan"], scored_logits=logits)
        limited = engine.with_(**{**ONE_GRAPH, "plan": plan})
        scorer = limited._scheduler.scorer

        def counted(alignment, scorer=scorer):
            compiled = scorer(alignment)
            return lambda source, target: rows.append(target.shape) or compiled(source, target)

        rows.clear()
        monkeypatch.setattr(limited._scheduler, "scorer", counted)
        scored = limited.score(TEXTS, targets)
        columns = rows[0][1]
        assert {shape[0] for shape in rows} == {most}, rows
        for ours, theirs in zip(scored, expected, strict=True):
            assert ours.log_probability == pytest.approx(theirs.log_probability, abs=1e-4)


@pytest.mark.tensorflow
def test_given_targets_are_scored_in_their_order_with_their_end(engine):
    targets = ["5", "7 8 9", "", "16 4", "5 5 5 5"]
    scored = engine.score(TEXTS, targets, length_penalty=0.0)
    for text, target, translation in zip(TEXTS, targets, scored, strict=True):
        source = np.array([[*map(int, text.split()), EOS]], "int32")
        ids = np.array([[*map(int, target.split()), EOS]], "int32")
        by_token, _ = score_targets(engine.model, source, ids)
        assert translation.text == target and translation.ids == tuple(ids[0])
        assert translation.log_probability == pytest.approx(float(np.sum(by_token)), abs=1e-4)
        assert translation.score == pytest.approx(translation.log_probability)
    with pytest.raises(InputError, match="2 sources and 1 targets"):
        engine.score(["5", "6"], ["7"])
    with pytest.raises(InputError, match="Text 2: .*`sources` must have at most 16 tokens"):
        engine.score(["5", " ".join(["6"] * 16)], ["7", "8"])
    long = " ".join(["6"] * 99)
    with pytest.raises(TooLongError, match="Text 2: .*`targets` must have at most") as caught:
        engine.score(["5"] * 5, ["7", long, "8", "9", long])
    assert caught.value.indices == [1, 4]
    with pytest.raises(InputError, match="`targets` must be a list of strings"):
        engine.score(["5", "6"], ["5", [7]])
    for target in ([5.7, EOS], None):
        with pytest.raises(InputError, match="Text 1: `targets` must be strings, or lists of int"):
            engine.score(["5"], [target])
    assert engine.score(np.array(TEXTS), iter(targets), length_penalty=0.0) == scored


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([5, 6, EOS, 7, 8], r"end with their first 2, the end .*\[7, 8\] after it\. Remove them"),
        ([EOS, EOS], r"Received: \[2\] after it"),
        ([5, 6, EOS, 10**6], "tokens of the vocabulary, from 1 to 16. Received: 1000000"),
        ([5, 17, EOS], "from 1 to 16. Received: 17"),
        ([5, -3, EOS], "from 1 to 16. Received: -3"),
        ([5, 6, EOS, 0, 0], "from 1 to 16. Received: 0"),
        (np.array([5, 0, EOS]), "from 1 to 16. Received: 0"),
    ],
)
def test_ids_that_are_no_sentence_are_refused_and_not_scored(engine, ids, message):
    wrong = [[7], ids]
    for name, sides in (("targets", (["5", "6"], wrong)), ("sources", (wrong, ["5", "6"]))):
        with pytest.raises(InputError, match=f"^Text 2: The ids of `{name}` must .*{message}"):
            engine.score(*sides)
    assert engine.target_tokenizer.vocabulary_size == 17
    assert engine.score(["5"], [[7, 16, 1]])[0].ids == (7, 16, 1)  # Without an end.


@pytest.mark.tensorflow
def test_alignments_are_asked_for_and_each_hypothesis_has_its_own(engine):
    translations = engine.translate(TEXTS, alignment=True, **BEAM)
    for text, best in zip(TEXTS, translations, strict=True):
        for result in (best, *best.alternatives):
            source = np.array([[*map(int, text.split()), EOS]], "int32")
            read = np.array([[BOS, *result.ids[:-1]]], "int32")
            heads = np.asarray(engine.model.call_with_attention(source, read)[1][-1])
            assert result.alignment.shape == (len(result.tokens), len(result.source_tokens))
            np.testing.assert_allclose(result.alignment, heads[0].mean(axis=0), atol=1e-5)
    is_aligned = [index % 2 == 1 for index in range(len(TEXTS))]
    some = engine.translate(TEXTS, alignment=is_aligned, **BEAM)
    assert some == translations
    for best, one, kept in zip(translations, some, is_aligned, strict=True):
        assert (one.alignment is None) != kept
        assert not kept or np.array_equal(one.alignment, best.alignment)
    with pytest.raises(InputError, match="one `alignment`, or one for each text"):
        engine.translate(TEXTS, alignment=[True], **BEAM)


@pytest.mark.tensorflow
def test_a_long_conversation_is_answered_by_its_last_turns_and_never_in_parts(varied):
    class TurnTokenizer(SentenceTokenizer):
        turn_id = 4

    cut = {**BEAM, "long_input": "truncate"}
    options = dict(max_source_length=16, turns=Turns("4"), with_xla=False)
    engine = ModelEngine(varied("pre_norm"), TurnTokenizer(), **options)
    last = "7 11. 4 13 5"
    (expected,) = engine.translate([last], **BEAM)
    with pytest.warns(UserWarning, match="oldest turns first"):
        (answer,) = engine.translate([f"5 6 8 9. 9 10 12 4 14 4 {last}"], **cut)
    assert answer.source_tokens == ("14", "4", *expected.source_tokens)
    with pytest.warns(UserWarning, match="oldest turns first"):
        (answer,) = engine.translate([f"{'5 ' * 12}4 {last}"], **cut)
    assert answer == expected
    for ask in (engine.translate, engine.stream, engine.warmup):
        arguments = {engine.translate: [[last]], engine.stream: [last], engine.warmup: []}[ask]
        with pytest.raises(InputError, match="`long_input` must be one of refuse, truncate"):
            ask(*arguments, long_input="split")


@pytest.mark.tensorflow
def test_each_translation_begins_with_its_own_prefix(engine):
    prefixes = ["9 9", "", "4 16 5", "7", ""]
    plain = engine.translate(TEXTS, **BEAM)
    translations = engine.translate(TEXTS, target_prefixes=prefixes, **BEAM)
    for prefix, translation, other in zip(prefixes, translations, plain, strict=True):
        assert translation.text.startswith(prefix)
        if not prefix:
            assert translation == other and translation.continuation_length is None
            continue
        following = translation.token_log_probabilities[len(prefix.split()) :]
        assert translation.continuation_length == len(following)
        assert translation.continuation_log_probability == pytest.approx(sum(following), abs=1e-5)
        expected = sum(following) / penalty(len(following), 0.6)
        assert translation.score == pytest.approx(expected, abs=1e-5)
    with pytest.raises(InputError, match="2 prefixes and 5 texts"):
        engine.translate(TEXTS, target_prefixes=["5", "6"])
    with pytest.raises(InputError, match="Text 1: .*fewer tokens than a translation may, 3"):
        engine.translate(["5"], target_prefixes=["5 5 5"], max_length=3)


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_each_translation_has_its_phrases_whatever_the_others_have(policy):
    keras.config.set_dtype_policy(policy)
    engine = engine_of(varied_transformer("pre_norm"))
    phrases = [["9 9"], [], ["4 16", "16 5"], ["7", "7"], []]
    plain = engine.translate(TEXTS, **BEAM)
    translations = engine.translate(TEXTS, phrases=phrases, **BEAM)
    mixed = engine.translate(TEXTS, phrases=[[], ["8", "5 6"], *phrases[2:4], ["11"]], **BEAM)
    for expected, others, indices in ((plain, translations, (1, 4)), (translations, mixed, (2, 3))):
        for index in indices:
            assert others[index].text == expected[index].text
            assert others[index].score == pytest.approx(expected[index].score, abs=1e-5)
    for required, best in zip(phrases, translations, strict=True):
        for hypothesis in (best, *best.alternatives):
            words = hypothesis.text.split()
            for phrase in set(required):
                first, *rest = phrase.split()
                starts = [i for i, word in enumerate(words) if word == first]
                times = sum(words[i + 1 : i + 1 + len(rest)] == rest for i in starts)
                assert times >= required.count(phrase)
    # What there is no room for: as much as possible, without an end.
    cut = engine.translate(["5"] * 5, phrases=[["7 8 9 10"]] * 5, max_length=3, **BEAM)
    assert {best.ids for best in cut} == {(7, 8, 9)}


@pytest.mark.tensorflow
@pytest.mark.filterwarnings("error")
def test_phrases_are_searched_with_a_beam_that_can_hold_them_and_other_texts_as_asked(engine):
    phrases = [["9 9"], [], ["4 16", "5 7"], []]
    with pytest.warns(UserWarning, match="`beam_size` . instead of 1") as lines:
        narrow = engine.translate(TEXTS[:4], beam_size=1, phrases=phrases)
    assert [re.findall(r"\d+", str(line.message)) for line in lines] == [["4", "1"], ["8", "1"]]
    for index, beam_size in enumerate([4, 1, 8, 1]):
        alone = engine.translate(
            TEXTS[index : index + 1], beam_size=beam_size, phrases=phrases[index : index + 1]
        )
        assert narrow[index].ids == alone[0].ids


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(phrases=[[]]), "1 lists and 5 texts"),
        (dict(phrases=["5"] * 5), "`phrases` must be a list of strings"),
        (dict(phrases=[["5"]] * 5, sampling=True), "only for a beam search.*sampling=True"),
        (
            dict(phrases=[["5"]] * 4, texts=[*TEXTS[:3], "5. " * 9], long_input="split"),
            "Text 4: .*not split",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:1 of 4 texts")
def test_phrases_that_cannot_be_searched_for_are_refused(engine, options, message):
    texts = options.get("texts", TEXTS)
    with pytest.raises(InputError, match=message):
        engine.translate(**{"texts": texts, "beam_size": 2, **options})


def test_a_sample_depends_on_its_text_and_seed_alone(engine):
    options = dict(sampling=True, n_best=3, temperature=1.3, top_p=0.95)
    seeds = [3, 1, 4, 1, 5]
    together = engine.translate(TEXTS, seed=seeds, **options)
    assert len({t.text for t in together}) > 3
    for text, seed, expected in zip(TEXTS, seeds, together, strict=True):
        (alone,) = engine.translate([text], seed=seed, **options)
        texts = [t.text for t in (alone, *alone.alternatives)]
        assert texts == [t.text for t in (expected, *expected.alternatives)]
    reseeded = engine.translate(TEXTS, seed=7, **options)
    assert [t.text for t in reseeded] != [t.text for t in together]
    with pytest.raises(InputError, match="Received: 2 for 5 texts"):
        engine.translate(TEXTS, seed=[1, 2], sampling=True)


@pytest.mark.tensorflow
def test_banned_ids_and_biases_are_obeyed_and_leave_log_probabilities_alone(engine):
    plain = engine.translate(TEXTS, **BEAM)
    used = {id for translation in plain for id in translation.ids} - {EOS}
    banned = sorted(used)[: len(used) // 2]
    for translation in engine.translate(TEXTS, banned_ids=banned, **BEAM):
        assert not set(banned) & set(translation.ids)
    lifted = engine.translate(TEXTS, logit_bias={4: 50.0}, max_length=7, **BEAM)
    scored = engine.score(TEXTS, [list(translation.ids) for translation in lifted])
    for translation, expected in zip(lifted, scored, strict=True):
        assert set(translation.ids) - {EOS} == {4} and translation.score > 0
        assert translation.log_probability == pytest.approx(expected.log_probability, abs=1e-4)
    # EOS alone is left, and one token: there is no second hypothesis.
    all_but_end = [id for id in range(VOCABULARY) if id != EOS]
    for translation in engine.translate(TEXTS, max_length=1, banned_ids=all_but_end, **BEAM):
        assert (translation.ids, translation.alternatives) == ((EOS,), ())


@pytest.mark.tensorflow
def test_limits_on_the_length_are_absolute_or_relative_to_the_source(engine):
    for translation in engine.translate(TEXTS, min_length=9, max_length=12, **BEAM):
        assert 9 <= len(translation.ids) <= 12
    tokens = [len(text.split()) + 1 for text in TEXTS]
    translations = engine.translate(TEXTS, min_length_ratio=3.0, max_length_ratio=4.0, **BEAM)
    for count, translation in zip(tokens, translations, strict=True):
        assert min(3 * count, 23) <= len(translation.ids) <= min(4 * count + 10, 23)
    with pytest.raises(InputError, match="`max_length` must be at most 23.*max_length=24"):
        engine.translate(["5"], max_length=24)


def test_an_unknown_option_is_an_error_that_names_the_nearest(engine):
    with pytest.raises(InputError, match="no option `beam_sise`. Did you mean `beam_size`"):
        engine.translate(["5"], beam_sise=2)
    with pytest.raises(InputError, match="no option `num_beams`"):
        engine.warmup(num_beams=2)
    with pytest.raises(InputError, match="`banned_ids`.*Received: 99"):
        engine.translate(["5"], banned_ids=[99])


PARTS = ["5 6 7. 8 9 10 11. 12 13 14 15 16.", "4 5"]
LONG = " ".join(PARTS)


@pytest.mark.tensorflow
def test_a_long_text_is_split_and_has_its_prefix_once_and_alternatives_and_an_alignment(engine):
    options = dict(alignment=True, target_prefixes=["9 9 9", "", "", "", ""], **BEAM)
    first, second, *expected = engine.translate([*PARTS, *TEXTS[:3]], **options)
    del options["target_prefixes"][-1]
    with pytest.warns(UserWarning, match="1 of 4 texts are longer than 16 tokens and were split"):
        whole, *rest = engine.translate([LONG, *TEXTS[:3]], long_input="split", **options)
    assert [t.text for t in rest] == [t.text for t in expected]
    assert {t.parts for t in rest} == {()}
    assert whole.text == f"{first.text} {second.text}" and whole.text.startswith("9 9 9")
    assert [part.text for part in whole.parts] == [first.text, second.text]
    total = first.log_probability + second.log_probability
    assert whole.log_probability == pytest.approx(total, abs=1e-4)
    scores = [[h.score for h in (best, *best.alternatives)] for best in (first, second)]
    sums = sorted(map(sum, itertools.product(*scores)))
    assert whole.alternatives[0].score == pytest.approx(sums[-2], abs=1e-4)
    assert whole.alignment is None
    for part, expected in zip(whole.parts, (first, second), strict=True):
        np.testing.assert_allclose(part.alignment, expected.alignment, atol=1e-5)


@pytest.mark.slow
def test_a_long_sentence_is_split_between_words(engine):
    options = dict(phrases=[["7"], []], long_input="split")
    with pytest.warns(UserWarning, match="1 of 2 texts are longer than 16 tokens and were split"):
        short, split = engine.translate(["5", " ".join(["5"] * 19)], **options)
    assert "7" in short.text and len(split.parts) > 1 and all(part.text for part in split.parts)
    with pytest.raises(InputError, match="`long_input` must be one of.*long_input='cut'"):
        engine.translate(["5"], long_input="cut")


def test_a_stream_ends_with_the_translation_and_grows_on_the_way(engine):
    (whole,) = engine.translate(TEXTS[:1], beam_size=1, min_length=6)
    texts = list(engine.stream(TEXTS[0], min_length=6))
    assert texts[-1] == whole.text and len(texts) == len(whole.text.split()) > 3
    for shorter, longer in zip(texts, texts[1:], strict=False):
        assert longer.startswith(shorter) and longer != shorter


@pytest.mark.tensorflow
def test_a_stream_of_a_split_text_goes_through_its_parts(engine):
    first, second = (
        engine.translate([part], beam_size=1, target_prefixes=prefix)[0].text
        for part, prefix in zip(PARTS, (["9 9 9"], None), strict=True)
    )
    with pytest.warns(UserWarning, match="split"):
        *_, last = engine.stream(LONG, target_prefix="9 9 9", long_input="split")
    assert last == f"{first} {second}" and last.startswith("9 9 9")


def test_parts_of_a_chinese_translation_have_no_space_between_them_in_a_stream(engine):
    class ChineseTokenizer(SentenceTokenizer):
        def detokenize(self, rows):
            return ["".join(chr(0x4E00 + id) for id in row if id > EOS) for row in rows]

    chinese = ModelEngine(engine.model, SentenceTokenizer(), ChineseTokenizer(), 16)
    with pytest.warns(UserWarning, match="split"):
        (expected,) = chinese.translate([LONG], beam_size=1, long_input="split")
        *_, last = chinese.stream(LONG, long_input="split")
    assert last == expected.text and " " not in last and len(expected.parts) == 2


def test_equal_parts_of_a_text_have_samples_of_their_own(engine):
    request = engine.request(sampling=True, long_input="split")
    with pytest.warns(UserWarning, match="split"):
        jobs, _ = engine._jobs([LONG], request, [Direction()])
    seeds = [job.seed for job in jobs]
    assert seeds[0] == 0 and len({*seeds}) == len(seeds) > 1


def test_what_cannot_be_streamed_is_refused_at_once(engine):
    with pytest.raises(InputError, match="Only one hypothesis.*beam_size=4"):
        engine.stream("5", beam_size=4)
    with pytest.raises(InputError, match="at most 16 tokens"):
        engine.stream(" ".join(["5"] * 19))
    assert list(engine.stream(" ")) == []


@pytest.mark.slow
@pytest.mark.tensorflow
def test_with_a_shortlist_only_candidates_are_written(varied):
    shortlist = Shortlist([5, 6], [[]] * 4 + [[id, (3 * id) % VOCABULARY] for id in range(4, 17)])
    model, tokenizer = varied("pre_norm"), NumberTokenizer()
    engine = ModelEngine(model, tokenizer, max_target_length=20, shortlist=shortlist)
    assert engine.warmup(lengths=(16,), batch_size=4, beam_size=2, shortlist=True) == 1
    texts = ["7 9 4", "12", "5 5 14 16"]
    options = dict(beam_size=2, shortlist=True)
    together = engine.translate(texts, batch_size=4, **options)
    assert engine.compilations == 1
    sizes = dict(max_target_length=20, with_xla=False)  # for the rest, in graphs
    engine = ModelEngine(model, tokenizer, shortlist=shortlist, **sizes)
    for text, translation in zip(texts, together, strict=True):
        (ids,) = tokenizer.tokenize([text], add_eos=True)
        assert {*translation.ids} <= {*shortlist.candidates_of(ids).tolist()}
        (alone,) = engine.translate([text], **options)
        assert alone.ids == translation.ids
        assert alone.score == pytest.approx(translation.score, abs=1e-5)
    assert [row.ids for row in engine.translate(texts, beam_size=2)] != [t.ids for t in together]
    *_, text = engine.stream("7 9 4", shortlist=True)
    assert [text] == [row.text for row in engine.translate(["7 9 4"], beam_size=1, shortlist=True)]
    with pytest.raises(InputError, match="`shortlist` needs a run with a shortlist"):
        ModelEngine(model, tokenizer).translate(["7"], shortlist=True)


def test_after_a_warmup_nothing_is_compiled(varied):
    engine = ModelEngine(
        varied("post_norm"), NumberTokenizer(), max_source_length=48, max_target_length=40
    )
    assert engine.compilations == 0
    compiled = engine.warmup(lengths=(16, 20), batch_size=2, beam_size=1)
    # Sources of 16 and of 32 tokens.
    assert compiled == engine.compilations == 2
    rng = np.random.default_rng(0)
    texts = [" ".join(map(str, rng.integers(4, VOCABULARY, n))) for n in range(1, 31)]
    for length_penalty in (0.0, 1.0):
        engine.translate(texts, beam_size=1, batch_size=2, length_penalty=length_penalty)
    engine.translate(texts, beam_size=1, batch_size=2, min_length=39)
    assert engine.compilations == 2
    assert engine.warmup(lengths=(16,), batch_size=2, beam_size=1) == 0


@pytest.mark.tensorflow
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


@pytest.mark.slow(after=1)
@pytest.mark.tensorflow
@pytest.mark.parametrize("variant, beam_size, together", [("pre_norm", 1, 1), ("untied", 3, 2)])
def test_cached_weights_give_the_same_through_all_loops(
    varied, monkeypatch, variant, beam_size, together
):
    monkeypatch.setattr(step_weights, "_LEAST_SPLIT", 1)
    model, texts = varied(variant), TEXTS[:together]
    sizes = dict(max_source_length=16, max_target_length=20)
    frozen = ModelEngine(model, SentenceTokenizer(), frozen=True, **sizes)
    frozen._scheduler = Scheduler(model, (16, 20), frozen=True, workers=2, first_capacity=10)
    options = dict(beam_size=beam_size, min_length=18, max_length_ratio=20.0)
    ids = pad_to_few_shapes(SentenceTokenizer().tokenize([*texts, "5"], add_eos=True))
    expected = search(model, ids, max_length=20, first_capacity=10, wrap_body=as_graph, **options)
    calls, prepare = [], model.step_weights
    record = lambda one_row, cached: calls.append((one_row, cached)) or prepare(one_row, cached)  # noqa: E731
    monkeypatch.setattr(model, "step_weights", record)
    translations = frozen.translate(texts, **options)
    assert calls == [(together == beam_size == 1, True)]  # once for all loops
    assert frozen.compilations == 1  # with capacity for 10 and 20 tokens
    for row, translation in enumerate(translations):
        ids = np.asarray(expected.ids)[row, 0]
        assert translation.ids == tuple(ids[ids > 0]) and len(translation.ids) >= 18
        assert translation.score == pytest.approx(float(expected.scores[row, 0]), abs=1e-4)
