"""What JAX compiles for a CPU is what it computes op by op, or a training says that it is not."""

import os
import subprocess
import sys
import types

import pytest
from jax_processes import jax_environment

from keras_transformer.engine.device import warn_of_wrong_sums
from keras_transformer.training import training

AVOIDED = "--xla_cpu_experimental_ynn_fusion_type="
_GRADIENTS = """
import jax, keras, numpy as np
from keras_transformer import Transformer, TransformerConfig
from keras_transformer.engine.device import warn_of_wrong_sums
from keras_transformer.losses import SmoothedCrossEntropy

warn_of_wrong_sums()
config = TransformerConfig(307, 32, 2, 64, num_encoder_layers=2, num_decoder_layers=2, dropout=0.0)
model, loss = Transformer(config), SmoothedCrossEntropy()
chance = np.random.default_rng(7)
source, target = chance.integers(3, 307, (2, 37, 23))
state = [variable.value for variable in model.non_trainable_variables]

def loss_of(weights):
    outputs, _ = model.stateless_call(weights, state, (source, target))
    return loss(target, outputs)

weights = [variable.value for variable in model.trainable_variables]
both = [function(weights) for function in (jax.grad(loss_of), jax.jit(jax.grad(loss_of)))]
largest = max(np.abs(gradient).max() for gradient in both[0])
for variable, *gradients in zip(model.trainable_variables, *both, strict=True):
    expected, compiled = map(np.asarray, gradients)
    # A softmax does not depend on the biases of keys: their gradients are rounding errors.
    bound = 1e-4 * np.abs(expected).max() + 1e-6 * largest
    assert np.abs(compiled - expected).max() < bound, variable.path
print(len(weights))
"""


@pytest.mark.jax
def test_sums_that_are_wrong_are_a_line_with_the_remedy(capsys, monkeypatch):
    import jax

    jit = jax.jit
    monkeypatch.setattr(jax, "jit", lambda function: jax.vmap(lambda row: (row**2).sum()))
    warn_of_wrong_sums()
    assert capsys.readouterr().err == ""
    # As YNNPACK left out the last row.
    monkeypatch.setattr(
        jax, "jit", lambda function: lambda rows: jit(function)(rows).at[-1].add(-9e6)
    )
    warn_of_wrong_sums()
    (line,) = capsys.readouterr().err.splitlines()
    assert "computes some sums of products wrong" in line and line.endswith(f"XLA_FLAGS={AVOIDED}")


def test_a_training_looks_at_the_sums_before_anything_else(monkeypatch):
    def look():
        raise LookupError

    monkeypatch.setattr(training, "warn_of_wrong_sums", look)
    with pytest.raises(LookupError):
        training.Training.begin(types.SimpleNamespace())


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize("flags", ["", AVOIDED])
def test_gradients_that_jax_compiles_equal_those_op_by_op(flags):
    pytest.importorskip("jax", reason="comes with the extra [jax]")
    command = [sys.executable, "-c", _GRADIENTS]
    environment = {**os.environ, **jax_environment(*sys.path), "XLA_FLAGS": flags}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert int(ended.stdout) > 50
    assert not flags or "sums of products" not in ended.stderr
