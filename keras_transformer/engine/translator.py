"""Translates texts with a run folder or any export."""

import collections
import dataclasses
import functools
import itertools
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from keras_transformer.decoding.options import RANKING_OPTIONS, without_excluded
from keras_transformer.engine.engine import Engine
from keras_transformer.engine.inputs import checked_phrases, checked_texts, one_for_each, tagged
from keras_transformer.engine.manifest import has_labels
from keras_transformer.engine.run_folder import RunFiles
from keras_transformer.engine.translation import Translation
from keras_transformer.errors import InputError
from keras_transformer.imports import import_keras, import_tensorflow
from keras_transformer.options import check_choice, check_positive
from keras_transformer.text.glossary import Glossary, annotate
from keras_transformer.text.markup import MARKUP, Markup, protect, restore
from keras_transformer.text.placeholders import Placeholders
from keras_transformer.text.tokenizer import tag_tokens

_PER_TEXT = "target_prefixes", "phrases", "seed"
"""Options that may have a value per text."""


class Translator:
    """Translates texts with a run folder or an export: an `Engine` and its default options.

    Args:
        engine: `Engine`, such as `engine.ModelEngine` or `engine.CTranslate2Engine`.
        defaults: Options of `translate` that differ from the engine's own.

    Attributes:
        turns: Rule that joins the turns of a source, where sources are conversations.

    Example:

        translator = Translator.load("runs/en-de")
        translator.translate(["Two dogs play."])[0].text
    """

    def __init__(self, engine: Engine, defaults: Mapping[str, Any] | None = None):
        self.engine = engine
        self.defaults = dict(defaults or {})
        self.turns = engine.turns

    def __repr__(self):
        return f"Translator({self.engine!r}, defaults={self.defaults!r})"

    @classmethod
    def load(cls, path: str | os.PathLike, threads: int | None = None) -> "Translator":
        """Reads a run folder, an export folder (SavedModel, LiteRT, CTranslate2) or a LiteRT file.

        Args:
            path: The folder, or a file `*.tflite` in an export's folder. A run folder's recipe has
                the default beam size and length penalty; an export has them inside.
            threads: Total number of threads; by default two with LiteRT, and the number of
                processors with TensorFlow and CTranslate2. All models of a process share
                TensorFlow's threads, which are fixed with its first operation.

        Raises:
            InputError: The folder is missing, neither a run nor an export, or damaged; or
                TensorFlow has started with another number of threads.
        """
        path = pathlib.Path(path)
        if threads is not None:
            check_positive(threads=threads)
        if not path.exists():
            raise InputError(f"{path}: no such run or export folder.")
        if (engine := _exported(path, threads)) is not None:
            return cls(engine)
        if threads is not None:
            import_keras()
            give_tensorflow(threads)
        if (path / "recipe.yaml").exists():
            import_keras()
            folder = RunFiles(path)
            engine = folder.engine()
            return cls(engine, folder.decoding().search if engine.labels is None else None)
        raise InputError(
            f"{path}: neither a run folder (recipe.yaml), a SavedModel (saved_model.pb), a LiteRT "
            "(model.tflite) nor a CTranslate2 export (model.bin). Make a run of a model of another "
            "program with `keras-transformer import`."
        )

    def translate(
        self,
        texts: Sequence[str],
        tag: str | None = None,
        markup: Markup | None = None,
        glossary: str | os.PathLike | Mapping[str, str] | Glossary | None = None,
        glossary_by: Literal["constraints", "annotations"] | None = None,
        **options: Any,
    ) -> list[Translation]:
        """Translates a list of texts.

        Args:
            texts: List of strings. A blank text gives the empty string.
            tag: Tag of all texts: one of the tags that the model was trained with, or a target
                language of an imported model, such as `"epo"` for its token `>>epo<<`.
            markup: `"placeholders"` preserves URLs, e-mail addresses and placeholders such as
                {name} or %s; `"html"` also preserves tags, with character references.
            glossary: Terms with their translations, a file of `term<TAB>translation` lines, or a
                `Glossary`.
            glossary_by: `"annotations"` adds the translations of terms to the source, for a model
                trained with `data.glossary`, which inflects them; the default for such a model.
                `"constraints"` forces the search of a run to write them unchanged.
            **options: Options of `engine.ModelEngine.translate`: `beam_size` (1 is greedy
                search), `length_penalty`, `n_best`, `batch_size`, `target_prefixes`,
                `alignment`, `long_input`, and the fields of `decoding.DecodingOptions`. The search
                options of an export are fixed.

        Returns:
            A list of `Translation`, in the order of `texts`.

        Raises:
            InputError: An option is out of range, or a text is too long.
        """
        options = self._with_defaults(options)
        if glossary_by is not None and glossary is None:
            rule = "`glossary_by` needs a `glossary`."
            raise InputError(f"{rule} Received: glossary_by={glossary_by!r}.")
        token = self._token_of(tag)
        if markup is None and glossary is None:
            return self.engine.translate(self._tagged(texts, token), **options)
        texts = checked_texts("texts", texts)
        if self.labels is not None:
            name = "glossary" if markup is None else "markup"
            raise InputError(f"`{name}` needs a model that writes text. Received: a classifier.")
        if markup is not None:
            return self._translate_marked(texts, markup, token, glossary, glossary_by, options)
        texts = self._annotated(texts, glossary, glossary_by, options)
        return self.engine.translate(self._tagged(texts, token), **options)

    def _translate_marked(self, texts, markup, token, glossary, glossary_by, options):
        """Translates texts with markup: the blocks of a text are texts for the engine."""
        check_choice("markup", markup, MARKUP)
        if markup == "html" and "align" not in self.engine.capabilities:
            rule = "`markup=html` needs alignments: a run, a CTranslate2 export, or a SavedModel"
            raise InputError(f"{rule} with `align`. Received: {self.engine.noun}.")
        # A tag that a text begins with is the tag of each block.
        split_tag = getattr(self.engine.source_tokenizer, "split_tag", lambda text: ("", text))
        tokens, texts = zip(*map(split_tag, texts), strict=True) if texts else ((), ())
        protected = [protect(text, markup, self._placeholders) for text in texts]
        indices = [index for index, blocks in enumerate(protected) for _ in blocks]
        blocks = list(itertools.chain(*protected))
        options = _of_blocks(options, indices, len(texts))
        shows_alignment = options.get("alignment", False)
        if markup == "html" or (any(block.pieces for block in blocks) and self._aligns(options)):
            options["alignment"] = True
        texts = [block.text for block in blocks]
        try:
            texts = self._annotated(texts, glossary, glossary_by, options)
            tokens_of_blocks = (tokens[index] or None for index in indices)
            sources = self._tagged(list(map(tagged, texts, tokens_of_blocks)), token)
            translations = self.engine.translate(sources, **options)
        except InputError as error:
            if error.index is None:
                raise
            raise InputError(error.message, indices[error.index]) from None
        restored = map(restore, translations, blocks, texts)
        is_sampling = options.get("sampling", False)
        joined = [
            Translation.joined(list(itertools.islice(restored, len(blocks))), is_sampling, "")
            for blocks in protected
        ]
        return joined if shows_alignment else list(map(_without_alignment, joined))

    def _aligns(self, options):
        """Returns whether the engine gives alignments with these options."""
        if "align" not in self.engine.capabilities:
            return False
        options = {name: value for name, value in options.items() if name not in _PER_TEXT}
        try:  # Without texts the engine only checks the options.
            self.engine.translate([], **{**options, "alignment": True})
        except InputError:
            return False
        return True

    def _annotated(self, texts, glossary, glossary_by, options):
        """Returns texts with annotated terms, or adds the terms to the options of the search."""
        if glossary is None:
            return texts
        terms = glossary_of(glossary)
        if self._annotates_terms(glossary_by):
            return [annotate(text, terms.matches(text)) for text in texts]
        options["phrases"] = _with_terms(options.get("phrases"), texts, terms)
        return texts

    def _annotates_terms(self, glossary_by):
        """Returns True if the model reads terms' translations, False if the search forces them."""
        tokenizer, manifest = self.engine.source_tokenizer, self.engine.manifest or {}
        is_able = manifest.get("terms", False) if tokenizer is None else tokenizer.annotates_terms
        if glossary_by is not None:
            check_choice("glossary_by", glossary_by, ("constraints", "annotations"))
        if is_able and glossary_by != "constraints":
            return True
        if glossary_by == "annotations":
            rule = "`glossary_by: annotations` needs a model trained with `data.glossary`."
            raise InputError(rule)
        if "phrases" in self.engine.capabilities:
            return False
        if glossary_by is not None:
            raise self.engine.lacks("phrases", "glossary_by")
        raise InputError("`glossary` needs a run folder, or a model trained with `data.glossary`.")

    @property
    def _placeholders(self):
        """`Placeholders` of the engine's vocabulary."""
        if self.engine.source_tokenizer is not None:
            return self.engine.source_tokenizer.placeholders
        return Placeholders(*(self.engine.manifest or {}).get("placeholders", ()))

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        tag: str | None = None,
        **options: Any,
    ) -> list[Translation]:
        """Scores given translations by teacher forcing; see `ModelEngine.score`."""
        options = self._with_defaults(options, RANKING_OPTIONS)
        sources = self._tagged(sources, self._token_of(tag))
        return self.engine.score(sources, targets, **options)

    def stream(self, text: str, tag: str | None = None, **options: Any) -> Iterator[str]:
        """Yields one translation as it grows; see `ModelEngine.stream`."""
        options = self._with_defaults(options, self.defaults.keys() - {"beam_size"})
        return self.engine.stream(*self._tagged([text], self._token_of(tag)), **options)

    def warmup(self, **options: Any) -> int:
        """Compiles ahead what `translate` with these options needs; see `ModelEngine.warmup`."""
        return self.engine.warmup(**self._with_defaults(options))

    @property
    def labels(self) -> list[str] | None:
        """Labels of a classifier, in the order of their ids; None for a model that writes text."""
        return self.engine.labels

    @property
    def compilations(self) -> int:
        """Number of functions that XLA has compiled so far."""
        return self.engine.compilations

    def _token_of(self, tag):
        """Returns the token that a tag puts before each text."""
        if tag is None:
            return None
        tokenizer, manifest = self.engine.source_tokenizer, self.engine.manifest or {}
        if tokenizer is not None:
            tokens = tokenizer.tag_tokens
        else:
            tokens = tag_tokens(manifest.get("tags", ()), manifest.get("language_tags", False))
        if not tokens:
            raise InputError(f"`tag` needs a model trained with tags. Received: tag={tag!r}.")
        check_choice("tag", tag, tuple(tokens))
        return tokens[tag]

    def _tagged(self, texts, token):
        if token is None:
            return texts
        texts, tokenizer = checked_texts("texts", texts), self.engine.source_tokenizer
        # Without its tag, so that a text without tokens stays blank.
        ids = texts if tokenizer is None else tokenizer.tokenize(texts)
        return [tagged(text, token if row else None) for text, row in zip(texts, ids, strict=True)]

    def _with_defaults(self, options, names=None):
        """Returns options with the defaults of `names`, by default of all options.

        An option that is given drops the defaults that it excludes.
        """
        values = {key: value for key, value in options.items() if value is not None}
        names = self.defaults if names is None else names
        defaults = {key: value for key, value in self.defaults.items() if key in names}
        return {**without_excluded(defaults, values), **values}


