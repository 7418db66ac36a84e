"""Export as a CTranslate2 model with its tokenizers, in a folder that can be used alone."""

import importlib.metadata
import os
import time

from keras_transformer.export.ctranslate2 import convert_to_ctranslate2
from keras_transformer.export.ctranslate2_verification import verify_ctranslate2
from keras_transformer.export.manifest import file_digests, write_json
from keras_transformer.files import MANIFEST, staged_folder

FORMAT = "keras_transformer.ctranslate2"

_JOINT = ("tokenizer.model", "tokenizer.model")
_SEPARATE = ("source_tokenizer.model", "target_tokenizer.model")
_LEAST_POSITIONS = 1024


def export_ctranslate2(engine, output, overwrite=False, verification_texts=None):
    """Writes a CTranslate2 model, the tokenizers and a README that shows how to use them.

    The folder gets its name after a fresh process without TensorFlow has given the live model's
    translations; after any failure nothing is there.

    Args:
        engine: `ModelEngine`.
        output: Path of the folder to make.
        overwrite: Whether an earlier export of that name is replaced.
        verification_texts: A list of source sentences to verify with, 200 or more to be telling.
            By default texts of random pieces of the source vocabulary.

    Returns:
        A dict fit for JSON: the folder, its manifest, the bytes of each file, what the
        verification found, the seconds it took.

    Raises:
        InputError: `output` exists, or the model has something that CTranslate2 does not.
        ImportError: `ctranslate2` is not installed; it comes with the extra `peers`.
        VerificationError: The export does not translate as the live model does.
    """
    start = time.perf_counter()
    tokenizers = engine.source_tokenizer, engine.target_tokenizer
    names = _JOINT if tokenizers[0] == tokenizers[1] else _SEPARATE
    with staged_folder(output, overwrite) as folder:
        convert_to_ctranslate2(
            engine.model,
            *(each.pieces_of(range(each.vocabulary_size)) for each in tokenizers),
            folder,
            max_positions=max(_LEAST_POSITIONS, engine.max_source_length, engine.max_target_length),
        )
        for name, tokenizer in zip(names, tokenizers, strict=True):
            tokenizer.save(folder / name)
        manifest = _manifest(engine, names)
        manifest["files"] = file_digests(folder)
        write_json(folder / MANIFEST, manifest)
        (folder / "README.md").write_text(_README.format(**manifest), encoding="utf-8")
        verification = verify_ctranslate2(folder, engine, texts=verification_texts)
        write_json(folder / "verification.json", verification)
        files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    return {
        "output": os.fspath(output),
        "seconds": round(time.perf_counter() - start, 1),
        "manifest": manifest,
        "bytes": files,
        "verification": verification,
    }


def _manifest(engine, names):
    import keras_transformer

    return {
        "format": FORMAT,
        "format_version": 2,
        "source_tokenizer": names[0],
        "target_tokenizer": names[1],
        "source_vocabulary_size": engine.source_tokenizer.vocabulary_size,
        "target_vocabulary_size": engine.target_tokenizer.vocabulary_size,
        "max_source_length": engine.max_source_length,
        "max_target_length": engine.max_target_length,
        "versions": {
            "keras_transformer": keras_transformer.__version__,
            "ctranslate2": importlib.metadata.version("ctranslate2"),
        },
    }


_README = """\
# A translator for CTranslate2

```python
import ctranslate2
import sentencepiece

folder = "."  # this folder
translator = ctranslate2.Translator(folder, compute_type="float32")
source = sentencepiece.SentencePieceProcessor(model_file=f"{{folder}}/{source_tokenizer}")
target = sentencepiece.SentencePieceProcessor(model_file=f"{{folder}}/{target_tokenizer}")

pieces = source.encode(["A text."], out_type=str)
results = translator.translate_batch(
    pieces,
    beam_size=4,
    patience=2,
    max_input_length={max_source_length},
    max_decoding_length={max_target_length},
)
print([target.decode(result.hypotheses[0]) for result in results])
```

The end of the source is added by CTranslate2. Its beam search has another length penalty than that
of keras_transformer: translations may differ where two are nearly as probable. And it stops when
`beam_size * patience` translations have ended, although a far more probable one may still be
growing, which `patience=1`, the default there, does lose now and then.
`export.json` holds the sizes and versions for programs.
"""
