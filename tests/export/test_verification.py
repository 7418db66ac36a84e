"""The verification catches spoiled answers of every kind by the bound of their format."""

import dataclasses
import math

import numpy as np
import pytest

from keras_transformer.engine import Engine
from keras_transformer.errors import VerificationError
from keras_transformer.export.ctranslate2.export import BOUND as CTRANSLATE2
from keras_transformer.export.texts import fitting_texts, sample_texts, text_batches
from keras_transformer.export.verification import (
    BOUNDS,
    FLOAT32,
    LABEL_BOUNDS,
    SIXTEEN_BIT,
    LiveAnswers,
    Search,
    verify,
)
from keras_transformer.translation import Translation

TEXTS = [f"text {i}" for i in range(99)]


class Characters:
    """A token is a character; EOS has the id 2."""

    def tokenize(self, texts, add_eos=False):
        if isinstance(texts, str):
            return [*map(ord, texts.strip()), *[2] * add_eos]
        return [self.tokenize(text, add_eos) for text in texts]

    def detokenize(self, rows):
        return ["".join(chr(id) for id in row if id > 2) for row in rows]


class Live(Engine):
    """Translates to upper case with the score -2; gives other texts the scores of a dict."""

    source_tokenizer = target_tokenizer = Characters()
    max_source_length = max_target_length = 64

    def __init__(self, scores=None):
        self.scores, self.searched, self.forced = scores or {}, [], []

    def translate(self, texts, n_best=1, **_):
        self.searched += texts
        return [self.hypothesis(text, n_best) for text in texts]

    def hypothesis(self, text, n_best=1, **fields):
        if not text.strip():
            return Translation("", 0.0)
        ids = tuple(self.target_tokenizer.tokenize(text.upper(), add_eos=True))
        # As many as were asked for, each a little less probable.
        others = [Translation(f"{text.upper()} {i}", -2.0 - i / 1000) for i in range(1, n_best)]
        found = Translation(text.upper(), -2.0, -4.0, tuple(others), ids=ids)
        return dataclasses.replace(found, **fields)

    def score(self, sources, targets, length_penalty):
        texts = self.target_tokenizer.detokenize(targets)
        self.forced += texts
        return [Translation(text, self.scores.get(text, -2.0)) for text in texts]


class Spoiled(Engine):
    """The live model's answers but for the `spoiled` ones, by source."""

    def __init__(self, spoiled=None, without_ids=False):
        self.spoiled, self.without_ids = spoiled or {}, without_ids

    def translate(self, texts, **options):
        found = [
            self.spoiled.get(each, one)
            for each, one in zip(texts, Live().translate(texts, **options), strict=True)
        ]
        return [dataclasses.replace(each, ids=()) if self.without_ids else each for each in found]

    def score(self, sources, targets):
        return [Translation(text, -2.0) for text in targets]


def check(tested, bound=FLOAT32, live=None, batches=None, **options):
    """The report of one search of an engine."""
    search = Search([TEXTS, [""]] if batches is None else batches, options)
    live = LiveAnswers(live or Live(), 0.8)
    return verify({"file": {"beam": (tested, search)}}, live, bound)["file"]["beam"]


def other(text="other", score=-2.0, **fields):
    return Translation(text, score, **fields)


def test_equal_answers_pass_and_are_counted():
    found = check(Spoiled())
    assert found["batch_sizes"] == [99, 1] and found["texts"] == 100 and found["others"] == 0
    for name in ("mean_score_difference", "largest_score_difference", "largest_regret"):
        assert found[name] == 0
    assert found["mean_live_score"] == pytest.approx(-1.98)


RIGHT = Live().hypothesis("text 7")
SPOILED = {
    "another score": (dataclasses.replace(RIGHT, score=-2.1), "scores that are the live model's"),
    "no number": (dataclasses.replace(RIGHT, score=math.nan), "scores that are the live model's"),
    "the live model's score of another text": (other("wrong"), "scores that are the live model's"),
    "a text that the live model scores lower": (other("wrong", -9.0), "as high as its own"),
    "nothing of something": (Translation("", 0.0), "'TEXT 7'. Received: '' for 'text 7'"),
    "ids of another text": (other("TEXT 7", ids=(65, 2)), "the text of the ids. Received"),
    "another sum": (dataclasses.replace(RIGHT, log_probability=-4.1), "`log_probability` -4.0"),
    "other tokens": (dataclasses.replace(RIGHT, tokens=("T",)), "`tokens`"),
    "attention": (dataclasses.replace(RIGHT, alignment=np.ones((2, 3))), "`alignment`"),
}


@pytest.mark.parametrize("case", SPOILED)
def test_one_spoiled_answer_of_a_hundred_is_caught(case):
    answer, message = SPOILED[case]
    with pytest.raises(VerificationError, match=f"^file, beam: .*{message}"):
        check(Spoiled({"text 7": answer}), live=Live({"wrong": -9.0}))


