"""Builds the reference, which is not in git: `docs/reference/*.md`, from what the package declares.

Sphinx calls `build`; to see only the reference, run `python docs/_ext/reference.py`. This command
also writes two committed texts, which tests compare: the options of a recipe in
`training/recipes/reference.yaml`, and the table of exports in `docs/results/limits.md`, between
`<!-- features: -->` and `<!-- end -->`.

A page is a template with headings and these lines:

    <!-- options: MODULE:CLASS -->           table of the options of a declared class
    <!-- command: NAME -->                   help of a command
    <!-- decoding: -->                       options that several commands have, which link here
    <!-- api: MODULE [NAME ...] -->          classes and functions, with their docstrings
"""

import argparse
import contextlib
import functools
import importlib
import inspect
import io
import pathlib
import re
import runpy
import textwrap
import unittest.mock
from typing import Any

import keras
import yaml

from keras_transformer.base.options import expected, options_of
from keras_transformer.cli import main as cli
from keras_transformer.formats import FORMATS
from keras_transformer.models.config import CONFIGURATIONS
from keras_transformer.training.recipe import Recipe, model_keys

RECIPE = pathlib.Path(__file__).parents[2] / "training" / "recipes" / "reference.yaml"
_DOCS = pathlib.Path(__file__).parents[1]
LIMITS = _DOCS / "results" / "limits.md"
FEATURES = pathlib.Path(__file__).parents[2] / "tests" / "export_features.py"
_LINE = re.compile(r"^<!-- (options|command|decoding|api):([^>]*?) ?-->$", re.M)
_TABLE = re.compile(r"^<!-- features: -->\n.*?^<!-- end -->$", re.M | re.S)
_SECTION = re.compile(r"^(Args|Call arguments|Attributes|Returns|Raises|Example):$", re.M)
# Groups of `translate` that have a place of their own in the page of commands.
_DECODING = ("decoding", "texts")

