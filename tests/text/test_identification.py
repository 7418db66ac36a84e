"""The identifier of languages."""

import sys
import types

import pytest

from keras_transformer.base.errors import InputError
from keras_transformer.text import identification
from keras_transformer.text.identification import language_identifier


def test_the_model_is_loaded_once_for_all_purposes(monkeypatch):
    loaded = []

    class LanguageIdentifier:
        @staticmethod
        def from_model_file(path, norm_probs):
            loaded.append((path, norm_probs))
            return object()

    module = types.ModuleType("langid")
    module.LanguageIdentifier, module.MODEL_FILE = LanguageIdentifier, "model"
    monkeypatch.setattr(identification, "require", lambda name, purpose, extra: module)
    identifiers = {language_identifier(purpose) for purpose in ("for detection,", "for a rule,")}
    assert len(identifiers) == 1 and loaded == [("model", True)]


def test_a_missing_package_is_named_with_the_purpose(monkeypatch):
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    with pytest.raises(InputError, match="py3langid, for detection, .*install"):
        language_identifier("for detection,")
