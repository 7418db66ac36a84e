"""The command `languages` lists what a run or an export translates, without its model."""

import itertools
import json
import shutil

import pytest
from small_corpus import PAIRS, recipe_values

from keras_transformer import Tokenizer
from keras_transformer.cli.main import run
from keras_transformer.export.manifest import languages_at
from keras_transformer.files import FORMAT_VERSION
from keras_transformer.formats import FORMATS
from keras_transformer.runs.run_files import RunFiles
from keras_transformer.text.languages import Languages

TEXTS = [text for pair in PAIRS for text in pair]
BOTH = Languages({"en": ">>en<<", "de": ">>de<<"}, "target")
M2M = Languages(
    {code: f"__{code}__" for code in "af am ar be bg bn br bs ca cs da de el en es".split()},
    "source",
    target_prefix="target",
)


def make_run(folder, languages=None, tokens=()):
    tokenizer = Tokenizer.train_from_texts(TEXTS, 150, languages=tokens)
    RunFiles(folder).write_start(recipe_values(folder), (tokenizer, tokenizer), {}, languages)


def make_export(folder, format="saved_model", **fields):
    folder.mkdir()
    manifest = {
        "format": f"keras_transformer.{format}",
        "format_version": FORMAT_VERSION,
        "files": {},
        **fields,
    }
    (folder / "export.json").write_text(json.dumps(manifest))


@pytest.fixture
def listed(tmp_path, capsys):
    """`listed(*options)`: exit code, stdout and stderr for the folder `model`."""

    def listed(*options):
        code = run(["languages", "--model", str(tmp_path / "model"), *options])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return listed


def test_a_line_has_code_name_and_targets_of_a_language(listed, tmp_path):
    make_run(tmp_path / "model", BOTH)
    assert listed() == (0, "en\tEnglish\tde\nde\tGerman\ten\n", "")
    rows = [{"code": "en", "name": "English", "targets": ["de"]}]
    rows += [{"code": "de", "name": "German", "targets": ["en"]}]
    assert json.loads(listed("--json")[1]) == rows


def test_json_has_names_in_their_letters(listed, tmp_path):
    make_run(tmp_path / "model", Languages(directions=(("en", "nb"),)))
    assert "Norwegian Bokmål" in listed("--json")[1]


def test_a_model_of_many_languages_has_a_line_for_each(listed, tmp_path):
    make_run(tmp_path / "model", M2M)
    lines = listed()[1].splitlines()
    assert len(lines) == 15 and lines[0] == "af\tAfrikaans\tall others"
    (row,) = (row for row in json.loads(listed("--json")[1]) if row["code"] == "de")
    assert row["targets"] == [code for code in M2M.tokens if code != "de"]
    # Of many languages with a target missing, all others are named.
    pairs = [pair for pair in itertools.permutations(M2M.tokens, 2) if pair != ("af", "es")]
    shutil.rmtree(tmp_path / "model")
    make_run(tmp_path / "model", Languages(M2M.tokens, "source", directions=tuple(pairs)))
    lines = listed()[1].splitlines()
    assert lines[0].split("\t")[2].split() == [target for source, target in pairs if source == "af"]


def test_tags_of_an_imported_model_are_targets_of_any_language(listed, tmp_path):
    make_run(tmp_path / "model", tokens=[">>epo<<", ">>deu<<"])
    code, out, _ = listed()
    assert code == 0
    first, *others = out.splitlines()
    assert first.split("\t")[:2] == ["any", "any language"]
    assert {*first.split("\t")[2].split()} == {"eo", "de"}
    assert {*others} == {"eo\tEsperanto\t", "de\tGerman\t"}


@pytest.mark.parametrize("format", FORMATS)
def test_an_export_of_each_format_is_read_as_its_run(listed, tmp_path, format):
    make_export(tmp_path / "model", format, language_tokens=BOTH.to_dict(), languages=None)
    assert listed() == (0, "en\tEnglish\tde\nde\tGerman\ten\n", "")


def test_a_named_direction_of_an_export_and_the_path_of_its_file_are_taken(tmp_path):
    make_export(tmp_path / "model", "litert", languages=["en-GB", "pt-BR"])
    (tmp_path / "model" / "model.tflite").touch()
    for path in (tmp_path / "model", tmp_path / "model" / "model.tflite"):
        assert languages_at(path).targets == {"en-GB": ["pt-BR"], "pt-BR": []}


def test_unknown_languages_are_no_line_and_said(listed, tmp_path):
    make_run(tmp_path / "model")
    code, out, err = listed()
    assert (code, out) == (0, "")
    assert "model: the languages of this model are unknown: name them with --languages" in err
    assert json.loads(listed("--json")[1]) == []


def test_a_folder_without_a_model_is_one_line(listed, tmp_path):
    code, out, err = listed()
    assert (code, out) == (2, "") and err.endswith("model: no such run or export folder.\n")
    (tmp_path / "model").mkdir()
    code, out, err = listed()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "expected a run folder, or an export that this package exported." in err
