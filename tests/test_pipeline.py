import math

import numpy as np
import pytest
from small_corpus import PAIRS, recipe_values, write_corpus

from keras_transformer import Tokenizer, Transformer, TransformerConfig, Translator, pipeline
from keras_transformer.config import BOS_ID, LanguageModelConfig
from keras_transformer.data import read_lines
from keras_transformer.decoding import ModelEngine
from keras_transformer.engine import Engine
from keras_transformer.models import LanguageModel
from keras_transformer.training import Recipe, RunFolder
from keras_transformer.training.run_folder import save_model


def test_an_export_is_verified_on_the_runs_validation_text(tmp_path):
    corpus = write_corpus(tmp_path / "corpus")
    recipe = Recipe.from_dict(recipe_values(corpus))
    assert pipeline._verification_texts(recipe, None) == [source for source, _ in PAIRS]
    (tmp_path / "other.en").write_text("A dog.\n", encoding="utf-8")
    assert pipeline._verification_texts(recipe, tmp_path / "other.en") == ["A dog."]


def test_without_that_text_the_export_makes_its_own(tmp_path):
    recipe = Recipe.from_dict(recipe_values(tmp_path / "moved"))
    assert pipeline._verification_texts(recipe, None) is None


def test_heads_are_measured_on_the_pairs_that_were_held_out(tmp_path, monkeypatch):
    values = recipe_values(write_corpus(tmp_path / "corpus"))
    del values["data"]["validation"]
    values["data"]["hold_out_every"] = 3
    folder, tokenizer = RunFolder(tmp_path / "run"), Tokenizer.train_from_texts(PAIRS[0], 29)
    folder.create(Recipe.from_dict(values), (tokenizer, tokenizer), {})
    sizes = dict(model_dim=16, num_heads=2, num_encoder_layers=1, num_decoder_layers=1)
    config = TransformerConfig(tokenizer.vocabulary_size, intermediate_dim=16, **sizes)
    save_model(Transformer(config), folder.model_file)
    measured = []
    write_report = "keras_transformer.analysis.report.write_report"
    monkeypatch.setattr(write_report, lambda *_, pairs, **rest: measured.append(pairs) or {})
    pipeline.inspect_run(folder.path, "A dog.", tmp_path / "report")
    assert list(zip(*measured[0], strict=True)) == PAIRS[2::3]


def test_translations_are_saved_and_scored(tmp_path, monkeypatch):
    corpus = write_corpus(tmp_path / "corpus")

    class Echo(Engine):
        def translate(self, texts, **options):
            assert options == {"beam_size": 3}
            known = dict(PAIRS)
            return [type("T", (), {"text": known[text]}) for text in texts]

    monkeypatch.setattr(pipeline.Translator, "load", lambda path: Translator(Echo()))
    saved = tmp_path / "out.de"
    scores = pipeline.evaluate_model(
        "any", corpus / "train.en", corpus / "train.de", save=saved, beam_size=3
    )
    assert scores["bleu"] == 100.0
    assert read_lines(saved) == [target for _, target in PAIRS]


def test_a_place_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    corpus = write_corpus(tmp_path / "corpus")
    engine = type("E", (), {"translate": lambda self, texts: [type("T", (), {"text": "x"})] * 32})
    monkeypatch.setattr(pipeline.Translator, "load", lambda path: engine())
    with pytest.raises(ValueError, match="cannot be written"):
        pipeline.evaluate_model(
            "any", corpus / "train.en", corpus / "train.de", save=tmp_path / "no" / "out.de"
        )


WINDOW, OVERLAP = 7, 3


def log_probability(model, ids):
    """Of a text's tokens one by one, each after what its window has before it."""
    total = 0.0
    for place, token in enumerate(ids):
        # The first of the windows 0 … 7, 4 … 11, 8 … 15, … that it is in.
        start = max(0, math.ceil((place + 1 - WINDOW) / (WINDOW - OVERLAP))) * (WINDOW - OVERLAP)
        assert place - start >= min(place, OVERLAP)
        read = np.array([[BOS_ID, *ids[start:place]]])
        logits = np.asarray(model((read, read)), "float64")[0, -1]
        total += logits[token] - np.log(np.exp(logits).sum())
    return total


@pytest.mark.tensorflow
def test_long_lines_are_scored_in_windows_that_overlap(tmp_path, monkeypatch, randomize):
    tokenizer = Tokenizer.train_from_texts([source for source, _ in PAIRS], 120)
    sizes = dict(vocabulary_size=120, model_dim=14, num_heads=2, intermediate_dim=11)
    model = randomize(LanguageModel(LanguageModelConfig(**sizes, num_decoder_layers=1)))
    engine = ModelEngine(model, tokenizer, max_source_length=5, max_target_length=WINDOW)
    monkeypatch.setattr(pipeline.Translator, "load", lambda path: Translator(engine))
    lines = ["A.", "", "Two dogs play in the snow and #% the water."]
    for long, count in ((1, 6), (2, 7)):
        lines[1] = " ".join("a" * count)  # and EOS: a window, and one token more
        file = tmp_path / "text.en"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        ids = tokenizer.tokenize(lines, add_eos=True)
        assert len(ids[1]) == count + 1 and len(ids[2]) > 2 * WINDOW
        said = f"{long} of 3 texts are longer than 7 tokens and were scored in windows"
        with pytest.warns(UserWarning, match=said):
            found = pipeline.evaluate_model("any", reference=file)
        nats = -sum(log_probability(model, each) for each in ids)
        tokens, words = sum(map(len, ids)), sum(len(line.split()) for line in lines)
        assert found == {
            "sentences": 3,
            "perplexity_per_word": pytest.approx(math.exp(nats / (words + 3)), rel=1e-3),
            "words": words + 3,
            "perplexity_per_token": pytest.approx(math.exp(nats / tokens), rel=1e-3),
            "tokens": tokens,
            "sentences_in_windows": long,
            "unknown_word_share": round(1 / words, 4),
        }
