import copy
import math

import pytest

from keras_transformer.errors import VerificationError
from keras_transformer.export.verification import (
    FLOAT32,
    SIXTEEN_BIT,
    accept_rounding_ties,
    check_signature,
    compare,
    fitting_texts,
    sample_texts,
    verification_batches,
)

HUNDRED = [(f"text {i}", -float(i)) for i in range(100)]


def test_equal_translations_have_no_ties():
    found = compare(HUNDRED, HUNDRED)
    assert found == {"texts": 100, "ties": 0, "largest_score_difference": 0.0}


def test_one_other_translation_is_named():
    received = [*HUNDRED[:7], ("wrong", -7.5), *HUNDRED[8:]]
    with pytest.raises(VerificationError) as error:
        compare(HUNDRED, received)
    assert str(error.value) == (
        "1 of 100 translations differ between the live model and the export. "
        "Received first: 'wrong' (-7.500000) instead of 'text 7' (-7.000000)."
    )


def test_scores_may_differ_absolutely_or_relatively():
    # 2e-3 is more than 1e-3, and less than 1e-3 of 50.
    assert compare([("a", -50.0)], [("a", -50.002)])["largest_score_difference"] == pytest.approx(
        2e-3
    )
    assert compare([("a", -0.0005)], [("a", 0.0)])["ties"] == 0
    for score, other in ((-1.0, -1.002), (-1.0, math.nan), (-math.inf, -1.0)):
        with pytest.raises(VerificationError, match="1 of 1"):
            compare([("a", score)], [("a", other)])
    assert compare([("a", -1.0)], [("a", -1.04)], SIXTEEN_BIT)["ties"] == 0


def test_one_near_tie_of_a_hundred_is_let_pass_and_two_are_not():
    def with_ties(count, difference):
        ties = [("other", score - difference) for _, score in HUNDRED[:count]]
        return [*ties, *HUNDRED[count:]]

    def rescore(places):
        return [HUNDRED[place][1] for place in places]

    assert compare(HUNDRED, with_ties(1, 9e-5), FLOAT32, rescore)["ties"] == 1
    with pytest.raises(VerificationError, match="2 of 100 .* almost equal scores"):
        compare(HUNDRED, with_ties(2, 9e-5), FLOAT32, rescore)
    with pytest.raises(VerificationError, match="1 of 100 translations differ between"):
        compare(HUNDRED, with_ties(1, 2e-4), FLOAT32, rescore)


@pytest.mark.parametrize("live_score", [-9.0, math.nan, -7.002])
def test_another_text_with_an_equal_score_is_wrong_where_the_live_model_scores_it_otherwise(
    live_score,
):
    received = [*HUNDRED[:7], ("wrong", -7.0), *HUNDRED[8:]]
    assert compare(HUNDRED, received, FLOAT32, lambda places: [-7.0] * len(places))["ties"] == 1
    with pytest.raises(VerificationError, match="1 of 100 .* Received first: 'wrong'"):
        compare(HUNDRED, received, FLOAT32, lambda places: [live_score] * len(places))


def test_a_missing_translation_is_found():
    with pytest.raises(VerificationError, match="99 for 100 texts"):
        compare(HUNDRED, HUNDRED[1:])


def check(name, pairs, live_scores=None):
    """`check_signature` where the live model gives texts the scores of a dict."""
    calls = [
        (live, received, [f"source {i}" for i in range(len(live["score"]))])
        for live, received in pairs
    ]

    def score(texts, targets):
        asked.append((texts, targets))
        return [(live_scores or {})[str(each)] for each in targets]

    asked = []
    return check_signature(name, calls, FLOAT32, score), asked


def outputs(count=50):
    """Of the signature `align`, two tokens by three."""
    return {
        "translation": [f"text {i}" for i in range(count)],
        "score": [-1.0 - i for i in range(count)],
        "log_probability": [-2.0 - i for i in range(count)],
        "source_tokens": [["a", "b", "</s>"]] * count,
        "target_tokens": [["c", "</s>"]] * count,
        "alignment": [[[0.5, 0.25, 0.25], [0.0, 0.0, 1.0]]] * count,
    }


def changed(name, value):
    received = copy.deepcopy(outputs())
    received[name][7] = value
    return received


def test_a_signature_is_compared_over_all_its_calls():
    found, _ = check("align", [(outputs(50), outputs(50)), (outputs(3), outputs(3))])
    assert (found["batch_sizes"], found["texts"], found["ties"]) == ([50, 3], 53, 0)


@pytest.mark.parametrize(
    "name, value",
    [
        ("translation", "other"),
        ("score", -8.5),
        ("log_probability", -9.5),
        ("target_tokens", ["d", "</s>"]),
        ("source_tokens", ["a", "</s>"]),
        ("alignment", [[0.5, 0.25, 0.25], [0.0, 0.01, 0.99]]),
    ],
)
def test_one_other_value_of_any_output_is_found(name, value):
    with pytest.raises(VerificationError, match="^Signature align: .*Received"):
        check("align", [(outputs(), changed(name, value))])


def test_padding_and_rounding_are_no_differences():
    received = changed("target_tokens", ["c", "</s>", "", ""])
    received["alignment"][7] = [[0.5, 0.2501, 0.25, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0] * 4]
    received["log_probability"][7] += 1e-4
    check("align", [(outputs(), received)])


def test_an_output_more_or_less_is_found():
    received = outputs()
    del received["alignment"]
    with pytest.raises(VerificationError, match="outputs must be .*'alignment'"):
        check("align", [(outputs(), received)])


