import sys

import keras
import numpy as np
import pytest

from benchmarks.engines import ENGINES, choose_engines
from keras_transformer.errors import InputError
from keras_transformer.ids import BOS_ID, EOS_ID

pytestmark = pytest.mark.tensorflow


WRONG_LISTS = [(["ctranslate"], False, "Received: 'ctranslate'. Did you mean `ctranslate2`?")]
WRONG_LISTS += [(["keras_hub"], True, "`engines` must be of ours, ctranslate2, ctranslate2_int8,")]
WRONG_LISTS += [(["ours", "ours"], False, "with no name twice")]
WRONG_LISTS += [(["ours", "ctranslate2"], False, r"(package ctranslate2): pip install")]


@pytest.mark.parametrize(("names", "of_text", "expected"), WRONG_LISTS)
def test_a_wrong_list_of_engines_is_a_users_mistake(monkeypatch, names, of_text, expected):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(InputError) as caught:
        choose_engines(names, of_text=of_text)
    assert expected in str(caught.value)
    assert "ctranslate2" not in choose_engines()


def test_a_forced_search_takes_the_best_id_but_the_end_at_every_step(model, source_ids, nine_steps):
    ids = np.array(nine_steps[1])
    assert ids.shape == (len(source_ids), 9)
    read = np.pad(ids, ((0, 0), (1, 0)), constant_values=BOS_ID)[:, :-1]
    # All ids at once, without a cache.
    logits = keras.ops.convert_to_numpy(model((np.array(source_ids), read))).copy()
    assert (logits.argmax(axis=-1) == EOS_ID).all()
    logits[:, :, EOS_ID] = -np.inf
    np.testing.assert_array_equal(ids, logits.argmax(axis=-1))


# In a beam CTranslate2 has probabilities in which EOS, which may not be chosen, has no part.
@pytest.mark.parametrize(("name", "beam_size"), [("ours", 4), ("ctranslate2", 1)])
def test_every_setting_gives_the_same_ids(model, source_ids, nine_steps, name, beam_size):
    pytest.importorskip(ENGINES[name].package, reason="comes with the extra [peers]")
    engine = ENGINES[name](model)
    settings = engine.settings(2, len(source_ids))
    assert len(settings) == (2 if name == "ours" else 3)
    for setting in settings:
        ids = engine.forced(source_ids, beam_size, 9, **setting)()
        assert ids == nine_steps[beam_size], setting
