"""Packages of Argos Translate that are not imported; `ctranslate2/test_reader.py` reads one."""

import json

import pytest

from keras_transformer.errors import InputError
from keras_transformer.interop.importing import read_model

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("field", ["type", "target_prefix"])
def test_a_package_of_another_kind_is_one_line(tmp_path, field):
    (tmp_path / "package" / "model").mkdir(parents=True)
    (tmp_path / "package" / "metadata.json").write_text(json.dumps({field: "sbd"}))
    with pytest.raises(InputError, match=f"metadata.json: only packages with `{field}`"):
        read_model(tmp_path)