COMMANDS = list(cli._HELP)
TEMPLATES = {
    "commands.md": """\
# Options of commands

[Commands](../howto/commands.md) shows what all commands have in common.

COMMANDS

## Options of decoding

Several commands translate, and share these options. An option with another default or meaning is
in the table of its command. The table of a command says which of them it takes as
`--option VALUE` and which with `--set`; here they are written as for `translate`.

<!-- decoding: -->
""",
    "options.md": """\
# Options in files and in Python

## A recipe

[Write a recipe](../howto/write_a_recipe.md) explains the sections.

### data

<!-- options: keras_transformer.training.recipe_sections:DataSection -->

`train` and `validation` have the keys `source` and `target`, or are lists of
[several corpora](../howto/clean.md#combine). These are the options of each; `validation`
has them without `weight`:

<!-- options: keras_transformer.training.recipe_sections:WeightedFiles -->

`noise` is a section of its own ([Add noise](../howto/clean.md#add-noise)):

<!-- options: keras_transformer.data.noise:Noise -->

### text

<!-- options: keras_transformer.training.recipe_sections:TextSection -->

### training

<!-- options: keras_transformer.training.recipe_sections:TrainingSection -->

### decoding

<!-- options: keras_transformer.runs.sections:DecodingSection -->

### origin

`keras-transformer import` writes this section. A training that starts from the run takes it over.

<!-- options: keras_transformer.extras.importing.importing:OriginSection -->

## model: configurations

`kind` chooses one of four configurations, `transformer` by default. `preset` takes the sizes of
`transformer_tiny`, `transformer_base` or `transformer_big`. A recipe sets the vocabulary sizes in
`text`.

### TransformerConfig

<!-- options: keras_transformer.models.config:TransformerConfig -->

### RecurrentConfig

<!-- options: keras_transformer.models.config:RecurrentConfig -->

### ClassifierConfig

<!-- options: keras_transformer.models.config:ClassifierConfig -->

### LanguageModelConfig

<!-- options: keras_transformer.models.config:LanguageModelConfig -->

## Decoding

Arguments of `Translator.translate` and `search`; on the command line `--beam-size 8`, or
`--set no_repeat_ngram_size=3`.

<!-- options: keras_transformer.decoding:DecodingOptions -->

## Exports

### SavedModel

<!-- options: keras_transformer.export.saved_model.export_options:SavedModelOptions -->

### LiteRT

<!-- options: keras_transformer.export.litert.export_options:LiteRTOptions -->

### CTranslate2

<!-- options: keras_transformer.export.options:QuantizedOptions -->

### Marian

<!-- options: keras_transformer.export.options:RankedOptions -->

### Hugging Face

<!-- options: keras_transformer.export.options:SearchedOptions -->

### Argos Translate

<!-- options: keras_transformer.extras.argos.export_options:ArgosOptions -->

### Browser

<!-- options: keras_transformer.extras.web.export_options:WebOptions -->

## Server

<!-- options: keras_transformer.extras.serving.server_options:ServerOptions -->

Only of `keras-transformer serve`:

<!-- options: keras_transformer.extras.serving.server_options:LocalOptions -->

Only of `keras_transformer.extras.cluster:build_app`:

<!-- options: keras_transformer.extras.cluster.deployment:ClusterOptions -->
""",
    "layers.md": """\
# Layers

[Use the layers in your own model](../howto/use_layers.md) has whole examples.

## Classes

<!-- api: keras_transformer.layers -->

## Masks

<!-- api: keras_transformer.layers.masks padding_mask causal_mask segment_mask window_mask \
key_mask combine masked_softmax -->

## Cache of a decoder

<!-- api: keras_transformer.layers.kv_cache DecodingCache -->
""",
    "models.md": """\
# Models and training

## Models

<!-- api: keras_transformer.models -->

## Losses, metrics, learning rate

<!-- api: keras_transformer SmoothedCrossEntropy -->

<!-- api: keras_transformer.metrics -->

<!-- api: keras_transformer TransformerSchedule -->

## Training from a recipe

<!-- api: keras_transformer.training -->

<!-- api: keras_transformer.runs.run_folder RunFolder -->
""",
    "text.md": """\
# Text and data

## Text

<!-- api: keras_transformer.text -->

## Data

<!-- api: keras_transformer.data -->
""",
    "decoding.md": """\
# Translating and decoding

Most programs need only `Translator`. It calls an engine, which takes texts and gives results. The
engine calls the search over token ids, which takes any model with a method `step`.

## Translator

<!-- api: keras_transformer Translator Translation -->

<!-- api: keras_transformer.engine.engine -->

<!-- api: keras_transformer.engine.ids_engine -->

<!-- api: keras_transformer.engine.request -->

<!-- api: keras_transformer.engine LabelEngine ModelEngine ClassifierEngine engine_of -->

## Decoding

<!-- api: keras_transformer.decoding decode Greedy Sampling Beam ConstrainedBeam Constraints \
Hypotheses SearchModel GNMTRanking LengthRanking MarianRanking length_penalty -->

<!-- api: keras_transformer.decoding.search search -->

## Conversations

<!-- api: keras_transformer.text.dialog -->

<!-- api: keras_transformer.engine.conversation -->
""",
    "analysis.md": """\
# Analysis

## Check a decoder

<!-- api: keras_transformer.extras.analysis check_decoder DecoderReport DecoderCheck -->

## Attention weights

<!-- api: keras_transformer.extras.analysis Attention attention heads_off prune_heads -->

<!-- api: keras_transformer.extras.analysis.attention WordAlignment pharaoh word_alignment -->

## Heads

<!-- api: keras_transformer.extras.analysis.heads -->

## Positions

<!-- api: keras_transformer.extras.analysis.positions -->
""",
    "export.md": """\
# Export and import

`export_saved_model`, `export_litert`, `export_ctranslate2`, `export_web`, `export_marian`,
`export_hugging_face` and `export_argos` are the method `export` of a format's exporter.

## Runs

<!-- api: keras_transformer.export export_run -->

<!-- api: keras_transformer.extras.importing import_model import_run -->

<!-- api: keras_transformer.extras.analysis.report inspect_run -->

## Exporters

<!-- api: keras_transformer.export.exporter ExportReport Exporter -->

<!-- api: keras_transformer.export exporter_of -->

## Documents, files of lines, server

<!-- api: keras_transformer.extras.documents translate_file translate_document -->

<!-- api: keras_transformer.extras.bulk.corpus -->

<!-- api: keras_transformer.extras.cluster build_app -->
""",
}
_HEAD = """\
Every option of a recipe with its default; a key that is left out has it, an unknown key is an
error. Generated by python docs/_ext/reference.py from what the package declares.
"""
_PRESET = "A preset of sizes, transformer_tiny (4 + 4 layers, width 128), transformer_base (6 + 6, "
_PRESET += "512) or transformer_big (6 + 6, 1024), whose fields the others replace."


