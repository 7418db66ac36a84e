"""Packages of Argos Translate that are not imported; `ctranslate2/test_reader.py` reads one."""

import json

import pytest

from keras_transformer.base.errors import InputError
from keras_transformer.extras.argos import reader
from keras_transformer.extras.foreign.foreign_model import ForeignModel, Tensors
from keras_transformer.extras.importing.importing import read_model

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("field", ["type", "target_prefix"])
def test_a_package_of_another_kind_is_one_line(tmp_path, field):
    (tmp_path / "package" / "model").mkdir(parents=True)
    (tmp_path / "package" / "metadata.json").write_text(json.dumps({field: "sbd"}))
    with pytest.raises(InputError, match=f"metadata.json: only packages with `{field}`"):
        read_model(tmp_path)


CODES = [(("en", "de"), ("en", "de")), (("pb", "zt"), ("pt-BR", "zh-Hant"))]
CODES += [((None, "de"), None), ((["en"], "de"), None), (("gem", "en"), None)]


@pytest.mark.parametrize(("codes", "direction"), CODES)
def test_a_package_tells_its_languages(tmp_path, monkeypatch, codes, direction):
    (tmp_path / "model").mkdir()
    metadata = dict(zip(("from_code", "to_code"), codes, strict=True))
    (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    model = ForeignModel({}, Tensors({}, "model.bin"), [], {})
    monkeypatch.setattr(reader.ctranslate2, "read", lambda *_: model)
    read = read_model(tmp_path)
    languages = read.languages
    # Argos Translate's `TranslationOptions`, and CTranslate2 for the rest.
    searched = {"beam_size": 4, "length_penalty": 0.2, "length_normalization": "length"}
    assert read.decoding == {**searched, "early_stopping": True, "min_length": 2}
    assert (languages and languages.directions) == (direction and (direction,))
