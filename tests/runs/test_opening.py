"""How often the files of a run are parsed when it is opened."""

import collections

import numpy as np
import pytest
import yaml

from keras_transformer import Tokenizer, Transformer, TransformerConfig, Translator
from keras_transformer.base.errors import InputError
from keras_transformer.engine import opening
from keras_transformer.runs import run_folder
from keras_transformer.runs.model_file import save_model
from keras_transformer.runs.run_folder import RunFolder
from keras_transformer.text import tokenizer as tokenizers
from keras_transformer.text.shortlist import Shortlist

TEXTS = ["a man runs.", "two dogs sit in the park.", "a girl eats an apple."] * 9


@pytest.fixture
def parsed_files(monkeypatch):
    """Counts how often a recipe and a SentencePiece model are parsed."""
    counts = collections.Counter()

    def count(module, name):
        function = getattr(module, name)

        def counted(*arguments):
            counts[name] += 1
            return function(*arguments)

        monkeypatch.setattr(module, name, counted)

    count(yaml, "load")
    count(tokenizers, "parsed")
    return counts


@pytest.mark.parametrize("sides", [1, 2])
def test_opening_a_run_parses_its_recipe_and_each_tokenizer_once(tmp_path, parsed_files, sides):
    size, names = 26, ["tokenizer"] if sides == 1 else ["source_tokenizer", "target_tokenizer"]
    for name in names:
        Tokenizer.train_from_texts(TEXTS, vocabulary_size=size).save(tmp_path / f"{name}.model")
    fields = {"model_dim": 8, "num_heads": 2, "intermediate_dim": 8}
    fields |= {"num_encoder_layers": 1, "num_decoder_layers": 1}
    save_model(Transformer(TransformerConfig(size, **fields)), tmp_path / "model.keras")
    RunFolder(tmp_path).write_sections({"decoding": {"beam_size": 3}})
    candidates = [*np.random.default_rng(7).integers(4, size, (size, 3))]
    Shortlist([], candidates).save(tmp_path / "shortlist.npy")
    parsed_files.clear()
    translator = Translator.load(tmp_path)
    assert translator.engine.shortlist is not None and translator.defaults["beam_size"] == 3
    assert parsed_files == {"load": 1, "parsed": sides}


def test_a_run_is_prepared_for_before_keras_is_imported(tmp_path, monkeypatch):
    """The memory that its weights need is known, and set up for, before TensorFlow has begun."""
    (tmp_path / "recipe.yaml").write_text("decoding: {}")
    (tmp_path / "model.keras").write_bytes(bytes(77))
    events = []
    monkeypatch.setattr(run_folder, "check_memory", lambda *a: events.append(a[:2]))
    monkeypatch.setattr(opening, "import_keras", lambda: events.append("keras"))
    monkeypatch.setattr(opening, "give_tensorflow", lambda threads: events.append(threads))
    with pytest.raises(InputError):
        Translator.load(tmp_path, threads=2)
    assert events[:3] == [(77, f"{tmp_path}: translation"), "keras", 2]
