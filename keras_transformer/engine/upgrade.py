"""Reads what version 0.3 wrote, without options that are gone; 0.2 is an error in one line."""

import os
from collections.abc import Mapping
from typing import Any

from keras_transformer.errors import InputError

# Options that 0.3 had, by section, with the value that had no effect.
_REMOVED_OPTIONS = {"training": {"simcut": None}}
# Options that only 0.2 had. It wrote every option into the recipe of a run.
_OPTIONS_OF_0_2 = {"data": {"clean"}, "training": {"short_targets", "weight_histograms"}}


def upgraded_sections(sections: Mapping[str, Any], run: str | os.PathLike) -> dict[str, Any]:
    """Returns the sections of a run's recipe without options that are gone.

    Raises `InputError` for a run of 0.2.
    """
    upgraded = dict(sections)
    for name, section in sections.items():
        if isinstance(section, dict):
            if section.keys() & _OPTIONS_OF_0_2.get(name, set()):
                raise _too_old(run)
            removed_names = _REMOVED_OPTIONS.get(name, {})
            upgraded[name] = {
                key: value for key, value in section.items() if key not in removed_names
            }
    return upgraded


def check_removed_options(sections: Mapping[str, Any], run: str | os.PathLike) -> None:
    """Raises `InputError` for a run that cannot be resumed without an option that is gone."""
    for name, options in _REMOVED_OPTIONS.items():
        for key, value in options.items():
            received_value = (sections.get(name) or {}).get(key, value)
            if received_value != value:
                raise InputError(
                    f"{run}: cannot be resumed, because `{name}.{key}` was removed. "
                    f"Received: {received_value!r}. Train again, or resume with version 0.3."
                )


def check_export_version(manifest: Mapping[str, Any], export: str | os.PathLike) -> None:
    """Raises `InputError` for the manifest of an export of 0.2."""
    versions = manifest.get("versions")
    version = versions.get("keras_transformer") if isinstance(versions, dict) else None
    if str(version).startswith(("0.1.", "0.2.")):
        raise _too_old(export)


def _too_old(path):
    return InputError(
        f"{os.fspath(path)}: was made by version 0.2, which this version does not read. Export it "
        "again with version 0.2, or train again."
    )