def _of_blocks(options, indices, count):
    """Returns the options of blocks from the options of `count` texts, given each block's text."""
    options = dict(options)
    if len(indices) == count:
        return options
    values_of_texts = {
        name: one_for_each(name, tuple(options[name]), count)
        for name in _PER_TEXT
        if isinstance(options.get(name), (list, tuple))
    }
    options |= {
        name: tuple(values[index] for index in indices) for name, values in values_of_texts.items()
    }
    is_first = [block == 0 or indices[block - 1] != index for block, index in enumerate(indices)]
    if "target_prefixes" in values_of_texts:  # The prefix belongs to the first block.
        pairs = zip(options["target_prefixes"], is_first, strict=True)
        options["target_prefixes"] = [prefix if first else "" for prefix, first in pairs]
    counts = collections.Counter(indices)
    for index, phrases in zip(indices, options.get("phrases") or (), strict=False):
        if phrases and counts[index] > 1:
            rule = "`phrases` are for texts that are not split."
            raise InputError(f"{rule} Received: a text of {counts[index]} blocks.", index)
    return options


def _with_terms(phrases, texts, terms):
    """Adds the translations of a glossary's terms to the phrases of each text.

    A phrase that is also a translation of a term is not forced twice.
    """
    if phrases is None:
        phrases = [()] * len(texts)
    joined = []
    for text, phrases_of_text in zip(texts, checked_phrases(phrases, len(texts)), strict=True):
        translations = [match.translation for match in terms.matches(text)]
        counts = collections.Counter(phrases_of_text) | collections.Counter(translations)
        joined.append([*counts.elements()])
    return joined


