import importlib.metadata
import re
import sys

import keras
import numpy as np
import pytest

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.benchmark.engines import (
    ENGINES,
    CTranslate2Float32,
    CTranslate2InParts,
    CTranslate2Int8,
    KerasHubBart,
    LiteRTFloat32,
    LiteRTInt8,
    choose_engines,
    forced_inputs,
    versions,
)
from keras_transformer.benchmark.ours import Ours
from keras_transformer.config import EOS_ID
from keras_transformer.errors import InputError

pytestmark = pytest.mark.tensorflow


def test_an_engine_that_is_not_installed_is_named_and_left_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    chosen, not_installed = choose_engines(["ctranslate2", "ours", "ctranslate2_int8"])
    assert list(chosen) == ["ours"]
    assert not_installed == {"ctranslate2": "peers", "ctranslate2_int8": "peers"}


def test_all_engines_are_the_default():
    chosen, not_installed = choose_engines()
    assert {*chosen, *not_installed} == set(ENGINES)
    assert set(ENGINES) == {
        "ours",
        "litert",
        "litert_int8",
        "ctranslate2",
        "ctranslate2_in_parts",
        "ctranslate2_int8",
        "keras_hub",
    }


@pytest.mark.parametrize("name", [name for name in ENGINES if ENGINES[name].package])
def test_the_extra_of_an_engine_brings_its_package(name):
    of_extra = [
        re.split(r"[<>=!~ ;\[]", each)[0]
        for each in importlib.metadata.requires("keras_transformer")
        if re.search(rf"extra == ['\"]{ENGINES[name].extra}['\"]", each)
    ]
    assert ENGINES[name].distribution in of_extra


def test_of_a_trained_run_only_those_that_can_take_it():
    chosen, not_installed = choose_engines(corpus=True)
    assert {*chosen, *not_installed} == {"ours", "ctranslate2", "ctranslate2_int8"}


@pytest.mark.parametrize(
    ("names", "corpus", "expected"),
    [
        (["ctranslate"], False, "engine='ctranslate'. Did you mean `ctranslate2`?"),
        (["marian"], False, "engine='marian'"),
        (["keras_hub"], True, "that can take a trained run are ours, ctranslate2"),
        (["ours", "ours"], False, "named once"),
        ([], False, "at least one of"),
    ],
)
def test_a_wrong_list_of_engines_is_a_users_mistake(names, corpus, expected):
    with pytest.raises(InputError) as caught:
        choose_engines(names, corpus=corpus)
    assert expected in str(caught.value)


def test_versions_are_of_what_takes_part():
    found = versions({"ours": ENGINES["ours"]})
    assert set(found) == {"keras", "keras_transformer", "tensorflow"}


@pytest.fixture
def needs_litert():
    pytest.importorskip("ai_edge_litert", reason="comes with the extra [litert]")


@pytest.mark.parametrize("beam_size", [1, 3])
def test_float32_forces_the_same_steps_to_the_same_ids_as_ours(
    needs_litert, model, source_ids, beam_size
):
    engine = LiteRTFloat32(model)
    found = engine.translate(source_ids, beam_size, 11)
    assert found == Ours(model).translate(source_ids, beam_size, 11)
    assert engine.translate(source_ids[:1], beam_size, 11) == found[:1]


def test_int8_takes_the_same_steps(needs_litert, model, source_ids):
    found = LiteRTInt8(model, threads=1).translate(source_ids, 1, 5)
    assert [len(ids) for ids in found] == [5] * len(source_ids)


@pytest.fixture
def needs_ctranslate2():
    pytest.importorskip("ctranslate2", reason="CTranslate2 comes with the extra [peers]")


@pytest.mark.parametrize("engine", [CTranslate2Float32, CTranslate2InParts])
@pytest.mark.parametrize("beam_size", [1, 4])
def test_the_forced_run_gives_the_ids_that_ours_gives(
    needs_ctranslate2, model, source_ids, nine_steps, engine, beam_size
):
    found = engine(model).translate(source_ids, beam_size, 9)
    assert found == nine_steps[beam_size]


