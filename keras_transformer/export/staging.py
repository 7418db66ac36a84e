"""A folder that appears under its name whole and checked, or not at all."""

import contextlib
import os
import secrets
import shutil
from pathlib import Path

from keras_transformer.errors import InputError

MANIFEST = "export.json"
"""The file that marks a folder as an export; without it no folder is replaced."""


@contextlib.contextmanager
def staged_folder(output, overwrite=False):
    """Gives a temporary folder beside `output` that takes its name when the block succeeds.

    Any exception, `KeyboardInterrupt` too, removes the temporary folder and leaves `output` as
    it was.

    Args:
        output: Path of the folder to make. Missing parents are made.
        overwrite: Whether an earlier export may be replaced.

    Yields:
        `pathlib.Path` of the temporary folder, `.NAME.partial-…`.

    Raises:
        InputError: `output` exists and may not be replaced, or cannot be written.
    """
    # Resolved: replacing a link would leave the folder that it points to behind.
    output = Path(os.path.realpath(output))
    _check_output(output, overwrite)
    staging = _sibling(output, "partial")
    try:
        staging.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"{output}: cannot be written: {error.strerror}.") from None
    try:
        yield staging
        _publish(staging, output)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _check_output(output, overwrite):
    if not os.path.lexists(output):
        return
    if not output.is_dir():
        raise InputError(f"{output}: the output must be a folder. Received: a file.")
    if not overwrite:
        raise InputError(
            f"{output}: the output must not exist, unless it is to be overwritten. "
            "Received: an existing folder."
        )
    # A slip of the keyboard must not cost a run folder or a home directory.
    if any(output.iterdir()) and not (output / MANIFEST).is_file():
        raise InputError(
            f"{output}: only an earlier export is overwritten. "
            f"Received: a folder without {MANIFEST}."
        )


def _sibling(output, role):
    # Beside the output, because a rename is atomic within one file system only.
    return output.with_name(f".{output.name}.{role}-{os.getpid()}-{secrets.token_hex(4)}")


def _publish(staging, output):
    replaced = _sibling(output, "replaced")
    try:
        if output.exists():
            os.rename(output, replaced)
        os.rename(staging, output)
    except BaseException:
        if replaced.exists() and not output.exists():
            os.rename(replaced, output)
        raise
    shutil.rmtree(replaced, ignore_errors=True)