def test_all_hypotheses_of_a_beam_count_and_missing_ones_must_be_missing():
    live = {
        "translation": [["a", "b", ""]],
        "score": [[-1.0, -2.0, -math.inf]],
        "log_probability": [[-2.0, -3.0, -math.inf]],
    }
    assert check("beam", [(live, live)])[0]["texts"] == 3
    for name, value in (("translation", "c"), ("score", -5.0)):
        received = copy.deepcopy(live)
        received[name][0][2] = value
        with pytest.raises(VerificationError, match="Signature beam: 1 of 3"):
            check("beam", [(live, received)])


def test_another_batch_size_of_the_live_model_finds_what_rounding_decided():
    live, received, other = outputs(), outputs(), outputs()
    for each in (received, other):
        each["translation"][7], each["score"][7], each["log_probability"][7] = "other", -9.0, -9.5
    other["translation"][8] = "not what the export says"
    with pytest.raises(VerificationError, match="1 of 50"):
        check("align", [(live, received)])
    expected, accepted = accept_rounding_ties(live, received, FLOAT32, iter([outputs(), other]))
    assert accepted == 1
    check("align", [(expected, received)])
    assert live == outputs() and expected["translation"][8] == "text 8"


def test_what_no_batch_size_finds_stays_different():
    received = changed("translation", "wrong")
    received["score"][7] = -8.5
    expected, accepted = accept_rounding_ties(
        outputs(), received, FLOAT32, iter([outputs(), outputs()])
    )
    assert (expected, accepted) == (outputs(), 0)


def test_no_other_batch_size_is_tried_for_nothing_or_for_many():
    def nobody():
        raise AssertionError("not needed")
        yield

    many, tie = outputs(), changed("score", -8.0 - 9e-5)
    tie["translation"][7] = "a near-tie"
    for row in (3, 5):  # One in a hundred may be rounded otherwise, and one in any case.
        many["translation"][row], many["score"][row] = "wrong", -99.0
    fewer = {name: values[1:] for name, values in outputs().items()}
    for received in (outputs(), tie, many, fewer, {"score": [-1.0] * 50}):
        assert accept_rounding_ties(outputs(), received, FLOAT32, nobody()) == (outputs(), 0)


def test_ids_are_compared_without_their_padding():
    live = {"ids": [[5, 2, 0], [7, 11, 2]], "score": [-1.0, -2.0]}
    wider = {"ids": [[5, 2, 0, 0], [7, 11, 2, 0]], "score": [-1.0, -2.0]}
    assert check("serving_ids", [(live, wider)])[0]["ties"] == 0
    other = {"ids": [[5, 2, 0], [7, 13, 2]], "score": [-1.0, -2.5]}
    with pytest.raises(VerificationError, match="'7 13 2'"):
        check("serving_ids", [(live, other)])


def test_one_sample_of_a_hundred_may_go_another_way_and_three_may_not():
    live = {name: outputs(100)[name] for name in ("translation", "score", "log_probability")}
    for count, fails in ((1, False), (3, True)):
        received = copy.deepcopy(live)
        for place in range(count):
            received["translation"][place], received["score"][place] = "other", -50.0
        if fails:
            with pytest.raises(VerificationError, match="Signature sample: 3 of 100"):
                check("sample", [(live, received)])
        else:
            assert check("sample", [(live, received)])[0]["ties"] == 1


def test_the_live_model_scores_what_only_the_export_found():
    live = {"translation": [["a", "b"], ["c", "d"]], "score": [[-1.0, -1.00005], [-2.0, -3.0]]}
    swapped = copy.deepcopy(live)
    swapped["translation"][0] = ["b", "a"]
    # Two ties in four are too many: many more are right.
    right = {"translation": [["e", "f"]] * 200, "score": [[-1.0, -2.0]] * 200}
    _, asked = check("beam", [(right, right), (live, swapped)])
    assert asked == []  # Both are the live model's own, whose scores are known.

    other = copy.deepcopy(live)
    other["translation"][1][1] = "x"
    pairs = [(right, right), (live, other)]
    _, asked = check("beam", pairs, {"x": -3.0})
    assert asked == [(["source 1"], ["x"])]
    with pytest.raises(VerificationError, match="Signature beam: 1 of 404 .* score -9.000"):
        check("beam", pairs, {"x": -9.0})


def test_ids_are_scored_as_they_were_found():
    live = {"ids": [[5, 2, 0]] * 100, "score": [-1.0] * 100}
    other = {"ids": [[7, 11, 2], *live["ids"][1:]], "score": [-1.0] * 100}
    _, asked = check("serving_ids", [(live, other)], {"[7, 11, 2]": -1.0})
    assert asked == [(["source 0"], [[7, 11, 2]])]
    with pytest.raises(VerificationError, match="Signature serving_ids"):
        check("serving_ids", [(live, other)], {"[7, 11, 2]": -5.0})


def test_batches_hold_what_servers_get_wrong(tokenizer, texts):
    batches = verification_batches(texts, tokenizer, max_source_length=61)
    sizes = [len(batch) for batch in batches]
    assert sizes[:6] == [0, 1, 1, 1, 3, 33] and sum(sizes) > 200
    together = [text for batch in batches for text in batch]
    assert set(texts) <= set(together)
    assert max(len(tokenizer.tokenize(text)) for text in together) > 61
    assert [""] in batches and "\u3000\u00a0" in together
    assert any("\U0001f600" in text for text in together)
    assert all(verification_batches([], tokenizer, 61)[1:])


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
