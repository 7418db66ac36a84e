import contextlib

import numpy as np
import pytest

from keras_transformer.base.errors import VerificationError
from keras_transformer.export.litert import file, quantization
from keras_transformer.export.litert.file import convert, custom_operations, join, traced

pytestmark = pytest.mark.tensorflow

ROWS, WIDTH = 67, 31
MANY = 13  # The order of more than ten names is not the order of their numbers.


@pytest.fixture(scope="module")
def table():
    """Rows of very different size, each with a scale of its own."""
    chance = np.random.default_rng(5)
    sizes = np.logspace(-2, 1, ROWS)[:, None]
    rows = (chance.normal(size=(ROWS, WIDTH)) * sizes).astype("float32")
    rows[11] = 0  # as of padding, and of ids that a training has never seen
    return rows


@pytest.fixture(scope="module", params=[None, 0], ids=["in little time", "in little memory"])
def all_parts(table, request):
    """Two of one function, rows of the table and their products with all rows; and others."""
    pytest.importorskip("ai_edge_litert", reason="comes with the extra [litert]")
    import tensorflow as tf

    def function(ids):
        rows = tf.gather(table, ids)
        return {"rows": rows, "logits": tf.matmul(rows, tf.constant(table), transpose_b=True)}

    def largest(values):
        top, indices = tf.math.top_k(values * 2.0, 2)
        return {"found": top + 1.0, "places": indices}

    def chosen(ids, vectors):
        rows = tf.gather(tf.constant(table), ids)
        return {"logits": tf.matmul(vectors, rows, transpose_b=True)}

    tensor = tf.constant(table)

    def captures(ids, vectors):
        """Computes rows and products in a loop inside a loop, with a table that is captured."""

        def step(index, total):
            rows = tf.gather(tensor, ids)
            return index + 1, total + tf.matmul(tf.matmul(vectors, rows, transpose_b=True), rows)

        def loop(index, total):
            _, inner = tf.while_loop(lambda count, _: count < 2, step, (0, total))
            return index + 1, inner

        _, total = tf.while_loop(lambda index, _: index < 3, loop, (0, vectors))
        return {"logits": tf.matmul(total, tensor, transpose_b=True)}

    ids = tf.TensorSpec((None,), tf.int32, name="ids")
    vectors = tf.TensorSpec((None, WIDTH), tf.float32, name="vectors")
    values = tf.TensorSpec((None, 5), tf.float32, name="values")
    functions = [(name, traced(function, ids)) for name in ("one", "two")]
    functions.append(("chosen", traced(chosen, ids, vectors)))
    functions.append(("largest", traced(largest, values)))
    functions.append(("captures", traced(captures, ids, vectors)))

    def reversed_places(**numbers):
        return {f"out_{place}": numbers[f"in_{MANY - 1 - place}"] * 2.0 for place in range(MANY)}

    numbers = [tf.TensorSpec((1,), tf.float32, name=f"in_{place}") for place in range(MANY)]
    functions.append(("many", traced(reversed_places, *numbers)))
    with pytest.MonkeyPatch.context() as monkeypatch:
        if request.param is not None:
            monkeypatch.setattr(file, "_LARGE_INPUTS", request.param)
        return convert(functions)


@pytest.fixture(scope="module")
def parts(all_parts):
    return all_parts[:2]


def runner(content, name):
    """A signature of a file, to call with its inputs."""
    from ai_edge_litert.interpreter import Interpreter

    return Interpreter(model_content=content).get_signature_runner(name)


def run(content, name, **inputs):
    """What a signature of a file gives."""
    return runner(content, name)(**inputs)


def constants(content):
    """The arrays of a file, bytes each."""
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromPackedBuf(content, 0)
    return [bytes(buffer.data) for buffer in model.buffers if buffer.data is not None]


@pytest.mark.slow
def test_signatures_share_their_arrays_which_begin_where_litert_wants_them(parts, table):
    content = bytes(join(parts))
    assert constants(content).count(table.tobytes()) == 1
    assert content.index(table.tobytes()) % 16 == 0 and content[4:8] == b"TFL3"
    assert len(content) < table.nbytes * 1.5
    ids = np.array([3, 60, 3], "int32")
    for name in ("one", "two"):
        result = run(content, name, ids=ids)
        np.testing.assert_array_equal(result["rows"], table[ids])
        np.testing.assert_allclose(result["logits"], table[ids] @ table.T, rtol=1e-4, atol=1e-4)


def test_a_table_that_a_function_captures_is_a_constant_of_the_file_also_in_loops(all_parts, table):
    from ai_edge_litert import schema_py_generated as schema

    content, chance = bytes(join([all_parts[0], all_parts[4]])), np.random.default_rng(3)
    assert constants(content).count(table.tobytes()) == 1
    graphs = schema.ModelT.InitFromPackedBuf(content, 0).subgraphs
    assert max(len(graph.inputs) for graph in graphs) < 8  # without the table
    ids, vectors = np.array([3, 60, 3], "int32"), chance.normal(size=(2, WIDTH)).astype("float32")
    rows = table[ids]
    expected = (vectors + 6 * vectors @ rows.T @ rows) @ table.T
    result = run(content, "captures", ids=ids, vectors=vectors)
    np.testing.assert_allclose(result["logits"], expected, rtol=1e-4, atol=1e-3)


def test_many_inputs_and_outputs_keep_their_names(all_parts):
    numbers = {f"in_{place}": np.array([place], "float32") for place in range(MANY)}
    result = run(bytes(join([all_parts[5]])), "many", **numbers)
    expected = {f"out_{place}": [2 * (MANY - 1 - place)] for place in range(MANY)}
    assert {name: values.tolist() for name, values in result.items()} == expected


