"""Translating with an exported SavedModel."""

import dataclasses
import difflib
import json
import math
import os
from pathlib import Path

from keras_transformer.decoding import DecodingOptions, Translation
from keras_transformer.errors import InputError
from keras_transformer.export.saved_model import FORMAT
from keras_transformer.export.staging import MANIFEST

_FIXED_OPTIONS = ("beam_size", "length_penalty", "n_best")
# What the export does: nothing else can be asked of it. A longer text is cut.
_BUILT_IN = {
    **{field.name: field.default for field in dataclasses.fields(DecodingOptions)},
    "alignment": False,
    "target_prefixes": None,
    "long_input": "truncate",
}


class SavedModelEngine:
    """Translates with a folder that `export_saved_model` wrote; no model code is needed.

    Args:
        folder: Path of the folder.

    Attributes:
        manifest: The content of its `export.json`.

    Raises:
        InputError: The folder is missing, incomplete, damaged or no such export.
    """

    def __init__(self, folder):
        self.manifest = _read_manifest(folder)
        # Held: the signature alone does not keep the variables alive.
        self._module = _load(folder)
        self._signature = _signature(folder, self._module)

    def translate(
        self, texts, beam_size=None, length_penalty=None, n_best=None, batch_size=32, **others
    ):
        """Translates texts, in batches of similar length.

        Args:
            texts: A list of strings. A blank one is translated as the empty string; one that is
                longer than the export's `max_source_length` is cut there.
            beam_size: None, or the value that the export was made with.
            length_penalty: None, or the value that the export was made with.
            n_best: None or 1.
            batch_size: Most sentences in one call of the compiled search; the export itself
                takes no more than its `largest_chunk`.
            **others: Other options of `ModelEngine.translate`, at what the export does: nothing
                more than the above, and `long_input="truncate"`.

        Returns:
            A list of `Translation`, in the order of `texts`. The export gives scores alone:
            `log_probability` is NaN, except for blank texts.

        Raises:
            InputError: An option differs from the export's, or a text is no valid string.
        """
        self._check_options(beam_size, length_penalty, n_best, batch_size)
        _check_others(others)
        encoded = _encode(texts)
        order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]), reverse=True)
        if batch_size >= self.manifest["largest_chunk"]:
            # One call: it sorts by tokens and divides inside, exactly as the live engine does.
            order, batch_size = range(len(encoded)), len(encoded) or 1
        translations = [None] * len(encoded)
        for start in range(0, len(encoded), batch_size):
            chosen = order[start : start + batch_size]
            results = self._call([encoded[i] for i in chosen])
            for i, (text, score) in zip(chosen, results, strict=True):
                log_probability = math.nan if texts[i].strip() else 0.0
                translations[i] = Translation(text, score, log_probability)
        return translations

    def _call(self, encoded):
        import tensorflow as tf

        result = self._signature(text=tf.constant(encoded, tf.string))
        scores = result["score"].numpy().tolist()
        texts = [text.decode("utf-8") for text in result["translation"].numpy().tolist()]
        return zip(texts, scores, strict=True)

    def _check_options(self, *received):
        *received, batch_size = received
        for name, value in zip(_FIXED_OPTIONS, received, strict=True):
            fixed = self.manifest[name]
            if value is not None and value != fixed:
                raise InputError(
                    f"`{name}` is fixed in this export, at {fixed!r}. Received: {name}={value!r}."
                )
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise InputError(
                f"`batch_size` must be a positive integer. Received: batch_size={batch_size!r}."
            )


def _check_others(others):
    for name, value in others.items():
        if name not in _BUILT_IN:
            near = difflib.get_close_matches(name, _BUILT_IN, n=1)
            hint = f" Did you mean `{near[0]}`?" if near else ""
            raise InputError(f"There is no option `{name}`.{hint}")
        if value != _BUILT_IN[name]:
            raise InputError(
                f"`{name}` is not in this export, which does what {name}={_BUILT_IN[name]!r} "
                f"does; a run folder has it. Received: {name}={value!r}."
            )


def _encode(texts):
    if isinstance(texts, str):
        raise InputError("`texts` must be a list of strings. Received: one string.")
    encoded = []
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(
                f"`texts` must be strings. Received: a {type(text).__name__} at place {place}."
            )
        try:
            encoded.append(text.encode("utf-8"))
        except UnicodeEncodeError:
            raise InputError(
                "`texts` must be valid Unicode. Received: half a surrogate pair in the text at "
                f"place {place}."
            ) from None
    return encoded


def _read_manifest(folder):
    path = Path(folder) / MANIFEST
    expected = f"{os.fspath(folder)}: expected a SavedModel that this package exported."
    if not Path(folder).is_dir():
        raise InputError(f"{expected} Received: no such folder.")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{expected} Received: a folder without {MANIFEST}.") from None
    except (OSError, ValueError):
        raise InputError(f"{expected} Received: a {MANIFEST} that cannot be read.") from None
    wanted = (*_FIXED_OPTIONS, "largest_chunk", "max_source_length")
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise InputError(f'{expected} Received: a {MANIFEST} whose "format" is another.')
    if missing := [name for name in wanted if name not in manifest]:
        raise InputError(f'{expected} Received: a {MANIFEST} without "{missing[0]}".')
    return manifest


def _load(folder):
    import tensorflow as tf
    import tensorflow_text  # noqa: F401 (registers the tokenizer's operations)

    try:
        return tf.saved_model.load(os.fspath(folder))
    # The loader names no exceptions: a damaged file ends in those of protobuf, of the graph
    # importer, of the checkpoint reader or of Python.
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"{os.fspath(folder)}: the SavedModel is incomplete or damaged. Received: {reason:.300}"
        ) from error


def _signature(folder, module):
    signature = getattr(module, "signatures", {}).get("serving_default")
    taken = signature.structured_input_signature[1] if signature else {}
    given = signature.structured_outputs if signature else {}
    if set(taken) != {"text"} or not {"translation", "score"} <= set(given):
        raise InputError(
            f"{os.fspath(folder)}: the signature serving_default must take `text` and give "
            f"`translation` and `score`. Received: {sorted(taken)} and {sorted(given)}."
        )
    return signature
