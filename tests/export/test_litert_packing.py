import collections

import numpy as np
import pytest

from keras_transformer.export import litert_packing
from keras_transformer.export.litert_file import join

pytestmark = pytest.mark.tensorflow


@pytest.fixture(scope="module")
def content(litert_parts):
    return join(litert_parts, "int8")


def tables(content):
    """For each kind of table in a file: pairs of where one begins and what it holds."""
    from ai_edge_litert import schema_py_generated as schema

    model, found = schema.Model.GetRootAs(content, 0), collections.defaultdict(list)

    def add(kind, table, *content):
        found[kind].append((table._tab.Pos, content))

    for graph in map(model.Subgraphs, range(model.SubgraphsLength())):
        for tensor in map(graph.Tensors, range(graph.TensorsLength())):
            shape = tuple(tensor.ShapeAsNumpy()) if tensor.ShapeLength() else ()
            scales = None
            if (quantization := tensor.Quantization()) is not None:
                scales = quantization.ScaleAsNumpy().tobytes()
                add("quantization", quantization, scales)
            add("tensor", tensor, tensor.Name(), tensor.Type(), shape, tensor.Buffer(), scales)
        for operator in map(graph.Operators, range(graph.OperatorsLength())):
            sides = tuple(operator.InputsAsNumpy()), tuple(operator.OutputsAsNumpy())
            add("operator", operator, operator.OpcodeIndex(), *sides)
    return found


def test_equal_tables_stand_in_the_file_once(content):
    found = tables(content)
    assert set(found) == {"tensor", "quantization", "operator"}
    for pairs in found.values():
        # Two graphs of the same function: what is in one is in the other.
        assert len(pairs) > len(set(pairs))
        assert len({place for place, _ in pairs}) == len({held for _, held in pairs})


def test_scales_and_zero_points_are_written_once(content, litert_table):
    # Their number, then they.
    rows = np.uint32(len(litert_table)).tobytes()
    scales = np.abs(litert_table).max(axis=1) / np.float32(127)
    assert content.count(rows + scales.astype("float32").tobytes()) == 1
    assert content.count(rows + bytes(8 * len(litert_table))) == 1


def test_a_second_signature_of_the_same_costs_little(litert_parts, content):
    # Two lists of offsets and two names of inputs and outputs; a graph itself takes 500 bytes.
    assert len(content) - len(join(litert_parts[:1], "int8")) < 400


def test_arrays_begin_where_litert_wants_them(litert_parts, litert_table):
    content = join(litert_parts)
    assert content.index(litert_table.tobytes()) % 16 == 0
    assert content[4:8] == litert_packing.IDENTIFIER


def test_an_array_of_bytes_is_kept_once_and_only_while_it_is_read(litert_parts):
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT()
    model.buffers, model.subgraphs = [schema.BufferT()], [schema.SubGraphT()]
    stored = litert_packing.Buffers(model)
    assert stored.add(None) == stored.add(b"") == 0
    first, second = stored.add(np.arange(7, dtype="int16")), stored.add(np.float32([2, 3]))
    assert stored.add(np.arange(7, dtype="int16")) == first != second
    tensor = schema.TensorT()
    tensor.buffer, tensor.shape = second, np.array([2])
    model.subgraphs[0].tensors = [tensor]
    stored.drop_unused()
    assert len(model.buffers) == 2
    np.testing.assert_array_equal(stored.values(tensor), [2, 3])
