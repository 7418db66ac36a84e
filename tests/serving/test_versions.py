"""Versions on the disk: numbered folders, an export, a file of an export."""

import pytest

from keras_transformer.errors import InputError
from keras_transformer.serving import ServerOptions
from keras_transformer.serving.versions import find_versions, highest_version, model_name


def write_export(folder):
    folder.mkdir(parents=True)
    for name in ("export.json", "model.tflite"):
        (folder / name).write_text("{}")


def found(path, **more):
    return [(each.number, each.path) for each in find_versions(ServerOptions(model=path, **more))]


def test_the_highest_number_is_served_and_other_folders_are_passed_over(tmp_path):
    models = tmp_path / "m"
    for name in ("2", "10", "new", "٣"):
        write_export(models / name)
    (models / "11").mkdir()  # Without a manifest: still being copied, or something else.
    assert found(str(models)) == [(10, f"{models}/10"), (2, f"{models}/2")]
    assert found(str(models), version=2) == [(2, f"{models}/2")]
    assert model_name(ServerOptions(model=str(models))) == "m"
    with pytest.raises(InputError, match="version=3"):
        highest_version(ServerOptions(model=str(models), version=3))


@pytest.mark.parametrize(
    ("folder", "number", "name"), [("m/7", 7, "m"), ("m", 1, "m"), ("a:b", 1, "a_b")]
)
def test_an_export_and_a_file_of_it_are_one_version_of_one_name(tmp_path, folder, number, name):
    write_export(tmp_path / folder)
    for path in (tmp_path / folder, tmp_path / folder / "model.tflite"):
        assert found(str(path)) == [(number, str(path))]
        assert model_name(ServerOptions(model=str(path))) == name
    assert model_name(ServerOptions(model=str(path), name="other")) == "other"


def test_a_version_is_another_one_when_a_file_beside_it_changes(tmp_path):
    write_export(tmp_path / "m")
    options = ServerOptions(model=str(tmp_path / "m" / "model.tflite"))
    before = highest_version(options)
    (tmp_path / "m" / "export.json").write_text("{ }")
    assert highest_version(options) != before
