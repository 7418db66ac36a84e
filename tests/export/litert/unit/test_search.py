"""LiteRT's search: its choices on models whose probabilities are known, and as a whole."""

import numpy as np
import pytest
from decoding_oracles import HistoryModel, as_lists, check_equal, check_varied
from naive_search import BOS, EOS, PAD, UNK, marian_beam, naive_beam, naive_greedy, penalty

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.base.impossible import HIDDEN
from keras_transformer.decoding import DecodingOptions
from keras_transformer.decoding.candidates import Candidates
from keras_transformer.decoding.search import score_targets, search
from keras_transformer.export.litert.alignment import LiteRTAlignment
from keras_transformer.export.litert.search import LiteRTBeam, LiteRTGreedy, LiteRTSearch
from keras_transformer.text.shortlist import Shortlist, union_of

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("plain_graphs")]

SENTENCES, VOCABULARY, ROOM = 23, 11, 7


def options_of(beam_size, length_penalty, n_best, max_length, **fields):
    sizes = {"beam_size": beam_size, "n_best": n_best, "max_length": max_length}
    return DecodingOptions(length_penalty=length_penalty, **sizes, **fields)


def run(model, limits, beam_size, alpha=0.6, n_best=1, early_stopping=True, **ranking):
    """What a strategy finds, step by step."""
    import tensorflow as tf

    options = options_of(beam_size, alpha, n_best, ROOM, early_stopping=early_stopping, **ranking)
    strategy_class = LiteRTGreedy if beam_size == 1 else LiteRTBeam
    strategy = strategy_class(options, np.array(limits, "int32")[:, None])

    @tf.function(autograph=False)
    def search_by_steps():
        state, memory = strategy.begin(tf.zeros((len(limits), 1))), model.start(beam_size)
        hidden = np.zeros(model.logits.shape[2], "float32")
        hidden[[PAD, BOS]] = HIDDEN
        for position in range(ROOM):
            logits, memory = model.step(state.newest, memory)
            rows = tf.reshape(logits, (-1, hidden.size))
            forbidden = tf.gather(rows, [PAD, BOS], axis=1)
            state, parents = strategy.choose(position, state, rows + hidden, forbidden)
            if parents is not None:
                memory = model.reorder(memory, parents)
        return strategy.result(state)

    result = search_by_steps()
    shape = (len(limits), n_best)
    return (
        np.reshape(result["ids"], (*shape, ROOM)),
        np.reshape(result["log_probability"], shape),
        np.reshape(result["score"], shape),
    )


def test_greedy_equals_the_naive_search(rng):
    model = HistoryModel.random(rng, SENTENCES, VOCABULARY, end=0.5)
    limits = [row % (ROOM + 1) for row in range(SENTENCES)]
    expected = [
        [hypothesis._replace(score=hypothesis.score / penalty(len(hypothesis.ids), 0.6))]
        for (hypothesis,) in naive_greedy(model, limits)
    ]
    check_varied(expected)
    check_equal(as_lists(run(model, limits, 1)), expected)


BEAMS = [(3, 0.0, 1, VOCABULARY), (4, 2.0, 3, VOCABULARY)]
BEAMS += [pytest.param(4, 0.6, 2, 7, id="fewer-tokens-than-twice-the-beams")]
BEAMS += [pytest.param(3, 0.6, 2, 167, id="two-blocks-of-a-row-and-padding")]


@pytest.mark.slow(after=3)
@pytest.mark.parametrize(("beam_size", "alpha", "n_best", "vocabulary"), BEAMS)
@pytest.mark.parametrize("early_stopping", [True, False])
def test_beam_equals_the_naive_search(rng, beam_size, alpha, n_best, vocabulary, early_stopping):
    model = HistoryModel.random(rng, SENTENCES, vocabulary, end=1.0)
    limits = [1 + row % ROOM for row in range(SENTENCES)]
    expected = naive_beam(model, limits, beam_size, alpha, n_best, early_stopping=early_stopping)
    assert len({len(hypotheses[0].ids) for hypotheses in expected}) >= 3
    check_equal(as_lists(run(model, limits, beam_size, alpha, n_best, early_stopping)), expected)


