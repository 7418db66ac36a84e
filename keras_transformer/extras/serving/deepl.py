"""DeepL's HTTP API, version 2: its parameters, answers and messages for what `libretranslate` does.

They follow https://developers.deepl.com and the official client for Python. Parameters that only
improve DeepL's translations, such as `context`, are ignored.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from starlette.responses import JSONResponse, Response

from keras_transformer.engine.translation import Translation
from keras_transformer.extras.serving.detection import primary
from keras_transformer.extras.serving.endpoints import (
    FAILED,
    Endpoint,
    File,
    Rejection,
    as_json,
    shown,
)
from keras_transformer.extras.serving.libretranslate import FileRequest, LibreTranslate, hypotheses
from keras_transformer.extras.serving.libretranslate import Request as TextRequest
from keras_transformer.extras.serving.protocol import Predict
from keras_transformer.text.elements import find_tags
from keras_transformer.text.language_codes import closest_codes
from keras_transformer.text.languages import language_name

# The official client refuses these targets without a region.
_REGIONS = {"en": ("en-GB", "en-US"), "pt": ("pt-BR", "pt-PT")}
_FORMALITIES = ("default", "prefer_more", "prefer_less")
_SERVICES = tuple(
    "glossary_id glossary_ids style_id translation_memory_id custom_instructions".split()
)
# Whether sentences are split, and line breaks in them are spaces.
_SPLITTING = {"0": (False, False), "1": (True, False), "nonewlines": (True, True)}
_SPLITTING |= {"false": _SPLITTING["0"], "true": _SPLITTING["1"]}
_SINGLE_BREAK = re.compile(r"(?<=\S)[ \t]*\r?\n[ \t]*(?=\S)")
# In the tags of elements that are not translated; white space that nobody else writes.
_MARK = '\f\ftranslate="no"'
_UNLIMITED = 10**12  # characters, which DeepL writes for an account without a limit


class Request(NamedTuple):
    """A checked request for translations.

    Attributes:
        read: The request as LibreTranslate has it.
        source: Language of the texts, as DeepL writes it.
        lengths: Number of characters of each text.
    """

    read: TextRequest
    source: str
    lengths: list[int]

    @property
    def prediction(self) -> Predict:
        """The texts to translate."""
        return self.read.prediction


class DeepL:
    """Reads requests and writes answers of DeepL's API.

    Args:
        libretranslate: LibreTranslate's API for the same model.
        max_answer_bytes: Maximum bytes of an answer.
    """

    def __init__(self, libretranslate: LibreTranslate, max_answer_bytes: int):
        self._api, self._max_answer_bytes = libretranslate, max_answer_bytes

    def languages(self, fields: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Returns the answer of `/v2/languages`.

        Raises:
            Rejection: 400 for an invalid request, 501 if the languages are unknown.
        """
        sources, targets = zip(*self._api.directions, strict=True)
        kind = fields.get("type") or "source"
        if kind == "source":
            return [
                {"language": self._source(code), "name": language_name(code)}
                for code in dict.fromkeys(sources)
            ]
        if kind != "target":
            rule = "Parameter 'type' is invalid. 'source' and 'target' are valid values."
            raise Rejection(400, rule)
        codes = [code for target in targets for code in _REGIONS.get(target, (target,))]
        return [
            {"language": code.upper(), "name": language_name(code), "supports_formality": False}
            for code in dict.fromkeys(codes)
        ]

    def usage(self) -> dict[str, int]:
        """Returns the answer of `/v2/usage`: nothing is counted."""
        return {"character_count": 0, "character_limit": _UNLIMITED}

    def read(self, fields: Mapping[str, Any]) -> Request:
        """Reads the parameters of `/v2/translate`; it takes a while for long texts.

        Raises:
            Rejection: 400 for an invalid request, 501 if the languages are unknown.
        """
        if not (texts := fields.get("text")):
            raise Rejection(400, "Parameter 'text' not specified.")
        texts = [texts] if isinstance(texts, str) else texts
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise _not_supported("text")
        lengths = list(map(len, texts))
        direction = self._direction(fields)
        is_tagged = bool(_choice(fields, "tag_handling", ("html", "xml")))
        splitting = _choice(fields, "split_sentences", _SPLITTING) or "1"
        is_split, joins_lines = _SPLITTING[splitting]
        if is_tagged:
            names = _names(fields.get("ignore_tags"))
            texts = [_with_marks(text, names) for text in texts]
        elif joins_lines:  # In HTML they are white space anyway.
            texts = [_SINGLE_BREAK.sub(" ", text) for text in texts]
        more = {"format": "html" if is_tagged else "text", "split_sentences": is_split}
        read = self._api.read({"q": texts, **direction, **more})
        source = direction["source"] if read.detected is None else read.detected["language"]
        return Request(read, self._source(source), lengths)

    def read_file(self, fields: Mapping[str, Any]) -> FileRequest:
        """Reads the parameters of `/v2/document`.

        Raises:
            Rejection: 400 for an invalid request, 501 without the folder that reads files.
        """
        file = fields.get("file")
        if not isinstance(file, File):
            raise Rejection(400, "Invalid file data.")
        file = file._replace(name=fields.get("filename") or file.name)
        suffix = file.name.rpartition(".")[2].lower()
        _choice(fields, "output_format", (suffix,))
        return self._api.read_file({"file": file, **self._direction(fields)})

    def answer(self, request: Request, results: Sequence[Translation]) -> bytes:
        """Returns the JSON of an answer of `/v2/translate`, UTF-8.

        Args:
            request: The request.
            results: Translation of each text of its prediction.

        Raises:
            Rejection: 413, the answer is too long.
        """
        rows = [
            {
                "detected_source_language": request.source,
                "text": hypotheses(parts, results, request.read.has_entities)[0].replace(_MARK, ""),
                "billed_characters": length,
            }
            for parts, length in zip(request.read.places, request.lengths, strict=True)
        ]
        return as_json({"translations": rows}, self._max_answer_bytes)

    def _direction(self, fields):
        """Returns LibreTranslate's parameters of the languages; checks what no model can do."""
        sources, targets = zip(*self._api.directions, strict=True)
        codes = {"source": "auto"}
        if source := fields.get("source_lang"):
            codes["source"] = _closest("source_lang", source, (*sources, *targets))
        codes["target"] = _closest("target_lang", fields.get("target_lang"), targets)
        formality = _choice(fields, "formality", (*_FORMALITIES, "more", "less"))
        if formality not in (None, *_FORMALITIES):
            raise Rejection(400, "'formality' is not supported for given 'target_lang'.")
        for name in _SERVICES:
            if fields.get(name):
                raise _not_supported(name)
        return codes

    def _source(self, code):
        """Returns a source as DeepL writes it: without the region that it does not need."""
        first = primary(code)
        sources = dict.fromkeys(source for source, _ in self._api.directions)
        return (first if code in closest_codes(first, sources)[:1] else code).upper()


