"""The program that prunes heads."""

import contextlib
import itertools
import json
import types

import numpy as np
import pytest
from fakes import FakeEngine
from small_corpus import PAIRS, recipe_values, write_corpus

from benchmarks import pruning as program
from keras_transformer import Transformer, Translation
from keras_transformer.analysis import heads_off
from keras_transformer.analysis.attention import Attention
from keras_transformer.errors import InputError
from keras_transformer.training import Recipe, RunFolder
from keras_transformer.training.checkpoints import save_without_optimizer
from keras_transformer.training.corpus import Corpus

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def folder(tmp_path, randomize):
    """A run of random weights with six heads, two in each of three layers."""
    recipe = Recipe.from_dict(recipe_values(write_corpus(tmp_path / "corpus")))
    folder, tokenizers = RunFolder(tmp_path / "run"), Corpus(recipe).tokenizers()
    folder.create(recipe, tokenizers, {})
    model = Transformer(recipe.model_config(tokenizers[0].vocabulary_size))
    save_without_optimizer(randomize(model), folder.model_file)
    return folder


def test_the_least_important_heads_go_first_and_each_layer_keeps_one(folder):
    model = folder.model()
    datasets, _ = Corpus(folder.recipe()).datasets(folder.tokenizers())
    with heads_off(model, ["decoder.0.1"]):  # It gives nothing: its importance is 0.
        order = program.removal_order(model, datasets["validation"], at_once=1)
    assert order[0] == "decoder.0.1"
    layers = sorted(name.rpartition(".")[0] for name in order)
    assert layers == ["cross.0", "decoder.0", "encoder.0"]


def test_heads_that_a_pruned_layer_lacks_and_heads_without_effect_are_ordered(monkeypatch):
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


def test_bleu_is_measured_after_each_removal(folder):
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
    rows = program.bleu_of_removals(engine, order, 2, ["x"] * len(PAIRS), references, search)
    rounds = [(row["heads"], row["without"]) for row in rows]
    assert rounds == [(6, []), (4, order[:2]), (3, order[2:])]
    assert [row["bleu"] == 100 for row in rows] == [True, True, False]


def test_the_rate_begins_and_ends_with_zero_and_rises_to_the_last_of_the_training(folder):
    recipe = folder.recipe()
    rate = program.falling_rate(folder.model(), recipe, steps_per_epoch=20, epochs=2)
    training = recipe.training
    width, steps = folder.model().config.model_dim, 20 * training.epochs + 1
    growth = min(steps**-0.5, steps * training.warmup_steps**-1.5)
    last = width**-0.5 * growth
    values = [float(rate(step)) for step in (0, 2, 4, 22, 40)]
    np.testing.assert_allclose(values, [0, last / 2, last, last / 2, 0], atol=1e-9)


def test_the_smaller_run_is_a_run_of_its_own(folder, tmp_path, capsys):
    (tmp_path / "order.json").write_text(
        json.dumps([{"without": []}, {"without": ["cross.0.1", "encoder.0.0", "decoder.0.0"]}])
    )
    command = ["prune", "--model", str(folder.path), "--order", str(tmp_path / "order.json")]
    command += ["--output", str(tmp_path / "small"), "--keep", "4"]
    program.main(command)
    result = json.loads(capsys.readouterr().out)
    assert result["heads"] == {"encoder_heads": [1], "decoder_heads": [2], "cross_heads": [1]}
    small = RunFolder.existing(tmp_path / "small")
    assert small.recipe().model_config(9).cross_heads == (1,)
    whole, pruned = folder.model(), small.model()
    assert result["parameters"] == [whole.count_params(), pruned.count_params()]
    ids = np.array([[3, 5, 2]])
    with heads_off(whole, ["cross.0.1", "encoder.0.0"]):
        np.testing.assert_allclose(pruned((ids, ids)), whole((ids, ids)), atol=1e-5)
    options = {"order": str(tmp_path / "order.json")}
    with pytest.raises(InputError, match="exists already"):  # It is no place for another run.
        program.prune(str(folder.path), str(small.path), keep=4, **options)
    with pytest.raises(InputError, match="--keep must be from 3 to 6 heads. Received: 2."):
        program.prune(str(folder.path), str(tmp_path / "other"), keep=2, **options)


def test_translations_of_two_runs_are_interleaved(folder, tmp_path, monkeypatch):
    calls = []

    def load(path):
        def translate(sources, batch_size=None, **options):
            calls.append((path, batch_size, len(sources)))
            return [Translation(target, -1.0, ids=(5, 2)) for _, target in PAIRS]

        return types.SimpleNamespace(translate=translate)

    monkeypatch.setattr(program, "Translator", types.SimpleNamespace(load=load))
    ticks = types.SimpleNamespace(perf_counter=itertools.count().__next__)
    monkeypatch.setattr(program, "time", ticks)
    files = [tmp_path / "source", tmp_path / "target"]
    for file, side in zip(files, zip(*PAIRS, strict=True), strict=True):
        file.write_text("\n".join(side) + "\n", encoding="utf-8")
    runs, count = [str(folder.path), "pruned"], len(PAIRS)
    result = program.compare(runs, *map(str, files), rounds=2, batch_sizes=[7])
    assert calls == [(run, None, count) for run in runs] + [(run, 7, count) for run in runs] * 3
    timed = {"sentences": count, "seconds": [[1, 1], [1, 1]], "times_as_fast": 1.0}
    tokens = [2 * count] * 2
    assert result == {"bleu": [100.0, 100.0], "tokens": tokens, "batch_size=7": timed}
    with pytest.raises(InputError, match="Give two run directories. Received: pruned."):
        program.compare(["pruned"], *map(str, files))
