"""Export of a run's tokenizers as `tokenizer.json`, which Hugging Face's `tokenizers` read."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_transformer.engine import Engine
from keras_transformer.export.exporter import Exporter, check_no_other_options
from keras_transformer.export.texts import sample_texts


class TokenizerExporter(Exporter):
    """The format `tokenizer_json`: `tokenizer.json`, or one for each side; no labels.

    `verification.json` names the texts that get other ids in that library, which only some with a
    grapheme of several characters may.
    """

    name = "tokenizer_json"
    template = "tokenizer_json.md"

    def resolve_export_options(self, engine: Engine, **options: Any) -> dict[str, Any]:
        check_no_other_options("tokenizers", options)
        return {}

    def write(self, engine: Engine, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
        from keras_transformer.text.tokenizer_json import tokenizer_json

        for name, tokenizer in _files(engine).items():
            content = json.dumps(tokenizer_json(tokenizer), ensure_ascii=False)
            (folder / name).write_text(content, encoding="utf-8")
        return {}

    def verify(
        self, engine: Engine, folder: Path, manifest: dict, texts: Sequence[str] | None
    ) -> dict[str, Any]:
        from keras_transformer.text.tokenizer_json import verify_tokenizer_json

        return {
            name: verify_tokenizer_json(
                folder / name, tokenizer, [*(texts or ()), *sample_texts(tokenizer)]
            )
            for name, tokenizer in _files(engine).items()
        }

    def readme_fields(self, manifest: dict) -> dict[str, str]:
        names = list(manifest["files"])
        return {"first": names[0], "names": ", ".join(f"`{name}`" for name in names)}


def _files(engine):
    """Tokenizers by the names of their files."""
    source, target = engine.source_tokenizer, engine.target_tokenizer
    if source == target:
        return {"tokenizer.json": source}
    sides = {"source_tokenizer.json": source}
    return sides if engine.labels is not None else {**sides, "target_tokenizer.json": target}
