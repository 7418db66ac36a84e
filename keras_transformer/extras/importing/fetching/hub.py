"""Models of the Hugging Face hub: `huggingface_hub` with its cache, token and offline mode."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keras_transformer.base.errors import InputError, first_line, is_terminal, require

# `README.md` is the model card, which has the licence. The Python file is never run: its name says
# which family a model belongs to.
_SMALL_FILES = ("*.json", "*.spm", "*.model", "*.yml", "*vocab*.txt", "README.md")
_SMALL_FILES += ("tokenization_small100.py",)
# The first weights that a repository has; the next ones would be copies.
_WEIGHTS = (
    ("model.safetensors", "model-*.safetensors"),
    ("pytorch_model.bin", "pytorch_model-*.bin"),
    ("model.bin",),
    ("*.npz",),
)


def fetch(repository: str, revision: str | None, check: Callable[[Path], None]) -> Path:
    """Downloads the files of a model that are not cached; returns the folder of its commit.

    Args:
        repository: `ORGANIZATION/NAME`.
        revision: Branch, tag or commit; None for `main`.
        check: Function of the folder, called before the weights are downloaded.

    Raises:
        InputError: The hub was not reached, or has no such model.
    """
    noun = "huggingface_hub, which downloads models of Hugging Face,"
    hub: Any = require("huggingface_hub", noun, "import")
    name = f"{repository}@{revision}" if revision else repository
    if not is_terminal(sys.stderr):
        utils: Any = require("huggingface_hub.utils", noun, "import")
        utils.disable_progress_bars()

    def download(patterns):
        try:
            path = hub.snapshot_download(repository, revision=revision, allow_patterns=patterns)
        except Exception as error:  # of the client, of its HTTP library, of the system
            if getattr(error, "errno", None) is not None:
                raise
            raise InputError(f"{name}: {_reason(error, repository)}") from None
        return Path(path)

    folder = download(list(_SMALL_FILES))
    try:
        check(folder)
    except InputError as error:
        raise type(error)(str(error).replace(str(folder), name)) from None
    for patterns in _WEIGHTS:
        folder = download(list(patterns))
        if any(path for pattern in patterns for path in folder.glob(pattern)):
            return folder
    names = ", ".join(patterns[0] for patterns in _WEIGHTS)
    raise InputError(f"{name}: the repository must have one of {names}.")


def _reason(error, repository):
    """Returns the end of a message about an error of the client."""
    from huggingface_hub import constants, errors

    endpoint = constants.ENDPOINT
    if isinstance(error, errors.GatedRepoError):
        advice = f"Accept its terms at {endpoint}/{repository}, and set HF_TOKEN to your token."
        return f"the model is gated. {advice}"
    if isinstance(error, errors.RepositoryNotFoundError):
        advice = "Check the name; for a private model set HF_TOKEN to your token."
        return f"no such file or folder, and no such model at {endpoint}. {advice}"
    if isinstance(error, errors.RevisionNotFoundError):
        return "the repository has no such revision."
    if isinstance(error, errors.LocalEntryNotFoundError):
        reason = "HF_HUB_OFFLINE is set"
        if not constants.HF_HUB_OFFLINE:
            reason = f"{endpoint} was not reached: {first_line(error.__cause__ or error):.200}"
        return f"no such file or folder, nor in the cache of Hugging Face, and {reason}."
    if isinstance(error, errors.HFValidationError):
        return "no such file or folder, and not a name of Hugging Face."
    return f"cannot be downloaded from {endpoint}: {first_line(error):.200}"
