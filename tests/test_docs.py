"""The site's sources: docstring examples run, and the reference names what there is."""

import ast
import collections
import contextlib
import doctest
import importlib
import inspect
import io
import itertools
import pathlib
import re
import runpy
import tomllib

import pytest
import setuptools
import yaml
from packaging.version import Version

from keras_transformer import Translator, __version__
from keras_transformer.base.options import options_of
from keras_transformer.cli import main as cli
from keras_transformer.decoding import DecodingOptions
from keras_transformer.export.verification import TOLERANCES
from keras_transformer.extras.ctranslate2.export import CTranslate2Exporter
from keras_transformer.formats import FORMATS
from keras_transformer.models.config import CONFIGURATIONS
from keras_transformer.training import Recipe

ROOT = pathlib.Path(__file__).parents[1]
WITH_EXAMPLES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted((ROOT / "keras_transformer").rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_examples_of_docstrings_give_what_they_show(module):
    failed, attempted = doctest.testmod(importlib.import_module(module))
    assert attempted and not failed


@pytest.fixture(scope="module")
def reference():
    """The program that makes the reference and its pages, as the build of the site does."""
    program = runpy.run_path(str(ROOT / "docs" / "_ext" / "reference.py"))
    return program, program["pages"]()


def commands_of_help():
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        cli.run(["--help"])
    return re.findall(r"^    (\w+)  ", shown.getvalue(), flags=re.MULTILINE)


def test_the_page_of_commands_names_every_command_once():
    page = (ROOT / "docs" / "howto" / "commands.md").read_text(encoding="utf-8")
    named = re.findall(r"^\|[^|]*\| `([a-z]+)` \|", page, flags=re.MULTILINE)
    assert sorted(named) == sorted(commands_of_help())


@pytest.mark.tensorflow
def test_the_reference_shows_every_command(reference):
    page = reference[1]["commands.md"]
    assert re.findall(r"^## ([a-z]+)$", page, flags=re.MULTILINE) == commands_of_help()


def test_the_page_about_decoding_has_every_option_in_its_table():
    page = (ROOT / "docs" / "howto" / "decode.md").read_text(encoding="utf-8")
    table = page.partition("\n| topic |")[2].partition("\n\n")[0]
    assert set(options_of(DecodingOptions)) - {*re.findall(r"`(\w+)", table)} == set()


def test_the_reference_has_a_table_of_every_declaration():
    page = (ROOT / "docs" / "_ext" / "reference.py").read_text(encoding="utf-8")
    shown = set()
    for module, name in re.findall(r"^<!-- options: ([\w.]+):(\w+) -->$", page, re.MULTILINE):
        shown.add(getattr(importlib.import_module(module), name))
    with_options = {row.options() for row in FORMATS.values()}
    assert {*CONFIGURATIONS.values(), *with_options} <= shown


@pytest.mark.tensorflow
def test_the_reference_documents_the_public_names(reference):
    program, pages = reference
    shown = re.findall(r"^### (\w+)$", "\n".join(pages.values()), flags=re.MULTILINE)
    shown += re.findall(r":(\w+) -->$", "\n".join(program["TEMPLATES"].values()), re.MULTILINE)
    named = {name for names in public_names().values() for name in names}
    assert {name for name in named if name[0].isupper()} - set(shown) == set()
    page = program["LIMITS"].read_text(encoding="utf-8")
    assert program["with_features"](page) == page, "run python docs/_ext/reference.py"


def reached_pages():
    """README, and all pages that its links lead to."""
    reached, waiting = {}, [ROOT / "README.md"]
    while waiting:
        page = waiting.pop().resolve()
        if page not in reached:
            text = reached[page] = page.read_text(encoding="utf-8")
            links = re.findall(r"\]\(([^)#:]+\.md)", text)
            waiting += [page.parent / link for link in links]
    return reached


def test_pages_that_the_readme_reaches_are_plain_markdown():
    pages = reached_pages()
    assert len(pages) > 40
    for page, text in pages.items():
        assert not text.startswith("---"), f"{page}: front matter"
        assert not re.findall(r"^ *(?:`{3,}{.*|:{3,}.*)", text, re.MULTILINE), f"{page}: directive"
        prose = re.sub(r"^ *(`{3,})\w*\n.*?^ *\1$|<!--.*?-->", "", text, flags=re.M | re.S)
        prose = re.sub(r"`[^`]+`", "`code`", prose)
        assert "[](" not in prose, f"{page}: a link without text"
        assert not re.findall(r"{[\w:-]+}`", prose), f"{page}: a role"
        # GitHub takes backslashes before signs out of such formulas; it does not in ```math.
        formulas = re.findall(r"\$([^$\n]+)\$", prose)
        assert not [formula for formula in formulas if re.search(r"\\[^a-zA-Z]", formula)], page
        assert "operatorname" not in text, f"{page}: GitHub refuses it"


PAGE = """\
# Title

<!-- run
hidden = 3
-->

```python
print("→")
```

<!-- output -->
```text
→
```
<!-- end -->

<!-- not executed -->
```bash
serve
```

<details>
<summary>Commands</summary>

<!-- no output -->
```bash
make
```

</details>

<!-- file: recipe.yaml -->
```yaml
model: {}
```
"""


def test_programs_of_a_page_are_executed_and_its_comments_say_how():
    parts_of = runpy.run_path(str(ROOT / "docs" / "_ext" / "notebooks.py"))["parts_of"]
    parts = parts_of(PAGE)
    assert "".join(part.text + part.output for part in parts) == PAGE
    assert {part.source: part.tags for part in parts if part.source is not None} == {
        "hidden = 3": ("remove-input",),
        'print("→")': (),
        "%%bash\nmake": ("remove-output", "hide-input"),
        "%%writefile recipe.yaml\nmodel: {}": ("remove-output",),
    }
    assert [part.text.count("serve") for part in parts if part.source is None].count(1) == 1
    assert [part.output.count("→") for part in parts if "print" in part.text] == [1]


def test_a_page_with_programs_for_one_backend_is_executed_on_jax_too():
    notebooks = runpy.run_path(str(ROOT / "docs" / "_ext" / "notebooks.py"))
    page = PAGE.replace("hidden = 3", "%run terminal.py")
    assert notebooks["jax_program"](page) is None
    page += "\n<!-- tensorflow -->\n```python\nimport tensorflow\n```\n"
    assert notebooks["jax_program"](page) == 'print("→")'
    page += "\n<!-- jax -->\n```python\nimport jax\n```\n"
    assert notebooks["jax_program"](page) == 'print("→")\n\nimport jax'
    sources = [part.source for part in notebooks["parts_of"](page) if part.source]
    assert "import tensorflow" in sources and "import jax" not in sources


def test_lines_of_the_library_that_a_page_shows_are_there():
    page = (ROOT / "docs" / "tutorials" / "the_paper_in_code.md").read_text(encoding="utf-8")
    shown = re.findall(
        r"^```python\n# (keras_transformer/\S+): [^\n]*\n(.*?)^```", page, re.M | re.S
    )
    assert len(shown) > 20
    for path, lines in shown:
        source = (ROOT / path).read_text(encoding="utf-8")
        # The formatter joins lines that are less indented on the page.
        is_there = "".join(lines.split()) in "".join(source.split())
        assert is_there, f"build the site, run python docs/_ext/outputs.py: {path} changed"


def public_names():
    """Names that semantic versioning covers, by their module."""
    page = (ROOT / "docs" / "design" / "public_api.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(keras_transformer[\w.]*)` \| (.*) \|$", page, flags=re.MULTILINE)
    return {module: re.findall(r"`(\w+)`", names) for module, names in rows}


def test_public_names_exist():
    rows = public_names()
    assert len(rows) > 6
    for module, names in rows.items():
        for name in names:
            assert hasattr(importlib.import_module(module), name), f"{module}.{name}"


def without_code(page):
    """The text of a page without its fences, where `#` begins a comment."""
    text = page.read_text(encoding="utf-8")
    return re.sub(r"^ *(```+|~~~+).*?^ *\1", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors_of(page):
    """The anchors that GitHub makes of a page's headings, and those that it has itself."""
    text, counts = without_code(page), collections.Counter()
    anchors = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", text, flags=re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        anchors.add(f"{slug}-{counts[slug]}" if counts[slug] else slug)
        counts[slug] += 1
    return anchors


FOLDERS = (".ci", "benchmarks", "docs", "export", "keras_transformer", "tests", "training")
PAGES = sorted(
    page
    for pages in (
        ROOT.glob("*.md"),
        *((ROOT / name).rglob("*.md") for name in (*FOLDERS, ".github")),
    )
    for page in pages
    # What the site's build writes, and documents that tests translate.
    if not {"_build", "_live", "_work", "reference", "data"} & {*page.parts}
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page):
    text = re.sub(r"`[^`\n]+`", "", without_code(page))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        name, _, anchor = link.partition("#")
        if re.match(r"\w+:", link):
            continue
        target = page.parent / name if name else page
        assert target.exists(), f"{link}: no such file"
        if anchor:
            assert anchor in anchors_of(target), f"{link}: no such heading"


# A reader's task, and where it is explained: `page` or `page#heading` of docs/.
TASKS = {
    "install and try": "start/install.md",
    "choose between this and another program": "start/why_this.md",
    "use a model of Firefox or OPUS by its name": "howto/import.md#names",
    "use an Argos package": "howto/import.md#from-argos-translate-and-back",
    "translate a Word or HTML page": "howto/translate_documents.md#html",
    "translate an e-book": "howto/translate_documents.md#e-books",
    "translate subtitles": "howto/translate_documents.md#subtitles",
    "translate millions of lines": "howto/translate_documents.md#large-files",
    "fine-tune on my TMX": "howto/train.md#use-a-translation-memory",
    "train on a spreadsheet": "howto/train.md#from-a-spreadsheet",
    "clean a web corpus": "howto/clean.md#clean",
    "continue after a crash": "howto/train.md#while-it-trains",
    "train on a GPU": "howto/train.md#use-a-gpu-or-several-hosts",
    "compare two systems": "howto/evaluate.md#compare-two-systems",
    "keep my terms": "howto/control_output.md#use-terminology",
    "write Sie or du": "howto/clean.md#formality-by-tags",
    "run on a phone": "howto/export.md#litert",
    "run in the browser": "howto/browser.md",
    "answer LibreTranslate's clients": (
        "howto/serve.md#use-it-from-weblate-a-browser-extension-subtitle-edit"
    ),
    "give a model to transformers": "howto/export.md#hugging-face",
    "a KV cache in my own model": "howto/use_layers.md#a-cache-of-keys-and-values",
    "my own seq2seq as one file": "howto/use_layers.md#export-the-search",
    "see whether my decoder reads the future": "howto/use_layers.md#check-your-model",
    "the options of a command": "howto/commands.md",
}


def links_of(page):
    """The pages that a page links to, with their headings as the links have them."""
    text = re.sub(r"`[^`\n]+`", "", without_code(page))
    for link in re.findall(r"\]\(([^)\s:]+)\)", text):
        name, _, heading = link.partition("#")
        yield (page.parent / name).resolve() if name else page.resolve(), heading


@pytest.mark.parametrize("first_page", ["README.md", "docs/index.md"])
def test_each_of_twenty_tasks_is_two_clicks_from_the_first_page(first_page):
    docs, first = ROOT / "docs", set(links_of(ROOT / first_page))
    pages = {page for page, _ in first if page.suffix == ".md"}
    reached = first.union(*map(links_of, pages))
    wanted = {
        task: ((docs / page).resolve(), heading)
        for task, place in TASKS.items()
        for page, _, heading in [place.partition("#")]
    }
    assert len(wanted) > 20
    assert [task for task, place in wanted.items() if place not in reached] == []


def test_the_version_is_that_of_the_newest_changes():
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    number, text = re.search(r"^## (\S+)\n+(.*)", changes, flags=re.MULTILINE).groups()
    is_released = not text.startswith("In development.")
    assert Version(__version__).base_version == number
    assert Version(__version__).is_devrelease != is_released


def test_a_release_is_told_in_fifteen_lines_of_what_a_user_can_do():
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first = re.search(r"^## .*?(?=^## |\Z)", changes, flags=re.MULTILINE | re.DOTALL)[0]
    entries = re.findall(r"^- .*", first, flags=re.MULTILINE)
    assert len(set(entries)) == 15


def test_no_page_sends_its_reader_to_a_tag_of_the_repository():
    # Versions are not tagged: a command such as `git show` would find nothing.
    tags = {
        page.name: re.findall(r"`[^`\n]*\bv\d+\.\d[^`\n]*`", without_code(page)) for page in PAGES
    }
    assert {name: found for name, found in tags.items() if found} == {}


def test_the_citation_is_of_this_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.*)$", citation, flags=re.MULTILINE) == [__version__]


RECIPES = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in sorted((ROOT / "docs" / "howto").glob("*.md"))
    for number, block in enumerate(
        re.findall(r"```yaml\n(data:.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    )
]


@pytest.mark.parametrize("block", RECIPES)
def test_a_recipe_that_a_page_shows_is_one(block):
    Recipe.from_dict(yaml.safe_load(block))


def programs_of(page):
    """The Python programs of a page, without the lines that only Jupyter reads."""
    text = page.read_text(encoding="utf-8")
    programs = re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [re.sub(r"^[%!].*\n", "", program, flags=re.MULTILINE) for program in programs]


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if {"start", "howto"} & {*page.parts} and programs_of(page)],
    ids=lambda page: page.stem,
)
def test_programs_of_a_page_parse_and_import_what_there_is(page):
    for program in programs_of(page):
        for node in ast.walk(ast.parse(program)):
            is_import = isinstance(node, ast.ImportFrom) and node.module is not None
            if is_import and node.module.startswith("keras_transformer"):
                module = importlib.import_module(node.module)
                missing = [name.name for name in node.names if not hasattr(module, name.name)]
                # A module of a package may not have been imported yet.
                for name in missing:
                    importlib.import_module(f"{node.module}.{name}")