def table(heading: list[str], rows: list[list[str]]) -> str:
    """Returns a table in Markdown."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(' '.join(cell.split()) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    text = re.sub(r"(`[^`]*`)|<", lambda match: match[1] or r"\<", text)
    return text.replace("|", r"\|")


def options(name: str) -> str:
    """Options of a declared class `module:Class`: name, default, values, meaning."""
    module, _, class_name = name.partition(":")
    rows = []
    options_class = getattr(importlib.import_module(module), class_name)
    for option_name, option in options_of(options_class).items():
        default = "required"
        if "default" in option:
            default = yaml.safe_dump(option["default"], default_flow_style=True, width=1000)
            default = f"`{_cell(default.splitlines()[0])}`"
        values = "a section" if "$ref" in option else expected(option)
        meaning = option.get("description", "")
        rows.append([f"`{option_name}`", default, _cell(values), _cell(meaning)])
    return table(["option", "default", "values", "meaning"], rows)


def command(name: str) -> str:
    """Help of a command, the same with every version of argparse."""
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        with unittest.mock.patch.object(argparse.ArgumentParser, "format_help", _help_of):
            cli.run([*name.split(), "--help"])
    text = re.sub(r"^example: (.*)$", r"```bash\n\1\n```", shown.getvalue(), flags=re.M)
    text = re.sub(r"^page: docs/(.*)$", r"\nMore: [\1](../\1).", text, flags=re.M)
    return text.strip()


def decoding(_: str) -> str:
    """Tables of `translate` that other commands share, each under a heading."""
    tables = [
        f"### {title.capitalize()}\n\n{table(['option', 'meaning'], rows)}"
        for title, rows in _decoding_tables().items()
    ]
    return "\n\n".join(tables)


@functools.cache
def _decoding_tables() -> dict[str, list[list[str]]]:
    """Rows of the shared tables, by the title of their group in `translate`."""
    found = {}

    def read(parser):
        for title, rows in _groups_of(parser):
            if title in _DECODING:
                found[title] = rows
        return ""

    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        with unittest.mock.patch.object(argparse.ArgumentParser, "format_help", read):
            cli.run(["translate", "--help"])
    return found


def _groups_of(parser: argparse.ArgumentParser) -> list[tuple[str | None, list[list[str]]]]:
    """Title and rows of each group of options; None is the title of a command's own options."""
    groups: dict[str | None, list[list[str]]] = {None: []}
    for group in parser._action_groups:
        rows = [row for action in group._group_actions for row in _rows_of(action, parser)]
        is_own = group in (parser._positionals, parser._optionals)
        groups.setdefault(None if is_own else group.title or "option", []).extend(rows)
    return [(title, rows) for title, rows in groups.items() if rows]


def _help_of(parser: argparse.ArgumentParser) -> str:
    """Description and tables of a command. Options that the tables of `decoding` have are links."""
    shared = {} if parser._subparsers else _decoding_tables()
    descriptions = {group.title: group.description for group in parser._action_groups}
    parts = [parser.description]
    for title, rows in _groups_of(parser):
        own = [row for row in rows if not any(_is_in(row, others) for others in shared.values())]
        if title:
            parts.append(descriptions.get(title))
        if own:
            parts.append(table([title or "option", "meaning"], own))
        for name, others in shared.items():
            if names := [f"`{_name_of(row)}`" for row in rows if _is_in(row, others)]:
                kind = f" for {title}" if title and title != name and not own else ""
                parts.append(f"As in [{name}](#{name}){kind}: {', '.join(names)}.")
    return "\n\n".join(filter(None, parts))


def _is_in(row: list[str], rows: list[list[str]]) -> bool:
    """Whether an option is in a table with the same meaning, with a flag or for `--set`."""
    return (_key(row), row[1]) in [(_key(other), other[1]) for other in rows]


def _key(row: list[str]) -> str:
    return _name_of(row).replace("--set ", "--").replace("-", "_")


def _name_of(row: list[str]) -> str:
    """The option of a row, without its value."""
    return re.split(r"(?<!--set)[ ,=`]", row[0][1:])[0]


