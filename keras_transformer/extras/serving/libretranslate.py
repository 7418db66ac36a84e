"""LibreTranslate's HTTP API: converts its requests to rows of a signature, and outputs to JSON.

Parameters, answers and errors follow its documentation, https://docs.libretranslate.com.
"""

import html
import os
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.responses import FileResponse, JSONResponse

from keras_transformer.base.errors import InputError, check_folder
from keras_transformer.engine.engine import long_input_of_commands
from keras_transformer.engine.translation import Translation
from keras_transformer.extras.serving.detection import has_words, language_shares, shares_among
from keras_transformer.extras.serving.endpoints import (
    Endpoint,
    File,
    Rejection,
    as_json,
    beyond,
    blocks_above,
    shown,
    too_many_sentences,
)
from keras_transformer.extras.serving.libretranslate_spec import (
    FileForm,
    Text,
    Translate,
    checked,
    spec,
    unsupported,
)
from keras_transformer.extras.serving.model import Model
from keras_transformer.extras.serving.protocol import DEFAULT, Predict
from keras_transformer.extras.serving.server_options import ServerOptions
from keras_transformer.text.languages import (
    Languages,
    language_name,
    language_pair,
    named_directions,
    nearest_codes,
)
from keras_transformer.text.per_text import LANGUAGE_OPTIONS

if TYPE_CHECKING:
    from keras_transformer.engine.translator import Translator

# Codes of Argos that LibreTranslate takes, and the codes that it shows.
_SHOWN_CODES = {"zh": "zh-Hans", "zt": "zh-Hant", "pb": "pt-BR"}
_AUTO = {"code": "auto", "name": "Auto Detect"}
_BEAM = "beam"
_MOST_ALTERNATIVES = 10  # for which a beam is widened: its time grows with them
_MOST_DETECTED = 3
_FRONTEND_TIMEOUT = 500  # milliseconds that LibreTranslate's page waits for the end of the typing
_LINE_BREAK = re.compile(r"(<br ?/?>)")  # of Subtitle Edit, in texts that are no HTML


class Plan(NamedTuple):
    """Texts of a request that are translated, and their places.

    Attributes:
        texts: Texts to translate.
        places: For each text of the request its parts in order: strings that are not translated,
            and indices of `texts`.
    """

    texts: list[str]
    places: list[list[str | int]]


