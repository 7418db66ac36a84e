import importlib.metadata
import re
import sys

import keras
import numpy as np
import pytest

from benchmarks.engines import (
    ENGINES,
    CTranslate2,
    CTranslate2Int8,
    KerasHubBart,
    LiteRTInt8,
    choose_engines,
)
from keras_transformer.config import BOS_ID, EOS_ID
from keras_transformer.errors import InputError

pytestmark = pytest.mark.tensorflow


def test_an_engine_that_is_not_installed_is_named_and_left_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    chosen, not_installed = choose_engines(["ctranslate2", "ours", "ctranslate2_int8"])
    assert list(chosen) == ["ours"]
    assert not_installed == {"ctranslate2": "peers", "ctranslate2_int8": "peers"}


def test_all_engines_are_the_default():
    chosen, not_installed = choose_engines()
    peers = {"ctranslate2", "ctranslate2_int8", "keras_hub"}
    assert {*chosen, *not_installed} == {"ours", "litert", "litert_int8"} | peers


@pytest.mark.parametrize("name", [name for name in ENGINES if hasattr(ENGINES[name], "extra")])
def test_the_extra_of_an_engine_brings_its_package(name):
    of_extra = [
        re.split(r"[<>=!~ ;\[]", each)[0].replace("-", "_")
        for each in importlib.metadata.requires("keras_transformer")
        if re.search(rf"extra == ['\"]{ENGINES[name].extra}['\"]", each)
    ]
    assert ENGINES[name].package in of_extra


def test_of_a_trained_run_only_those_that_can_take_it():
    chosen, not_installed = choose_engines(of_text=True)
    assert all(hasattr(engine, "of_text") for engine in chosen.values())
    exports = {"saved_model", "litert", "litert_int8", "ctranslate2_export"}
    expected = {"ours", "ctranslate2", "ctranslate2_int8"} | exports
    assert {*chosen, *not_installed} == expected


@pytest.mark.parametrize(
    ("names", "of_text", "expected"),
    [
        (["ctranslate"], False, "engine='ctranslate'. Did you mean `ctranslate2`?"),
        (["marian"], False, "engine='marian'"),
        (["keras_hub"], True, "The engines of a text are ours, litert, litert_int8"),
        (["ours", "ours"], False, "each named once"),
        ([], False, "engine=''"),
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
@pytest.mark.parametrize(
    ("name", "beam_size"), [("ours", 4), ("litert", 1), ("litert", 4), ("ctranslate2", 1)]
)
def test_every_setting_gives_the_same_ids(model, source_ids, nine_steps, name, beam_size):
    if name not in choose_engines([name])[0]:
        pytest.skip(f"comes with the extra [{ENGINES[name].extra}]")
    engine = ENGINES[name](model)
    settings = engine.settings(2, len(source_ids))
    assert len(settings) == (2 if name == "ours" else 3)
    for setting in settings:
        found = engine.forced(source_ids, beam_size, 9, **setting)()
        assert found == nine_steps[beam_size], setting


@pytest.mark.parametrize(
    ("engine", "beam_size"), [(LiteRTInt8, 1), (CTranslate2Int8, 4), (CTranslate2, 4)]
)
def test_every_sentence_takes_exactly_the_forced_steps(model, source_ids, engine, beam_size):
    pytest.importorskip(engine.package, reason=f"comes with the extra [{engine.extra}]")
    made = engine(model)
    for setting in made.settings(2, 3):
        found = made.forced(source_ids, beam_size, 5, **setting)()
        assert [len(ids) for ids in found] == [5] * len(source_ids)


def test_a_part_of_the_batch_for_each_translator(model, source_ids, monkeypatch):
    ctranslate2 = pytest.importorskip("ctranslate2", reason="comes with the extra [peers]")
    asked = []

    class Recorder:
        def __init__(self, folder, **setting):
            asked.append(setting)

        def translate_batch(self, tokens, max_batch_size, **options):
            asked[-1]["sizes"] = len(tokens), max_batch_size
            return []

    monkeypatch.setattr(ctranslate2, "Translator", Recorder)
    for engine in (CTranslate2(model), CTranslate2Int8(model)):
        for setting in engine.settings(2, 3):
            engine.forced(source_ids, 1, 9, **setting)()
    sizes = [(each["inter_threads"], each["intra_threads"], each["sizes"][1]) for each in asked]
    assert sizes[:3] == [(1, 1, 3), (1, 2, 3), (2, 1, 2)]
    types = {each["compute_type"] for each in asked}
    assert "float32" in types and types - {"float32"} <= {"int8_float32", "int8_bfloat16"}


@pytest.fixture(scope="module")
def bart(model, set_random_weights):
    pytest.importorskip("keras_hub", reason="KerasHub comes with the extra [peers]")
    bart = KerasHubBart(model)
    set_random_weights(bart.backbone)
    return bart


def test_bart_has_the_sizes_of_our_model(bart, model):
    backbone, config = bart.backbone, model.config
    assert backbone.vocabulary_size == config.vocabulary_size
    assert backbone.num_layers == config.num_encoder_layers == config.num_decoder_layers
    assert backbone.num_heads == config.num_heads
    assert backbone.hidden_dim == config.model_dim
    assert backbone.intermediate_dim == config.intermediate_dim


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


def test_the_decoder_runs_once_for_the_cache_and_then_once_a_step(bart, source_ids, monkeypatch):
    keras_hub = pytest.importorskip("keras_hub")
    widths, bart_model = [], keras_hub.models.BartSeq2SeqLM
    decode, beam_size = bart_model.call_decoder_with_cache, 4

    def counted(self, *args, decoder_token_ids, **kwargs):
        widths.append(tuple(decoder_token_ids.shape))
        return decode(self, *args, decoder_token_ids=decoder_token_ids, **kwargs)

    compiled = bart_model.compile

    def eager(self, **options):  # the loop in Python, where calls can be counted
        compiled(self, **{**options, "jit_compile": False, "run_eagerly": True})

    monkeypatch.setattr(bart_model, "call_decoder_with_cache", counted)
    monkeypatch.setattr(bart_model, "compile", eager)
    found = bart.forced(source_ids, beam_size, 5)()
    assert [len(ids) for ids in found] == [5, 5, 5]
    assert widths == [(3, 6)] + [(3 * beam_size, 1)] * 5


def test_bart_compiles_once_for_each_size_of_a_part(bart, source_ids, monkeypatch):
    made, bart_model = [], pytest.importorskip("keras_hub").models.BartSeq2SeqLM
    compiled = bart_model.compile

    def recorded(self, **options):
        made.extend([self] * ("sampler" in options))
        compiled(self, **options)

    monkeypatch.setattr(bart_model, "compile", recorded)
    whole, parts = (bart.forced(source_ids, 1, 5, n) for n in (1, 2))
    assert whole() == parts() == parts() == whole()
    counts = [each.generate_function.experimental_get_tracing_count() for each in made]
    assert counts == [1, 2]
    assert all(each.jit_compile for each in made)
