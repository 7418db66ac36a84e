"""Runs batches of rows of a signature with an export's engine."""

import concurrent.futures
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from keras_transformer.decoding.search_options import FILTERS
from keras_transformer.engine.engine import Engine, long_input_of_commands
from keras_transformer.errors import InputError
from keras_transformer.export.signature import SIGNATURES, TEXT, Signature, Tensor
from keras_transformer.serving.protocol import DEFAULT, Rejection, shortest_decimal
from keras_transformer.serving.server_options import ServerOptions
from keras_transformer.text.per_text import LANGUAGE_OPTIONS
from keras_transformer.text.sentences import split_text

# `tf.errors.InvalidArgumentError.error_code`.
_INVALID_ARGUMENT = 3


def signatures_of(engine: Engine) -> dict[str, Signature]:
    """Returns the signatures of an engine by name.

    The manifest lists them, or they follow from the engine's capabilities. Signatures that take ids
    are skipped.
    """
    languages = engine.languages.inputs if engine.languages is not None else ()
    named, manifest = dict.fromkeys(languages, TEXT), engine.manifest
    beams = manifest.get("n_best") or manifest["beam_size"]
    capabilities = {name: {} for name in (DEFAULT, "greedy", "beam", *engine.capabilities)}
    fields = manifest.get("signatures", capabilities)
    signatures = {}
    for name, row in SIGNATURES.items():
        if name not in fields or "source_ids" in row.inputs:
            continue
        inputs, outputs = {**row.inputs, **named}, row.outputs
        inputs.pop("seed", None)  # Only a SavedModel takes one for each text, and says so.
        if name == "beam":
            outputs = {key: Tensor(tensor.dtype, (beams,)) for key, tensor in outputs.items()}
        signatures[name] = row._replace(
            inputs=_tensors(fields[name].get("inputs"), inputs),
            outputs=_tensors(fields[name].get("outputs"), outputs),
        )
    return signatures


def _tensors(described, default):
    if described is None:
        return default
    return {
        name: Tensor(tensor["dtype"], tuple(tensor["shape"][1:]))
        for name, tensor in sorted(described.items())
    }