@pytest.mark.slow(after=3)
@pytest.mark.parametrize(
    ("beam_size", "exponent", "word_penalty", "early_stopping"),
    [(1, 1.0, 0.3, True), (2, 0.0, 0.0, False), (4, 1.0, 0.3, True), (4, 1.4, 0.2, False)],
)
def test_a_beam_shrinks_as_marians(rng, beam_size, exponent, word_penalty, early_stopping):
    model = HistoryModel.random(rng, SENTENCES, VOCABULARY, end=0.5)
    limits = [1 + row % ROOM for row in range(SENTENCES)]
    rule = {"length_normalization": "marian", "word_penalty": word_penalty}
    rows = (
        marian_beam(model, row, limit, beam_size, exponent, word_penalty)
        for row, limit in enumerate(limits)
    )
    expected = [hypotheses[:1] for hypotheses in rows]
    check_varied(expected)
    received = run(model, limits, beam_size, exponent, 1, early_stopping, **rule)
    check_equal(as_lists(received), expected)


def test_places_without_a_hypothesis_say_so():
    # One token follows and then the end: there are no more.
    model = HistoryModel.of_probabilities({(): {3: 1.0}, (3,): {EOS: 1.0}}, vocabulary=7)
    ids, sums, scores = run(model, [3], 3, n_best=3)
    assert ids[0, :, :3].tolist() == [[3, EOS, PAD], [PAD] * 3, [PAD] * 3]
    np.testing.assert_allclose(sums, [[0.0] * 3], atol=1e-5)
    assert scores[0, 1:].tolist() == [-np.inf, -np.inf]


LENGTH, LIMIT = 11, 29  # More than three blocks of steps.


def make_model(rng, **fields):
    sizes = {"model_dim": 12, "num_heads": 3, "intermediate_dim": 17}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 2}
    config = TransformerConfig(**{"vocabulary_size": 41, **sizes, **layers, **fields})
    model = Transformer(config)
    for weight in model.trainable_weights:
        weight.assign(0.7 * rng.normal(size=weight.shape))
    return model


def source_ids(rng):
    ids = rng.integers(3, 41, (5, LENGTH)).astype("int32")
    for row, length in enumerate((LENGTH, 7, 1, 0, 5)):
        ids[row, length:] = 0
        if length > 1:
            ids[row, length - 1] = EOS
    return ids


def traced(function):
    """As one graph: the loops in Python would take seconds."""
    import tensorflow as tf

    return tf.function(function, autograph=False)


UNTIED = {"target_vocabulary_size": 43, "tie_embeddings": "none", "num_decoder_layers": 1}
UNTIED |= {"positions": "learned", "max_length": LIMIT, "activation": "gelu", "source_eos": False}
SSRU = {"decoder": "ssru", "position_layout": "halves", "output_bias": True}
NEAR = {"positions": "none", "num_kv_heads": 1, "sliding_window": 3}
PRUNED = {"normalize_first": True, "encoder_heads": [2]}
PRUNED |= {"decoder_heads": [3, 1], "cross_heads": [1, 2]}


SEARCHES = [(PRUNED, 3, 3, 0.9), (UNTIED, 4, 2, 0.0)]
SEARCHES += [(NEAR, 1, 1, 0.6), (SSRU, 1, 1, 0.6), ({**SSRU, "ssru_projection": True}, 3, 2, 0.6)]