def _rows_of(action: argparse.Action, parser: argparse.ArgumentParser) -> list[list[str]]:
    if isinstance(action, argparse._SubParsersAction):
        return [[f"`{row.dest}`", _cell(row.help or "")] for row in action._choices_actions]
    is_of_all = action.dest == "help" or action.metavar == "NAME=VALUE"
    if action.help == argparse.SUPPRESS or is_of_all and not parser._subparsers:
        return []
    meaning = parser._get_formatter()._expand_help(action) if action.help else ""
    if action.option_strings and action.required:
        meaning += "; required"
    return [[f"`{_cell(_usage_of(action))}`", _cell(meaning)]]


def _usage_of(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ", ".join(action.option_strings)
    value = action.metavar or "|".join(map(str, action.choices or ())) or action.dest.upper()
    values = [value] if isinstance(value, str) else value
    if action.option_strings and " " in action.option_strings[0]:
        return f"{action.option_strings[0]}={value}"
    return " ".join([*action.option_strings, *values, *(["…"] if action.nargs == "+" else [])])


def api(names: str) -> str:
    """Public classes and functions of a module, or some of them."""
    module_name, *chosen = names.split()
    module = importlib.import_module(module_name)
    if not chosen:
        chosen = getattr(module, "__all__", None) or [
            name
            for name, value in vars(module).items()
            if getattr(value, "__module__", None) == module_name and not name.startswith("_")
        ]
    parts = []
    for name in chosen:
        value = getattr(module, name)
        if isinstance(value, type) or inspect.isroutine(value):
            parts += _documented(name, value, f"{module_name}.{name}")
    return "\n\n".join(parts)


def features() -> str:
    """Which export does what the trained model does."""
    declared = runpy.run_path(str(FEATURES))
    titles = [FORMATS[name].noun.split()[0] for name in declared["TAKES"]]
    return table(["", "option", "run", *titles], declared["rows"]())


def _documented(title: str, value: Any, path: str) -> list[str]:
    """Heading, signature and docstring of a class or function, and methods of a class."""
    parts = [f"### {title}", _signature(path, value), markdown_of(inspect.getdoc(value) or "")]
    for name, member in vars(value).items() if isinstance(value, type) else ():
        function = getattr(member, "fget", None) or getattr(member, "func", member)
        function = getattr(function, "__func__", function)
        if name.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
            continue
        doc = markdown_of(inspect.cleandoc(function.__doc__))
        is_value = function is not member and not isinstance(member, classmethod | staticmethod)
        parts.append(f"#### {title}.{name}")
        parts += [doc] if is_value else [_signature(name, function), doc]
    return parts


def _signature(name: str, value: Any) -> str:
    """A call with its arguments, in a fence."""
    is_keras = isinstance(value, type) and issubclass(value, keras.Operation | keras.Model)
    signature = inspect.signature(value.__init__ if is_keras else value)
    arguments, kinds = [], set()
    for argument in signature.parameters.values():
        if argument.name in ("self", "cls"):
            continue
        if argument.kind is argument.KEYWORD_ONLY and not kinds & {"*", argument.kind}:
            arguments.append("*")
        kinds.add("*" if argument.kind is argument.VAR_POSITIONAL else argument.kind)
        arguments.append(_argument(argument))
    returns = ""
    if not isinstance(value, type) and signature.return_annotation is not signature.empty:
        returns = f" -> {_type(signature.return_annotation)}"
    line = f"{name}({', '.join(arguments)}){returns}"
    if len(line) > 88:
        line = f"{name}(\n" + "".join(f"    {text},\n" for text in arguments) + f"){returns}"
    return f"```python\n{line}\n```"


def _argument(argument: inspect.Parameter) -> str:
    stars = {argument.VAR_POSITIONAL: "*", argument.VAR_KEYWORD: "**"}.get(argument.kind, "")
    text = stars + argument.name
    is_typed = argument.annotation is not argument.empty
    if is_typed:
        text += f": {_type(argument.annotation)}"
    if argument.default is argument.empty:
        return text
    default = repr(argument.default).replace("'", '"')
    if default.startswith("<") or len(default) > 40:  # An object, or a section with its options.
        default = "..."
    return f"{text} = {default}" if is_typed else f"{text}={default}"


def _type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])", "", text).replace("'", '"')


