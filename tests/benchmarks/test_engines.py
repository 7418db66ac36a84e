import sys

import keras
import numpy as np
import pytest

from benchmarks.engines import (
    ENGINES,
    CTranslate2,
    CTranslate2Int8,
    KerasHubBart,
    choose_engines,
)
from keras_transformer.errors import InputError
from keras_transformer.ids import BOS_ID, EOS_ID

pytestmark = pytest.mark.tensorflow


def test_an_engine_that_is_not_installed_is_named_and_left_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    chosen, not_installed = choose_engines(["ctranslate2", "ours", "ctranslate2_int8"])
    assert list(chosen) == ["ours"]
    assert not_installed == {"ctranslate2": "peers", "ctranslate2_int8": "peers"}


@pytest.mark.parametrize(
    ("names", "of_text", "expected"),
    [
        (["ctranslate"], False, "engine='ctranslate'. Did you mean `ctranslate2`?"),
        (["keras_hub"], True, "The engines of a text are ours, litert, litert_int8"),
        (["ours", "ours"], False, "each named once"),
    ],
)
def test_a_wrong_list_of_engines_is_a_users_mistake(names, of_text, expected):
    with pytest.raises(InputError) as caught:
        choose_engines(names, of_text=of_text)
    assert expected in str(caught.value)


def test_the_forced_search_takes_the_best_id_but_the_end_at_every_step(
    model, source_ids, nine_steps
):
    found = np.array(nine_steps[1])
    assert found.shape == (len(source_ids), 9)
    read = np.pad(found, ((0, 0), (1, 0)), constant_values=BOS_ID)[:, :-1]
    # The whole of what was found at once, without a cache.
    logits = keras.ops.convert_to_numpy(model((np.array(source_ids), read))).copy()
    assert (logits.argmax(axis=-1) == EOS_ID).all()
    logits[:, :, EOS_ID] = -np.inf
    np.testing.assert_array_equal(found, logits.argmax(axis=-1))


# In a beam CTranslate2 has probabilities in which EOS, which may not be chosen, has no part.
@pytest.mark.parametrize(("name", "beam_size"), [("ours", 4), ("ctranslate2", 1)])
def test_every_setting_gives_the_same_ids(model, source_ids, nine_steps, name, beam_size):
    if name not in choose_engines([name])[0]:
        pytest.skip(f"comes with the extra [{ENGINES[name].extra}]")
    engine = ENGINES[name](model)
    settings = engine.settings(2, len(source_ids))
    assert len(settings) == (2 if name == "ours" else 3)
    for setting in settings:
        found = engine.forced(source_ids, beam_size, 9, **setting)()
        assert found == nine_steps[beam_size], setting


@pytest.mark.parametrize(("engine", "beam_size"), [(CTranslate2Int8, 4), (CTranslate2, 4)])
def test_every_sentence_takes_exactly_the_forced_steps(model, source_ids, engine, beam_size):
    pytest.importorskip(engine.package, reason=f"comes with the extra [{engine.extra}]")
    made = engine(model)
    for setting in made.settings(2, 3):
        found = made.forced(source_ids, beam_size, 5, **setting)()
        assert [len(ids) for ids in found] == [5] * len(source_ids)


@pytest.fixture(scope="module")
def bart(model, set_random_weights):
    pytest.importorskip("keras_hub", reason="KerasHub comes with the extra [peers]")
    bart = KerasHubBart(model)
    set_random_weights(bart.backbone)
    return bart


def test_every_forced_step_takes_the_best_id(bart, source_ids):
    found = np.array(bart.forced(source_ids, 1, 5)())
    assert found.shape == (len(source_ids), 5)
    read = np.pad(found, ((0, 0), (1, 0)), constant_values=BOS_ID)[:, :-1]
    inputs = {"encoder_token_ids": np.array(source_ids), "decoder_token_ids": read}
    masks = {name.replace("_token_ids", "_padding_mask"): ids > -1 for name, ids in inputs.items()}
    # The whole of what was found at once, without a cache.
    hidden = bart.backbone({**inputs, **masks})["decoder_sequence_output"]
    logits = keras.ops.convert_to_numpy(bart.backbone.token_embedding(hidden, reverse=True))
    np.testing.assert_array_equal(found, logits.argmax(axis=-1))
