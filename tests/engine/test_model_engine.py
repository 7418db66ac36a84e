"""`ModelEngine` beyond what every engine promises: its programs, its limits, and ids.

`test_contract.py` shows what it finds.
"""

import dataclasses

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
from naive_search import EOS
from translations import check_same

from keras_transformer import Tokenizer, Transformer, TransformerConfig
from keras_transformer.base.errors import InputError, TooLongError
from keras_transformer.decoding.search import search
from keras_transformer.engine import ModelEngine
from keras_transformer.engine.scheduler import Scheduler
from keras_transformer.models import step_weights
from keras_transformer.text.dialog import Turns
from keras_transformer.text.languages import Languages
from keras_transformer.text.shortlist import Shortlist

TEXTS = ["5 7 11", "13", "4 4 8 15 16", "9 12", "6 5 14 10"]
BEAM = dict(beam_size=2, n_best=2)
# The engine has no code of its own for a backend: JAX runs what streams, samples and warms up.


class SentenceTokenizer(NumberTokenizer):
    """A full stop is a word: id 3."""

    def tokenize(self, texts, add_eos=False):
        return super().tokenize([text.replace(".", " 3") for text in texts], add_eos)


@pytest.fixture(scope="module")
def engine(varied):
    # Batches and programs are none of these promises.
    sizes = dict(max_source_length=16, max_target_length=23)
    return ModelEngine(varied("pre_norm"), SentenceTokenizer(), **sizes, **ONE_GRAPH)


@pytest.mark.tensorflow
def test_without_xla_nothing_is_compiled_and_the_translations_are_the_same(engine):
    compiled = engine.with_(max_source_length=9, with_xla=True, plan=None)
    assert compiled.model is engine.model
    assert compiled.target_tokenizer is engine.target_tokenizer
    limits = compiled.max_source_length, compiled.max_target_length
    assert limits == (9, engine.max_target_length) and engine.max_source_length > 9
    check_same(engine.translate(TEXTS, beam_size=1), compiled.translate(TEXTS, beam_size=1))
    assert (engine.compilations, compiled.compilations) == (0, 1)


def small_transformer(**fields):
    sizes = dict(model_dim=8, num_heads=2, intermediate_dim=11)
    layers = dict(num_encoder_layers=1, num_decoder_layers=1)
    return Transformer(
        TransformerConfig(**{"vocabulary_size": VOCABULARY, **sizes, **layers, **fields})
    )


class OtherTokenizer(NumberTokenizer):
    vocabulary_size = 13


def test_each_side_has_a_tokenizer_of_its_size():
    model = small_transformer(tie_embeddings="none", target_vocabulary_size=13)
    source, target = NumberTokenizer(), OtherTokenizer()
    assert ModelEngine(model, source, target).target_tokenizer is target
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


@pytest.mark.parametrize("prefix, limit", [(None, 19), ("target", 18)])
def test_a_forced_token_takes_one_of_the_positions_that_a_model_has(prefix, limit):
    tokens = {code: f">>{code}<<" for code in ("de", "en")}
    texts = ["two dogs sit", "a man sits in the park"] * 9
    tokenizer = Tokenizer.train_from_texts(texts, 30, languages=tokens.values())
    model = small_transformer(vocabulary_size=30, max_length=19, positions="learned")
    languages = Languages(tokens, source_prefix="target", target_prefix=prefix)
    engine = ModelEngine(model, tokenizer, languages=languages)
    assert (engine.max_source_length, engine.max_target_length) == (19, limit)


def test_changed_weights_are_seen():
    model = varied_transformer("post_norm")
    engine = ModelEngine(model, NumberTokenizer(), max_target_length=5, with_xla=False)
    before = engine.translate(TEXTS[:2], beam_size=1)
    for weight in model.weights:
        weight.assign(0.5 * weight)
    after = engine.translate(TEXTS[:2], beam_size=1)
    (scored,) = engine.score(TEXTS[:1], [after[0].ids])
    assert after[0].score == pytest.approx(scored.score, abs=1e-5)
    assert abs(after[0].score - before[0].score) > 1e-3


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
        check_same(expected, scored)


