"""The engine of a classifier gives each text what the model gives it alone, whatever its batch."""

import keras
import numpy as np
import pytest
from decoding_oracles import VOCABULARY, NumberTokenizer

from keras_transformer import Translator
from keras_transformer.base.errors import InputError
from keras_transformer.engine import engine_of
from keras_transformer.engine.device import accelerator
from keras_transformer.models import model_of
from keras_transformer.models.config import ClassifierConfig
from keras_transformer.text.labels import Labels

LABELS = ["no", "perhaps", "yes"]
TEXTS = ["5 7 11", "13", " ", "4 4 8 15 16 9 12 6 5 14", "9 12", "", "6 5 14 10", "7"]
LONG = " ".join(["5", "9"] * 30)


def make_engine(positions=None, **options):
    keras.utils.set_random_seed(3)
    sizes = dict(model_dim=14, num_heads=2, intermediate_dim=11, num_encoder_layers=1)
    sizes |= positions or {}
    config = ClassifierConfig(VOCABULARY, target_vocabulary_size=len(LABELS), **sizes)
    model, labels = model_of(config), Labels(LABELS)
    model.build()
    # So that no two texts have equal probabilities.
    weights = np.random.default_rng(0)
    model.set_weights([weights.normal(size=w.shape, scale=1.5) for w in model.get_weights()])
    return engine_of(model, NumberTokenizer(), labels, 40, **options)


@pytest.fixture(scope="module")
def engine():
    return make_engine()


@pytest.fixture(scope="module")
def rows(engine):
    """Probabilities of each text alone by the model, 0 of a blank one."""
    rows = np.zeros((len(TEXTS), len(LABELS)))
    for row, text in zip(rows, TEXTS, strict=True):
        if text.strip():
            ids = np.array(engine.source_tokenizer.tokenize([text], add_eos=True))
            logits = keras.ops.convert_to_numpy(engine.model(ids))[0, 0].astype("float64")
            row[:] = np.exp(logits) / np.exp(logits).sum()
    assert len(set(rows.argmax(axis=1)[rows.any(axis=1)])) > 1
    return rows


@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_probabilities_are_those_of_each_text_alone(engine, rows, batch_size):
    probabilities = engine.probabilities(TEXTS, batch_size)
    assert probabilities.dtype == np.float32
    np.testing.assert_allclose(probabilities, rows, atol=1e-5)


def test_where_programs_are_few_the_probabilities_are_the_same(rows):
    engine = make_engine(plan=accelerator())
    assert engine.plan.has_few_programs
    np.testing.assert_allclose(engine.probabilities(TEXTS, 3), rows, atol=1e-5)


def test_labels_come_from_the_most_probable_to_the_least(engine, rows):
    translations = Translator(engine).translate(TEXTS, n_best=3)
    for translation, row in zip(translations, rows, strict=True):
        if not row.any():
            assert (translation.text, translation.score) == ("", 0.0)
            continue
        order = np.argsort(-row)
        ranked = [translation, *translation.alternatives]
        assert [one.text for one in ranked] == [LABELS[index] for index in order]
        assert [one.ids for one in ranked] == [(index,) for index in order]
        assert [one.score for one in ranked] == pytest.approx(row[order].tolist(), abs=1e-5)
        logarithms = [one.log_probability for one in ranked]
        assert logarithms == pytest.approx(np.log(row[order]).tolist(), abs=1e-4)


@pytest.mark.parametrize("positions", [39, 40, 41])
def test_a_text_has_at_most_as_many_tokens_as_asked_for_and_as_positions(positions):
    engine = make_engine({"positions": "learned", "max_length": positions})
    assert engine.max_source_length == min(positions, 40)


def test_a_text_that_is_too_long_is_refused_by_its_number_or_cut(engine):
    texts = ["5", LONG]
    with pytest.raises(InputError, match=r"Text 2: .* can be cut \(`long_input=truncate`\)"):
        engine.probabilities(texts)
    cut = " ".join(LONG.split()[:39])  # and EOS
    with pytest.warns(UserWarning, match="1 of 2 texts are longer than 40 tokens and were cut"):
        received = engine.probabilities(texts, long_input="truncate")
    np.testing.assert_allclose(received, engine.probabilities(["5", cut]), atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_size": 4}, "`beam_size` is fixed at 1 in a classifier"),
        ({"n_best": 4}, "`n_best` must be at most 3, the number of labels. Received: n_best=4."),
        ({"n_best": 0}, "`n_best` must be"),
        ({"batch_size": 0}, "`batch_size` must be"),
        ({"long_input": "split"}, "`long_input` must be one of refuse"),
    ],
)
def test_an_option_without_a_meaning_is_one_line(engine, options, message):
    with pytest.raises(ValueError) as caught:
        Translator(engine).translate(TEXTS, **options)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_no_texts_give_no_labels(engine):
    assert engine.probabilities([]).shape == (0, 3)
    assert Translator(engine).translate([]) == []
