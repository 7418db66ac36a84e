"""The command `keras-transformer export`."""

import dataclasses
import json

from keras_transformer.base.errors import InputError
from keras_transformer.base.files import OwnedFolder
from keras_transformer.cli.arguments import (
    add_declared,
    add_model,
    add_options,
    begin_with_model,
    option_values,
    sigterm_as_exit,
)

_VERIFY = "sentences to compare with the model on; default: the run's samples.tsv"


def _add_options(command):
    from keras_transformer.decoding.search_options import RUN_DEFAULTS
    from keras_transformer.formats import FORMATS

    add_model(command, "a run folder")
    present = [name for name, row in FORMATS.items() if row.is_present]
    help = f"one of {', '.join(present)}"
    command.add_argument("--format", required=True, choices=present, metavar="FORMAT", help=help)
    command.add_argument("--output", required=True, metavar="DIR", help="the folder to make")
    command.add_argument("--overwrite", action="store_true", help="replace an earlier export")
    command.add_argument(
        "--json", action="store_true", help="write the report as JSON, with each file's checksum"
    )
    add_options(command, ("verify_with", str, "FILE", _VERIFY), flags={"verify_with": "--samples"})
    formats: dict[str, list[str]] = {}
    for format in present:
        for field in dataclasses.fields(FORMATS[format].options()):
            formats.setdefault(field.name, []).append(format)
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, formats_of_group in formats.items():
        groups.setdefault(tuple(formats_of_group), []).append(name)
    kinds = {"languages": (str, "CODES"), "signatures": ([str], "NAME")}
    defaults = {**dict.fromkeys(RUN_DEFAULTS, "the run's"), "signatures": "all of them"}
    for formats_of_group, names in groups.items():
        title = ", ".join(formats_of_group)
        if len(formats_of_group) == len(present):
            title = "all formats"
        group = command.add_argument_group(title)
        options_class = FORMATS[formats_of_group[0]].options()
        add_declared(group, options_class, {}, names, kinds, defaults)


def _export(options):
    OwnedFolder(options.output).check_replaceable(options.overwrite)  # Keras takes seconds.
    begin_with_model(options.model)
    from keras_transformer.export import export_run
    from keras_transformer.formats import FORMATS

    values = option_values(options, "model", "format", "output", "overwrite", "verify_with", "json")
    format_options = {field.name for field in dataclasses.fields(FORMATS[options.format].options())}
    if misplaced_options := [name for name in values if name not in format_options]:
        rule = f"is not an option of --format {options.format}"
        raise InputError(f"`{misplaced_options[0]}` {rule}.")
    shared = {"verify_with": getattr(options, "verify_with", None), "overwrite": options.overwrite}
    with sigterm_as_exit():
        report = export_run(options.model, options.output, options.format, **shared, **values)
    if not options.json:
        print(report.summary())
        return
    result = {
        "output": report.folder,
        "seconds": round(report.seconds, 1),
        "bytes": report.bytes,
        "files": report.manifest["files"],
        "verification": report.verification,
    }
    print(json.dumps(result, indent=2))


COMMANDS = {"export": (_add_options, _export)}
