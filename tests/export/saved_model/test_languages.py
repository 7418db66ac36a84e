"""A SavedModel of several languages whose decoder reads a token before each translation."""

import pytest
from device_plans import ONE_GRAPH
from translations import check_same

from keras_transformer import Tokenizer, Translator
from keras_transformer.engine import ModelEngine
from keras_transformer.export import export_saved_model
from keras_transformer.ids import EOS_ID
from keras_transformer.text.languages import Languages

pytestmark = pytest.mark.tensorflow

TEXTS = ["a man runs.", "two dogs", "the old clerk", "läuft"]
NAMED = {"source_language": ["en", "de", "fr", "en"], "target_language": ["de", "fr", "en", "fr"]}


@pytest.fixture(scope="module")
def trained(engine, texts):
    """The trained model's engine."""
    tokens = {code: f">>{code}<<" for code in ("de", "en", "fr")}
    tokenizer = Tokenizer.train_from_texts(texts, vocabulary_size=53, languages=tokens.values())
    return ModelEngine(
        engine.model,
        tokenizer,
        max_source_length=13,
        max_target_length=17,
        **ONE_GRAPH,
        languages=Languages(tokens, source_prefix="source", target_prefix="target"),
    )


@pytest.mark.slow
def test_an_export_forces_the_language_that_a_text_names(trained, texts, tmp_path):
    options = {"beam_size": 2, "signatures": ("beam", "score", "align")}
    export_saved_model(trained, tmp_path / "export", texts[:9], **options)
    exported = Translator.load(tmp_path / "export").engine
    expected = trained.translate(TEXTS, beam_size=2, **NAMED)
    check_same(expected, exported.translate(TEXTS, **NAMED))
    # The language matters.
    for language in ("de", "fr"):
        named = {"source_language": "en", "target_language": language}
        (ours,) = trained.translate(TEXTS[:1], beam_size=2, **named)
        (theirs,) = exported.translate(TEXTS[:1], **named)
        assert theirs.score == pytest.approx(ours.score, abs=1e-3)
        assert (ours.score == pytest.approx(expected[0].score, abs=1e-3)) is (language == "de")


@pytest.mark.usefixtures("unverified", "without_xla")
def test_a_target_that_is_too_long_is_truncated_before_its_language_is_forced(trained, tmp_path):
    export_saved_model(trained, tmp_path / "export", beam_size=1, signatures=("score",))
    exported = Translator.load(tmp_path / "export").engine
    long = " ".join(["two dogs near the river."] * 30)
    (ids,) = trained.target_tokenizer.tokenize([long])
    named = {"source_language": "en", "target_language": "de"}
    expected = trained.score(["a girl"], [[*ids[:16], EOS_ID]], **named)
    (received,) = exported.score(["a girl"], [long], **named)
    assert received.log_probability == pytest.approx(expected[0].log_probability, abs=1e-3)
