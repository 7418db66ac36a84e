"""Parameters and answers of LibreTranslate's API, and their description in OpenAPI."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, TypeVar

import pydantic
from typing_extensions import TypedDict

from keras_transformer.extras.serving.endpoints import Rejection, shown

# As JSON and as values of forms.
_Flag = pydantic.StrictBool | Literal[0, 1, "0", "1", "true", "false", "True", "False"] | None
# Python converts no longer ones.
_Digits = Annotated[str, pydantic.Field(pattern="^-?[0-9]+$", max_length=4300)]
_Number = pydantic.StrictInt | _Digits
# An error of each of thousands of texts would take seconds.
_Texts = Annotated[list[str], pydantic.Field(fail_fast=True)]


class Text(pydantic.BaseModel):
    """Parameters of `/detect`."""

    q: str | _Texts


class Direction(pydantic.BaseModel):
    """Parameters of all translations."""

    source: str
    target: str
    split_sentences: _Flag = None
    keep_case: _Flag = None

    @property
    def rules(self) -> dict[str, bool]:
        """The options of `translate` that are given."""
        values = {name: getattr(self, name) for name in ("split_sentences", "keep_case")}
        return {
            name: str(value).lower() in ("1", "true")
            for name, value in values.items()
            if value is not None
        }


class Translate(Direction, Text):
    """Parameters of `/translate`."""

    format: Literal["text", "html", ""] | None = "text"
    alternatives: _Number = 0


class FileForm(Direction):
    """Parameters of `/translate_file`."""

    file: Annotated[Any, pydantic.WithJsonSchema({"type": "string", "format": "binary"})]


_Model = TypeVar("_Model", bound=pydantic.BaseModel)


def checked(model: type[_Model], fields: Mapping[str, Any]) -> _Model:
    """Returns the parameters of a request.

    Raises:
        Rejection: 400 with LibreTranslate's message for the first mistake.
    """
    for name, field in model.model_fields.items():
        if field.is_required() and not fields.get(name):
            raise Rejection(400, f"Invalid request: missing {name} parameter")
    try:
        return model.model_validate(fields)
    except pydantic.ValidationError as error:
        name = str(error.errors(include_url=False)[0]["loc"][0])
    received = shown(fields[name])
    if name in ("source", "target"):
        raise unsupported(fields[name])
    if name == "format":
        raise Rejection(400, f"{received} format is not supported")
    rules = {
        "q": "q must be a text or a list of texts",
        "alternatives": "alternatives parameter is not a number",
    }
    rule = rules.get(name, f"{name} must be true or false")
    raise Rejection(400, f"Invalid request: {rule}. Received: {received}")


def unsupported(code: Any, advice: str = "") -> Rejection:
    """Returns the rejection of a code of a language."""
    # Without quotation marks, as LibreTranslate's clients know it.
    return Rejection(400, shown(code).strip('"') + f" is not supported{advice}")


class Language(TypedDict):
    """A language of the server."""

    code: str
    name: str
    targets: list[str]


class Detection(TypedDict):
    """A language of a text."""

    confidence: float
    language: str


class Translation(TypedDict):
    """Translations of a text, or of a list of texts."""

    translatedText: str | list[str]
    alternatives: NotRequired[list[str] | list[list[str]]]
    detectedLanguage: NotRequired[Detection | list[Detection]]


class Error(TypedDict):
    """An error."""

    error: str


_SCHEMAS = {
    "/translate": (Translate, Translation),
    "/detect": (Text, list[Detection]),
    "/translate_file": (FileForm, dict[str, str]),
    "/languages": (None, list[Language]),
    "/frontend/settings": (None, dict[str, Any]),
    "/health": (None, dict[str, str]),
    "/spec": (None, dict[str, Any]),
}
_DEFINITIONS = "#/components/schemas/"
_JSON, _FORMS = "application/json", ("application/x-www-form-urlencoded", "multipart/form-data")


def spec(
    sources: list[str], targets: list[str], max_texts: int, max_characters: int
) -> dict[str, Any]:
    """Returns the description of LibreTranslate's endpoints in OpenAPI.

    Args:
        sources: Languages that a text may have.
        targets: Languages of translations.
        max_texts: Maximum number of texts.
        max_characters: Maximum number of characters of a text.
    """
    text = {"type": "string", "maxLength": max_characters}
    texts = {"type": "array", "items": text, "minItems": 1, "maxItems": max_texts}
    limits = {
        "q": {"anyOf": [{**text, "minLength": 1}, texts]},
        "source": {"enum": ["auto", *sources]},
        "target": {"enum": targets},
    }
    paths: dict[str, Any] = {}
    definitions: dict[str, Any] = {}

    def schema_of(model):
        schema = pydantic.TypeAdapter(model).json_schema(ref_template=_DEFINITIONS + "{model}")
        definitions.update(schema.pop("$defs", {}))
        return schema

    def described(meaning, model):
        return {"description": meaning, "content": {_JSON: {"schema": schema_of(model)}}}

    for path, (model, answer) in _SCHEMAS.items():
        responses = {"200": described("Answer", answer), "default": described("Error", Error)}
        description: dict[str, Any] = {"responses": responses}
        if model is not None:
            schema = schema_of(model)
            known = {name: value for name, value in limits.items() if name in schema["properties"]}
            schema["properties"] |= known
            kinds = _FORMS[1:] if model is FileForm else (_JSON, *_FORMS)
            of_forms = {**schema, "properties": _of_forms(schema["properties"])}
            content = {kind: {"schema": schema if kind == _JSON else of_forms} for kind in kinds}
            description["requestBody"] = {"required": True, "content": content}
        paths[path] = {"get" if model is None else "post": description}
    info = {"title": "LibreTranslate's API", "version": "1"}
    components = {"schemas": definitions}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": components}


def _of_forms(properties):
    """Returns the properties whose values are texts: without null and lists."""
    return {
        name: {
            **schema,
            "anyOf": [row for row in schema["anyOf"] if row.get("type") not in ("null", "array")],
        }
        if "anyOf" in schema
        else schema
        for name, schema in properties.items()
    }
