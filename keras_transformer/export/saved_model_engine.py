"""Translating with an exported SavedModel."""

import dataclasses
import math
import os

import numpy as np

from keras_transformer.decoding import DecodingOptions, Translation
from keras_transformer.decoding.inputs import check_positive, one_for_each
from keras_transformer.errors import InputError
from keras_transformer.export.fixed_options import check_fixed_options, encoded
from keras_transformer.export.manifest import operations_in, read_manifest

# What the export does: nothing else can be asked of it. A longer text is cut.
_BUILT_IN = {
    **{field.name: field.default for field in dataclasses.fields(DecodingOptions)},
    "alignment": False,
    "target_prefixes": None,
    "long_input": "truncate",
}
_OF_SAMPLING = {"temperature": "float32", "top_k": "int32", "top_p": "float32"}


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
        self.manifest = read_manifest(folder)
        # Held: the signatures alone do not keep the variables alive.
        self._module = _load(folder)
        self._signatures = _signatures(folder, self._module, self.manifest)

    def translate(
        self,
        texts,
        beam_size=None,
        length_penalty=None,
        n_best=1,
        batch_size=32,
        alignment=False,
        sampling=False,
        **others,
    ):
        """Translates texts, in batches of similar length.

        Args:
            texts: A list of strings. A blank one is translated as the empty string; one that is
                longer than the export's `max_source_length` is cut there.
            beam_size: None or the value that the export was made with; or 1, greedy search.
            length_penalty: None, or the value that the export was made with.
            n_best: Hypotheses for each text, at most the export's beam size.
            batch_size: Most sentences in one call of the compiled search; the export itself
                takes no more than its `largest_chunk`.
            alignment: Whether each translation gets its pieces and its alignment.
            sampling: Draw one sample instead of searching, by `temperature`, `top_k`, `top_p` and
                `seed`, as `DecodingOptions` has them.
            **others: Other options of `ModelEngine.translate`, at what the export does:
                their defaults, and `long_input="truncate"`.

        Returns:
            A list of `Translation`, in the order of `texts`: text, score and log-probability, and
            what was asked for. Of an export with nothing but `serving_default` the log-probability
            is NaN, except for blank texts.

        Raises:
            InputError: An option is none that the export has, or a text is no valid string.
        """
        options = {"n_best": n_best, "alignment": alignment, "sampling": sampling}
        checked = DecodingOptions(
            beam_size=max(self.manifest["beam_size"], n_best if sampling else 1),
            n_best=n_best,
            sampling=sampling,
            **{key: others.pop(key) for key in ("seed", *_OF_SAMPLING) if key in others},
        )
        check_positive("batch_size", batch_size)
        name = self._signature_for(beam_size, length_penalty, checked, **options)
        _check_others(others, checked)
        inputs = {"text": _encode("texts", texts)}
        if sampling:
            inputs["seed"] = one_for_each("seed", checked.seed, len(texts))
            for option in _OF_SAMPLING:
                inputs[option] = [getattr(checked, option)] * len(texts)
        rows = self._call(name, inputs, batch_size)
        return [_translation(row, n_best) for row in rows]

    def score(self, sources, targets, length_penalty=None, batch_size=32):
        """How probable the model holds given translations.

        Args:
            sources: A list of strings; what is too long is cut, in the targets too.
            targets: A list of as many strings, their translations.
            length_penalty: None, or the value that the export was made with.
            batch_size: Most pairs in one call.

        Returns:
            A list of `Translation` whose texts are the targets.

        Raises:
            InputError: There are not as many targets as sources, or the export has no such
                signature.
        """
        self._need("score", "`score`")
        self._check_fixed("length_penalty", length_penalty)
        check_positive("batch_size", batch_size)
        inputs = {"source": _encode("sources", sources), "target": _encode("targets", targets)}
        if len(sources) != len(targets):
            raise InputError(
                "There must be a target for each source. "
                f"Received: {len(sources)} sources and {len(targets)} targets."
            )
        rows = self._call("score", inputs, batch_size)
        return [
            Translation(text, float(row["score"]), float(row["log_probability"]))
            for text, row in zip(targets, rows, strict=True)
        ]

    def _signature_for(self, beam_size, length_penalty, checked, n_best, alignment, sampling):
        """The name of the signature that does what is asked for."""
        self._check_fixed("length_penalty", length_penalty)
        if sampling:
            self._need("sample", "`sampling`")
            self._check_one("n_best", n_best, "of samples")
            return "sample"
        fixed = self.manifest["beam_size"]
        if beam_size == 1 != fixed and "greedy" in self._signatures:
            self._check_one("n_best", n_best, "of greedy search")
            if alignment:
                raise InputError("`alignment` is given of beam search alone in an export.")
            return "greedy"
        self._check_fixed("beam_size", beam_size)
        if alignment:
            self._need("align", "`alignment`")
            self._check_one("n_best", n_best, "with `alignment`")
            return "align"
        if n_best > 1:
            self._need("beam", f"n_best={n_best}")
        return "beam" if "beam" in self._signatures else "serving_default"

    def _need(self, signature, what):
        if signature not in self._signatures:
            raise InputError(
                f"{what} needs the signature `{signature}`, which this export does not have."
            )

    def _check_fixed(self, name, value):
        fixed = self.manifest[name]
        if value is not None and value != fixed:
            raise InputError(
                f"`{name}` is fixed in this export, at {fixed!r}. Received: {name}={value!r}."
            )

    @staticmethod
    def _check_one(name, value, where):
        if value != 1:
            raise InputError(f"`{name}` must be 1 {where} in an export. Received: {name}={value}.")

    def _call(self, name, inputs, batch_size):
        """Rows of outputs, a dict of arrays each, in the order of the inputs."""
        texts = next(iter(inputs.values()))
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]), reverse=True)
        if batch_size >= self.manifest["largest_chunk"]:
            # One call: it sorts by tokens and divides inside, exactly as the live engine does.
            order, batch_size = range(len(texts)), len(texts) or 1
        rows = [None] * len(texts)
        for start in range(0, len(texts), batch_size):
            chosen = order[start : start + batch_size]
            given = {key: [values[i] for i in chosen] for key, values in inputs.items()}
            outputs = self._outputs(name, given)
            for place, i in enumerate(chosen):
                rows[i] = {key: values[place] for key, values in outputs.items()}
        return rows

    def _outputs(self, name, inputs):
        import tensorflow as tf

        signature = self._signatures[name]
        specs = signature.structured_input_signature[1]
        given = {key: tf.constant(values, specs[key].dtype) for key, values in inputs.items()}
        return {key: values.numpy() for key, values in signature(**given).items()}