def test_the_page_about_the_pipeline_calls_what_there_is():
    page = ROOT / "docs" / "start" / "replace_pipeline.md"
    takes = {
        *inspect.signature(Translator.translate).parameters,
        *options_of(DecodingOptions),
        "batch_size",
        "long_input",
    }
    table = page.read_text(encoding="utf-8").partition("| here |")[2]
    cells = [row.split(" | ")[1] for row in re.findall(r"^\| `.* \|$", table, re.MULTILINE)]
    named = {name for cell in cells for name in re.findall(r"(\w+)=", cell)}
    for program in programs_of(page):
        for node in ast.walk(ast.parse(program)):
            if isinstance(node, ast.Call):
                named |= {keyword.arg for keyword in node.keywords}
    assert len(named) > 5 and named <= takes


# Names of other libraries' code, in notes about them.
NAMES_OF_OTHERS = {"_bucket", "_temp_dir", "open_telemetry_metric_recorder.py"}
FILES = [path.as_posix() for name in FOLDERS for path in (ROOT / name).rglob("*.py")]
FILES.append((ROOT / "setup.py").as_posix())


def names_of(node):
    """The names that the lines of a module or a class define, with arguments and attributes."""
    for part in ast.walk(node):
        if isinstance(part, ast.FunctionDef | ast.ClassDef):
            yield part.name
        elif isinstance(part, ast.arg):
            yield part.arg
        elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            yield part.id
        elif isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
            yield part.attr