def _not_supported(name, value=None, known=()):
    advice = f" {shown(value)} is not one of: {', '.join(known)}" if known else ""
    return Rejection(400, f"Value for '{name}' not supported.{advice}")


def _closest(name, value, codes):
    """Returns the code of the server's that a parameter stands for."""
    if not isinstance(value, str) or not (closest := closest_codes(value, codes)):
        raise _not_supported(name, value, dict.fromkeys(code.upper() for code in codes))
    return closest[0]


def _choice(fields, name, known):
    """Returns a parameter in lower case, None without it."""
    if fields.get(name) in (None, ""):
        return None
    if (value := str(fields[name]).lower()) not in known:
        raise _not_supported(name, fields[name], known)
    return value


def _names(value):
    """Returns names of tags: of a list, or with commas between."""
    names = value if isinstance(value, list) else [value or ""]
    if not all(isinstance(name, str) for name in names):
        raise _not_supported("ignore_tags")
    return {name.strip().lower() for name in ",".join(names).split(",")} - {""}


def _with_marks(text, names):
    """Returns a text in HTML with an attribute in the tags of elements that stay as they are."""
    parts, position = [], 0
    for tag in find_tags(text) if names else ():
        stop = tag.start + 1 + len(tag.name)
        if tag.name in names and tag.kind != "end" and text[tag.start] == "<":
            parts += [text[position:stop], _MARK]
            position = stop
    return "".join([*parts, text[position:]])


async def _translate(api, request):
    """Returns translations, as DeepL."""
    fields, is_long = await api.fields(request, list_name="text")
    return await api.translated(api.deepl, fields, is_long, not fields.get("source_lang"))


async def _languages(api, request):
    """Returns the languages, as DeepL."""
    fields, _ = await api.fields(request)
    return JSONResponse(api.deepl.languages(fields))


async def _usage(api, request):
    """Returns that nothing was used, as DeepL."""
    return JSONResponse(api.deepl.usage())


async def _document(api, request):
    """Begins the translation of a document, as DeepL, whose clients wait 10 s at most."""
    begun = asyncio.get_running_loop().create_future()
    api.begin(_translate_document(api, request, begun))
    return JSONResponse(await begun)


async def _translate_document(api, request, begun):
    """Sets the answer to a request, then translates its document."""
    try:
        async with api.holding():
            fields, _ = await api.fields(request, max_files=1)
            read_request = await api.in_thread(api.deepl.read_file, fields)
            begun.set_result(await api.in_thread(api.documents.begin))
            content = await api.translated_file(read_request)
        await api.in_thread(api.documents.end, begun.result()["document_key"], content)
    except Exception as error:
        if not begun.done():
            begun.set_exception(error)
            return
        message = str(error)
        if not isinstance(error, Rejection):
            message = FAILED
            logs = asyncio.get_running_loop().call_exception_handler
            logs({"message": "A document was not translated", "exception": error})
        await api.in_thread(api.documents.fail, begun.result()["document_key"], message)


async def _document_status(api, request):
    """Returns how far a document is translated, as DeepL."""
    fields, _ = await api.fields(request)
    document_id = request.path_params["id"]
    return JSONResponse(await api.in_thread(api.documents.status, document_id, fields))


async def _document_result(api, request):
    """Returns a translated document, as DeepL."""
    fields, _ = await api.fields(request)
    document_id = request.path_params["id"]
    content = await api.in_thread(api.documents.result, document_id, fields)
    headers = {"x-content-type-options": "nosniff"}
    return Response(content, headers=headers, media_type="application/octet-stream")


async def _glossaries(api, request):
    """Returns that there are no glossaries, as DeepL."""
    return JSONResponse({"glossaries": [], "supported_languages": []})


_POST, _ANY = ("POST",), ("GET", "POST")  # The official client sends forms by GET.
ENDPOINTS = [
    Endpoint("/v2/translate", _translate, _POST),
    Endpoint("/v2/languages", _languages, _ANY, is_held=True),
    Endpoint("/v2/usage", _usage, _ANY),
    # It holds a request until its document is translated, which is after the answer.
    Endpoint("/v2/document", _document, _POST, is_held=False),
    Endpoint("/v2/document/{id}", _document_status, _ANY, is_held=True),
    Endpoint("/v2/document/{id}/result", _document_result, _ANY, is_held=True),
    Endpoint("/v2/glossaries", _glossaries),
    Endpoint("/v2/glossary-language-pairs", _glossaries),
]
