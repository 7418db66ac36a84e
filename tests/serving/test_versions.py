"""A folder of versions, as TensorFlow Serving lays it out."""

import pytest

from keras_transformer.errors import InputError
from keras_transformer.serving.versions import check_model, find_versions, model_name


def make(folder):
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(b"graph")
    return folder


def test_the_highest_number_comes_first_and_other_folders_are_passed_over(tmp_path):
    for name in ("2", "10", "03", "x", "1.5", "٣"):
        make(tmp_path / name)
    (tmp_path / "11").mkdir()  # Not copied yet.
    assert [version.number for version in find_versions(tmp_path)] == [10, 3, 2]


def test_a_version_may_be_given_itself(tmp_path):
    folder = make(tmp_path / "translator" / "7")
    assert [version.number for version in find_versions(folder)] == [7]
    assert [version.number for version in find_versions(make(tmp_path / "plain"))] == [1]
    assert model_name(folder) == model_name(folder.parent) == "translator"
    assert model_name(tmp_path / "plain") == "plain"


def test_the_stamp_changes_with_any_file(tmp_path):
    folder = make(tmp_path / "1")
    (before,) = find_versions(tmp_path)
    assert find_versions(tmp_path) == [before]
    (folder / "variables").mkdir()
    (folder / "variables" / "data").write_bytes(b"x")
    (after,) = find_versions(tmp_path)
    assert after.stamp != before.stamp


def test_a_folder_with_nothing_to_serve_is_told_of(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        check_model(tmp_path / "none")
    with pytest.raises(InputError, match="numbered folders"):
        check_model(tmp_path)
    make(tmp_path / "1")
    check_model(tmp_path)
