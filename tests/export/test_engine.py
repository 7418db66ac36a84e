"""Engines answer several threads at once."""

import concurrent.futures

import pytest

from keras_transformer.engine import LiteRTEngine


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
