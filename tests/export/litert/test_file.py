import collections

import numpy as np
import pytest
from litert_examples import ROWS, WIDTH, constants, run

from keras_transformer.errors import VerificationError
from keras_transformer.export.litert import quantization
from keras_transformer.export.litert.file import (
    IDENTIFIER,
    Buffers,
    convert,
    custom_operations,
    join,
    traced,
)

pytestmark = pytest.mark.tensorflow


def test_signatures_share_their_arrays(litert_parts, litert_table):
    content = join(litert_parts)
    assert constants(content).count(litert_table.tobytes()) == 1
    assert len(content) < litert_table.nbytes * 1.5
    ids = np.array([3, 60, 3], "int32")
    for name in ("one", "two"):
        found = run(content, name, ids=ids)
        np.testing.assert_array_equal(found["rows"], litert_table[ids])
        np.testing.assert_allclose(
            found["logits"], litert_table[ids] @ litert_table.T, rtol=1e-4, atol=1e-4
        )


def test_operations_that_litert_does_not_bring_are_not_converted(litert_parts):
    import tensorflow as tf

    function = traced(
        lambda text: {"number": tf.strings.to_hash_bucket_fast(text, 7)},
        tf.TensorSpec((None,), tf.string, name="text"),
    )
    assert custom_operations(join(litert_parts)) == []
    with pytest.raises(VerificationError, match="exit status 1"):
        convert([("hash", function)])


def test_a_function_with_variables_is_not_converted():
    import tensorflow as tf

    variable = tf.Variable([2.0])
    function = traced(lambda x: {"y": x * variable}, tf.TensorSpec((1,), tf.float32, name="x"))
    with pytest.raises(ValueError, match="hold what it needs as constants"):
        convert([("f", function)])


def test_only_inputs_and_outputs_have_unknown_sizes():
    import tensorflow as tf
    from ai_edge_litert import schema_py_generated as schema

    def largest(values):
        found, places = tf.math.top_k(values * 2.0, 2)
        return {"found": found + 1.0, "places": places}

    spec = tf.TensorSpec((None, 5), tf.float32, name="values")
    content = join(convert([("largest", traced(largest, spec))]))
    graph = schema.Model.GetRootAs(content, 0).Subgraphs(0)
    tensors = [graph.Tensors(place) for place in range(graph.TensorsLength())]
    unknown = {i for i, each in enumerate(tensors) if each.ShapeSignatureLength()}
    sides = graph.InputsAsNumpy().tolist() + graph.OutputsAsNumpy().tolist()
    assert unknown == {*sides}
    for rows in (2, 3):
        values = np.arange(5.0 * rows, dtype="float32").reshape(rows, 5)
        result = run(content, "largest", values=values)
        np.testing.assert_array_equal(result["places"], [[4, 3]] * rows)
        np.testing.assert_array_equal(result["found"], 2 * values[:, [4, 3]] + 1)


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
    assert content[4:8] == IDENTIFIER


def test_an_array_of_bytes_is_kept_once_and_only_while_it_is_read(litert_parts):
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT()
    model.buffers, model.subgraphs = [schema.BufferT()], [schema.SubGraphT()]
    stored = Buffers(model)
    assert stored.add(None) == stored.add(b"") == 0
    first, second = stored.add(np.arange(7, dtype="int16")), stored.add(np.float32([2, 3]))
    assert stored.add(np.arange(7, dtype="int16")) == first != second
    tensor = schema.TensorT()
    tensor.buffer, tensor.shape = second, np.array([2])
    model.subgraphs[0].tensors = [tensor]
    stored.drop_unused()
    assert len(model.buffers) == 2
    np.testing.assert_array_equal(stored.values(tensor), [2, 3])


def test_int8_is_one_table_for_the_look_up_and_the_product(litert_parts, litert_table):
    content = join(litert_parts, "int8")
    large = [each for each in constants(content) if len(each) >= ROWS * WIDTH]
    assert [len(each) for each in large] == [ROWS * WIDTH]
    scales = np.abs(litert_table).max(axis=1) / 127
    ids = np.arange(ROWS, dtype="int32")
    found = run(content, "two", ids=ids)
    # Half a step of the row's scale, and no more: a scale of the whole table would be 1,000 times
    # too large for the smallest row.
    assert np.all(np.abs(found["rows"] - litert_table) <= scales[:, None] * 0.501)
    exact = litert_table @ litert_table.T
    error = np.abs(found["logits"] - exact)
    assert np.max(error) < 0.02 * np.abs(exact).max()
    assert np.max(error) > 0


def test_float16_halves_the_file(litert_parts, litert_table):
    content = join(litert_parts, "float16")
    assert [len(each) for each in constants(content) if len(each) >= ROWS * WIDTH] == [
        2 * ROWS * WIDTH
    ]
    ids = np.array([0, 66], "int32")
    found = run(content, "one", ids=ids)
    np.testing.assert_array_equal(
        found["rows"], litert_table.astype("float16").astype("float32")[ids]
    )
    np.testing.assert_allclose(
        found["logits"], litert_table[ids] @ litert_table.T, rtol=1e-2, atol=1e-2
    )


def test_small_arrays_stay_as_they_are(litert_parts, litert_table, monkeypatch):
    monkeypatch.setattr(quantization, "_LEAST_VALUES", ROWS * WIDTH + 1)
    assert constants(join(litert_parts, "int8")).count(litert_table.tobytes()) == 1


def test_float32_stays_float32(litert_parts, litert_table):
    assert constants(join(litert_parts)).count(litert_table.tobytes()) == 1