@pytest.mark.parametrize(("fields", "beam_size", "n_best", "length_penalty"), SEARCHES)
def test_it_finds_what_the_models_own_search_finds(rng, fields, beam_size, n_best, length_penalty):
    model, ids = make_model(rng, **fields), source_ids(rng)
    options = {"beam_size": beam_size, "n_best": n_best, "max_length": LIMIT}
    rule, forced = {"length_penalty": length_penalty, "max_length_ratio": 3.0}, {}
    if fields in (PRUNED, NEAR, SSRU):  # The others have one position less, or one is enough.
        forced["forced_ids"] = rng.integers(4, 41, len(ids)).astype("int32")
    live = traced(lambda ids, **forced: search(model, ids, **rule, **options, **forced))(
        ids, **forced
    )
    search_rule = options_of(beam_size, length_penalty, n_best, LIMIT, max_length_ratio=3.0)
    run = LiteRTSearch(model, search_rule, LENGTH, is_forced=bool(forced))
    result = traced(run.__call__)(ids, **forced)
    shape = (len(ids), n_best, LIMIT)
    np.testing.assert_array_equal(np.reshape(result["ids"], shape), np.asarray(live.ids))
    # What is -inf here, as there is no such hypothesis, is far below all else there.
    scores = np.maximum(np.reshape(result["score"], shape[:2]), -1e30)
    np.testing.assert_allclose(scores, np.asarray(live.scores), rtol=1e-4, atol=1e-4)
    sums = np.reshape(result["log_probability"], shape[:2])
    np.testing.assert_allclose(sums, np.asarray(live.log_probabilities), rtol=1e-4, atol=1e-4)


class Dictated(LiteRTGreedy):
    """Writes the tokens of `targets`, whatever the logits say."""

    def choose(self, position, state, logits, forbidden_logits):
        import tensorflow as tf

        tokens = tf.gather(self.targets, [position], axis=1)
        all_logits = tf.concat([logits, forbidden_logits], axis=1)
        log_sum = tf.reduce_logsumexp(all_logits, axis=1, keepdims=True)
        totals = state.totals + tf.gather(logits, tokens, batch_dims=1) - log_sum
        running = state.running & (position + 1 < self.targets.shape[1])
        return state._replace(newest=tokens, running=running, totals=totals), None


# A random model soon repeats a token, and then each key and value in a window is like the others.
def test_a_step_sees_the_window_across_the_blocks_of_steps(rng, monkeypatch):
    model, ids = make_model(rng, **NEAR), source_ids(rng)[:3]
    for weight in model.trainable_weights:
        weight.assign(weight / 2)  # Then a token attends to all tokens of its window.
    targets = np.stack([rng.permutation(np.arange(4, 41))[:24] for _ in ids]).astype("int32")
    monkeypatch.setattr(Dictated, "targets", targets, raising=False)
    monkeypatch.setattr("keras_transformer.export.litert.search.LiteRTGreedy", Dictated)
    run = LiteRTSearch(model, options_of(1, 0.0, 1, 24, max_length_ratio=9.0), LENGTH)
    result = traced(run.__call__)(ids)
    expected = np.asarray(score_targets(model, ids, targets)[0]).sum(axis=-1)
    np.testing.assert_allclose(result["log_probability"], expected, rtol=1e-5)


@pytest.mark.parametrize(("fields", "beam_size"), [(SSRU, 1), (PRUNED, 3)])
def test_among_candidates_it_finds_what_the_models_own_search_finds(rng, fields, beam_size):
    model, ids = make_model(rng, **fields), source_ids(rng)
    shortlist = Shortlist([7], [rng.integers(4, 41, 3) for _ in range(41)])
    lists = [shortlist.candidates_of(row[row > 0]) for row in ids]
    listed, mask = union_of(lists, len(ids), lambda count: count + 2)
    options = {"beam_size": beam_size, "max_length": LIMIT, "n_best": beam_size}
    candidates = Candidates(listed, mask)
    live = traced(lambda ids: search(model, ids, candidates=candidates, **options))(ids)
    run = LiteRTSearch(model, options_of(beam_size, 0.6, beam_size, LIMIT), LENGTH)
    result = traced(run.__call__)(ids, listed, np.where(mask, 0, HIDDEN).astype("float32"))
    shape = (len(ids), beam_size, LIMIT)
    np.testing.assert_array_equal(np.reshape(result["ids"], shape), np.asarray(live.ids))
    scores = np.maximum(np.reshape(result["score"], shape[:2]), -1e30)
    np.testing.assert_allclose(scores, np.asarray(live.scores), rtol=1e-4, atol=1e-4)
    for row, own in zip(np.asarray(live.ids), lists, strict=True):
        assert np.isin(row, own).all()


