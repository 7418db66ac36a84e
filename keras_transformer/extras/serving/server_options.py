"""Options of the server and of its command."""

import os
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import pydantic

from keras_transformer.base.errors import InputError
from keras_transformer.base.files import MANIFEST
from keras_transformer.base.options import CheckedOptions, option
from keras_transformer.base.reading import expanded_path


def _checked_languages(languages):
    if languages is not None:
        # Late: the command's options need no tokenizer.
        from keras_transformer.text.languages import language_pair

        language_pair(languages)
    return languages


def _number(default, meaning, minimum, maximum=None):
    # Not strict, because `serve run … threads=4` passes text.
    return option(default, meaning, ge=minimum, le=maximum, strict=None)


def _count(default, meaning):
    return _number(default, meaning, 1)


def _seconds(default, meaning):
    return _number(default, meaning, 0.001)


class ServerOptions(CheckedOptions):
    """Options of a server.

    Raises:
        InputError: A value is out of range.
    """

    # A file of Ray Serve's can name it, where no shell replaces `~`.
    model: Annotated[str, pydantic.AfterValidator(expanded_path)]
    name: str | None = option(
        None,
        "the model's name in the endpoints, by default its folder's name",
        expected="a part of an endpoint, without /:?#%",
        pattern="^[^/:?#%]+$",
    )
    version: int | None = _number(
        None, "number of the export to serve, by default the highest at the start", 0
    )
    allowed_hosts: str | None = option(
        None,
        "further names of this server in the Host header, separated by commas, * for any; by "
        "default only localhost and numeric addresses",
    )

    languages: Annotated[str | None, pydantic.AfterValidator(_checked_languages)] = option(
        None,
        "codes of the source and the target, such as en-de or en-GB,pt-BR, for clients of "
        "LibreTranslate and DeepL; by default the export's",
    )
    markup: Literal["none", "placeholders", "html"] = option(
        "none",
        "what requests without a field `markup` preserve, where their signature can do it: "
        "placeholders: URLs, e-mail addresses and placeholders; html: tags too",
        strict=None,
    )
    threads: int = _count(2, "number of threads of a process, and of its parallel batches")
    max_batch_size: int = _count(
        32, "maximum number of sentences per batch; a SavedModel has a limit of its own"
    )
    batch_wait_ms: float = _number(
        10.0, "maximum milliseconds that a sentence waits for others if a thread is free", 0
    )
    # With EOS it is a padded length of a SavedModel: one more token would add a third to the start.
    warm_up_tokens: int = _number(
        47, "maximum length of sources, in tokens, that are compiled before a process is ready", 0
    )
    warm_up_signatures: str = option(
        "serving_default",
        "signatures that are compiled before a process is ready, separated by commas",
    )

    max_ongoing: int = _count(
        256, "maximum number of requests that a process holds; further requests get 503"
    )
    max_body_bytes: int = _count(1 << 20, "maximum bytes of a request; a longer request gets 413")
    max_sentences: int = _count(
        20_000, "maximum number of sentences per request, of all its texts; more get 413"
    )
    max_text_characters: int = _count(
        250_000, "maximum number of characters of a text; a longer text gets 413"
    )
    max_answer_bytes: int = _count(1 << 22, "maximum bytes of an answer; a longer answer gets 413")
    request_timeout: float = _seconds(
        120.0, "seconds until a request gets 504, from its first bytes to its answer"
    )
    batch_timeout: float = _seconds(
        60.0, "seconds after which a batch has hung: its requests get 504, its process is replaced"
    )


class LocalOptions(CheckedOptions):
    """Options of `keras-transformer serve` in addition to the application's.

    Raises:
        InputError: A value is out of range.
    """

    host: str = option("127.0.0.1", "address to listen on, 0.0.0.0 for every network")
    port: int = _number(8501, "port to listen on, 0 for a free one", 0, 65535)
    processes: int = _count(1, "number of processes with the model")


class ServedExport(NamedTuple):
    """The export that a server serves.

    Attributes:
        number: Version number in the endpoints, which clients of TensorFlow Serving expect.
        path: Absolute path of the export's folder, or of a LiteRT file in it.
        folder: The export's folder.
        name: Name of the model in the endpoints.
    """

    number: int
    path: str
    folder: Path
    name: str


def served_export(options: ServerOptions) -> ServedExport:
    """Finds the export to serve: `options.model`, or a numbered folder in it.

    Raises:
        InputError: The export does not exist, or is another version than `options.version`.
    """
    path = Path(os.path.abspath(options.model))
    folder = path.parent if path.is_file() else path
    if (folder / MANIFEST).is_file():
        number = int(folder.name) if _is_number(folder.name) else 1
        named_folder = folder.parent if _is_number(folder.name) else folder
        if options.version not in (None, number):
            rule = f"this is version {number}, and `version` needs a folder of numbered exports"
            raise InputError(f"{options.model}: {rule}. Received: version={options.version}.")
    else:
        numbers = {
            int(path.parent.name): path.parent
            for path in folder.glob(f"*/{MANIFEST}")
            if _is_number(path.parent.name)
        }
        named_folder = folder
        number = max(numbers, default=0) if options.version is None else options.version
        from keras_transformer.runs.names import RECIPE  # Late, as above.

        if (folder / RECIPE).is_file():
            command = f"keras-transformer export --model {options.model} --format saved_model"
            problem = "this is a run, and a server takes an export"
            raise InputError(f"{options.model}: {problem}. Export it first: {command} --output DIR")
        if number not in numbers:
            rule = f"expected an export ({MANIFEST}) or numbered folders of exports"
            received = "neither" if options.version is None else f"version={options.version}"
            received = received if path.exists() else "no such folder"
            raise InputError(f"{options.model}: {rule}. Received: {received}.")
        path = folder = numbers[number]
    safe_name = "".join("_" if sign in "/:?#%" else sign for sign in named_folder.name)
    return ServedExport(number, str(path), folder, options.name or safe_name or "model")


def files_of(folder: Path) -> list[Path]:
    """Returns the files of an export except its README, which people change while it is served."""
    return [path for path in folder.rglob("*") if path.is_file() and path != folder / "README.md"]


def _is_number(name):
    # `isdecimal` also accepts digits of other scripts.
    return name.isascii() and name.isdecimal()
