import json

import pytest

from keras_transformer.base.errors import InputError
from keras_transformer.text import Labels


def test_a_labels_id_is_its_place_whatever_it_is_made_of(tmp_path):
    names = ["1", "0", "01", "no spam", "spam", "no", "ENTY:animal", "grün", "a\u2581b", "0", " "]
    labels = Labels.of_texts(names)
    assert labels.names == sorted({*names} - {" "}) and labels.vocabulary_size == len(labels.names)
    assert labels.tokenize(labels.names) == [[index] for index in range(len(labels.names))]
    labels.save(tmp_path / "labels.json")
    assert json.loads((tmp_path / "labels.json").read_text("utf-8")) == labels.names
    assert Labels.load(tmp_path / "labels.json").names == labels.names


def test_what_is_no_label_is_named_with_its_place():
    labels = Labels(["1", "0"])
    labels.check("0", "x.tsv, line 7")
    # A label that is written as others in a row is none, either.
    for other in ("10", "", "2"):
        expected = rf"trained on \(1, 0\)\. Received: '{other}'\.$"
        with pytest.raises(InputError, match=rf"^x\.tsv, line 7: .*{expected}"):
            labels.check(other, "x.tsv, line 7")
        with pytest.raises(InputError, match=rf"^label 3: .*{expected}"):
            labels.tokenize(iter(["1", "0", other]))


@pytest.mark.parametrize("content", [None, "no JSON", '{"a": 1}', "[1]"])
def test_a_file_without_labels_is_named(tmp_path, content):
    problem = "no such file"
    if content is not None:
        (tmp_path / "labels.json").write_text(content)
        problem = "expected a list of labels. Received"
    with pytest.raises(InputError, match=f"labels.json: {problem}"):
        Labels.load(tmp_path / "labels.json")