class Request(NamedTuple):
    """A checked request for translations.

    Attributes:
        prediction: The texts to translate.
        places: `Plan.places` of these texts.
        is_list: Whether the request had a list of texts.
        alternatives: Maximum number of alternatives per text.
        detected: Field `detectedLanguage` of the answer per text; None if the source was given.
        has_entities: Whether the outputs are HTML, but the answer is not.
    """

    prediction: Predict
    places: list[list[str | int]]
    is_list: bool
    alternatives: int
    detected: dict[str, Any] | None
    has_entities: bool


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
            kinds = _documents().KINDS.values()
        except InputError:  # The folder was deleted.
            kinds = ()
        self._suffixes = [
            suffix
            for kind in kinds
            if model.takes(**getattr(kind.read, "forced_options", {}))
            for suffix in kind.suffixes
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

    def spec(self) -> dict[str, Any]:
        """Returns the answer of `/spec`."""
        _, targets = zip(*self.directions, strict=True)
        limits = self._limits.max_sentences, self._limits.max_text_characters
        return spec(self._languages, list(dict.fromkeys(targets)), *limits)

    def detect(self, fields: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Returns the answer of `/detect`: the most probable languages of all texts together.

        They are languages of the server, if those are known.

        Raises:
            Rejection: 400 for an invalid request, 501 without the package that detects.
        """
        texts = self._texts(checked(Text, fields).q)
        try:
            shares = language_shares(texts)
        except InputError as error:
            raise Rejection(501, str(error)) from None
        if self._named:
            shares = shares_among(shares, self._languages)
        best, *others = (_detection(*share) for share in shares[:_MOST_DETECTED])
        return [best, *(detection for detection in others if detection["confidence"])]

    def read(self, fields: Mapping[str, Any]) -> Request:
        """Reads the parameters of `/translate`; it takes a while for long texts.

        Raises:
            Rejection: 400 for an invalid request.
        """
        directions = self.directions
        asked = checked(Translate, fields)
        texts = self._texts(asked.q)
        source, target, detected = self._direction(asked, texts, directions)
        is_copied = source == target
        wants_html, alternatives = asked.format == "html", max(int(asked.alternatives), 0)
        signature, options = self._search(wants_html, alternatives)
        is_html = options.get("markup") == "html"
        options = {**options, **self._rules(asked)}
        if is_html:
            self._check_blocks(texts)
        plan = _plan(texts, is_html, is_copied)
        # Languages are inputs of each sentence if the signature takes them, else options of all.
        languages = {} if is_copied else self._named_languages(*directions[source, target])
        names_of_inputs = self._model.signatures[signature].inputs
        inputs = {name: languages.pop(name) for name in names_of_inputs if name in languages}
        rows = [{"text": text, **inputs} for text in plan.texts]
        return Request(
            prediction=Predict(signature, rows, False, tuple({**options, **languages}.items())),
            places=plan.places,
            is_list=isinstance(asked.q, list),
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
                check_folder("extras/documents")
            except InputError as error:
                raise Rejection(501, str(error)) from None
            raise Rejection(501, "This model translates no files")
        directions = self.directions
        file = fields.get("file")
        if not isinstance(file, File) or not file.content:
            raise Rejection(400, "Invalid request: empty file")
        asked = checked(FileForm, fields)
        stem, suffix = os.path.splitext(os.path.basename(file.name))
        if (suffix := suffix.lower()) not in self._suffixes:
            rule = f"Invalid request: file format not supported. Known: {', '.join(self._suffixes)}"
            raise Rejection(400, f"{rule}. Received: {shown(suffix)}")
        try:
            text = _documents().decoded(file.content, suffix, file.name)
        except InputError as error:
            raise Rejection(400, str(error)) from None
        if len(text) > (limit := self._limits.max_body_bytes):  # An e-book is compressed.
            raise _too_large(len(text), "characters", limit, "max_body_bytes")
        source, target, _ = self._direction(asked, [text], directions)
        options = None
        if source != target:
            options = self._named_languages(*directions[source, target]) | self._rules(asked)
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
        translate = _documents().translate_document
        suffix = os.path.splitext(name)[1].lower()
        options = {"name": name, "check_count": self._check_count, **request.options}
        try:
            return translate(translator, content, suffix, **options)
        except InputError as error:
            raise Rejection(400, str(error)) from None

    def _check_count(self, count):
        if count > (limit := self._limits.max_sentences):
            raise too_many_sentences(count, limit, has_blocks=False)

    def _direction(self, asked, texts, directions):
        """Returns the source, the target, and the detection if the source is to be detected.

        A pair that is not a direction of the server becomes the nearest direction.
        """
        is_auto = asked.source.strip().lower() == "auto"
        source = "auto" if is_auto else self._code(asked.source)
        target = self._code(asked.target)
        sources = [source_of_target for source_of_target, code in directions if code == target]
        detected = None
        if source == "auto" and sources:
            detected = self._detected(texts, sources)
            source = detected["language"] if detected["language"] in sources else sources[0]
        if source == target or source in sources:
            return source, target, detected
        if nearest := self._nearest_direction(asked):
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
            if len(text) > (limit := self._limits.max_text_characters):
                raise _too_large(len(text), "characters", limit, "max_text_characters")
        return texts

    def _code(self, value):
        """Returns the language of the server that a code stands for."""
        if codes := self._shown.closest(_typed_code(value)):
            return codes[0]
        advice = nearest_codes(_typed_code(value), self._languages)
        raise unsupported(value, advice and f".{advice} Known: {', '.join(self._languages)}")

    def _nearest_direction(self, asked):
        """Returns the direction of the nearest languages that are one, or None."""
        try:
            return self._shown.direction(*map(_typed_code, (asked.source, asked.target)))
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

    def _rules(self, asked):
        """Returns the options of texts that are more, or less, than a sentence.

        LibreTranslate's clients send texts of any length, so that they are split by default.
        """
        rules = asked.rules
        if self._model.engine.turns is None:  # A conversation is one text.
            rules = {"split_sentences": True, "copy_symbols": True, **rules}
        if not rules.get("split_sentences"):
            rules["long_input"] = long_input_of_commands(self._model.engine)
        return rules

    def _check_blocks(self, texts):
        """Raises a `Rejection` for texts in HTML of more blocks than the limit."""
        limit = self._limits.max_sentences
        if count := blocks_above(limit, texts):
            raise _too_large(count, "blocks", limit, "max_sentences")

    def _detected(self, texts, sources):
        """Returns the most probable of the languages, or the first source if nothing tells.

        A model of one direction has both languages; other models have a target's sources.
        """
        try:
            shares = language_shares(texts)
        except InputError:
            shares = []
        codes = self._languages if len(self.directions) == 1 else sources
        return _detection(*shares_among(shares, codes)[0])

    def answer(self, request: Request, results: Sequence[Translation]) -> bytes:
        """Returns the JSON of an answer of `/translate`, UTF-8.

        Args:
            request: The request.
            results: Translation of each text of its prediction.

        Raises:
            Rejection: 413, the answer is too long.
        """
        translations, alternatives = [], []
        for parts in request.places:
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


def _documents():
    """Returns the folder of documents, which may be deleted, as a module."""
    check_folder("extras/documents")
    from keras_transformer.extras.documents import translating

    return translating


def _shown_code(code):
    return _SHOWN_CODES.get(code.lower(), code)


def _typed_code(value):
    return _shown_code(value.strip())


def _full_name(code):
    return f"{language_name(code)} ({code})"


def _plan(texts, is_html, is_copied):
    """Returns the `Plan` of texts; a text of emoji, without letters and digits, stays as it is."""
    plan = Plan([], [])
    for text in texts:
        places: list[str | int] = []
        for piece in [text] if is_html or is_copied else _LINE_BREAK.split(text):
            if is_copied or not has_words(piece) or _LINE_BREAK.fullmatch(piece):
                places.append(piece)
            else:
                places.append(len(plan.texts))
                plan.texts.append(piece)
        plan.places.append(places)
    return plan


def _too_large(count, unit, limit, option):
    rule = f"Invalid request: request ({count} {unit}) exceeds text limit ({limit})"
    return beyond(option, rule, status=400)


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


async def _translate(api, request):
    """Returns translations, as LibreTranslate."""
    fields, is_long = await api.fields(request)
    is_detected = fields.get("source") == "auto"
    return await api.translated(api.libretranslate, fields, is_long, is_detected)


async def _translate_file(api, request):
    """Translates a file, and returns its address, as LibreTranslate."""
    url = _base_url(request)
    fields, _ = await api.fields(request, max_files=1)
    read_request = await api.in_thread(api.libretranslate.read_file, fields)
    content = await api.translated_file(read_request)
    token = await api.in_thread(api.files.add, read_request.name, content)
    address = f"{url}download_file/{urllib.parse.quote(token)}"
    return JSONResponse({"translatedFileUrl": address})


async def _download_file(api, request):
    """Returns a translated file."""
    token = request.path_params["token"]
    if (path := api.files.path_of(token)) is None:
        raise Rejection(404, "There is no such file: it is kept for an hour")
    name = token.partition(".")[2]
    headers = {"x-content-type-options": "nosniff"}
    kind = "application/octet-stream"
    return FileResponse(path, headers=headers, media_type=kind, filename=name)


async def _detect(api, request):
    """Returns the most probable languages of a text, as LibreTranslate."""
    fields, _ = await api.fields(request)
    return JSONResponse(await api.in_thread(api.libretranslate.detect, fields))


async def _languages(api, request):
    """Returns the languages, as LibreTranslate."""
    return JSONResponse(api.libretranslate.languages())


async def _settings(api, request):
    """Returns limits and abilities, as LibreTranslate."""
    return JSONResponse(api.libretranslate.settings())


async def _spec(api, request):
    """Returns the description of LibreTranslate's endpoints."""
    return JSONResponse(api.libretranslate.spec())


async def _health(api, request):
    """Answers while this process lives, as LibreTranslate."""
    return JSONResponse({"status": "ok"})


async def _disabled(api, request):
    """Refuses a service that LibreTranslate's protocol lets a server switch off."""
    raise Rejection(403, f"{request.url.path} is disabled on this server")


_FORWARDED = {"host": r"[\w.-]+(:\d{1,5})?|\[[\da-fA-F:.]+\](:\d{1,5})?", "proto": "https?"}


def _base_url(request):
    """Returns the address of the server, as its clients see it.

    Proxies in front may replace the host and the scheme. Each proxy adds a value. The proxy that a
    client sees has written the first value.

    Raises:
        Rejection: 400 for a header of another form.
    """
    url, values = request.base_url, {}
    for name, pattern in _FORWARDED.items():
        header = request.headers.get(f"x-forwarded-{name}", "")
        values[name] = header.partition(",")[0].strip()
        if header and not re.fullmatch(pattern, values[name], re.ASCII | re.IGNORECASE):
            rule = f"X-Forwarded-{name.title()} must begin with a valid value"
            raise Rejection(400, f"{rule}. Received: {shown(header)}")
    scheme = values["proto"].lower() or url.scheme
    return str(url.replace(netloc=values["host"] or url.netloc, scheme=scheme))


_POST = ("POST",)
ENDPOINTS = [
    Endpoint("/translate", _translate, _POST),
    Endpoint("/detect", _detect, _POST),
    Endpoint("/suggest", _disabled, _POST),
    Endpoint("/translate_file", _translate_file, _POST),
    Endpoint("/languages", _languages),
    Endpoint("/download_file/{token}", _download_file),
    Endpoint("/frontend/settings", _settings),
    Endpoint("/spec", _spec),
    Endpoint("/health", _health),
]
