"""Runs batches of rows of a signature with an export's engine."""

import concurrent.futures
import contextlib
import itertools
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from keras_transformer.base.errors import InputError
from keras_transformer.decoding.search_options import FILTERS
from keras_transformer.engine.engine import Engine
from keras_transformer.engine.inputs import parts_of
from keras_transformer.engine.steps.text_steps import options_of_texts
from keras_transformer.engine.translation import Translation
from keras_transformer.export.signature import SIGNATURES, TEXT, Signature, Tensor
from keras_transformer.extras.serving.endpoints import Rejection
from keras_transformer.extras.serving.protocol import DEFAULT, shortest_decimal
from keras_transformer.extras.serving.server_options import ServerOptions
from keras_transformer.text.languages import language_pair, languages_of_directions
from keras_transformer.text.per_text import LANGUAGE_OPTIONS
from keras_transformer.text.sentences import TextRules

if TYPE_CHECKING:
    from keras_transformer.engine.translator import Translator

# `tf.errors.InvalidArgumentError.error_code`.
_INVALID_ARGUMENT = 3


def signatures_of(engine: Engine) -> dict[str, Signature]:
    """Returns the signatures of an engine by name.

    The manifest lists them, or they follow from the engine's capabilities.
    """
    languages = engine.languages.inputs if engine.languages is not None else ()
    named, manifest = dict.fromkeys(languages, TEXT), engine.manifest
    beams = manifest.get("n_best") or manifest["beam_size"]
    capabilities = {name: {} for name in (DEFAULT, "greedy", "beam", *engine.capabilities)}
    fields = manifest.get("signatures", capabilities)
    signatures = {}
    for name, row in SIGNATURES.items():
        if name not in fields:
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


Row = tuple[tuple, dict[str, Any]]
"""Key and inputs of a sentence in a batch."""


def count_sentences(rows: Iterable[Row]) -> int:
    """Returns the number of rows that the model reads, which are not blank."""
    return sum(bool(row.get("text", True)) for _, row in rows)