@pytest.fixture(scope="module")
def defined():
    """The names of the package, and those of each class with its bases; None: a foreign base."""
    trees = [ast.parse(path.read_text("utf-8")) for path in ROOT.glob("keras_transformer/**/*.py")]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    own, bases = collections.defaultdict(set), collections.defaultdict(set)
    for node in classes:
        own[node.name] |= set(names_of(node))
        bases[node.name] |= {ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases}
    plain = {"ABC", "Enum", "Generic", "NamedTuple", "Protocol"}

    def members(name):
        if name not in own:
            return set() if name in plain else {None}
        return own[name].union(*map(members, bases[name] - {name}))

    names = {name for tree in trees for name in names_of(tree)}
    return names, {name: members(name) for name in own}


def names_without_a_definition(text, defined):
    """The private names, members of classes and files that a text has and the code lacks."""
    names, members_of = defined
    for code in re.findall(r"`([^`\n]+)`", text):
        member = re.match(r"(?:[a-z_.]+\.)?([A-Z]\w*)\.(\w+)", code)
        if code in NAMES_OF_OTHERS or code.startswith("__"):
            continue
        if re.fullmatch(r"_[A-Za-z]\w*", code) and code not in names:
            yield code
        elif re.fullmatch(r"[\w/]+\.py", code) and not any(
            path.endswith(f"/{code}") for path in FILES
        ):
            yield code
        elif member and not {member[2], None} & members_of.get(member[1], {None}):
            yield code