def test_a_translation_of_a_blank_text_and_a_missing_one_are_caught():
    with pytest.raises(VerificationError, match="expected ''. Received: 'other'"):
        check(Spoiled({"": other()}))

    class Short(Spoiled):
        def translate(self, texts, **options):
            return super().translate(texts, **options)[1:]

    with pytest.raises(VerificationError, match="each text. Received: 98 for 99"):
        check(Short())


def test_another_text_that_the_live_model_likes_as_much_is_right_unless_there_are_many():
    ties = {text: other(f"tie {i}", -2.001) for i, text in enumerate(TEXTS)}
    live = Live({each.text: each.score for each in ties.values()})
    two, three = ({text: ties[text] for text in TEXTS[:count]} for count in (2, 3))
    assert check(Spoiled(two), live=live)["others"] == 2
    with pytest.raises(
        VerificationError, match="at most 2% other texts. Received: 3 of 100, first"
    ):
        check(Spoiled(three), live=live)


def test_hypotheses_after_the_best_count_too():
    best = Live().hypothesis("text 7", 3)
    first, second = best.alternatives
    swapped = dataclasses.replace(best, alternatives=(second, first))
    live = Live()
    # The live model's own have its scores: they are not scored again.
    assert check(Spoiled({"text 7": swapped}), live=live, beam_size=3, n_best=3)["others"] == 2
    assert live.forced == []
    wrong = dataclasses.replace(best, alternatives=(first, dataclasses.replace(second, score=-5.0)))
    with pytest.raises(VerificationError, match="scores that are the live model's"):
        check(Spoiled({"text 7": wrong}), beam_size=3, n_best=3)
    fewer = {text: Live().hypothesis(text) for text in TEXTS}
    with pytest.raises(VerificationError, match="198 of"):
        check(Spoiled(fewer), beam_size=3, n_best=3)


def test_a_text_without_ids_is_scored_by_the_ids_of_another_search(engine, texts):
    """Random weights spell texts in unusual tokens, and end no hypothesis that the limit cuts."""
    chosen = [text for text in dict.fromkeys(texts) if text.strip() and len(text) < 12][:20]
    wide = {"beam_size": 4, "n_best": 4, "length_penalty": 1.2, "long_input": "truncate"}
    found = engine.translate(chosen, **wide)
    last = {text: each.alternatives[-1] for text, each in zip(chosen, found, strict=True)}
    usual = engine.target_tokenizer.tokenize([each.text for each in last.values()], add_eos=True)
    assert any(tuple(ids) != each.ids for ids, each in zip(usual, last.values(), strict=True))

    class OtherWay(Engine):
        def __init__(self, without_ids):
            self.without_ids = without_ids

        def translate(self, texts, **_):
            ids = {"ids": ()} if self.without_ids else {}
            return [dataclasses.replace(last[text], tokens=(), **ids) for text in texts]

    search = Search([chosen], {"beam_size": 1, "length_penalty": 1.2})
    searches = {"text": (OtherWay(True), search), "ids": (OtherWay(False), search)}
    every = {"regret": 1e6, "worst_regret": 1e6, "others": 1.0}
    bound = dataclasses.replace(FLOAT32, **every)
    report = verify({"file": searches}, LiveAnswers(engine, 1.2), bound)["file"]
    assert report["text"]["others"] > 10
    assert report["text"]["largest_score_difference"] < 1e-4
    del searches["ids"]
    with pytest.raises(VerificationError, match="^file, text: .*scores that are the live model's"):
        verify({"file": searches}, LiveAnswers(engine, 1.2), bound)


@pytest.mark.parametrize("bound", [FLOAT32, SIXTEEN_BIT, *BOUNDS.values(), CTRANSLATE2])
@pytest.mark.parametrize("limit", ["score", "regret", "worst_regret"])
def test_each_bound_lets_pass_what_is_under_it_and_nothing_above(bound, limit):
    bound = dataclasses.replace(bound, others=1.0)
    size = 2.0  # of the live model's scores

    def answers(nats):
        if limit == "score":  # every reported score is off
            spoiled = {text: other(f"o {text}", -size - nats) for text in TEXTS}
            return Spoiled(spoiled), Live({f"o {text}": -size for text in TEXTS})
        count = 1 if limit == "worst_regret" else len(TEXTS)
        spoiled = {text: other(f"o {text}", -size - nats) for text in TEXTS[:count]}
        return Spoiled(spoiled), Live({each.text: each.score for each in spoiled.values()})

    most = getattr(bound, limit) * size + bound.floor
    if limit == "worst_regret":
        bound = dataclasses.replace(bound, regret=1.0)
    for factor, passes in ((0.9, True), (1.2, False)):
        tested, live = answers(factor * most)
        if passes:
            check(tested, bound, live, [TEXTS])
        else:
            with pytest.raises(VerificationError, match="live model"):
                check(tested, bound, live, [TEXTS])