def _without_alignment(translation):
    alternatives = tuple(map(_without_alignment, translation.alternatives))
    parts = tuple(map(_without_alignment, translation.parts))
    return dataclasses.replace(translation, alignment=None, alternatives=alternatives, parts=parts)


def glossary_of(glossary: str | os.PathLike | Mapping[str, str] | Glossary) -> Glossary:
    """Makes a glossary of terms, or reads a file, once for many calls until it changes."""
    if isinstance(glossary, Glossary):
        return glossary
    if isinstance(glossary, Mapping):
        return Glossary(glossary.items())
    path = os.fspath(glossary)
    # A pipe also changes when it is read, and cannot be read again.
    status = os.stat(path) if os.path.isfile(path) else None
    # A relative path is another file in another working directory.
    version = status and (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
    return _load_glossary(path, version)


@functools.lru_cache(maxsize=1)
def _load_glossary(path, version):
    return Glossary.load(path)


def _exported(path, threads):
    """Returns the engine of an export, a folder or its file `*.tflite`; None for another path."""
    if (path / "model.bin").exists():
        from keras_transformer.engine.ctranslate2 import CTranslate2Engine

        return CTranslate2Engine(path, threads)
    is_litert = path.suffix == ".tflite" or any(path.glob("*.tflite"))
    if not is_litert and not (path / "saved_model.pb").exists():
        return None
    folder = path.parent if path.suffix == ".tflite" else path
    if not is_litert:
        import_tensorflow()
    if threads is not None and not is_litert:
        give_tensorflow(threads)
    if is_litert and not has_labels(folder):
        from keras_transformer.engine.litert import LiteRTEngine

        return LiteRTEngine(path, threads or 2)
    from keras_transformer.engine.saved_model import ExportedClassifier, SavedModelEngine

    return ExportedClassifier(folder) if has_labels(folder) else SavedModelEngine(path)


def give_tensorflow(threads: int, operations: int | None = None) -> None:
    """Sets TensorFlow's threads per operation, and `operations` that run at once.

    By default as many operations run at once as an operation has threads, unless their number is
    set already. Raises `InputError` if TensorFlow has started with other threads.
    """
    import tensorflow as tf

    threading = tf.config.threading
    try:
        threading.set_intra_op_parallelism_threads(threads)
        set_already = threading.get_inter_op_parallelism_threads()
        threading.set_inter_op_parallelism_threads(operations or set_already or threads)
    except RuntimeError:
        current = threading.get_intra_op_parallelism_threads() or "its default"
        rule = "`threads` must be set before TensorFlow's first operation."
        received = f"threads={threads}, TensorFlow runs with {current}"
        raise InputError(f"{rule} Received: {received}.") from None