def test_names_in_backticks_are_in_the_code(defined):
    missing = {
        page.relative_to(ROOT).as_posix(): wrong
        for page in PAGES
        if (wrong := list(names_without_a_definition(without_code(page), defined)))
    }
    assert not missing


def test_former_names_in_backticks_are_found(defined):
    text = "`_times_shared`, `Beam._can_win` and `serving/bulk.py`, not `Beam.choose`, `_best`"
    wrong = ["_times_shared", "Beam._can_win", "serving/bulk.py"]
    assert list(names_without_a_definition(text, defined)) == wrong


@pytest.fixture
def description(monkeypatch):
    """`description` of `setup.py`, which makes the registry's page of the README."""
    monkeypatch.setattr(setuptools, "setup", lambda **metadata: None)
    return runpy.run_path(str(ROOT / "setup.py"))["description"]


def test_links_of_the_registrys_page_lead_to_the_repository(description):
    readme, address = description(""), "https://example.org/a/b"
    links = [
        re.findall(r"(!?)\[[^]]*\]\(([^)\s]+)\)", re.sub(r"`[^`\n]+`", "", text))
        for text in (readme, description(address))
    ]
    assert len(links[0]) > 30 and any(picture for picture, _ in links[0])
    for (picture, link), (_, absolute) in zip(*links, strict=True):
        is_elsewhere = link.startswith(("#", "https:"))
        place = f"{address}/{'raw' if picture else 'blob'}/HEAD/{link}"
        assert absolute == (link if is_elsewhere else place)