@pytest.mark.parametrize("unsure", [False, True])
def test_where_the_live_model_is_unsure_another_text_may_cost_more(unsure):
    bound = BOUNDS["int8"]

    class Unsure(Live):
        def hypothesis(self, text, n_best=1, **fields):
            score = -6.0 if unsure and text == TEXTS[0] else -2.0
            return super().hypothesis(text, n_best, score=score, **fields)

    lost = (bound.worst_regret + 1) * 2.0
    theirs = other("o", (-6.0 if unsure else -2.0) - lost)
    tested, live = Spoiled({TEXTS[0]: theirs}), Unsure({"o": theirs.score})
    if unsure:
        assert check(tested, bound, live, [TEXTS])["largest_regret"] == lost
    else:
        with pytest.raises(VerificationError, match="as high as its own, each"):
            check(tested, bound, live, [TEXTS])


def test_two_samples_of_a_hundred_may_go_another_way_and_three_may_not():
    for count in (2, 3):
        tested = Spoiled({text: other(f"o {text}", -50.0) for text in TEXTS[:count]})
        if count == 2:
            assert check(tested, sampling=True)["others"] == 2
        else:
            with pytest.raises(VerificationError, match="at most 2% other texts. Received: 3"):
                check(tested, sampling=True)


def test_each_text_is_searched_once_and_each_sample_has_a_seed():
    live = Live()
    check(Spoiled(), live=live, batches=[TEXTS, TEXTS[:3], []])
    assert sorted(live.searched) == sorted(TEXTS)
    assert Search([], {"sampling": True}).options_of("abc")["seed"] == [0, 7919, 15838]


def test_given_targets_are_scored():
    search = Search([["a", "b"]], targets=[["x", "y"]])
    artifacts = {"file": {"score": (Spoiled(), search)}}
    assert verify(artifacts, LiveAnswers(Live(), 0.8), FLOAT32)["file"]["score"]["texts"] == 2
    with pytest.raises(VerificationError, match="^file, score: .*scores"):
        verify(artifacts, LiveAnswers(Live({"y": -2.2}), 0.8), FLOAT32)


def test_batches_hold_what_servers_get_wrong(tokenizer, texts):
    batches = text_batches(texts, tokenizer, max_source_length=61)
    assert [len(batches[name]) for name in ("none", "one", "few", "many")] == [0, 1, 32, 224]
    together = batches["all"]
    assert set(texts) <= set(together) and len(together) > 200
    assert "" in together and "\u3000\u00a0" in together
    assert batches["not_blank"] == [text for text in together if text.strip()]
    assert any("\U0001f600" in text for text in together)
    (too_long,) = batches["too_long"]
    assert len(tokenizer.tokenize(too_long)) > 61
    without = text_batches([], tokenizer, 61)
    assert len(without["many"]) == 224 and all(without["one"])


def test_sampled_texts_are_the_same_each_time_and_within_the_vocabulary(tokenizer):
    sampled = sample_texts(tokenizer)
    assert sampled == sample_texts(tokenizer) and len(set(sampled)) > 150
    assert not any(3 in ids for ids in tokenizer.tokenize(sampled))


def test_fitting_texts_are_the_longest_and_one_fills_the_length(tokenizer, texts):
    sizes = {text: len(tokenizer.tokenize(text)) + 1 for text in texts}
    for length in (7, 13, 29):
        blank, *chosen, filled = fitting_texts(texts, tokenizer, length, count=5)
        assert blank == "" and len(chosen) == 5
        fitting = sorted(size for size in sizes.values() if size <= length)
        assert [sizes[text] for text in chosen] == fitting[-5:]
        assert length - 6 < len(tokenizer.tokenize(filled)) + 1 <= length
    assert fitting_texts([], tokenizer, 7) == ["", ""]


def test_labels_of_a_classifier_have_the_live_models_probabilities():
    class Labelling(Engine):
        labels = ["dog", "other"]
        source_tokenizer = target_tokenizer = Characters()
        max_source_length = 64

        def __init__(self, probability):
            self.probability = probability

        def translate(self, texts, **_):
            rest = (Translation("other", 1 - self.probability, ids=(1,)),)
            found = Translation("dog", self.probability, ids=(0,), alternatives=rest)
            if self.probability < 0.5:
                (best,) = rest
                rest = (dataclasses.replace(found, alternatives=()),)
                found = dataclasses.replace(best, alternatives=rest)
            return [found] * len(texts)

    bound = LABEL_BOUNDS["int8"]
    for probability, passes in ((0.6, True), (0.45, True), (0.35, False)):
        live, tested = Labelling(0.55), Labelling(probability)
        if passes:
            check(tested, bound, live, [TEXTS], n_best=2)
        else:
            with pytest.raises(VerificationError, match="^file, beam: expected scores"):
                check(tested, bound, live, [TEXTS], n_best=2)
    with pytest.raises(VerificationError, match="^file, beam: expected"):
        check(Labelling(0.55), LABEL_BOUNDS["none"], Labelling(0.6), [TEXTS], n_best=2)
