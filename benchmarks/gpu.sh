#!/usr/bin/env bash
# Tests and measures this package in less than eight minutes on a machine with a GPU, JAX and
# PyTorch, without TensorFlow and without a network. gpu.json has the figures, in $OUT or runs/gpu.
#
#   bash benchmarks/gpu.sh wheels FOLDER       elsewhere: gathers what that machine lacks
#   bash benchmarks/gpu.sh --wheels FOLDER     there; with --small: a trial on any CPU
#   … --parts real levers --text FOLDER        some parts; text of your own
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

if [[ "${1:-}" == wheels ]]; then
  # Neither Keras nor JAX is needed to gather.
  shift
  cd "$root"
  exec python3 -m benchmarks.wheels "$@"
fi
if [[ "${1:-}" == --wheels ]]; then
  wheels=("${2:-}"/*.whl)
  if [[ ! -e "${wheels[0]}" ]]; then
    printf 'gpu.sh: --wheels must name a folder of wheels. Received: "%s".\n' "${2:-}" >&2
    exit 2
  fi
  # Not their dependencies: the JAX, NumPy and PyTorch of the machine stay.
  python3 -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir \
    --target "$work/site" "${wheels[@]}"
  export PYTHONPATH="$work/site${PYTHONPATH:+:$PYTHONPATH}"
  shift 2
fi
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
# Each run compiles, so that it can tell how long that takes.
export KERAS_BACKEND=jax KERAS_TRANSFORMER_COMPILATION_CACHE=off
export TORCHINDUCTOR_CACHE_DIR="$work/inductor"
unset JAX_COMPILATION_CACHE_DIR
export XLA_PYTHON_CLIENT_PREALLOCATE=false # PyTorch and several processes of tests share the GPU.
python3 -m benchmarks.gpu "$@"
