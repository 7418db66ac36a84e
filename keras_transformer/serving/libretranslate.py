"""LibreTranslate's HTTP API: converts its requests to rows of a signature, and outputs to JSON.

Parameters, answers and errors follow its documentation, https://docs.libretranslate.com.
"""

import collections
import html
import os
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pydantic
import pydantic_core

from keras_transformer.engine.engine import long_input_of_commands
from keras_transformer.errors import InputError
from keras_transformer.formats import load
from keras_transformer.serving.model import Model
from keras_transformer.serving.protocol import (
    DEFAULT,
    FORM,
    Predict,
    Rejection,
    as_json,
    beyond,
    count_blocks_up_to,
    shown,
    too_many_sentences,
)
from keras_transformer.serving.server_options import ServerOptions
from keras_transformer.text.elements import find_tags
from keras_transformer.text.identification import language_identifier
from keras_transformer.text.language_codes import closest_codes
from keras_transformer.text.languages import (
    Languages,
    language_name,
    language_pair,
    named_directions,
    nearest_codes,
)
from keras_transformer.text.per_text import LANGUAGE_OPTIONS
from keras_transformer.translation import Translation

if TYPE_CHECKING:
    from keras_transformer.engine.translator import Translator

_MULTIPART = "multipart/form-data"
_DOOR = "documents.translating"  # The folder may be deleted.
_MAX_FIELDS = 100
# Codes of Argos that LibreTranslate takes, and the codes that it shows.
_SHOWN_CODES = {"zh": "zh-Hans", "zt": "zh-Hant", "pb": "pt-BR"}
_AUTO = {"code": "auto", "name": "Auto Detect"}
_BEAM = "beam"
_MOST_ALTERNATIVES = 10  # for which a beam is widened: its time grows with them
_MOST_DETECTED = 3
_FRONTEND_TIMEOUT = 500  # milliseconds that LibreTranslate's page waits for the end of the typing
_HAN = re.compile("[\u3400-\u9fff]")
_LINE_BREAK = re.compile(r"(<br ?/?>)")  # of Subtitle Edit, in texts that are no HTML
_FLAG = pydantic.TypeAdapter(bool)


class Request(NamedTuple):
    """A checked request for translations.

    Attributes:
        prediction: The texts to translate.
        texts: Parts of each text: strings that are not translated, and indices of texts to
            translate.
        is_list: Whether the request had a list of texts.
        alternatives: Maximum number of alternatives per text.
        detected: Field `detectedLanguage` of the answer per text; None if the source was given.
        has_entities: Whether the outputs are HTML, but the answer is not.
    """

    prediction: Predict
    texts: list[list[str | int]]
    is_list: bool
    alternatives: int
    detected: dict[str, Any] | None
    has_entities: bool


class File(NamedTuple):
    """A file in a form: its name, and its content."""

    name: str
    content: bytes


class FileRequest(NamedTuple):
    """A checked request for the translation of a file.

    Attributes:
        file: The file.
        name: Name of its translation.
        options: Options of `translate_document`; None if the file remains as it is.
    """

    file: File
    name: str
    options: dict[str, Any] | None


async def fields_of(
    content_type: str, query: str, body: bytes, max_files: int = 0, list_name: str = ""
) -> dict[str, Any]:
    """Returns the parameters of a request: of JSON, or of a form and the query string.

    A form with a boundary may have `max_files`, whose values are `File`. The parameter `list_name`
    of a form is the list of its values.

    Raises:
        Rejection: 400, the request is malformed.
    """
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if re.fullmatch(r"application/([^/]*\+)?json", kind):
            fields = pydantic_core.from_json(body)
            if not isinstance(fields, dict):
                raise Rejection(400, "Invalid JSON format")
            return fields
        pairs = _form(query)
        if kind == FORM:
            pairs += _form(body.decode("utf-8"))
        elif kind == _MULTIPART:
            pairs += await _parts(content_type, body, max_files)
    except ValueError as error:
        raise Rejection(400, f"Malformed request: {error}") from None
    # Browsers send line breaks of forms as CRLF.
    pairs = [
        (name, value.replace("\r\n", "\n") if isinstance(value, str) else value)
        for name, value in pairs
    ]
    fields = dict(reversed(pairs))  # The first value of a name counts.
    if list_name in fields:
        fields[list_name] = [value for name, value in pairs if name == list_name]
    return fields


