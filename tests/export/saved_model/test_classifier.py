"""The SavedModel of a classifier labels texts as the classifier does."""

import numpy as np
import pytest

from keras_transformer import Translator
from keras_transformer.base.errors import InputError
from keras_transformer.engine.classifier_engine import ClassifierEngine
from keras_transformer.export import export_saved_model
from keras_transformer.models import model_of
from keras_transformer.models.config import ClassifierConfig
from keras_transformer.text.labels import Labels

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("without_xla", "unverified")]

LABELS = ["no", "perhaps", "yes"]
TEXTS = ["a man runs.", "two dogs", "", "the old", " ", "yes, 1 2", "a b " * 20]


@pytest.fixture
def engine(tokenizer):
    sizes = dict(model_dim=14, num_heads=2, intermediate_dim=11, num_encoder_layers=1)
    config = ClassifierConfig(
        tokenizer.vocabulary_size, target_vocabulary_size=len(LABELS), **sizes
    )
    model, chance = model_of(config), np.random.default_rng(2)
    model.set_weights([chance.normal(size=weight.shape) for weight in model.weights])
    return ClassifierEngine(model, tokenizer, Labels(LABELS), max_source_length=13)


def test_it_gives_each_text_the_labels_and_probabilities_of_the_classifier(engine, tmp_path):
    export_saved_model(engine, tmp_path / "export")
    exported = Translator.load(tmp_path / "export")
    options = dict(n_best=3, long_input="truncate")
    with pytest.warns(UserWarning, match="1 of 7 texts are longer than 13 tokens"):
        expected = Translator(engine).translate(TEXTS, **options)
    assert exported.labels == LABELS and len({label.text for label in expected}) > 2
    for batch_size in (2, 32):
        labels = exported.translate(TEXTS, batch_size=batch_size, **options)
        for label, other in zip(labels, expected, strict=True):
            ranked, others = (label, *label.alternatives), (other, *other.alternatives)
            assert [one.text for one in ranked] == [one.text for one in others]
            scores = [one.score for one in others]
            assert [one.score for one in ranked] == pytest.approx(scores, abs=1e-5)
    with pytest.raises(InputError, match="`long_input` must be one of truncate"):
        exported.translate(TEXTS, long_input="refuse")
