"""Base class of engines: the way from texts to translations, which all engines share."""

import dataclasses
import math
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from keras_transformer.base.errors import InputError
from keras_transformer.base.impossible import NEG_INF
from keras_transformer.base.options import check, check_choice, check_positive, received
from keras_transformer.decoding.search_options import (
    DecodingOptions,
    exported_search_options,
    without_excluded,
)
from keras_transformer.engine import inputs
from keras_transformer.engine.device import CPU
from keras_transformer.engine.inputs import LONG_INPUT, Job, LongInput
from keras_transformer.engine.request import OptionRules, Request
from keras_transformer.engine.steps.tag import tagged
from keras_transformer.engine.translation import Translation
from keras_transformer.text.dialog import Turns
from keras_transformer.text.directions import Directions
from keras_transformer.text.languages import Languages
from keras_transformer.text.per_text import (
    LANGUAGE_OPTIONS,
    checked_list,
    checked_texts,
    repeated,
    values_of_texts,
)
from keras_transformer.text.sentences import TextRules
from keras_transformer.text.shortlist import Shortlist
from keras_transformer.text.symbols import TextFeatures

Capability = Literal[
    "translate", "score", "stream", "sample", "align", "label", "warmup", "phrases"
]
NO_LIMIT = 2**31 - 1
"""Maximum number of tokens of an engine without a limit."""


