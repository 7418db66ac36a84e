import json
import sys

import numpy as np
import pytest
from small_corpus import PAIRS, recipe_values, write_corpus

from keras_transformer import Tokenizer, Transformer, TransformerConfig
from keras_transformer.benchmark import decode
from keras_transformer.benchmark.decode import benchmark_corpus, benchmark_decode
from keras_transformer.benchmark.engines import ENGINES, choose_engines
from keras_transformer.benchmark.measure import multiply_adds
from keras_transformer.config import BOS_ID, PAD_ID, UNK_ID
from keras_transformer.errors import InputError
from keras_transformer.training import Recipe, RunFolder
from keras_transformer.training.run_folder import save_model

pytestmark = pytest.mark.tensorflow


class Fake:
    """An engine that gives `steps + more` ids and takes no time."""

    package = None
    distribution = "keras"
    note = "made up"
    more = 0

    def __init__(self, model, threads):
        self.threads = threads

    def translate(self, source_ids, beam_size, steps):
        assert self.threads == 2
        assert [len(ids) for ids in source_ids] == [5] * len(source_ids)
        return [[4] * (steps + self.more) for _ in source_ids]


@pytest.fixture
def fakes(monkeypatch):
    monkeypatch.setitem(ENGINES, "ours", Fake)
    monkeypatch.setitem(ENGINES, "keras_hub", type("Other", (Fake,), {}))
    return ENGINES


def measured(model, engines, **options):
    """A report on sources of five tokens; one of one step, unless `options` say otherwise."""
    least = dict(length=5, steps=1, batch_sizes=[1], beam_sizes=[1], rounds=1)
    return benchmark_decode(model=model, engines=engines, **{**least, **options})


def test_rates_ratios_and_shares_follow_from_the_seconds(fakes, model, monkeypatch):
    def turns(calls, rounds):
        assert rounds == 3
        return {"ours": [0.5, 0.25, 0.2], "keras_hub": [1.0, 1.0, 1.0], "matrix product": [0.1] * 3}

    monkeypatch.setattr(decode, "in_turns", turns)
    monkeypatch.setattr(decode, "matrix_product", lambda: (lambda: None, 4_000_000))
    options = dict(steps=7, batch_sizes=[3], beam_sizes=[4], rounds=3)
    report = measured(model, ["ours", "keras_hub"], **options)
    (row,) = report["rows"]
    assert row["engines"]["ours"]["tokens_per_second"] == 3 * 7 / 0.25
    assert row["engines"]["keras_hub"]["tokens_per_second"] == 3 * 7
    assert row["engines"]["keras_hub"]["ratio"] == 4  # of 2, 4 and 5
    operations = 2 * multiply_adds(model.config, 3, 4, 5, 7)
    assert row["gigaflops"] == round(operations / 1e9, 3)
    # The machine makes 4e6 operations in 0.1 s; ours made these in 0.25 s.
    assert row["ours_share_of_matrix_product"] == round(operations / 0.25 / 4e7, 3)


def test_a_row_for_each_batch_and_beam(fakes, model):
    logged = []
    report = measured(model, ["ours"], batch_sizes=(1, 2), beam_sizes=(1, 3), log=logged.append)
    shapes = [(row["batch"], row["beam_size"]) for row in report["rows"]]
    assert shapes == [(1, 1), (1, 3), (2, 1), (2, 3)]
    assert logged[0] == "making ours" and len(logged) == 5


def test_an_engine_that_takes_other_steps_is_not_measured(fakes, model, monkeypatch):
    monkeypatch.setattr(fakes["keras_hub"], "more", 1)
    with pytest.raises(RuntimeError, match=r"keras_hub took \[3\] steps where 2 were asked for"):
        measured(model, ["keras_hub"], steps=2)


def test_an_engine_that_is_missing_is_reported_and_no_error(fakes, model, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    report = measured(model, ["ours", "ctranslate2"])
    assert report["not_installed"] == {"ctranslate2": "peers"}
    assert list(report["rows"][0]["engines"]) == ["ours"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"engines": ["marian"]}, "engine='marian'"),
        ({"preset": "base"}, "preset='base'"),
        ({"steps": 0}, "steps=0"),
        ({"length": 1025}, "`length` must be at most 1024"),
        ({"batch_sizes": (1, -1)}, "batch_sizes=(1, -1)"),
        ({"vocabulary_size": 4, "preset": "transformer_tiny"}, "vocabulary_size=4"),
    ],
)
def test_a_wrong_option_is_a_users_mistake(options, expected):
    with pytest.raises(InputError) as caught:
        benchmark_decode(**{"preset": "transformer_tiny", "vocabulary_size": 7, **options})
    assert expected in str(caught.value)


def test_learned_positions_bound_the_lengths():
    sizes = dict(model_dim=4, num_heads=2, intermediate_dim=3)
    config = TransformerConfig(
        13, **sizes, num_encoder_layers=1, num_decoder_layers=1, positions="learned", max_length=11
    )
    with pytest.raises(InputError, match="`steps` must be at most 11"):
        benchmark_decode(model=Transformer(config), length=5, steps=12)


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
    folder.create(Recipe.from_dict(values), (tokenizer, tokenizer), digests={})
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
    monkeypatch.setattr(decode.time, "perf_counter", lambda: now[0])
    calls = []

    def translate(batch_size):
        calls.append(batch_size)
        now[0] += {32: 5.0, 64: 3.0, 128: 4.0}[batch_size]
        return [f"by {batch_size}"]

    call, batch_size, texts = decode._fastest(translate, (32, 64, 128))
    assert (batch_size, texts, call()) == (64, ["by 64"], ["by 64"])
    assert calls == [32, 32, 64, 64, 128, 128, 64]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"run_folder": "nowhere"}, "nowhere: no such run folder"),
        ({"source_file": "no.en"}, "no.en: no such file"),
        ({"engines": ["keras_hub"]}, "engine='keras_hub'"),
        ({"beam_size": 0}, "beam_size=0"),
        ({"length_penalty": -1.0}, "length_penalty=-1.0"),
    ],
)
def test_a_wrong_option_of_a_corpus_is_a_users_mistake(run, source, options, expected):
    with pytest.raises(InputError) as caught:
        benchmark_corpus(**{"run_folder": run.path, "source_file": source, **options})
    assert expected in str(caught.value)


def test_a_file_of_blank_lines_is_a_users_mistake(run, tmp_path):
    (tmp_path / "blank.en").write_text("\n  \n")
    with pytest.raises(InputError, match="blank lines alone"):
        benchmark_corpus(run.path, tmp_path / "blank.en")