class Model:
    """Runs batches of a signature with a loaded export, in any number of threads.

    Args:
        path: Path of an export, or of its LiteRT file.
        threads: Number of threads that will call.
        markup: Markup that requests have by default.
        languages: Codes of the source and the target of an export that does not know them, such as
            `en-de`: sentences end as in the source's language.

    Attributes:
        engine: The export's engine.
        signatures: Its signatures by name.
        default_options: Options of requests that give none, by signature: `markup` where the engine
            can do it.

    Raises:
        InputError: The export is missing, damaged, or a classifier's, or its default signature
            cannot do `markup`.
    """

    def __init__(self, path: str, threads: int, markup: str = "none", languages: str | None = None):
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
        if self.engine.languages is None and languages is not None:
            self.engine.languages = languages_of_directions([language_pair(languages)])
        self.signatures = signatures_of(self.engine)
        self.default_options = {
            name: self._default_options(name, markup) for name in self.signatures
        }

    def _default_options(self, name, markup):
        if markup == "none" or name == "score":
            return {}
        if name == DEFAULT:
            self._check(name, {"markup": markup})
        elif not self._takes(name, {"markup": markup}):
            return {}
        return {"markup": markup}

    def takes(self, **options: Any) -> bool:
        """Returns whether the default signature takes options of `Translator.translate`."""
        return self._takes(DEFAULT, options)

    def _takes(self, name, options):
        try:
            self._check(name, options)
        except InputError:
            return False
        return True

    def _check(self, name, options):
        options = _options_of(name, [], self.signatures[name], options)
        self._translator.check_options(**{**options, **self._first_direction()})

    def prepare(
        self,
        name: str,
        rows: Sequence[dict[str, Any]],
        options: Mapping[str, Any] = MappingProxyType({}),
        check_cancelled: Callable[[], None] = lambda: None,
    ) -> "Work":
        """Returns what a request leaves for batches: the sentences that the engine reads.

        Args:
            name: Name of the signature.
            rows: Inputs of each text by name.
            options: `Predict.options`, which are options of `Translator.translate`.
            check_cancelled: Function that is called before each step of a text. An error that it
                raises ends the preparation.

        Raises:
            Rejection: 400 for an invalid text or option.
        """
        with _rejecting():
            if name == "score":
                return _scoring(rows, options)
            groups: dict[tuple, list[int]] = {}
            for index, row in enumerate(rows):
                filters = tuple(row[option] for option in FILTERS if option in row)
                groups.setdefault(filters, []).append(index)
            works: dict[tuple[int, ...], Work] = {}  # by the indices of their texts
            for indices in groups.values():
                rows_of_group = [rows[index] for index in indices]
                works[*indices] = self._prepared(name, rows_of_group, options, check_cancelled)

        def to_translations(translations):
            translations_by_index, following = {}, iter(translations)
            for indices, work in works.items():
                row = work.to_translations([*itertools.islice(following, len(work.rows))])
                translations_by_index |= zip(indices, row, strict=True)
            return [translations_by_index[index] for index in sorted(translations_by_index)]

        return Work([row for work in works.values() for row in work.rows], to_translations)

    def _prepared(self, name, rows, options, check_cancelled):
        """Returns the work of rows with the same filters of sampling."""
        options = _options_of(name, rows, self.signatures[name], options)
        texts = [row["text"] for row in rows]
        texts = self._translator.in_steps(texts, check_cancelled, **options)
        # As in TensorFlow Serving, which knows no other way.
        rows = _rows_of(name, texts.texts, {"long_input": "truncate", **texts.options})
        rows, joined = _in_parts(self.engine, rows, check_cancelled)
        return Work(rows, lambda translations: texts.after(joined(translations)))

    def translator(self, submit: Callable[[list[Row]], list[Translation]]) -> "Translator":
        """Returns a translator whose sentences share the batches of all requests.

        Args:
            submit: Function that returns the translation of each row, in the thread of the
                translator's caller.
        """
        engine: Any = _InBatches(self.engine, submit)
        return type(self._translator)(engine, self._translator.defaults)

    def run(
        self,
        key: tuple,
        rows: Sequence[dict[str, Any]],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> list[Translation]:
        """Runs a batch; returns the translation of each row.

        Args:
            key: Key of all rows of the batch in `Work.rows`.
            rows: The rows.
            is_wanted: Function that returns False when nobody waits for the batch any more.

        Raises:
            Rejection: 400 for an invalid text, 504 for a batch that nobody waits for.
        """
        if not is_wanted():
            raise Rejection(504, "All requests of the batch have ended")
        name, options, per_text = key
        columns: dict[str, Any] = {option: [row[option] for row in rows] for option in per_text}
        with _rejecting(), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about long texts
            if name == "score":
                return self._translator.score(**columns, **dict(options))
            texts = [row["text"] for row in rows]
            return self.engine.translate(texts, **dict(options), **columns)

    def outputs(self, name: str, translations: Iterable[Translation]) -> list[dict[str, Any]]:
        """Returns the outputs of a signature by name, for each translation.

        Numbers are rounded to float32, and alignments are float32 arrays.
        """
        outputs = self.signatures[name].outputs
        return [_row(translation, outputs) for translation in translations]

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

    def warm_up(
        self, options: ServerOptions, report: Callable[[str], None] = lambda text: None
    ) -> int:
        """Runs signatures in each shape that XLA compiles; returns the number of batches.

        An engine that compiles nothing runs one batch.

        Args:
            options: Options of the server.
            report: Function that is called with a description of the next step.

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
        shapes, doing, done = self.engine.manifest.get("shapes"), "compiling", "compiled"
        if shapes is None:  # Only a SavedModel is compiled.
            shapes = {"rows": [1], "source_lengths": [16]}
            doing, done = "warming up", "warmed up"
        longest = options.warm_up_tokens + 1  # with EOS
        added = 1 + self._language_tokens
        last = next((length for length in shapes["source_lengths"] if length >= longest), longest)
        # The warm-up's texts may have no letters, which is no reason not to compile.
        rules = dict.fromkeys(TextRules._fields, False)
        defaults = [(name, {**self.default_options[name], **rules}) for name in names]
        batches = [
            (name, [self._row_of(max(1, min(length, longest) - added))] * rows, options_of_name)
            for name, options_of_name in defaults
            for length in shapes["source_lengths"]
            for rows in shapes["rows"]
            if length <= last and rows < 2 * options.max_batch_size
        ]
        with concurrent.futures.ThreadPoolExecutor(self._threads) as pool:
            report(f"{doing} {len(batches)} shapes of batches")
            for count, _ in enumerate(pool.map(self._run_at_once, batches), start=1):
                report(f"{done} {count} of {len(batches)} shapes of batches")
        return len(batches)

    def _run_at_once(self, batch):
        work = self.prepare(*batch)
        self.run(work.rows[0][0], [row for _, row in work.rows])

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


class _InBatches:
    """An engine that submits its texts to the batches of all requests."""

    lines_at_once = sys.maxsize  # A document is counted as a whole, before its first batch.

    def __init__(self, engine, submit):
        self._engine, self._submit = engine, submit

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def translate(self, texts, **options):
        rows, joined = _in_parts(self._engine, _rows_of(DEFAULT, texts, options))
        return joined(self._submit(rows))


def _rows_of(name, texts, options):
    """Returns the rows of texts for the engine, with the options of each text."""
    per_text = options_of_texts(options)
    shared = {option: value for option, value in options.items() if option not in per_text}
    key = name, tuple(sorted(shared.items())), tuple(per_text)
    values = zip(*per_text.values(), strict=True) if per_text else [()] * len(texts)
    return [
        (key, {"text": text, **dict(zip(per_text, values_of_text, strict=True))})
        for text, values_of_text in zip(texts, values, strict=True)
    ]


def _in_parts(engine, rows, check_cancelled=lambda: None):
    """Splits the texts that the engine would split, so that others need not wait for all parts.

    Returns the rows, and a function that joins the translations of their parts.
    """
    languages, parts = engine.languages, []
    added = 0 if languages is None else languages.num_added
    for key, row in rows:
        check_cancelled()
        texts = [row.get("text", "")]
        # Nothing is split by another rule: seeds, prefixes and phrases are of a whole text.
        is_split = ("long_input", "split") in key[1] and row.keys() <= {"text", *LANGUAGE_OPTIONS}
        # A token has a byte at least.
        if is_split and len(texts[0].encode()) + added >= engine.max_source_length:
            tokenizer = engine.source_tokenizer
            texts = parts_of(texts[0], tokenizer, engine.max_source_length - added)
        parts.append([(key, {**row, "text": text}) for text in texts])

    def joined(translations):
        following = iter(translations)
        return [
            Translation.joined(list(itertools.islice(following, len(rows_of_text))))
            for rows_of_text in parts
        ]

    return list(itertools.chain.from_iterable(parts)), joined


class Work(NamedTuple):
    """Sentences of a request, which join batches.

    Attributes:
        rows: Key and inputs of each sentence. Only rows with equal keys can share a batch.
        to_translations: Function that takes the translations of rows, and returns the translations
            of texts.
    """

    rows: list[Row]
    to_translations: Callable[[list[Translation]], list[Translation]]


def _scoring(rows, options):
    """Returns the work of rows of the signature `score`, which no step changes."""
    if refused_options := options.keys() - {"tag", *LANGUAGE_OPTIONS}:
        raise InputError(f"`{min(refused_options)}` is an option of translations.")
    names = {"source": "sources", "target": "targets"}
    named = [
        {
            **{names[side]: row[side] for side in names},
            **{option: row[option] or None for option in LANGUAGE_OPTIONS if option in row},
        }
        for row in rows
    ]
    key = "score", tuple(sorted(options.items())), tuple(named[0] if named else ())
    return Work([(key, row) for row in named], list)


@contextlib.contextmanager
def _rejecting():
    """Raises a `Rejection` (400) for an error about what the request has."""
    try:
        yield
    except ValueError as error:
        raise Rejection(400, _cause(error)) from None
    except Exception as error:
        if getattr(error, "error_code", None) != _INVALID_ARGUMENT:
            raise
        raise Rejection(400, _cause(error)) from None


def _options_of(name, rows, signature, options):
    """Returns the options of `Translator.translate` for the rows of a signature."""
    options = dict(options)
    for option in LANGUAGE_OPTIONS:
        if option in signature.inputs:
            options[option] = [row[option] or None for row in rows]
    if "glossary" in options:
        options["glossary"] = dict(options["glossary"])
    if name == "greedy":
        options["beam_size"] = 1
    elif name == "beam":
        options.setdefault("n_best", signature.outputs["score"].shape[0])
    elif name == "align":
        # An alignment of several sentences would be in parts, which the outputs have no place for.
        options = {"split_sentences": False, **options, "alignment": True}
    elif name == "sample":
        options["sampling"] = True
        for row in rows[:1]:
            options |= {name: filter.nearest(row[name]) for name, filter in FILTERS.items()}
        if "seed" in signature.inputs:
            options["seed"] = [row["seed"] for row in rows]
    return options


def _row(translation, outputs):
    """Returns the outputs of a text from its `Translation`."""
    hypotheses = [translation, *translation.alternatives]
    row = {}
    for name, (dtype, shape) in outputs.items():
        if len(shape) == 1 and shape[0]:  # hypotheses of a beam
            values = [_field(value, name, dtype) for value in hypotheses[: shape[0]]]
            filler = "" if dtype == "string" else float("-inf")
            row[name] = values + [filler] * (shape[0] - len(values))
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
