import json

import numpy as np
import pytest
from small_corpus import PAIRS, recipe_values, write_corpus

from keras_transformer import Tokenizer, Transformer, TransformerConfig
from keras_transformer.benchmark import corpus
from keras_transformer.benchmark.corpus import benchmark_corpus
from keras_transformer.benchmark.engines import choose_engines
from keras_transformer.config import BOS_ID, PAD_ID, UNK_ID
from keras_transformer.errors import InputError
from keras_transformer.training import Recipe, RunFolder
from keras_transformer.training.run_folder import save_model

pytestmark = pytest.mark.tensorflow


def never_special(model):
    """Gives the ids that other engines may choose and ours does not the lowest logits.

    The last normalization ends with + 1, so that its outputs sum to the width: a column of -1
    makes a logit of minus the width.
    """
    model.decoder.final_norm.beta.assign(np.ones(model.config.model_dim))
    kernel = model.output_projection.kernel.numpy().copy()
    kernel[:, [PAD_ID, BOS_ID, UNK_ID]] = -1.0
    model.output_projection.kernel.assign(kernel)


@pytest.fixture
def run(tmp_path):
    """A run folder with random weights, whose translations have at most 6 tokens."""
    texts = [text for pair in PAIRS for text in pair]
    values = recipe_values(write_corpus(tmp_path / "corpus"))
    values["decoding"] = {"beam_size": 2, "length_penalty": 0.0, "max_target_length": 6}
    folder = RunFolder(tmp_path / "run")
    tokenizer = Tokenizer.train_from_texts(texts, 120)
    folder.create(Recipe.from_dict(values), (tokenizer, tokenizer), {})
    config = TransformerConfig(
        120,
        model_dim=16,
        num_heads=2,
        intermediate_dim=24,
        num_encoder_layers=1,
        num_decoder_layers=1,
        normalize_first=True,
        tie_embeddings="none",
    )
    model = Transformer(config)
    never_special(model)
    save_model(model, folder.model_file)
    return folder


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "some.en"
    path.write_text("".join(text + "\n" for text, _ in PAIRS[:9]) + "\n \n", encoding="utf-8")
    return path


def test_a_trained_run_is_measured_side_by_side(run, source):
    report = benchmark_corpus(run.path, source, beam_size=1, batch_sizes=[16], rounds=2)
    chosen, not_installed = choose_engines(corpus=True)
    assert report["not_installed"] == not_installed
    assert list(report["engines"]) == list(chosen)
    assert report["sentences"] == 9
    assert report["length_penalty"] == 0.0
    for engine in report["engines"].values():
        assert engine["batch_size"] == 16
        assert len(engine["seconds"]) == 2
    if "ctranslate2" in chosen:
        assert report["engines"]["ctranslate2"]["same_as_ours"] == 1
    assert json.loads(json.dumps(report)) == report


def test_the_fastest_batch_size_is_taken(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(corpus.time, "perf_counter", lambda: now[0])
    calls = []

    def translate(batch_size):
        calls.append(batch_size)
        now[0] += {32: 5.0, 64: 3.0, 128: 4.0}[batch_size]
        return [f"by {batch_size}"]

    call, batch_size, texts = corpus._fastest(translate, (32, 64, 128))
    assert (batch_size, texts, call()) == (64, ["by 64"], ["by 64"])
    assert calls == [32, 32, 64, 64, 128, 128, 64]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"run_folder": "nowhere"}, "nowhere: no such run folder"),
        ({"source_file": "no.en"}, "no.en: no such file"),
        ({"engines": ["keras_hub"]}, "engine='keras_hub'"),
        ({"beam_size": 0}, "beam_size=0"),
    ],
)
def test_a_wrong_option_is_a_users_mistake(run, source, options, expected):
    with pytest.raises(InputError) as caught:
        benchmark_corpus(**{"run_folder": run.path, "source_file": source, **options})
    assert expected in str(caught.value)


def test_a_file_of_blank_lines_is_a_users_mistake(run, tmp_path):
    (tmp_path / "blank.en").write_text("\n  \n")
    with pytest.raises(InputError, match="blank lines alone"):
        benchmark_corpus(run.path, tmp_path / "blank.en")
