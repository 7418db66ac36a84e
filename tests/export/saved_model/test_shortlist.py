import numpy as np
import pytest

from keras_transformer.errors import InputError
from keras_transformer.export import export_saved_model
from keras_transformer.export.saved_model import signatures as signatures_module
from keras_transformer.export.saved_model.engine import SavedModelEngine

pytestmark = pytest.mark.tensorflow


@pytest.mark.slow
def test_a_saved_model_searches_among_the_candidates_of_each_sentence(
    listed_engine, texts, tmp_path, monkeypatch, unverified
):
    # One with a shortlist is verified in test_languages.py.
    monkeypatch.setattr(signatures_module, "TRACED_SIZES", (13,))
    options = {"beam_size": 2, "shortlist": True, "signatures": []}
    export_saved_model(listed_engine, tmp_path / "new", texts[:9], **options)
    engine = SavedModelEngine(tmp_path / "new")
    for sources in (["a"], texts[:30]):  # 10 candidates and more than 13
        received = engine.translate(sources, long_input="truncate")
        expected = listed_engine.translate(
            sources, long_input="truncate", beam_size=2, shortlist=True
        )
        assert [row.text for row in received] == [row.text for row in expected]
        scores = [[row.score for row in rows] for rows in (received, expected)]
        np.testing.assert_allclose(*scores, atol=1e-3)
    with pytest.raises(InputError, match="`shortlist` is fixed at True"):
        engine.translate(["a"], shortlist=False)