def _translation(row, n_best):
    """A `Translation` from one row of the outputs of any signature."""
    # A blank text: nothing, with certainty.
    if np.max(row["score"]) == 0 and not any(np.ravel(row["translation"])):
        return Translation("", 0.0)
    if row["score"].ndim:
        columns = {key: values[:n_best] for key, values in row.items()}
        found = [
            _translation({key: values[i] for key, values in columns.items()}, 1)
            for i in range(len(columns["score"]))
            # Where fewer hypotheses exist than were asked for, the last places are empty.
            if i == 0 or math.isfinite(columns["score"][i])
        ]
        return dataclasses.replace(found[0], alternatives=tuple(found[1:]))
    more = {}
    if "alignment" in row:
        pieces = {
            key: tuple(each.decode("utf-8") for each in row[f"{key}_tokens"] if each)
            for key in ("source", "target")
        }
        sizes = len(pieces["target"]), len(pieces["source"])
        more = {
            "tokens": pieces["target"],
            "source_tokens": pieces["source"],
            "alignment": row["alignment"][: sizes[0], : sizes[1]].copy(),
        }
    log_probability = float(row.get("log_probability", math.nan))
    text = row["translation"]  # a Python object already, or an array of one
    text = text if isinstance(text, bytes) else text.item()
    return Translation(text.decode("utf-8"), float(row["score"]), log_probability, **more)


def _check_others(others, checked):
    check_fixed_options(others, _BUILT_IN)
    if not checked.sampling:
        for name in _OF_SAMPLING:
            if getattr(checked, name) != _BUILT_IN[name]:
                raise InputError(f"`{name}` goes with sampling=True in an export.")


def _encode(name, texts):
    if isinstance(texts, str):
        raise InputError(f"`{name}` must be a list of strings. Received: one string.")
    result = []
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(
                f"`{name}` must be strings. Received: a {type(text).__name__} at place {place}."
            )
        result.append(encoded(name, place, text))
    return result


def _load(folder):
    import tensorflow as tf
    import tensorflow_text  # noqa: F401 (registers the tokenizer's operations)
    from tensorflow.python.framework import op_def_registry

    unknown = []
    try:
        unknown = [name for name in sorted(operations_in(folder)) if not op_def_registry.get(name)]
        if not unknown:
            return tf.saved_model.load(os.fspath(folder))
        reason = f"unknown operations: {', '.join(unknown)}"
    # The loader names no exceptions: a damaged file ends in those of protobuf, of the graph
    # importer, of the checkpoint reader or of Python.
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    raise InputError(
        f"{os.fspath(folder)}: the SavedModel is incomplete or damaged. Received: {reason:.300}"
    )


def _signatures(folder, module, manifest):
    """The signatures, as the manifest describes them."""
    found, described = getattr(module, "signatures", {}), manifest["signatures"]
    for name, each in described.items():
        taken = found[name].structured_input_signature[1] if name in found else {}
        given = found[name].structured_outputs if name in found else {}
        if set(taken) != set(each["inputs"]) or not set(each["outputs"]) <= set(given):
            raise InputError(
                f"{os.fspath(folder)}: the signature {name} must take "
                f"{_names(each['inputs'])} and give {_names(each['outputs'])}. "
                f"Received: {sorted(taken)} and {sorted(given)}."
            )
    return {name: found[name] for name in described}


def _names(names):
    return ", ".join(f"`{name}`" for name in names)
