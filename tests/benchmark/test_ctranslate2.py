import sys

import pytest

from keras_transformer.benchmark.ctranslate2 import (
    CTranslate2Float32,
    CTranslate2InParts,
    CTranslate2Int8,
)

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def installed():
    pytest.importorskip("ctranslate2", reason="CTranslate2 comes with the extra [peers]")


@pytest.mark.parametrize("engine", [CTranslate2Float32, CTranslate2InParts])
@pytest.mark.parametrize("beam_size", [1, 4])
def test_the_forced_run_gives_the_ids_that_ours_gives(
    installed, model, source_ids, nine_steps, engine, beam_size
):
    found = engine(model).translate(source_ids, beam_size, 9)
    assert found == nine_steps[beam_size]


def test_in_parts_each_thread_has_a_batch_of_its_own(installed, model, source_ids, monkeypatch):
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
@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("steps", [1, 11])
def test_every_sentence_takes_exactly_the_forced_steps(
    installed, model, source_ids, engine, beam_size, steps
):
    found = engine(model).translate(source_ids, beam_size, steps)
    assert [len(ids) for ids in found] == [steps] * len(source_ids)


def test_int8_is_another_arithmetic(installed, model):
    kinds = [
        engine(model)._translator.compute_type for engine in (CTranslate2Float32, CTranslate2Int8)
    ]
    assert kinds == ["float32", "int8_float32"]


def test_without_the_package_the_error_names_the_extra(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(ImportError, match=r"keras_transformer\[peers\]"):
        CTranslate2Float32(model)