def _form(text):
    options: Any = {"keep_blank_values": True, "errors": "strict"}
    return urllib.parse.parse_qsl(text, max_num_fields=_MAX_FIELDS, **options)


async def _parts(content_type, body, max_files):
    """Returns names and values of a form with a boundary, with a limited number of files."""
    from starlette.datastructures import Headers
    from starlette.formparsers import MultiPartException, MultiPartParser

    async def stream():
        yield body

    if not max_files:
        body.decode("utf-8")  # Starlette would take other bytes for Latin-1.
    headers = Headers({"content-type": content_type})
    limits = {"max_files": max_files, "max_fields": _MAX_FIELDS, "max_part_size": len(body)}
    try:
        form = await MultiPartParser(headers, stream(), **limits).parse()
    except MultiPartException as error:
        raise ValueError(error.message) from None
    try:
        return [
            (name, value)
            if isinstance(value, str)
            else (name, File(value.filename or "", await value.read()))
            for name, value in form.multi_items()
        ]
    finally:
        await form.close()


class LibreTranslate:
    """Reads requests and writes answers of LibreTranslate's API for one model.

    Args:
        model: The model.
        options: Options of the server.

    Raises:
        InputError: The export's languages are not two codes, or the option names other languages
            than the model's.
    """

    def __init__(self, model: Model, options: ServerOptions):
        self._model, self._limits = model, options
        named, languages = options.languages, model.engine.languages
        named = named or ",".join(model.engine.manifest.get("languages") or ())
        pair = language_pair(named) if named else None
        directions: Sequence = named_directions(languages, pair)
        if languages and pair and options.languages and directions == [*languages.directions]:
            directions = [languages.direction(*pair)]  # The option chooses one of the model's own.
        self._named = {tuple(map(_shown_code, pair)): pair for pair in directions if pair[0]}
        self._shown = Languages(directions=tuple(self._named))
        try:
            formats = load(f"{_DOOR}:FORMATS").values()
        except InputError:  # The folder was deleted.
            formats = ()
        self._suffixes = [
            suffix
            for format in formats
            if model.takes(**getattr(format.read, "options", {}))
            for suffix in format.suffixes
        ]

    @property
    def directions(self) -> dict[tuple[str, ...], tuple[str | None, str | None]]:
        """Directions of the model by the codes that clients see."""
        if not self._named:
            rule = "The languages of this model are unknown"
            raise Rejection(501, f"{rule}: start the server with --languages, such as en-de")
        return self._named

    @property
    def _languages(self) -> list[str]:
        """Codes of all languages, the sources first."""
        sources, targets = zip(*self.directions, strict=True)
        return list(dict.fromkeys([*sources, *targets]))

    def languages(self) -> list[dict[str, Any]]:
        """Returns the answer of `/languages`: a text in the target language remains as it is."""
        targets: dict[str, list[str]] = {code: [code] for code in self._languages}
        for source, target in self.directions:
            targets[source].append(target)
        return [
            {"code": code, "name": language_name(code), "targets": targets_of_code}
            for code, targets_of_code in targets.items()
        ]

    def settings(self) -> dict[str, Any]:
        """Returns the answer of `/frontend/settings`."""
        (_, target), *_ = self.directions
        return {
            "apiKeys": False,
            "charLimit": self._limits.max_text_characters,
            "filesTranslation": bool(self._suffixes),
            "frontendTimeout": _FRONTEND_TIMEOUT,
            "keyRequired": False,
            "language": {
                "source": _AUTO,
                "target": {"code": target, "name": language_name(target)},
            },
            "suggestions": False,
            "supportedFilesFormat": self._suffixes,
        }

    def detect(self, fields: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Returns the answer of `/detect`: the most probable languages of all texts together.

        They are languages of the server, if those are known.

        Raises:
            Rejection: 400 for an invalid request, 501 without the package that detects.
        """
        texts = self._texts(_required(fields, "q"))
        try:
            shares = _language_shares(texts)
        except InputError as error:
            raise Rejection(501, str(error)) from None
        if self._named:
            shares = _shares_among(shares, self._languages)
        best, *others = (_detection(*share) for share in shares[:_MOST_DETECTED])
        return [best, *(detection for detection in others if detection["confidence"])]

    def read(self, fields: Mapping[str, Any]) -> Request:
        """Reads the parameters of `/translate`; it takes a while for long texts.

        Raises:
            Rejection: 400 for an invalid request.
        """
        directions = self.directions
        texts = self._texts(_required(fields, "q"))
        source, target, detected = self._direction(fields, texts, directions)
        is_copied = source == target
        wants_html = _wants_html(fields)
        alternatives = _number_of_alternatives(fields.get("alternatives", 0))
        signature, options = self._search(wants_html, alternatives)
        is_html = options.get("markup") == "html"
        options = {**options, **self._rules(fields)}
        parts, pieces = self._parts(texts, is_html, is_copied)
        # Languages are inputs of each sentence if the signature takes them, else options of all.
        languages = {} if is_copied else self._named_languages(*directions[source, target])
        names_of_inputs = self._model.signatures[signature].inputs
        inputs = {name: languages.pop(name) for name in names_of_inputs if name in languages}
        rows = [{"text": piece, **inputs} for piece in pieces]
        return Request(
            prediction=Predict(signature, rows, False, tuple({**options, **languages}.items())),
            texts=parts,
            is_list=isinstance(fields["q"], list),
            alternatives=alternatives,
            detected=detected,
            has_entities=is_html and not wants_html and not is_copied,
        )

    def read_file(self, fields: Mapping[str, Any]) -> FileRequest:
        """Reads the parameters of `/translate_file`.

        Raises:
            Rejection: 400 for an invalid request, 501 without the folder that reads files.
        """
        if not self._suffixes:
            try:
                load(f"{_DOOR}:FORMATS")
            except InputError as error:
                raise Rejection(501, str(error)) from None
            raise Rejection(501, "This model translates no files")
        directions = self.directions
        file = fields.get("file")
        if not isinstance(file, File) or not file.content:
            raise Rejection(400, "Invalid request: empty file")
        stem, suffix = os.path.splitext(os.path.basename(file.name))
        if (suffix := suffix.lower()) not in self._suffixes:
            rule = f"Invalid request: file format not supported. Known: {', '.join(self._suffixes)}"
            raise Rejection(400, f"{rule}. Received: {shown(suffix)}")
        try:
            text = load(f"{_DOOR}:decoded")(file.content, suffix, file.name)
        except InputError as error:
            raise Rejection(400, str(error)) from None
        source, target, _ = self._direction(fields, [text], directions)
        options = None
        if source != target:
            options = self._named_languages(*directions[source, target]) | self._rules(fields)
            options["long_input"] = long_input_of_commands(self._model.engine)
        return FileRequest(file, f"{stem}_{target}{suffix}", options)

    def translated_file(self, request: FileRequest, translator: "Translator") -> bytes:
        """Returns the translation of a file; takes as long as the translator.

        Raises:
            Rejection: 400, the file is damaged; 413, it has too many texts.
        """
        name, content = request.file
        if request.options is None:
            return content
        translate = load(f"{_DOOR}:translate_document")
        suffix = os.path.splitext(name)[1].lower()
        options = {"name": name, "check_count": self._check_count, **request.options}
        try:
            return translate(translator, content, suffix, **options)
        except InputError as error:
            raise Rejection(400, str(error)) from None

    def _check_count(self, count):
        if count > (limit := self._limits.max_sentences):
            raise too_many_sentences(count, limit, has_blocks=False)

    def _direction(self, fields, texts, directions):
        """Returns the source, the target, and the detection if the source is to be detected.

        A pair that is not a direction of the server becomes the nearest direction.
        """
        source = self._code(_required(fields, "source"), "source")
        target = self._code(_required(fields, "target"), "target")
        sources = [source_of_target for source_of_target, code in directions if code == target]
        detected = None
        if source == "auto" and sources:
            detected = self._detected(texts, sources)
            source = detected["language"] if detected["language"] in sources else sources[0]
        if source == target or source in sources:
            return source, target, detected
        if nearest := self._nearest_direction(fields):
            return *nearest, detected
        name, name_of_target = map(_full_name, (source, target))
        rule = f"{name_of_target} is not available as a target language from {name}"
        raise Rejection(400, rule)

    def _named_languages(self, source, target):
        """Returns the options of `translate` for a direction of a model of several languages."""
        languages = self._model.engine.languages
        if languages is None or not languages.tokens:
            return {}
        options = dict(zip(LANGUAGE_OPTIONS, (source, target), strict=True))
        return options if languages.inputs else {"target_language": target}

    def _texts(self, value):
        """Returns the texts of a parameter `q`, within the limits."""
        texts = value if isinstance(value, list) else [value]
        if len(texts) > (limit := self._limits.max_sentences):
            raise _too_large(len(texts), "texts", limit, "max_sentences")
        for text in texts:
            if not isinstance(text, str):
                rule = "Invalid request: q must be a text or a list of texts"
                raise Rejection(400, f"{rule}. Received: {shown(text)}")
            if len(text) > (limit := self._limits.max_text_characters):
                raise _too_large(len(text), "characters", limit, "max_text_characters")
        return texts

    def _code(self, value, name):
        """Returns the language of the server that a code stands for, or `auto` for the source."""
        nearest = ""
        if isinstance(value, str):
            if name == "source" and value.strip().lower() == "auto":
                return "auto"
            if codes := self._shown.closest(_typed_code(value)):
                return codes[0]
            nearest = nearest_codes(_typed_code(value), self._languages)
        # Without quotation marks, as LibreTranslate's clients know it.
        message = shown(value).strip('"') + " is not supported"
        if nearest:
            message += f".{nearest} Known: {', '.join(self._languages)}"
        raise Rejection(400, message)

    def _nearest_direction(self, fields):
        """Returns the direction of the nearest languages that are one, or None."""
        try:
            return self._shown.direction(
                *(_typed_code(fields[name]) for name in ("source", "target"))
            )
        except InputError:
            return None

    def _search(self, is_html, alternatives):
        """Returns the name of the signature, and the options of the request."""
        defaults = self._model.default_options
        if is_html:
            return DEFAULT, {"markup": "html"}
        # A signature that cannot preserve the markup of this server has no alternatives.
        has_alternatives = alternatives and defaults.get(_BEAM) == defaults[DEFAULT]
        if not has_alternatives:
            return DEFAULT, defaults[DEFAULT]
        n_best = min(alternatives, _MOST_ALTERNATIVES) + 1
        return _BEAM, {**defaults[DEFAULT], **self._model.beam_options(n_best)}

    def _rules(self, fields):
        """Returns the options of texts that are more, or less, than a sentence.

        LibreTranslate's clients send texts of any length, so that they are split by default.
        """
        names = ("split_sentences", "keep_case")
        given = {name: _flag(fields, name) for name in names}
        rules = {name: value for name, value in given.items() if value is not None}
        if self._model.engine.turns is None:  # A conversation is one text.
            rules = {"split_sentences": True, "copy_symbols": True, **rules}
        if not rules.get("split_sentences"):
            rules["long_input"] = long_input_of_commands(self._model.engine)
        return rules

    def _parts(self, texts, is_html, is_copied):
        """Returns the parts of all texts as in `Request`, and the texts to translate."""
        limit = self._limits.max_sentences
        if is_html and (count := count_blocks_up_to(limit, texts)) > limit:
            raise _too_large(count, "blocks", limit, "max_sentences")
        rows: list[str] = []
        parts_of_texts = []
        for text in texts:
            parts: list[str | int] = []
            for piece in [text] if is_html or is_copied else _LINE_BREAK.split(text):
                # A text of emoji, without letters and digits, remains as it is.
                if is_copied or not _has_words(piece) or _LINE_BREAK.fullmatch(piece):
                    parts.append(piece)
                    continue
                parts.append(len(rows))
                rows.append(piece)
            parts_of_texts.append(parts)
        return parts_of_texts, rows

    def _detected(self, texts, sources):
        """Returns the most probable of the languages, or the first source if nothing tells.

        A model of one direction has both languages; other models have a target's sources.
        """
        try:
            shares = _language_shares(texts)
        except InputError:
            shares = []
        codes = self._languages if len(self.directions) == 1 else sources
        return _detection(*_shares_among(shares, codes)[0])

    def answer(self, request: Request, results: Sequence[Translation]) -> bytes:
        """Returns the JSON of an answer of `/translate`, UTF-8.

        Args:
            request: The request.
            results: Translation of each text of its prediction.

        Raises:
            Rejection: 413, the answer is too long.
        """
        translations, alternatives = [], []
        for parts in request.texts:
            best, *rest = hypotheses(parts, results, request.has_entities)
            translations.append(best)
            alternatives.append(rest[: request.alternatives])
        answer: dict[str, Any] = {"translatedText": translations}
        if request.alternatives:
            answer["alternatives"] = alternatives
        if request.detected is not None:
            answer["detectedLanguage"] = [request.detected] * len(translations)
        if not request.is_list:
            answer = {name: value for name, (value,) in answer.items()}
        return as_json(answer, self._limits.max_answer_bytes)


def _shown_code(code):
    return _SHOWN_CODES.get(code.lower(), code)


def _typed_code(value):
    return _shown_code(value.strip())


def primary(code: str) -> str:
    """Returns the language of a code, without its script and region."""
    return code.partition("-")[0]


def _full_name(code):
    return f"{language_name(code)} ({code})"


def _required(fields, name):
    if not (value := fields.get(name)):
        raise Rejection(400, f"Invalid request: missing {name} parameter")
    return value


def _too_large(count, unit, limit, option):
    rule = f"Invalid request: request ({count} {unit}) exceeds text limit ({limit})"
    return beyond(option, rule, status=400)


def _flag(fields, name):
    """Returns a parameter that is true or false, None without it."""
    try:
        return None if fields.get(name) is None else _FLAG.validate_python(fields[name])
    except pydantic.ValidationError:
        rule = f"Invalid request: {name} must be true or false"
        raise Rejection(400, f"{rule}. Received: {shown(fields[name])}") from None


def _wants_html(fields):
    format = fields.get("format") or "text"
    if format not in ("text", "html"):
        raise Rejection(400, f"{shown(format)} format is not supported")
    return format == "html"


def _number_of_alternatives(value):
    try:
        return max(int(value), 0)
    except (TypeError, ValueError, OverflowError):
        rule = "Invalid request: alternatives parameter is not a number"
        raise Rejection(400, f"{rule}. Received: {shown(value)}") from None


def _language_shares(texts):
    """Returns languages and their probabilities, the most probable first.

    Raises:
        InputError: The package that detects is not installed.
    """
    identifier = language_identifier("for detection,")
    if not any(map(_has_words, texts)):
        return [("en", 0.0)]
    text = "\n".join(map(_without_tags, texts))
    return [
        (f"zh-{_chinese_script(text)}" if code == "zh" else code, share)
        for code, share in identifier.rank(text)
    ]


def _without_tags(text):
    """Returns a text without the names of elements and attributes, which are English."""
    tags = find_tags(text)
    stops = [0, *(tag.stop for tag in tags)]
    starts = [*(tag.start for tag in tags), len(text)]
    return " ".join(text[stop:start] for stop, start in zip(stops, starts, strict=True))


def _shares_among(shares, codes):
    """Returns some languages with their shares of the probability, the most probable first."""
    own_shares = dict.fromkeys(codes, 0.0)
    for language, share in shares:
        # A text in another script is still in the language.
        same = (code for code in codes if primary(code) == primary(language))
        for code in [*closest_codes(language, codes), *same][:1]:
            own_shares[code] += share
    total = sum(own_shares.values()) or 1.0
    ranked = sorted(own_shares, key=lambda code: own_shares[code], reverse=True)
    return [(code, own_shares[code] / total) for code in ranked]


def _chinese_script(text):
    """Returns the script of most characters that only one script has: `Hans` or `Hant`.

    The character sets of China and of Taiwan have the characters of one script each, and those that
    both scripts share.
    """
    counts = collections.Counter[str]()
    for character, count in collections.Counter(_HAN.findall(text)).items():
        scripts = [
            script
            for script, encoding in (("Hans", "gb2312"), ("Hant", "big5"))
            if character.encode(encoding, "ignore")
        ]
        if len(scripts) == 1:
            counts[scripts[0]] += count
    return "Hant" if counts["Hant"] > counts["Hans"] else "Hans"


def _has_words(text):
    return any(map(str.isalnum, text))


def _detection(code, share):
    # Whole numbers, because some clients read no fractions.
    return {"confidence": float(round(100 * share)), "language": _shown_code(code)}


def hypotheses(
    parts: Sequence[str | int], results: Sequence[Translation], has_entities: bool
) -> list[str]:
    """Returns the different translations of a text, the best first; see `Request`."""
    rows = [Translation(part, 0.0) if isinstance(part, str) else results[part] for part in parts]
    best = Translation.joined(rows, separator="")
    texts = [best.text]
    texts += [other.text for other in best.alternatives if other.score > float("-inf")]
    return list(dict.fromkeys(map(html.unescape, texts) if has_entities else texts))