class Engine:
    """Base class of the trained model's engine and of every export's.

    An engine of a runtime gives `search`, `capabilities` and limits. With them this class checks
    options, translates and joins the parts of a text. `score_pairs` (teacher forcing) is for
    the capability `score`.

    The artifact of a direct subclass has its own tokenizer: `search` and `score_pairs` get
    UTF-8, and return complete translations. An `IdsEngine` gets ids.

    Attributes:
        noun: Name of the engine in error messages.
        capabilities: Set of what the engine can do. Other calls raise an `InputError` that names
            the set.
        option_rules: Options that `translate` and `score` take. Other options have the values of
            `fixed_options`.
        defaults: Options that differ from the defaults of `DecodingOptions`.
        batch_size: Default of `batch_size`.
        shortlist: `Shortlist` of the option `shortlist`, None without one.
        labels: Labels of a classifier in the order of their ids, None for a model that writes text.
        turns: Rule that joins the turns of a source, where sources are conversations.
        languages: `Languages` of the model, None if they are unknown.
        reads_sources: False for a language model, which continues the texts that it is given.
        source_tokenizer: `Tokenizer` of the sources, None for an engine without a tokenizer.
        target_tokenizer: `Tokenizer` of the targets, or None.
        manifest: Content of an export's `export.json`, None for a trained model.
        max_source_length: Maximum number of source tokens, EOS included; `NO_LIMIT` without one.
        max_target_length: Maximum number of tokens of a translation, with EOS.
        long_inputs: Allowed values of `long_input` for a source of more tokens, the default first.
    """

    noun = "this export"
    capabilities: frozenset[Capability] = frozenset({"translate"})
    option_rules = OptionRules()
    batch_size: int | None = None
    shortlist: Shortlist | None = None
    labels: list[str] | None = None
    turns: Turns | None = None
    languages: Languages | None = None
    reads_sources = True
    source_tokenizer: Any = None
    target_tokenizer: Any = None
    manifest: Any = None
    max_source_length: int = NO_LIMIT
    max_target_length: int = NO_LIMIT
    long_inputs: tuple[str, ...] = LONG_INPUT

    @property
    def has_target_prefix(self) -> bool:
        """True where the decoder reads a token of a language before each translation."""
        return self.languages is not None and self.languages.target_prefix is not None

    @property
    def lines_at_once(self) -> int:
        """Number of lines of a stream that a command translates together."""
        return CPU.lines_at_once

    def __repr__(self):
        able = ", ".join(sorted(self.capabilities))
        length = self.max_source_length
        limit = "" if length == NO_LIMIT else f", at most {length} tokens per source"
        return f"<{type(self).__name__}: {able}{limit}>"

    @property
    def compilations(self) -> int:
        """Number of functions that XLA has compiled so far; 0 for an engine that does not count."""
        return 0

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Options that differ from the defaults of `DecodingOptions`: the export's."""
        return exported_search_options(self.manifest or {})

    def search(self, jobs: Sequence[Job], request: Request) -> list[list[Translation]]:
        """Returns the hypotheses of each sentence: the best first, or samples in order.

        Where fewer hypotheses than `n_best` exist, further ones have the score `-inf`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no `search`.")

    def score_pairs(self, pairs: Sequence[tuple[Any, ...]], request: Request) -> list[Translation]:
        """Scores pairs of a source and a target by teacher forcing.

        Texts have a third member, their `Direction`; ids have its tokens.
        """
        raise NotImplementedError(f"{type(self).__name__} has no `score_pairs`.")

    def warmup(self, *arguments: Any, **options: Any) -> int:
        """Compiles ahead what `translate` will need; see `ModelEngine.warmup`."""
        raise self.error_of_lack("warmup")

    def request(self, **options: Any) -> Request:
        """Checks the options of `translate`, and returns them with the engine's defaults.

        Raises:
            InputError: An option is out of range, or the engine does not take it.
        """
        values = {name: value for name, value in options.items() if value is not None}
        check("alignment", values.get("alignment", False), "True or False", bool)
        if values.get("alignment") and "align" not in self.capabilities:
            raise self.error_of_lack("align", "alignment")
        self.check_fixed(values)
        alignment = values.pop("alignment", False)
        batch_size = values.pop("batch_size", self.batch_size)
        long_input = values.pop("long_input", self.long_inputs[0])
        for name in ("target_prefixes", "phrases", *LANGUAGE_OPTIONS):  # Checked with the texts.
            values.pop(name, None)
        search_options = DecodingOptions(**{**without_excluded(self.defaults, values), **values})
        if self.target_tokenizer is not None:
            search_options.check_ids(self.target_tokenizer.vocabulary_size)
        longest = self.max_target_length
        search_options.check_min_length(longest)
        if search_options.resolve_max_length(longest) > longest:
            rule = f"`max_length` must be at most {longest}, the engine's `max_target_length`"
            raise InputError(f"{rule}. Received: max_length={search_options.max_length}.")
        check_positive(or_none=True, batch_size=batch_size)
        check_choice("long_input", long_input, self.long_inputs)
        return Request(search_options, batch_size, alignment, long_input)

    def translate(
        self,
        texts: Sequence[str],
        beam_size: int | None = None,
        length_penalty: float | None = None,
        n_best: int | None = None,
        batch_size: int | None = None,
        target_prefixes: Sequence[str] | None = None,
        alignment: bool | Sequence[bool] = False,
        long_input: LongInput | None = None,
        phrases: Sequence[Sequence[str]] | None = None,
        source_language: str | Sequence[str] | None = None,
        target_language: str | Sequence[str] | None = None,
        **options: Any,
    ) -> list[Translation]:
        """Translates texts, in batches of similar length; the results are in the order of `texts`.

        Args:
            texts: Strings. A blank text (white space, or characters without tokens, such as
                zero-width spaces) is translated as the empty string.
            beam_size: As in `DecodingOptions`, like `length_penalty` and `n_best`; by default an
                export has the values that it was made with.
            batch_size: Maximum number of sentences in one call of the search; by default the
                fastest number.
            target_prefixes: Beginnings of the translations, in whole tokens; "" forces nothing. The
                prefix of a text that is split belongs to its first part.
            alignment: Whether each translation gets its alignment, or a list with a value for each
                text.
            long_input: Treatment of a text of more than `max_source_length` tokens. `"refuse"`
                raises an error, the default except in a SavedModel. `"split"` splits it at sentence
                ends and translates each part, `"truncate"` truncates it, both with a warning. The
                limits on lengths hold for each part; see `Translation.joined` for `n_best`. A
                conversation cannot be split; truncation removes its oldest turns.
            phrases: For each text a list of phrases that its translation must contain. Each phrase
                begins at the beginning of a word, and occurs as often as it is listed; see
                `decoding.Constraints`. The beam of a text with phrases is as large as they need: at
                least 4, and from 4 tokens on 8, 16 or 32.
            source_language: Code of the texts' language, or the model's name of it; or a list with
                a code for each text. Needed only where the model has several such languages, and
                a token for them.
            target_language: Language of the translations, or a list of languages.
            **options: The other fields of `DecodingOptions`, and `threads` of a LiteRT export.

        Raises:
            InputError: An option is out of range or fixed in the export, a text is too long, or the
                vocabulary cannot write a prefix or a phrase.
        """
        alignment = values_of_texts(alignment)
        request = self.request(
            beam_size=beam_size,
            length_penalty=length_penalty,
            n_best=n_best,
            batch_size=batch_size,
            target_prefixes=target_prefixes,
            alignment=bool(alignment) if isinstance(alignment, tuple) else alignment,
            long_input=long_input,
            phrases=phrases,
            **options,
        )
        texts = checked_texts("texts", texts)
        is_aligned = repeated("alignment", alignment, len(texts))
        directions = self.directions.of(texts, source_language, target_language)
        jobs, parts = self._jobs(texts, request, directions, target_prefixes, phrases)
        hypotheses = self.search(jobs, request) if jobs else []
        translations = [
            self._translation(row, job) for row, job in zip(hypotheses, jobs, strict=True)
        ]
        for index, indices in enumerate(parts):
            for part in indices:
                _check_scores(translations[part], index)
        if request.alignment:
            chosen = [part for index, row in enumerate(parts) if is_aligned[index] for part in row]
            rows = [translations[part] for part in chosen], [jobs[part] for part in chosen]
            for part, translation in zip(chosen, self._aligned(*rows, request), strict=True):
                translations[part] = translation
        return [Translation.joined([translations[index] for index in indices]) for indices in parts]

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str] | Sequence[Sequence[int]],
        length_penalty: float | None = None,
        batch_size: int | None = None,
        alignment: bool = False,
        source_language: str | Sequence[str] | None = None,
        target_language: str | Sequence[str] | None = None,
        **options: Any,
    ) -> list[Translation]:
        """Scores given translations by teacher forcing: a `Translation` for each target.

        Args:
            sources: Strings. A language model scores a target as the continuation of its source;
                "" scores a whole text.
            targets: Translations of the sources: strings, or lists of ids that end with EOS. A
                SavedModel takes only strings, and truncates long texts.
            length_penalty: As in `DecodingOptions`.
            batch_size: Maximum number of pairs in one call of the model.
            alignment: Whether each `Translation` gets its alignment.
            source_language: As in `translate`, like `target_language`.
            **options: `length_normalization` and `word_penalty` of `DecodingOptions`.

        Raises:
            InputError: There are not as many targets as sources, a text is too long, or an option
                is fixed in the export.
        """
        if "score" not in self.capabilities:
            raise self.error_of_lack("score")
        options |= {"length_penalty": length_penalty, "alignment": alignment}
        self.check_fixed(options, "score")
        request = self.request(batch_size=batch_size, **options)
        sources = checked_list("sources", sources)
        targets = checked_list("targets", targets)
        if len(sources) != len(targets):
            received = f"{len(sources)} sources and {len(targets)} targets"
            raise InputError(f"There must be a target for each source. Received: {received}.")
        directions = self.directions.of(sources, source_language, target_language)
        translations = self._scored_targets(sources, targets, directions, request)
        for index, translation in enumerate(translations):
            _check_scores(translation, index)
        return translations

    def _scored_targets(self, sources, targets, directions, request):
        """Returns the translation of each target, with its probabilities."""
        sources = self._tagged(sources, directions)
        sides = inputs.encoded("sources", sources), inputs.encoded("targets", targets)
        texts = list(zip(*sides, directions, strict=True))
        scored = self.score_pairs(texts, request) if texts else []
        return [
            dataclasses.replace(row, text=text) for row, text in zip(scored, targets, strict=True)
        ]

    def stream(
        self,
        text: str,
        target_prefix: str = "",
        long_input: LongInput | None = None,
        source_language: str | None = None,
        target_language: str | None = None,
        **options: Any,
    ) -> Iterator[str]:
        """Translates one text, and yields the text so far whenever it has grown.

        Args:
            text: A string.
            target_prefix: As `target_prefixes` of `translate`.
            long_input: As in `translate`; `"split"` streams one part after another.
            source_language: As in `translate`, like `target_language`.
            **options: Fields of `DecodingOptions`, for greedy search or with `sampling=True`.
        """
        if "stream" not in self.capabilities:
            raise self.error_of_lack("stream")
        if options.get("phrases"):
            rule = "A stream has no phrases and no terms that the search forces"
            raise InputError(f"{rule}. Received: {received(options['phrases'])}.")
        request = self.request(**{"beam_size": 1, **options}, long_input=long_input)
        search_options = request.options
        if search_options.beams != 1 or search_options.n_best != 1:
            raise InputError(
                "Only one hypothesis can be streamed: greedy search or one sample. "
                f"Received: beam_size={search_options.beam_size}, n_best={search_options.n_best}."
            )
        texts = checked_texts("text", [text])
        directions = self.directions.of(texts, source_language, target_language)
        jobs, _ = self._jobs(texts, request, directions, [target_prefix])
        return self._stream(jobs, request)

    def _stream(self, jobs: Sequence[Job], request: Request) -> Iterator[str]:
        """Yields the text so far of the jobs of one text, for the capability `stream`."""
        raise NotImplementedError(f"{type(self).__name__} has no `_stream`.")

    @property
    def text_features(self) -> TextFeatures:
        """Features that texts may have besides words: tags, placeholders, annotated terms."""
        if self.source_tokenizer is None:
            return TextFeatures.from_manifest(self.manifest or {})
        return TextFeatures.of(self.source_tokenizer)

    @property
    def text_rules(self) -> TextRules:
        """Rules of the export for texts that are more, or less, than a sentence."""
        return TextRules.from_fields(self.manifest or {})

    @property
    def turn_id(self) -> int | None:
        """Id of the token between two turns, None where sources are not conversations."""
        return None if self.turns is None else self.source_tokenizer.turn_id

    @property
    def directions(self) -> Directions:
        """Directions of texts, by the languages that are named or that the texts name."""
        return Directions(self.languages, self.source_tokenizer)

    def _tagged(self, texts, directions):
        """Returns texts with their tags, for a graph whose only input is the text."""
        languages = self.languages
        if languages is None or not languages.is_optional:
            return texts
        tokens = [languages.tokens_of(*direction.codes).source_prefix for direction in directions]
        return [
            tagged(text, token[0] if token else None)
            for text, token in zip(texts, tokens, strict=True)
        ]

    def source_length(self, text: str) -> int:
        """Returns the number of tokens that the model reads of a text, of its language, and EOS.

        If the tokenizer is in the engine's graph, it is the largest possible number.
        """
        languages = self.languages
        added = (
            0 if languages is None or self.directions.are_named_in(text) else languages.num_added
        )
        if self.source_tokenizer is not None:
            return len(self.source_tokenizer.tokenize(text, add_eos=True)) + added
        # A token has a byte at least, also the space before the text. A normalized text may have
        # more bytes than the text.
        normalized = unicodedata.normalize("NFKC", text)
        sizes = [
            len(form.encode("utf-8", "replace")) for form in (normalized, normalized.casefold())
        ]
        return max(sizes) + 2 + added

    def _jobs(self, texts, request, directions, prefixes=None, phrases=None):
        """Returns the jobs of the parts of all texts, and the indices of each text's parts."""
        sources = inputs.encoded("texts", self._tagged(texts, directions))
        seeds = repeated("seed", request.options.seed, len(texts))
        rows = zip(sources, seeds, directions, strict=True)
        jobs = [Job(source, seed, direction=direction) for source, seed, direction in rows]
        return jobs, [[index] for index in range(len(texts))]

    def _translation(self, hypotheses, job):
        """Returns the best hypothesis of a sentence, with the other ones as its alternatives."""
        hypotheses = [
            hypothesis
            for index, hypothesis in enumerate(hypotheses)
            if index == 0 or not hypothesis.score <= NEG_INF / 2  # NaN stays, to be refused.
        ]
        best, *alternatives = self._with_texts(hypotheses, job)
        return dataclasses.replace(best, alternatives=tuple(alternatives)) if alternatives else best

    def _with_texts(self, hypotheses, job):
        """Returns hypotheses with their texts, which `search` has given them here."""
        return hypotheses

    def _aligned(self, translations, jobs, request):
        """Returns translations with the alignments of a request, which `search` has added here."""
        return translations

    @property
    def fixed_options(self) -> dict[str, Any]:
        """Values of the options that the engine does not take."""
        call_options: dict[str, Any] = {
            "alignment": False,
            "target_prefixes": None,
            "phrases": None,
        }
        call_options["long_input"] = self.long_inputs[0]
        return {
            **vars(DecodingOptions()),
            **call_options,
            **self.defaults,
            **self.option_rules.fixed,
        }

    def check_fixed(
        self, options: Mapping[str, Any], call: Literal["translate", "score"] = "translate"
    ) -> None:
        """Raises `InputError` for an option that a call does not take; see `OptionRules`."""
        advice = "; a run folder takes other values" if self.labels is None else ""
        self.option_rules.check(call, options, self.fixed_options, self.noun, advice)

    def error_of_lack(self, capability: Capability, option: str | None = None) -> InputError:
        """Returns the error for a missing capability, which the user asked for with `option`."""
        able = ", ".join(sorted(self.capabilities))
        where = "a run folder" if self.labels is None else "a model that writes text"
        return InputError(f"`{option or capability}` needs {where}: {self.noun} can {able}.")


def _check_scores(translation: Translation, index: int) -> None:
    """Raises `InputError` for a model that computes NaN."""
    if any(math.isnan(row.score) for row in (translation, *translation.alternatives)):
        rule = "The model computes NaN: its weights are damaged, or too large for their type."
        raise InputError(rule, index)


def sum_of(log_probabilities: Sequence[float]) -> float:
    """Returns the sum of the log-probabilities of tokens, added in float32."""
    return float(np.sum(np.array(log_probabilities, "float32")))


def long_input_of_commands(engine: Engine) -> str:
    """Returns the default of a command's `long_input`, for lines of too many tokens.

    A call in Python raises an error by default. A command must not, because one line would end the
    translation of a file.
    """
    way = "split" if engine.reads_sources else "refuse"
    if engine.labels is not None or engine.turns is not None:
        way = "truncate"
    return way if way in engine.long_inputs else engine.long_inputs[0]
