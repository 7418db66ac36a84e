"""Exports refuse what they cannot do, in one line, and answer several threads at once."""

import concurrent.futures
import functools
import threading

import pytest

from keras_transformer.engine import LiteRTEngine
from keras_transformer.engine.engine import check_fixed_options, encoded
from keras_transformer.engine.inputs import in_batches
from keras_transformer.errors import InputError

BUILT_IN = {"max_length": None, "alignment": False}


def test_what_the_export_does_may_be_asked_for():
    check_fixed_options({"alignment": False, "max_length": None}, BUILT_IN)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"alignment": True}, "alignment=False does; a run folder has it"),
        ({"max_lenght": 3}, "no option `max_lenght`. Did you mean `max_length`?"),
        ({"zebra": 3}, r"no option `zebra`\.$"),
    ],
)
def test_anything_else_is_refused(options, message):
    with pytest.raises(InputError, match=message.replace("?", r"\?")):
        check_fixed_options(options, BUILT_IN)


def test_half_a_surrogate_pair_is_no_text():
    assert encoded("texts", ["é"]) == [b"\xc3\xa9"]
    with pytest.raises(InputError, match="Text 2: `sources` must be valid Unicode"):
        encoded("sources", ["a", "a\ud800"])


def test_batches_hold_what_is_of_similar_length_and_results_keep_their_order():
    called = []

    def call(chosen):
        called.append(chosen)
        return [10 * place for place in chosen]

    assert in_batches([3, 11, 5, 7, 2], 2, [call]) == [0, 10, 20, 30, 40]
    assert called == [[1, 3], [2, 0], [4]]
    assert in_batches([], 2, [call]) == [] and len(called) == 3


def test_each_call_has_a_batch_of_its_own_at_the_same_time():
    both = threading.Barrier(2, timeout=30)

    def call(name, chosen):
        if max(chosen) < 4:  # The two longest batches: one call alone would never pass.
            both.wait()
        return [(name, place) for place in chosen]

    calls = [functools.partial(call, name) for name in "ab"]
    found = in_batches([9, 9, 8, 8, 2], 2, calls)
    assert [place for _, place in found] == [0, 1, 2, 3, 4]
    assert {found[0], found[2]} in ({("a", 0), ("b", 2)}, {("b", 0), ("a", 2)})


def test_what_one_of_several_calls_raises_is_raised():
    def call(chosen):
        raise InputError(f"no {chosen}")

    with pytest.raises(InputError, match="no"):
        in_batches([1, 2, 3], 1, [call, call])


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "load",
    [
        lambda request: request.getfixturevalue("engine"),
        lambda request: request.getfixturevalue("exported"),
        lambda request: LiteRTEngine(request.getfixturevalue("litert_report").folder),
    ],
    ids=["live", "SavedModel", "LiteRT"],
)
def test_several_threads_get_what_one_gets(request, texts, load):
    engine = load(request)
    options = {"beam_size": 3, "length_penalty": 0.8, "long_input": "truncate"}
    parts = [[text for text in texts[at : at + 8] if len(text) < 13] for at in range(0, 160, 8)]
    expected = [engine.translate(part, **options) for part in parts]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = [*pool.map(lambda part: engine.translate(part, **options), parts * 3)]
    for one, other in zip(expected * 3, found, strict=True):
        assert [each.text for each in other] == [each.text for each in one]
        scores = [each.score for each in one]
        assert [each.score for each in other] == pytest.approx(scores, abs=1e-5)
