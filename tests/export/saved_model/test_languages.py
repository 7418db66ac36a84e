"""A SavedModel of several languages whose decoder reads a token before each translation."""

import numpy as np
import pytest
from device_plans import ONE_GRAPH
from translations import check_same

from keras_transformer import Tokenizer, Translator
from keras_transformer.engine import ModelEngine
from keras_transformer.export import export_saved_model
from keras_transformer.ids import EOS_ID
from keras_transformer.text.languages import Languages
from keras_transformer.text.shortlist import Shortlist

pytestmark = pytest.mark.tensorflow

TEXTS = ["a man runs.", "two dogs", "the old clerk", "läuft"]
NAMED = {"source_language": ["en", "de", "fr", "en"], "target_language": ["de", "fr", "en", "fr"]}


@pytest.fixture(scope="module")
def engines(engine, texts, tmp_path_factory):
    """The trained model's engine and the export's, which is verified with its shortlist."""
    tokens = {code: f">>{code}<<" for code in ("de", "en", "fr")}
    tokenizer = Tokenizer.train_from_texts(texts, vocabulary_size=53, languages=tokens.values())
    # No language is a candidate.
    words = np.setdiff1d(np.arange(4, 53), [tokenizer.id_of(token) for token in tokens.values()])
    candidates = np.random.default_rng(7).choice(words, (53, 4))
    trained = ModelEngine(
        engine.model,
        tokenizer,
        max_source_length=13,
        max_target_length=17,
        **ONE_GRAPH,
        shortlist=Shortlist([], [*candidates]),
        languages=Languages(tokens, source_prefix="source", target_prefix="target"),
    )
    options = {"beam_size": 2, "shortlist": True, "signatures": ("beam", "score")}
    folder = tmp_path_factory.mktemp("exports") / "new"
    export_saved_model(trained, folder, texts[:9], **options)
    return trained, Translator.load(folder).engine


@pytest.mark.slow
def test_a_forced_language_need_not_be_a_candidate(engines):
    trained, exported = engines
    expected = trained.translate(TEXTS, beam_size=2, shortlist=True, **NAMED)
    check_same(expected, exported.translate(TEXTS, **NAMED))
    # The language matters.
    for language in ("de", "fr"):
        named = {"source_language": "en", "target_language": language}
        (ours,) = trained.translate(TEXTS[:1], beam_size=2, shortlist=True, **named)
        (theirs,) = exported.translate(TEXTS[:1], **named)
        assert theirs.score == pytest.approx(ours.score, abs=1e-3)
        assert (ours.score == pytest.approx(expected[0].score, abs=1e-3)) is (language == "de")


def test_a_target_that_is_too_long_is_truncated_before_its_language_is_forced(engines):
    trained, exported = engines
    long = " ".join(["two dogs near the river."] * 30)
    (ids,) = trained.target_tokenizer.tokenize([long])
    named = {"source_language": "en", "target_language": "de"}
    expected = trained.score(["a girl"], [[*ids[:16], EOS_ID]], **named)
    (received,) = exported.score(["a girl"], [long], **named)
    assert received.log_probability == pytest.approx(expected[0].log_probability, abs=1e-3)