def repository():
    """The address of the repository, which whoever publishes it writes into the metadata."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
    return tools["keras-transformer"]["repository"]


def test_installation_comes_before_the_first_command_of_the_readme():
    (first, *_) = re.findall(r"```bash\n(.*?)\n", (ROOT / "README.md").read_text("utf-8"))
    assert first.startswith(f"git clone {repository()} keras_transformer")


def test_the_numbers_of_the_readmes_benchmarks_are_in_the_text_of_the_linked_pages():
    table = (ROOT / "README.md").read_text("utf-8").partition("\n## Benchmarks\n")[2]
    rows = re.findall(
        r"^\| \[[^]]+\]\(([^)#]+)[^)]*\)[^|]*\|([^|]*)\|([^|]*)\|(.*)\|$", table, re.M
    )
    assert len(rows) > 4
    for page, *cells in rows:
        text = (ROOT / page).read_text("utf-8")
        own, other, conditions = cells
        after = conditions.partition("greedily")[2]  # numbers of other searches
        numbers = re.findall(r"\d[\d,.]*\d", f"{own} {other} {after}")
        assert numbers and [number for number in numbers if number not in text] == [], page


def test_the_readme_says_how_many_translations_of_an_export_are_equal():
    text = (ROOT / "README.md").read_text("utf-8")
    rows = re.findall(r"^\|[^|]*\| `(\w+)[^|]*\|[^|]*\| (\d+)%(?:, \w+ (\d+)%)? \|", text, re.M)
    shares = {name: tuple(filter(None, row)) for name, *row in rows}
    plain, quantized = (
        {
            name: f"{tolerances[key].equal:.0%}"[:-1]
            for name, tolerances in {
                "litert": TOLERANCES,
                "ctranslate2": CTranslate2Exporter.tolerances,
            }.items()
        }
        for key in ("none", "int8")
    )
    assert shares == {
        "ctranslate2": (quantized["ctranslate2"], plain["ctranslate2"]),
        "litert": (quantized["litert"], plain["litert"]),
        "saved_model": (plain["litert"],),
        "hugging_face": (plain["litert"],),
        "argos": (plain["ctranslate2"], quantized["ctranslate2"]),
        "web": (quantized["litert"],),
    }


def pictures_of(page):
    """Alternative text and file of each picture of a page."""
    text = without_code(page)
    yield from re.findall(r"!\[([^]]*)\]\(([^)]+)\)", text)
    for tag in re.findall(r"<img\b[^>]*>", text):
        yield tuple(
            (re.search(rf'{name}="([^"]*)"', tag) or ["", ""])[1] for name in ("alt", "src")
        )


def test_the_readme_says_the_smallest_chrf_of_every_format():
    text = " ".join((ROOT / "README.md").read_text("utf-8").split())
    said = re.findall(r"chrF (?:of|against the model's translations is) at least (\d+)", text)
    tolerances = [*TOLERANCES.values(), *CTranslate2Exporter.tolerances.values()]
    assert set(said) == {f"{tolerance.chrf:g}" for tolerance in tolerances}


def test_alternative_texts_say_what_a_picture_shows():
    pictures = [(page.name, *picture) for page in PAGES for picture in pictures_of(page)]
    assert len(pictures) > 30
    few = [row for row in pictures if len(re.findall(r"[^\W_]+", row[1])) < 5]
    # The kind of a picture is not what it shows.
    kinds = [
        row for row in pictures if re.match(r"(?i)(picture|image|plot|figure|chart)\b", row[1])
    ]
    assert few == [] and kinds == []


def test_pictures_of_different_files_have_different_texts():
    texts = {}
    for page in PAGES:
        for text, name in pictures_of(page):
            texts.setdefault(text, set()).add((page.parent / name).resolve())
    assert {text: files for text, files in texts.items() if len(files) > 1} == {}


def test_every_plot_of_the_pages_is_shown_by_one():
    shown = {(page.parent / name).resolve() for page in PAGES for _, name in pictures_of(page)}
    unused = {path for path in (ROOT / "docs" / "plots").iterdir()} - shown
    assert unused == set()


def test_everyday_sentences_have_one_translation_each_and_put_the_infinitive_last():
    pairs = runpy.run_path(str(ROOT / "docs" / "_ext" / "everyday.py"))["pairs"]
    rows = list(dict.fromkeys(itertools.islice(pairs(seed=0), 6000)))
    assert len(rows) > 5400  # what the page takes
    assert len(dict(rows)) == len({german for _, german in rows}) == len(rows)
    for english, german in rows:
        modal = re.search(r"\b(?:wants? to|has to|have to|can) (\w+)", english)
        assert bool(modal) == bool(
            re.search(r"(?i)\b(?:will|wollen|muss|müssen|k[aö]nn(?:en)?) ", german)
        )
        assert not modal or german.endswith("en."), german


def test_links_to_markdown_outside_the_site_lead_to_the_repository():
    lead_outside = runpy.run_path(str(ROOT / "docs" / "_ext" / "contents.py"))["lead_outside"]
    source = ["[a](../../export/README.md#x) [b](../start/install.md) [c](../../training/fit.py)"]
    lead_outside(None, "howto/export", source)
    address = repository()
    assert source == [
        f"[a]({address}/blob/HEAD/export/README.md#x) [b](../start/install.md)"
        " [c](../../training/fit.py)"
    ]


def test_the_tree_of_the_package_names_files_that_are_there():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    (tree,) = re.findall(r"\n  base/.*?\ntraining/", text, re.DOTALL)
    rows = re.sub(r"\([^)]*\)", "", tree.removesuffix("\ntraining/")).replace("\n      ", " ")
    named = {}
    for row in rows.strip().splitlines():
        folders, files = re.match(r"((?:\s*[\w/]+/(?=\s))+)(.*)", row).groups()
        files = files.rpartition(":")[2].split()
        named |= {folder.strip("/"): files for folder in folders.split()}
    package = ROOT / "keras_transformer"
    missing = {
        f"{folder}/{file}"
        for folder, files in named.items()
        for file in files
        if not (package / folder / f"{file}.py").is_file()
    }
    inits = {str(path.parent.relative_to(package)) for path in package.rglob("*/__init__.py")}
    assert missing == set() and inits == named.keys()
