import dataclasses

import pytest

from keras_transformer.decoding import Translation


def test_a_translation_is_a_value():
    best = Translation("ein Hund", -0.5, -0.75, (Translation("der Hund", -0.9),))
    assert best == Translation("ein Hund", -0.5, -0.75, (Translation("der Hund", -0.9),))
    assert best.alternatives[0].alternatives == ()
    with pytest.raises(dataclasses.FrozenInstanceError):
        best.text = "die Katze"