def markdown_of(doc: str) -> str:
    """Turns the sections of a docstring into lists and fences."""
    text, *sections = _SECTION.split(doc)
    parts = [text.strip()]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        lines = body.strip("\n").split("\n")
        # The section ends with the first line that is not indented.
        is_doctest = next(filter(None, lines), "").startswith(">>> ")
        end = next(
            (i for i, line in enumerate(lines) if line and line[0] != " " and not is_doctest),
            len(lines),
        )
        inside = inspect.cleandoc("\n" + "\n".join(lines[:end]))
        if title == "Example":
            shown = inside if inside.startswith(">>> ") else f"```python\n{inside}\n```"
        elif title == "Returns":
            shown = inside
        else:
            items = re.sub(r"^(?=[^ \n])", "- ", inside, flags=re.M)
            shown = re.sub(r"^- ([^:\n]+(?:,\s+\w+)*): ", _as_code, items, flags=re.M)
            shown = re.sub(r"^    ", "  ", shown, flags=re.M)
        parts += [
            f"**{'Arguments' if title == 'Args' else title}**",
            shown,
            "\n".join(lines[end:]).strip(),
        ]
    # Examples under no heading.
    parts = [
        re.sub(r"^>>> .*(?:\n.+)*", r"```python\n\g<0>\n```", part, flags=re.M) for part in parts
    ]
    return "\n\n".join(filter(None, parts))


def _as_code(match: re.Match) -> str:
    names = ", ".join(f"`{name.strip()}`" for name in match[1].split(","))
    return f"- {names}: "


def pages() -> dict[str, str]:
    """Returns the pages of the reference, by their names."""
    makers = {"options": options, "command": command, "decoding": decoding, "api": api}
    commands = "\n\n".join(f"## {name}\n\n<!-- command: {name} -->" for name in COMMANDS)
    return {
        name: _LINE.sub(
            lambda match: makers[match[1]](match[2].strip()),
            template.replace("COMMANDS", commands),
        )
        for name, template in TEMPLATES.items()
    }


def with_features(page: str) -> str:
    """Returns a page with the current table of what each export can do."""
    return _TABLE.sub(lambda _: f"<!-- features: -->\n{features()}\n<!-- end -->", page)


def recipe_reference() -> str:
    """Returns a YAML text of all options of a recipe, each under its meaning and its values."""
    lines = _comment(_HEAD, "")
    for section, schema in options_of(Recipe).items():
        if section == "model":
            lines += ["", f"{section}:", *_model_lines()]
            continue
        fields = options_of(Recipe, section)
        if not fields:  # Its keys are not the recipe's.
            lines += ["", *_comment(schema["description"], ""), f"{section}: {{}}"]
            continue
        lines += ["", f"{section}:"]
        for name, option in fields.items():
            lines += [*_comment(_meaning(option)), f"  {name}: {_default(option)}"]
    return "\n".join(lines) + "\n"


def _model_lines():
    """Options of every kind of model, the first kind's as values, the others' as comments."""
    lines, explained = [], set()
    for kind, configuration in CONFIGURATIONS.items():
        mark = "# " if lines else ""
        lines += (
            ["", f"  # Another kind of model:\n  # kind: {kind}"] if lines else ["  kind: " + kind]
        )
        for name, option in options_of(configuration).items():
            if name not in model_keys(kind):
                continue
            if (meaning := _meaning(option)) not in explained:
                lines += _comment(meaning)
            explained.add(meaning)
            lines.append(f"  {mark}{name}: {_default(option)}")
        if "preset" in model_keys(kind):
            lines += [*_comment(_PRESET), "  # preset: transformer_tiny"]
    return lines


def _meaning(option):
    words = expected(option)
    values = "" if "$ref" in option else f" {words[0].upper()}{words[1:]}."
    return f"{option.get('description', '')}{values}".strip()


def _default(option):
    default = option.get("default", {})
    return yaml.safe_dump(default, default_flow_style=True, width=1000).split("\n")[0]


def _comment(text, indent="  "):
    return textwrap.wrap(text, 100, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")


def build(app: Any = None) -> None:
    """Writes the pages of the reference for Sphinx."""
    folder = _DOCS / "reference"
    folder.mkdir(exist_ok=True)
    for path in {*folder.glob("*.md")} - {folder / name for name in TEMPLATES}:
        path.unlink()
    for name, page in pages().items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != page:
            path.write_text(page, encoding="utf-8")


def setup(app: Any) -> dict:
    """Connects it to Sphinx."""
    app.connect("builder-inited", build)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    build()
    RECIPE.write_text(recipe_reference(), encoding="utf-8")
    LIMITS.write_text(with_features(LIMITS.read_text(encoding="utf-8")), encoding="utf-8")