def test_in_parts_each_thread_has_a_batch_of_its_own(
    needs_ctranslate2, model, source_ids, monkeypatch
):
    engine = CTranslate2InParts(model, threads=2)
    assert engine._translator.num_translators == 2
    together = CTranslate2Float32(model, threads=2)
    assert together._translator.num_translators == 1
    sizes = []

    class Recorder:
        def translate_batch(self, sentences, max_batch_size, **options):
            sizes.append((len(sentences), max_batch_size))
            return []

    for each in (engine, together):
        monkeypatch.setattr(each, "_translator", Recorder())
        each.translate(source_ids[:3], 1, 9)
    assert sizes == [(3, 2), (3, 3)]


@pytest.mark.parametrize("engine", [CTranslate2Float32, CTranslate2InParts, CTranslate2Int8])
@pytest.mark.parametrize(("beam_size", "steps"), [(1, 1), (4, 11)])
def test_every_sentence_takes_exactly_the_forced_steps(
    needs_ctranslate2, model, source_ids, engine, beam_size, steps
):
    found = engine(model).translate(source_ids, beam_size, steps)
    assert [len(ids) for ids in found] == [steps] * len(source_ids)


def test_int8_is_another_arithmetic(needs_ctranslate2, model):
    kinds = [
        engine(model)._translator.compute_type for engine in (CTranslate2Float32, CTranslate2Int8)
    ]
    assert kinds == ["float32", "int8_float32"]


@pytest.fixture(scope="module")
def make_bart(model, set_random_weights):
    pytest.importorskip("keras_hub", reason="KerasHub comes with the extra [peers]")

    def make_bart():
        bart = KerasHubBart(model)
        set_random_weights(bart.model(1).backbone)
        return bart

    return make_bart


@pytest.fixture(scope="module")
def bart(make_bart):
    return make_bart()


def test_bart_has_the_sizes_of_our_model(bart, model):
    backbone, config = bart.model(1).backbone, model.config
    assert backbone.vocabulary_size == config.vocabulary_size
    assert backbone.num_layers == config.num_encoder_layers == config.num_decoder_layers
    assert backbone.num_heads == config.num_heads
    assert backbone.hidden_dim == config.model_dim
    assert backbone.intermediate_dim == config.intermediate_dim


def test_every_forced_step_takes_the_best_id(bart, source_ids):
    steps = 5
    found = np.array(bart.translate(source_ids, 1, steps))
    assert found.shape == (len(source_ids), steps)
    inputs = forced_inputs(source_ids, steps)
    inputs["decoder_token_ids"][:, 1:] = found
    inputs["decoder_padding_mask"][:] = 1
    # The whole of what was found at once, without a cache.
    logits = keras.ops.convert_to_numpy(bart.model(1)(inputs))
    np.testing.assert_array_equal(found, logits[:, :-1].argmax(axis=-1))


def test_the_decoder_runs_once_for_the_cache_and_then_once_a_step(make_bart, source_ids):
    bart, widths, beam_size = make_bart(), [], 4
    model = bart.model(beam_size)
    decode = model.call_decoder_with_cache

    def counted(*args, decoder_token_ids, **kwargs):
        widths.append(tuple(decoder_token_ids.shape))
        return decode(*args, decoder_token_ids=decoder_token_ids, **kwargs)

    model.call_decoder_with_cache = counted
    model.run_eagerly = True  # the loop in Python, where calls can be counted
    found = bart.translate(source_ids, beam_size, 5)
    assert [len(ids) for ids in found] == [5, 5, 5]
    assert widths == [(3, 6)] + [(3 * beam_size, 1)] * 5


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_second_call_does_not_compile_again(bart, source_ids, beam_size):
    others = [[*ids[-2::-1], EOS_ID] for ids in source_ids]
    first, second = (bart.translate(ids, beam_size, 5) for ids in (source_ids, others))
    assert first != second
    model = bart.model(beam_size)
    assert model.jit_compile
    assert model.generate_function.experimental_get_tracing_count() == 1


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"num_decoder_layers": 2}, "num_encoder_layers=1, num_decoder_layers=2, "),
        (
            {"target_vocabulary_size": 17, "tie_embeddings": "none"},
            "vocabulary_size=13, target_vocabulary_size=17",
        ),
    ],
)
def test_a_model_that_bart_cannot_be_is_an_error(fields, expected):
    pytest.importorskip("keras_hub", reason="KerasHub comes with the extra [peers]")
    sizes = dict(model_dim=4, num_heads=2, intermediate_dim=3, num_encoder_layers=1)
    config = TransformerConfig(13, **{**sizes, "num_decoder_layers": 1, **fields})
    with pytest.raises(InputError, match=expected):
        KerasHubBart(Transformer(config))
