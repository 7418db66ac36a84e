"""The program `training/pruning.py`."""

import contextlib
import json
import sys
import types

import numpy as np
import pytest
from fakes import FakeEngine
from small_corpus import PAIRS, recipe_values, write_corpus

from keras_transformer import Transformer, Translation
from keras_transformer.analysis import heads_off
from keras_transformer.analysis.attention import Attention
from keras_transformer.errors import InputError
from keras_transformer.training import Recipe, RunFolder
from keras_transformer.training.checkpoints import save_without_optimizer
from keras_transformer.training.corpus import Corpus

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def program(load_program):
    return load_program("training/pruning.py")


@pytest.fixture
def folder(tmp_path, randomize):
    """A run of random weights with six heads, two in each of three layers."""
    recipe = Recipe.from_dict(recipe_values(write_corpus(tmp_path / "corpus")))
    folder, tokenizers = RunFolder(tmp_path / "run"), Corpus(recipe).tokenizers()
    folder.create(recipe, tokenizers, {})
    model = Transformer(recipe.model_config(tokenizers[0].vocabulary_size))
    save_without_optimizer(randomize(model), folder.model_file)
    return folder


def test_the_least_important_heads_go_first_and_each_layer_keeps_one(program, folder):
    model = folder.model()
    datasets, _ = Corpus(folder.recipe()).datasets(folder.tokenizers())
    with heads_off(model, ["decoder.0.1"]):  # It gives nothing: its importance is 0.
        order = program.removal_order(model, datasets["validation"], at_once=1)
    assert order[0] == "decoder.0.1"
    layers = sorted(name.rpartition(".")[0] for name in order)
    assert layers == ["cross.0", "decoder.0", "encoder.0"]


def test_heads_that_a_pruned_layer_lacks_and_heads_without_effect_are_ordered(program, monkeypatch):
    """By hand: 3, 4 and 12 of 13, 0 and 0 of a layer without effect, and 0.6 and 0.8."""
    nan = float("nan")
    encoder = np.array([[[4.0, 3.0, 12.0], [0.0, 0.0, nan], [0.8, 0.6, nan]]])
    nothing = np.zeros((1, 0, 3))
    monkeypatch.setattr(program, "head_importance", lambda *_: Attention(encoder, nothing, nothing))
    monkeypatch.setattr(program, "heads_off", lambda *_: contextlib.nullcontext())
    counts = {"encoder": (3, 2, 2)}
    config = types.SimpleNamespace(heads_of=lambda kind: counts.get(kind, ()))
    dataset = types.SimpleNamespace(batches=lambda epoch: [((None, None), None)])
    order = program.removal_order(types.SimpleNamespace(config=config), dataset, at_once=1)
    assert order == ["encoder.1.0", "encoder.0.1", "encoder.0.0", "encoder.2.1"]


def test_bleu_is_measured_after_each_removal(program, folder):
    model, references = folder.model(), [target for _, target in PAIRS]
    gate = model.decoder.blocks[0].self_attention.projections[-1].kernel

    def translate(sources, beam_size):
        """Right as long as `decoder.0.1` is there."""
        assert (sources, beam_size) == (["x"] * len(PAIRS), 1)
        texts = references if np.any(gate[1]) else reversed(references)
        return [Translation(text, -1.0) for text in texts]

    engine = FakeEngine(model=model, translate=translate)
    order = ["encoder.0.1", "cross.0.0", "decoder.0.1"]
    search = {"beam_size": 1}
    rows = program.curve(engine, order, 2, ["x"] * len(PAIRS), references, search)
    rounds = [(row["heads"], row["without"]) for row in rows]
    assert rounds == [(6, []), (4, order[:2]), (3, order[2:])]
    assert [row["bleu"] == 100 for row in rows] == [True, True, False]


def test_the_rate_begins_and_ends_with_zero_and_rises_to_the_last_of_the_training(program, folder):
    recipe = folder.recipe()
    rate = program.falling_rate(folder.model(), recipe, steps_per_epoch=20, epochs=2)
    training = recipe.training
    width, steps = folder.model().config.model_dim, 20 * training.epochs + 1
    growth = min(steps**-0.5, steps * training.warmup_steps**-1.5)
    last = width**-0.5 * growth
    values = [float(rate(step)) for step in (0, 2, 4, 22, 40)]
    np.testing.assert_allclose(values, [0, last / 2, last, last / 2, 0], atol=1e-9)


def test_the_smaller_run_is_a_run_of_its_own(program, folder, tmp_path, monkeypatch, capsys):
    (tmp_path / "order.json").write_text(
        json.dumps([{"without": []}, {"without": ["cross.0.1", "encoder.0.0", "decoder.0.0"]}])
    )
    corpus = tmp_path / "corpus"
    command = ["pruning.py", "--model", str(folder.path), "--source", str(corpus / "train.en")]
    command += ["--reference", str(corpus / "train.de"), "--order", str(tmp_path / "order.json")]
    command += ["--output", str(tmp_path / "small"), "--keep", "4", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", command)
    monkeypatch.setattr(program, "compare", lambda paths, *_: {"compared": paths})
    program.main()
    result = json.loads(capsys.readouterr().out)
    assert result["heads"] == {"encoder_heads": [1], "decoder_heads": [2], "cross_heads": [1]}
    small = RunFolder.existing(tmp_path / "small")
    assert small.recipe().model_config(9).cross_heads == (1,)
    assert result["compared"] == [str(folder.path), str(small.path)]
    whole, pruned = folder.model(), small.model()
    assert result["parameters"] == [whole.count_params(), pruned.count_params()]
    ids = np.array([[3, 5, 2]])
    with heads_off(whole, ["cross.0.1", "encoder.0.0"]):
        np.testing.assert_allclose(pruned((ids, ids)), whole((ids, ids)), atol=1e-5)
    with pytest.raises(InputError, match="exists already"):  # It is no place for another run.
        program.main()