class Model:
    """Runs batches of a signature with a loaded export, in any number of threads.

    Args:
        path: Path of an export, or of its LiteRT file.
        threads: Number of threads that will call.
        markup: Markup that requests have by default.

    Attributes:
        engine: The export's engine.
        signatures: Its signatures by name.
        default_options: Options of requests that give none, by signature: `markup` where the engine
            can do it.

    Raises:
        InputError: The export is missing, damaged, or a classifier's, or its default signature
            cannot do `markup`.
    """

    def __init__(self, path: str, threads: int, markup: str = "none"):
        from keras_transformer.engine.translator import Translator

        self._threads = threads
        self._translator = Translator.load(path, threads)
        self.engine = self._translator.engine
        if self.engine.manifest is None:
            raise InputError(f"{path}: expected an export. Received: a run folder.")
        if self.engine.labels is not None:
            raise InputError(f"{path}: expected a model that writes text. Received: a classifier.")
        if not self.engine.reads_sources:
            rule = "the server takes no language models; `keras-transformer translate` does."
            raise InputError(f"{path}: {rule}")
        self.signatures = signatures_of(self.engine)
        self.default_options = {
            name: self._default_options(name, markup) for name in self.signatures
        }

    def _default_options(self, name, markup):
        if markup == "none" or name == "score":
            return {}
        options = _options_of(name, [], self.signatures[name], {"markup": markup})
        options |= self._first_direction()
        try:
            self._translator.check_options(**options)
        except InputError:
            if name == DEFAULT:
                raise
            return {}
        return {"markup": markup}

    def run(
        self,
        name: str,
        rows: Sequence[dict[str, Any]],
        options: Sequence[tuple[str, Any]] = (),
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> list[dict[str, Any]]:
        """Runs a batch of a signature; returns the outputs of each sentence by name.

        Numbers are rounded to float32, and alignments are float32 arrays. The values of `FILTERS`
        come from the first row.

        Args:
            name: Name of the signature.
            rows: Inputs of each sentence by name.
            options: `Predict.options`, which are options of `Translator.translate`.
            is_wanted: Function that returns False when nobody waits for the batch any more. It then
                ends between two of its texts' steps, before the search.

        Raises:
            Rejection: 400 for an invalid text, 504 for a batch that nobody waits for.
        """
        signature = self.signatures[name]

        def check():
            if not is_wanted():
                raise Rejection(504, "All requests of the batch have ended")

        try:
            check()
            results = _call(self._translator, name, rows, signature, dict(options), check)
        except ValueError as error:
            raise Rejection(400, _cause(error)) from None
        except Exception as error:
            if getattr(error, "error_code", None) != _INVALID_ARGUMENT:
                raise
            raise Rejection(400, _cause(error)) from None
        n_best = dict(options).get("n_best")
        return [_row(result, signature.outputs, n_best) for result in results]

    def beam_options(self, n_best: int) -> dict[str, int]:
        """Returns options of the signature `beam` for `n_best` hypotheses.

        None are needed where its beam has as many. None are possible where the export's is fixed.
        """
        (beams,) = self.signatures["beam"].outputs["score"].shape
        options = {"beam_size": n_best, "n_best": n_best}
        if n_best <= (beams or 1):
            return {}
        try:
            self.engine.request(**options)
        except InputError:
            return {}
        return options

    def parts_of(self, text: str) -> list[str]:
        """Splits a text of too many tokens at the ends of its sentences, where the engine can.

        Raises:
            Rejection: 400, the text cannot be split.
        """
        if long_input_of_commands(self.engine) != "split":
            return [text]
        limit, options = self.engine.max_source_length, self.default_options[DEFAULT]

        def fits(part):
            return self._translator.source_length(part, **options) <= limit

        try:
            return split_text(text, fits)
        except InputError as error:
            raise Rejection(400, str(error)) from None

    def warm_up(
        self, options: ServerOptions, tell: Callable[[str], None] = lambda text: None
    ) -> int:
        """Runs signatures in each shape that XLA compiles; returns the number of batches.

        An engine that compiles nothing runs one batch.

        Args:
            options: Options of the server.
            tell: Function that is called with a description of the next step.

        Raises:
            InputError: A signature is missing, or takes other inputs than texts.
        """
        names = options.warm_up_signatures.split(",") if options.warm_up_tokens else []
        text_signatures = [
            name
            for name, signature_of_name in self.signatures.items()
            if set(signature_of_name.inputs) - {*LANGUAGE_OPTIONS} == {"text"}
        ]
        if unknown := set(names) - set(text_signatures):
            rule = "`warm_up_signatures` must name signatures that take only text"
            raise InputError(
                f"{rule}: {', '.join(text_signatures)}. Received: {', '.join(sorted(unknown))}."
            )
        shapes = self.engine.manifest.get("shapes", {"rows": [1], "source_lengths": [16]})
        longest = options.warm_up_tokens + 1  # with EOS
        added = 1 + self._language_tokens
        last = next((length for length in shapes["source_lengths"] if length >= longest), longest)
        defaults = [(name, tuple(self.default_options[name].items())) for name in names]
        batches = [
            (name, [self._row_of(max(1, min(length, longest) - added))] * rows, options_of_name)
            for name, options_of_name in defaults
            for length in shapes["source_lengths"]
            for rows in shapes["rows"]
            if length <= last and rows < 2 * options.max_batch_size
        ]
        with concurrent.futures.ThreadPoolExecutor(self._threads) as pool:
            tell(f"compiling {len(batches)} shapes of batches")
            for count, _ in enumerate(pool.map(lambda batch: self.run(*batch), batches), start=1):
                tell(f"compiled {count} of {len(batches)} shapes of batches")
        return len(batches)

    @property
    def _language_tokens(self):
        """Number of tokens that the languages of a text add to its own."""
        languages = self.engine.languages
        return languages.num_added if languages is not None else 0

    def _row_of(self, count):
        """Returns a row of `count` tokens, in the first direction of the model."""
        return {"text": self._text_of(count), **self._first_direction()}

    def _first_direction(self):
        """Returns the languages of the model's first direction, which a signature takes."""
        languages = self.engine.languages
        if languages is None:
            return {}
        codes = zip(LANGUAGE_OPTIONS, languages.directions[0], strict=True)
        return {name: code for name, code in codes if name in languages.inputs}

    def _text_of(self, count):
        """Returns a text of `count` tokens, or about `count` if the tokenizer is in the graph."""
        tokenizer = self.engine.source_tokenizer
        for token in range(tokenizer.vocabulary_size if tokenizer else 0):
            text = tokenizer.detokenize([token] * count)
            if text.strip() and list(tokenizer.tokenize(text)) == [token] * count:
                return text
        return " ".join(["a"] * count)


def _call(translator, name, rows, signature, options, check):
    """Returns the `Translation` of each sentence."""
    for option in LANGUAGE_OPTIONS:
        if option in signature.inputs:
            options[option] = [row[option] or None for row in rows]
    if name == "score":
        if refused_options := options.keys() - {"tag", *LANGUAGE_OPTIONS}:
            raise InputError(f"`{min(refused_options)}` is an option of translations.")
        sides = ([row[side] for row in rows] for side in ("source", "target"))
        return translator.score(*sides, **options)
    options = _options_of(name, rows, signature, options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about truncated texts
        return translator.translate([row["text"] for row in rows], check=check, **options)


def _options_of(name, rows, signature, options):
    """Returns the options of `Translator.translate` for the rows of a signature."""
    options = {**options, "long_input": "truncate"}
    if "glossary" in options:
        options["glossary"] = dict(options["glossary"])
    if name == "greedy":
        options["beam_size"] = 1
    elif name == "beam":
        options.setdefault("n_best", signature.outputs["score"].shape[0])
    elif name == "align":
        options["alignment"] = True
    elif name == "sample":
        options["sampling"] = True
        for row in rows[:1]:
            options |= {name: filter.nearest(row[name]) for name, filter in FILTERS.items()}
        if "seed" in signature.inputs:
            options["seed"] = [row["seed"] for row in rows]
    return options


def _row(translation, outputs, n_best=None):
    """Returns outputs of a sentence from its `Translation`, with `n_best` hypotheses of a beam."""
    hypotheses = [translation, *translation.alternatives]
    row = {}
    for name, (dtype, shape) in outputs.items():
        if len(shape) == 1 and shape[0]:  # hypotheses of a beam
            count = n_best or shape[0]
            values = [_field(value, name, dtype) for value in hypotheses[:count]]
            filler = "" if dtype == "string" else float("-inf")
            row[name] = values + [filler] * (count - len(values))
        else:
            row[name] = _field(translation, name, dtype)
    return row


_FIELDS = {"translation": "text", "target_tokens": "tokens"}


def _field(translation, name, dtype):
    import numpy as np

    value = getattr(translation, _FIELDS.get(name, name))
    if name == "alignment":
        # An array is smaller than lists of numbers.
        return [] if value is None else np.asarray(value, np.float32)
    if isinstance(value, tuple):
        return list(value)
    if value is None:
        return 0
    return shortest_decimal(np.float32(value)) if dtype == "float32" else value


def _cause(error):
    """Returns one line of a message, without the places in the graph that TensorFlow adds."""
    lines = [line.strip() for line in str(getattr(error, "message", error)).splitlines()]
    lines = [line for line in lines if line and not line.startswith("[[")]
    return lines[-1][:300] if lines else type(error).__name__
