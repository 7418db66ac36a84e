import json

import pytest

from keras_transformer.errors import InputError
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
    Labels(["1", "0"]).check("0", "x.tsv, line 7")
    # A label that is written as others in a row is none, either.
    for other in ("10", "", "2"):
        with pytest.raises(InputError) as error:
            Labels(["1", "0"]).check(other, "x.tsv, line 7")
        expected = f"expected a label that was trained on (1, 0). Received: {other!r}."
        assert str(error.value) == f"x.tsv, line 7: {expected}"


def test_an_unknown_label_among_others_is_one_line():
    expected = "label 3: expected a label that was trained on (ham, spam). Received: 'egg'."
    with pytest.raises(InputError) as caught:
        Labels(["ham", "spam"]).tokenize(iter(["spam", "ham", "egg"]))
    assert str(caught.value) == expected


@pytest.mark.parametrize("content", [None, "no JSON", '{"a": 1}', "[1]"])
def test_a_file_without_labels_is_named(tmp_path, content):
    problem = "no such file"
    if content is not None:
        (tmp_path / "labels.json").write_text(content)
        problem = "expected a list of labels. Received"
    with pytest.raises(InputError, match=f"labels.json: {problem}"):
        Labels.load(tmp_path / "labels.json")
