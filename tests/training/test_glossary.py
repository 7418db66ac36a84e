"""A model that reads its terms' translations writes those that it has never seen for them."""

import random

import numpy as np
import pytest
from small_corpus import recipe_values

from keras_transformer import Translator
from keras_transformer.text.glossary import Glossary, annotate
from keras_transformer.training import Recipe, train

pytestmark = pytest.mark.tensorflow

NOUNS, THINGS = "abcdefghijkl", "ABCDEFGHIJKL"
VERBS = {"x": "X", "y": "Y", "z": "Z"}


def train_on_terms(folder):
    """Trains on a language whose nouns mean any thing but three; returns the run's path."""
    rng, rows = random.Random(0), []
    seen = [(i, j) for i in range(12) for j in range(12) if (i + j) % 4]
    for i, j in seen * 6:
        verb = rng.choice(sorted(VERBS))
        rows.append((f"q {NOUNS[i]} {verb}", f"Q {THINGS[j]} {VERBS[verb]}"))
    rng.shuffle(rows)
    # The longest pair has room for the annotations of the others.
    rows.append(tuple(" ".join(side) for side in zip(*rows[:3], strict=True)))
    terms = [(NOUNS[i], THINGS[j]) for i, j in seen]
    # The best model is the one that reads annotations best, of pairs that it was trained on.
    glossary = Glossary(terms)
    shown = [(annotate(one, glossary.matches(one, other)), other) for one, other in rows[:99]]
    for name, lines in (("train.tsv", rows), ("terms.tsv", terms), ("shown.tsv", shown)):
        text = "".join("\t".join(row) + "\n" for row in lines)
        (folder / name).write_text(text, encoding="utf-8")
    values = recipe_values(folder, epochs=12, batch_tokens=512, max_shapes=1, jit_compile=False)
    values["training"] |= {"warmup_steps": 60, "label_smoothing": 0.0, "sample_translations": 0}
    values["data"] |= {"train": {"source": "train.tsv"}, "validation": {"source": "shown.tsv"}}
    values["data"] |= {"glossary": "terms.tsv", "glossary_share": 0.8, "drop_duplicates": False}
    values["text"]["vocabulary_size"] = 40
    return train(Recipe.from_dict(values), folder / "run").path


def test_a_model_writes_translations_of_terms_that_training_has_not_shown(tmp_path):
    translator = Translator.load(train_on_terms(tmp_path))
    unseen = [(i, j) for i in range(12) for j in range(12) if (i + j) % 4 == 0]
    sources = [f"q {NOUNS[i]} x" for i, _ in unseen]
    wanted = [f"Q {THINGS[j]} X" for _, j in unseen]
    glossaries = [Glossary([(NOUNS[i], THINGS[j])]) for i, j in unseen]
    shown = [annotate(x, terms.matches(x)) for x, terms in zip(sources, glossaries, strict=True)]

    def share(texts):
        found = [each.text for each in translator.translate(texts)]
        return np.mean([one == other for one, other in zip(found, wanted, strict=True)])

    assert share(shown) >= 0.4 > 0.2 >= share(sources)
    (found,) = translator.translate(sources[:1], glossary={NOUNS[0]: THINGS[0]})
    (again,) = translator.translate(shown[:1])
    assert found.text == again.text
