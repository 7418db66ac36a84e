"""The export that a server finds: a folder, a file of it, the highest of numbered folders."""

import pytest

from keras_transformer.base.errors import InputError
from keras_transformer.extras.serving import ServerOptions
from keras_transformer.extras.serving.server_options import served_export


def make(folder):
    folder.mkdir(parents=True)
    (folder / "export.json").write_text("{}")
    return folder


def export_served(path, **more):
    export = served_export(ServerOptions(model=str(path), **more))
    return export.number, export.path, export.name


def test_the_highest_number_is_served_unless_another_is_named(tmp_path):
    models = tmp_path / "m"
    for name in ("1", "2", "10", "x", "\u0663"):
        make(models / name)
    (models / "11").mkdir()
    assert export_served(models) == (10, f"{models}/10", "m")
    assert export_served(models, version=2) == (2, f"{models}/2", "m")
    assert served_export(ServerOptions(model=str(models))).folder == models / "10"
    for version in (3, 11):
        with pytest.raises(InputError, match=f"version={version}"):
            export_served(models, version=version)


@pytest.mark.parametrize("written", ["~/m", "$HOME/m"])
def test_the_home_folder_in_a_file_of_options_is_replaced(tmp_path, monkeypatch, written):
    monkeypatch.setenv("HOME", str(tmp_path))
    make(tmp_path / "m")
    assert export_served(written) == (1, f"{tmp_path}/m", "m")


@pytest.mark.parametrize(("folder", "number", "name"), [("a/7", 7, "a"), ("a/b:c", 1, "b_c")])
def test_an_export_and_a_file_of_it_are_one_model_of_one_name(tmp_path, folder, number, name):
    export = make(tmp_path / folder)
    (export / "model.tflite").write_bytes(b"")
    for path in (export, export / "model.tflite"):
        assert export_served(path) == (number, str(path), name)
        assert served_export(ServerOptions(model=str(path))).folder == export
    assert export_served(export, name="other", version=number)[2] == "other"
    with pytest.raises(InputError, match=f"this is version {number}, and .* version=2"):
        export_served(export, version=2)


def test_a_folder_without_an_export_is_refused(tmp_path):
    with pytest.raises(InputError, match="expected an export .* Received: neither"):
        export_served(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        export_served(tmp_path / "nowhere")