NO_IDS = [
    ([5, 6, EOS, 7, 8], r"end with their first 2, the end .*\[7, 8\] after it\. Remove them"),
    ([EOS, EOS], r"Received: \[2\] after it"),
    ([5, 6, EOS, 10**6], "tokens of the vocabulary, from 1 to 16. Received: 1000000"),
    ([5, 17, EOS], "from 1 to 16. Received: 17"),
    ([5, -3, EOS], "from 1 to 16. Received: -3"),
    (np.array([5, 0, EOS]), "from 1 to 16. Received: 0"),
    ([5.7, EOS], "strings, or lists of int"),
    (None, "strings, or lists of int"),
]


@pytest.mark.parametrize(("ids", "message"), NO_IDS)
def test_ids_that_are_no_sentence_are_refused_and_not_scored(engine, ids, message):
    wrong = [[7], ids]
    for name, sides in (("targets", (["5", "6"], wrong)), ("sources", (wrong, ["5", "6"]))):
        with pytest.raises(InputError, match=f"^Text 2: .*`{name}` must .*{message}"):
            engine.score(*sides)


def test_all_sides_of_too_many_tokens_are_named(engine):
    long = " ".join(["6"] * 99)
    for name, limit, sides in (("targets", 23, "st"), ("sources", 16, "ts")):
        texts = {"s": ["5"] * 5, "t": ["7", long, "8", "9", long]}
        rule = f"Text 2: .*`{name}` must have at most {limit} tokens"
        with pytest.raises(TooLongError, match=rule) as caught:
            engine.score(*(texts[side] for side in sides))
        assert caught.value.indices == [1, 4]


@pytest.mark.tensorflow
def test_a_long_conversation_is_answered_by_its_last_turns_and_never_in_parts(varied):
    class TurnTokenizer(SentenceTokenizer):
        turn_id = 4

    cut = {**BEAM, "long_input": "truncate"}
    options = dict(max_source_length=16, turns=Turns("4"), **ONE_GRAPH)
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


PARTS = "5 6 7. 8 9 10 11. 12 13 14 15 16.", "4 5"


def test_parts_of_a_chinese_translation_have_no_space_between_them_in_a_stream(engine):
    class ChineseTokenizer(SentenceTokenizer):
        def detokenize(self, rows):
            return ["".join(chr(0x4E00 + id) for id in row if id > EOS) for row in rows]

    chinese = engine.with_(target_tokenizer=ChineseTokenizer())
    with pytest.warns(UserWarning, match="split"):
        (expected,) = chinese.translate([" ".join(PARTS)], beam_size=1, long_input="split")
        *_, last = chinese.stream(" ".join(PARTS), long_input="split")
    assert last == expected.text and " " not in last and len(expected.parts) == 2


def test_equal_parts_of_a_text_have_samples_of_their_own(engine):
    with pytest.warns(UserWarning, match="split"):
        (whole,) = engine.translate([f"{PARTS[0]} " * 4], sampling=True, long_input="split")
    samples = {part.text for part in whole.parts}
    assert {part.source_tokens for part in whole.parts} == {
        (*PARTS[0].replace(".", " 3").split(), "2")
    }
    assert len(samples) == len(whole.parts) == 4


@pytest.mark.tensorflow
@pytest.mark.filterwarnings("error")
def test_a_beam_that_can_hold_the_phrases_of_a_text_is_announced(engine):
    rule = "Texts with phrases are searched with `beam_size` 4 instead of 1."
    with pytest.warns(UserWarning) as lines:
        engine.translate(TEXTS[:1], beam_size=1, phrases=[["9 9"]])
    assert [str(line.message) for line in lines] == [rule]


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
    shortlist = Shortlist([5, 6], [[]] * 4 + [[id, (3 * id) % VOCABULARY] for id in range(4, 17)])
    sizes = dict(max_source_length=16, max_target_length=20)
    engine = ModelEngine(varied("post_norm"), NumberTokenizer(), shortlist=shortlist, **sizes)
    options = dict(beam_size=1, batch_size=2, alignment=True, long_input="split", shortlist=True)
    compiled = engine.warmup(lengths=(16,), target_prefixes=["5", "7 7 7"], **options)
    # A search for sentences with a prefix; alignments of up to 16 and 20 tokens.
    assert compiled == 3
    engine.translate(["5 7", "8"], target_prefixes=["", "9 9"], min_length=18, **options)
    engine.translate(["5 7", "8"], target_prefixes=["", "9 9"], max_length=3, **options)
    assert engine.compilations == 3
    with pytest.raises(InputError, match="`long_input` must be"):
        engine.warmup(long_input="cut")
    with pytest.raises(InputError, match="no option `num_beams`"):
        engine.warmup(num_beams=2)


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
