"""The folder that holds the model, in folders and archives as systems and people make them."""

import pathlib
import shutil

import numpy as np
import pytest
from model_servers import make_tar, make_zip

from keras_transformer.base.errors import InputError
from keras_transformer.cli.main import run
from keras_transformer.extras.importing import local_model
from keras_transformer.extras.importing.importing import read_model

pytestmark = pytest.mark.tensorflow

DATA = pathlib.Path(__file__).parents[2] / "data"
OPUS, STUDENT = DATA / "marian" / "opus", DATA / "marian" / "student"
CTRANSLATE2 = DATA / "ctranslate2" / "from_marian_hf_int8"
CARD = b"---\nlicense: cc-by-4.0\n---\n"
OTHERS = {"LICENSE": b"CC", "README.md": CARD, "images/a.png": b"PNG", "docs/a/b/c.txt": b"text"}


def members_of(toy, top):
    """Content of a toy's files by their paths in an archive."""
    return {f"{top}{path.name}": path.read_bytes() for path in toy.iterdir()}


def of_macos(members):
    """Members as a Mac makes them of a folder: attributes of each file in a folder of their own."""
    attributes = {f"__MACOSX/{path.replace('/', '/._')}": b"\0\5\x16\7" for path in members}
    return {**members, **attributes, ".DS_Store": b"", "._toy": b"\0\5\x16\7"}


def above(members):
    return {f"top/{path}": content for path, content in members.items()}


LAYOUTS = {
    "flat": lambda toy: members_of(toy, ""),
    "a folder": lambda toy: members_of(toy, "toy/"),
    "a Mac": lambda toy: of_macos(members_of(toy, "toy/")),
    "a licence": lambda toy: {**members_of(toy, "toy/"), **OTHERS},
    "two levels": lambda toy: {**members_of(toy, "models/toy/"), **OTHERS},
    "two levels and above": lambda toy: above({**members_of(toy, "models/toy/"), **OTHERS}),
    "Windows": lambda toy: {
        path.replace("/", "\\"): content
        for path, content in {**members_of(toy, "models/toy/"), **OTHERS}.items()
    },
}


def check_is(folder, toy):
    """Checks that the model in a folder is a toy."""
    arrays, expected = (read_model(path).tensors.arrays for path in (folder, toy))
    assert arrays.keys() == expected.keys()
    assert all(np.array_equal(arrays[name], expected[name]) for name in expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("toy", "make"), [(OPUS, make_zip), (STUDENT, make_tar)])
def test_a_model_is_found_in_an_archive_as_a_system_makes_it(tmp_path, toy, make, layout):
    archive = make(tmp_path / "archive", LAYOUTS[layout](toy))
    with local_model(archive, tmp_path / "run", lambda folder: None) as model:
        check_is(model.folder, toy)


@pytest.mark.parametrize("toy", [OPUS, STUDENT, CTRANSLATE2], ids=lambda toy: toy.name)
def test_a_model_is_found_in_a_folder_with_other_files(tmp_path, toy):
    folder = tmp_path / "models" / "toy"
    shutil.copytree(toy, folder)
    (tmp_path / "LICENSE").write_bytes(b"CC")
    (tmp_path / ".git").mkdir()
    shutil.copytree(toy, tmp_path / ".git" / "toy")
    shutil.copytree(toy, tmp_path / "__MACOSX")
    for path in list(folder.iterdir()):  # A Mac writes them on disks of other systems.
        path.with_name(f"._{path.name}").write_bytes(b"attributes")
    check_is(tmp_path, toy)
    shutil.copytree(STUDENT, folder / "onnx")  # A model hides the folders below it.
    check_is(tmp_path, toy)


def test_a_folder_that_nobody_may_read_hides_no_model_beside_it(tmp_path, monkeypatch):
    shutil.copytree(OPUS, tmp_path / "b" / "toy")
    for name in ("a", "c"):
        (tmp_path / name).mkdir()
    is_file = pathlib.Path.is_file

    def refused(path, **options):  # The tests' user may be allowed to read all folders.
        if path.parent.name in ("a", "c"):
            raise PermissionError(13, "Permission denied", str(path))
        return is_file(path, **options)

    monkeypatch.setattr(pathlib.Path, "is_file", refused)
    check_is(tmp_path, OPUS)


def test_two_models_are_an_error_that_names_both(tmp_path, capsys):
    members = {**members_of(OPUS, "models/large/"), **members_of(STUDENT, "small/")}
    archive = make_zip(tmp_path / "two.zip", members)
    assert run(["import", str(archive), "--output", str(tmp_path / "run")]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    both = f"{archive}/models/large, {archive}/small"
    assert line == f"keras-transformer: {archive}: expected one model. Received: 2, in {both}."


def test_a_model_is_not_looked_for_in_the_third_level(tmp_path):
    shutil.copytree(OPUS, tmp_path / "a" / "b" / "c")
    (tmp_path / "d").mkdir()
    with pytest.raises(InputError, match=f"{tmp_path}: expected one model, .* Received: none"):
        read_model(tmp_path)
