"""What the tests share: few threads, one seed, tools that work on every Keras backend."""

import keras
import numpy as np
import pytest
from keras import ops

BACKEND = keras.backend.backend()

if BACKEND == "tensorflow":
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(2)
    tf.config.threading.set_inter_op_parallelism_threads(2)
elif BACKEND == "jax":
    import jax

    # Each test compiles many tiny programs once: compiling is nearly all of the time.
    jax.config.update("jax_disable_most_optimizations", True)


def pytest_collection_modifyitems(items):
    if BACKEND == "tensorflow":
        return
    for item in items:
        if item.get_closest_marker("tensorflow"):
            item.add_marker(pytest.mark.skip(reason="needs Keras' TensorFlow backend"))


@pytest.fixture(autouse=True)
def same_start():
    """The same seed before each test, and the dtype policy put back after it."""
    policy = keras.config.dtype_policy()
    keras.utils.set_random_seed(7)
    yield
    keras.config.set_dtype_policy(policy)


@pytest.fixture
def rng():
    """NumPy's generator, seeded."""
    return np.random.default_rng(7)


@pytest.fixture
def randomize(rng):
    """Gives every weight of a layer a random value, also those that start at zero or one."""

    def randomize(layer, scale=0.3):
        layer.set_weights(
            [w.path.endswith("gamma") + scale * rng.normal(size=w.shape) for w in layer.weights]
        )
        return layer

    return randomize


@pytest.fixture
def compiled():
    """`compiled(function)` runs it as one XLA program."""
    if BACKEND == "tensorflow":
        return tf.function(jit_compile=True)
    return jax.jit


@pytest.fixture
def pull_back():
    """`pull_back(function, inputs)` gives the outputs and the map of output to input gradients."""

    def pull_back(function, inputs):
        inputs = ops.convert_to_tensor(inputs, "float32")
        if BACKEND == "tensorflow":
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(inputs)
                outputs = function(inputs)

            def pull(cotangent):
                gradient = tape.gradient(outputs, inputs, ops.cast(cotangent, outputs.dtype))
                return np.asarray(tf.convert_to_tensor(gradient))  # It may be a sparse one.

            return outputs, pull
        outputs, pull = jax.vjp(function, inputs)
        return outputs, lambda cotangent: np.asarray(pull(ops.cast(cotangent, outputs.dtype))[0])

    return pull_back


@pytest.fixture
def influence(pull_back, rng):
    """`influence(function, inputs)[i, j]`: how strongly input position j moves output position i.

    `function` maps `(batch, length, width)` to `(batch, length, width)`. An entry is the largest
    gradient over batch and width, and exactly 0 where no path leads from j to i.
    """

    def influence(function, inputs):
        outputs, pull = pull_back(function, inputs)
        rows = []
        for i in range(outputs.shape[1]):
            # Random: the plain sum of a normalized vector is constant, its gradient is zero.
            cotangent = np.zeros(outputs.shape)
            cotangent[:, i] = rng.normal(size=cotangent[:, i].shape)
            rows.append(np.abs(pull(cotangent)).max(axis=(0, 2)))
        return np.stack(rows)

    return influence