@pytest.mark.parametrize("fields", [PRUNED, UNTIED, NEAR, SSRU, {**SSRU, "ssru_projection": True}])
def test_the_alignment_is_the_models_own_at_any_length_and_in_a_padded_batch(rng, fields):
    import tensorflow as tf

    model, ids = make_model(rng, **fields), source_ids(rng)[[0, 1, 4]]
    targets = rng.integers(4, 41, (3, LIMIT)).astype("int32")  # More than a block of the scan.
    pairs = [(ids[0], targets[0]), (ids[1, :7], targets[1, :17]), (ids[2, :5], targets[2, :1])]
    for row, (_, target) in enumerate(pairs):
        targets[row, len(target) :] = PAD
    align = LiteRTAlignment(model, LIMIT)
    together = align(ids, targets)["alignment"]
    spec = tf.TensorSpec((1, None), tf.int32)
    alone = traced(align.__call__).get_concrete_function(spec, spec)
    for row, (source, target) in enumerate(pairs):
        _, expected = score_targets(model, source[None], target[None])
        result = alone(tf.constant(source[None]), tf.constant(target[None]))["alignment"]
        np.testing.assert_allclose(result, np.asarray(expected), atol=1e-5)
        padded = together[row, : len(target), : len(source)]
        np.testing.assert_allclose(padded, np.asarray(expected)[0], atol=1e-5)


def test_batch_mates_and_padding_change_nothing(rng):
    model, ids = make_model(rng, normalize_first=True), source_ids(rng)
    run = traced(LiteRTSearch(model, options_of(3, 0.6, 3, LIMIT), LENGTH + 4).__call__)
    together = run(ids)
    alone = run(np.pad(ids[1:2], ((0, 0), (0, 4))))
    np.testing.assert_array_equal(alone["ids"][0], together["ids"][1])
    np.testing.assert_allclose(alone["score"][0], together["score"][1], atol=1e-4)


def test_a_forbidden_id_counts_in_the_sum_and_is_never_chosen(rng):
    model, ids = make_model(rng, normalize_first=True), source_ids(rng)
    free = LiteRTSearch(model, options_of(1, 0.0, 1, 1), LENGTH)(ids[:1])
    first = int(free["ids"][0, 0])
    banned = options_of(1, 0.0, 1, 1, banned_ids=[first])
    other = LiteRTSearch(model, banned, LENGTH)(ids[:1])
    logits = np.asarray(model((ids[:1], np.array([[1]]))), "float64")[0, 0]
    total = np.log(np.sum(np.exp(logits)))
    logits[[PAD, BOS, UNK, first]] = -np.inf
    assert int(other["ids"][0, 0]) == logits.argmax()
    assert float(other["log_probability"][0]) == pytest.approx(logits.max() - total, abs=1e-4)


def test_an_id_beyond_the_vocabulary_is_the_unknown_token(rng):
    model, ids = make_model(rng, normalize_first=True), source_ids(rng)
    run = LiteRTSearch(model, options_of(1, 0.0, 1, 5), LENGTH)
    unknown, beyond = ids.copy(), ids.copy()
    unknown[:2, 3], beyond[:2, 3] = UNK, [41, 57]
    for name, values in run(beyond).items():
        np.testing.assert_array_equal(values, run(unknown)[name])
