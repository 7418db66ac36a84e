import pytest

from keras_transformer.benchmark.litert import LiteRTFloat32, LiteRTInt8
from keras_transformer.benchmark.ours import Ours

pytestmark = pytest.mark.tensorflow


@pytest.fixture(scope="module", autouse=True)
def needs_litert():
    pytest.importorskip("ai_edge_litert", reason="comes with the extra [litert]")


@pytest.mark.parametrize("beam_size", [1, 3])
def test_float32_forces_the_same_steps_to_the_same_ids_as_ours(model, source_ids, beam_size):
    engine = LiteRTFloat32(model)
    found = engine.translate(source_ids, beam_size, 11)
    assert found == Ours(model).translate(source_ids, beam_size, 11)
    assert engine.translate(source_ids[:1], beam_size, 11) == found[:1]


def test_int8_takes_the_same_steps(model, source_ids):
    found = LiteRTInt8(model, threads=1).translate(source_ids, 1, 5)
    assert [len(ids) for ids in found] == [5] * len(source_ids)
