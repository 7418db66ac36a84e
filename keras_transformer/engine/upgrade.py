"""Reads what version 0.3 wrote, without options that are gone; 0.2 is an error in one line."""

import os
from collections.abc import Mapping
from typing import Any

from keras_transformer.errors import InputError
from keras_transformer.options import received

# Options that 0.3 had, by section, with the value that had no effect and what to do instead.
_REMOVED_OPTIONS = {"training": {"simcut": (None, "Set `training.r_drop: 5.0` instead")}}
# Options that only 0.2 had. It wrote every option into the recipe of a run.
_OPTIONS_OF_0_2 = {"data": {"clean"}, "training": {"short_targets", "weight_histograms"}}


def upgraded_sections(sections: Mapping[str, Any], run: str | os.PathLike) -> dict[str, Any]:
    """Returns the sections of a run's recipe without options that are gone.

    Raises `InputError` for a run of 0.2.
    """
    for name, old_names in _OPTIONS_OF_0_2.items():
        if isinstance(section := sections.get(name), dict) and section.keys() & old_names:
            raise _too_old(run)
    return without_removed_options(sections)


def without_removed_options(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sections of a recipe without options that are gone."""
    remaining = dict(sections)
    for name, options in _REMOVED_OPTIONS.items():
        if isinstance(section := sections.get(name), dict):
            remaining[name] = {key: section[key] for key in section if key not in options}
    return remaining


def check_removed_options(sections: Mapping[str, Any], where: str | os.PathLike) -> None:
    """Raises `InputError` for a recipe that trains with an option that is gone."""
    for name, options in _REMOVED_OPTIONS.items():
        section = sections.get(name)
        for key, (value, advice) in options.items():
            received_value = section.get(key, value) if isinstance(section, dict) else value
            if received_value != value:
                raise InputError(
                    f"{where}: `{name}.{key}` was removed. Received: {received(received_value)}. "
                    f"{advice}, or use version 0.3."
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