@pytest.mark.parametrize(("numbers", "expected"), [(2**22 - 1, False), (2**22, True)])
def test_from_16_mib_of_captured_tensors_on_memory_counts_more_than_time(
    monkeypatch, numbers, expected
):
    import tensorflow as tf

    class Converter(contextlib.nullcontext):
        def __enter__(self):
            return self

        def start(self): ...

        def send(self, through_saved_model, **request):
            requests.append(through_saved_model)

        def receive(self):
            return b""

    requests, captured = [], tf.zeros((numbers,))
    monkeypatch.setattr(file, "ChildProcess", Converter)
    spec = tf.TensorSpec((1,), tf.float32, name="values")
    convert([("sum", traced(lambda values: {"sum": values + captured[:1]}, spec))])
    assert requests == [expected]


@pytest.mark.slow
def test_operations_that_litert_does_not_bring_are_not_converted(parts):
    import tensorflow as tf

    hashed = lambda text: {"number": tf.strings.to_hash_bucket_fast(text, 7)}  # noqa: E731
    function = traced(hashed, tf.TensorSpec((None,), tf.string, name="text"))
    assert custom_operations(join(parts)) == []
    with pytest.raises(VerificationError, match="exit status 1"):
        convert([("hash", function)])


def test_a_function_with_variables_is_not_converted():
    import tensorflow as tf

    variable = tf.Variable([2.0])
    function = traced(lambda x: {"y": x * variable}, tf.TensorSpec((1,), tf.float32, name="x"))
    with pytest.raises(ValueError, match="must not read variables"):
        convert([("f", function)])


def test_only_inputs_and_outputs_have_unknown_sizes(all_parts):
    from ai_edge_litert import schema_py_generated as schema

    content = bytes(join(all_parts[2:]))
    graph = schema.Model.GetRootAs(content, 0).Subgraphs(0)
    tensors = [graph.Tensors(index) for index in range(graph.TensorsLength())]
    unknown = {i for i, tensor in enumerate(tensors) if tensor.ShapeSignatureLength()}
    sides = graph.InputsAsNumpy().tolist() + graph.OutputsAsNumpy().tolist()
    assert unknown == {*sides}
    assert all(tensor.Quantization() is None for tensor in tensors)  # The converter's are empty.
    for rows in (2, 3):
        values = np.arange(5.0 * rows, dtype="float32").reshape(rows, 5)
        result = run(content, "largest", values=values)
        np.testing.assert_array_equal(result["places"], [[4, 3]] * rows)
        np.testing.assert_array_equal(result["found"], 2 * values[:, [4, 3]] + 1)


def test_a_second_signature_of_the_same_costs_little(parts):
    # Its operators and names; the scales of the table's rows alone take 800 bytes.
    one, both = (join(chosen, "int8") for chosen in (parts[:1], parts))
    assert len(both) - len(one) < 600


def test_int8_is_one_table_for_the_look_up_and_the_product(parts, table):
    content = bytes(join(parts, "int8"))
    large = [array for array in constants(content) if len(array) >= ROWS * WIDTH]
    assert [len(array) for array in large] == [ROWS * WIDTH]
    scales = np.abs(table).max(axis=1) / 127
    ids = np.arange(ROWS, dtype="int32")
    result = run(content, "two", ids=ids)
    # Half a step of the row's scale, and no more: a scale of the whole table would be 1,000 times
    # too large for the smallest row.
    assert np.all(np.abs(result["rows"] - table) <= scales[:, None] * 0.501)
    exact = table @ table.T
    error = np.abs(result["logits"] - exact)
    assert np.max(error) < 0.02 * np.abs(exact).max()
    assert np.max(error) > 0


@pytest.mark.parametrize(("kind", "bound"), [("none", 1e-6), ("float16", 1e-3), ("int8", 0.02)])
def test_a_product_with_rows_that_were_looked_up_has_each_rows_scale(all_parts, table, kind, bound):
    content, chance = bytes(join(all_parts[:3], kind)), np.random.default_rng(7)
    sizes = [len(array) for array in constants(content) if len(array) >= ROWS * WIDTH]
    assert len(sizes) == 1  # The same table as that of the other look-ups.
    call = runner(content, "chosen")
    for count in (40, 40, 23):  # Other rows each time: no sum of earlier ones may be used.
        ids = chance.integers(0, ROWS, count).astype("int32")
        vectors = chance.normal(1, 1, size=(3, WIDTH)).astype("float32")
        expected = vectors @ table[ids].T
        error = np.abs(call(ids=ids, vectors=vectors)["logits"] - expected)
        # Relative to a row's own size: one scale for the whole table would be far too coarse.
        assert np.all(error <= bound * np.abs(vectors).max() * np.abs(table[ids]).sum(axis=1))


@pytest.mark.parametrize("kind", ["float16", "int8"])
@pytest.mark.parametrize("least", [ROWS * WIDTH, ROWS * WIDTH + 1])
def test_small_matrices_stay_as_they_are(parts, table, monkeypatch, kind, least):
    monkeypatch.setattr(quantization, "_LEAST_VALUES", least)
    content = bytes(join(parts[:1], kind))
    assert (table.tobytes() in constants(content)) == (least > ROWS * WIDTH)


def test_float16_halves_the_file(parts, table):
    content = bytes(join(parts, "float16"))
    large = [len(array) for array in constants(content) if len(array) >= ROWS * WIDTH]
    assert large == [2 * ROWS * WIDTH]
    ids = np.array([0, 66], "int32")
    result = run(content, "one", ids=ids)
    np.testing.assert_array_equal(result["rows"], table.astype("float16").astype("float32")[ids])
    np.testing.assert_allclose(result["logits"], table[ids] @ table.T, rtol=1e-2, atol=1e-2)
