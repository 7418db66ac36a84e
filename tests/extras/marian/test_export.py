"""Models of Marian, written: the original's arrays, the run's texts, one line for all others."""

import contextlib
import pathlib
import re
from unittest import mock

import marian_reference
import numpy as np
import pytest
import yaml
from device_plans import ONE_GRAPH
from marian_toys import with_short_translations

from keras_transformer.base.errors import InputError
from keras_transformer.base.ids import BOS_ID, PAD_ID
from keras_transformer.cli.main import run
from keras_transformer.engine import ModelEngine
from keras_transformer.export.options import RankedOptions
from keras_transformer.export.verification import TOLERANCES
from keras_transformer.extras.foreign import foreign_export as foreign
from keras_transformer.extras.hugging_face.export import HuggingFaceExporter
from keras_transformer.extras.importing.importing import import_model, import_run
from keras_transformer.extras.marian import reader as marian
from keras_transformer.extras.marian.export import MarianExporter
from keras_transformer.training.lora import projections_of

pytestmark = pytest.mark.tensorflow

TOYS = pathlib.Path(__file__).parents[2] / "data" / "marian"
NAMES = ["default_normalizer", "post_ssru_guided", "pre_swish_separate"]
SOURCES = ["the old child sees a small house", "a cat", "yes, the river moves", "ж 1 >>epo<<"]
TARGETS = ["la kato movas", "la maljuna infano vidas malgrandan domon", "jes", ""]
OF_MARIAN = {"position_layout": "halves", "position_frequencies": "marian"}
OF_MARIAN["layer_norm_epsilon"] = 1e-6


def written(folder, engine, search):
    exporter = MarianExporter()
    options = exporter.resolve_export_options(engine, RankedOptions(**search))
    return exporter.write(engine, folder, options)


def engine_of(model, source_tokenizer, target_tokenizer, _=None):
    return ModelEngine(model, source_tokenizer, target_tokenizer, **ONE_GRAPH)


KINDS = ["pre_norm_ssru", "two_tables", "own_output", "no_bias"]


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("name", ["opus", "student", *NAMES, *KINDS])
def test_an_import_returns_with_its_arrays_vocabularies_and_search(
    name, tmp_path, load_program, oracle
):
    if name in KINDS:
        folder = tmp_path / name
        folder.mkdir()
        load_program(TOYS / "make.py").make_kind(folder, name)
    else:
        folder = oracle(f"marian_{name}") if name in NAMES else TOYS / name
    output = tmp_path / "export"
    output.mkdir()
    imported = import_model(folder)
    search = {**imported.decoding, "beam_size": 5, "word_penalty": 0.3, "length_penalty": 0.7}
    written(output, engine_of(*imported), search)
    expected = marian.read_tensors(marian.model_file(folder))
    received = marian.read_tensors(output / "model.npz")
    assert len(received.pop(marian.OPTIONS)) % 256 == 0
    if "decoder_ff_logit_out_W" in expected:  # The transposed one is Marian's other form of it.
        expected["decoder_ff_logit_out_Wt"] = expected.pop("decoder_ff_logit_out_W").T
    # An import has a bias of zeros where the file has none.
    size = imported.target_tokenizer.vocabulary_size - 2
    expected.setdefault("decoder_ff_logit_out_b", np.zeros((1, size), "float32"))
    names = {name for name in expected if name != marian.OPTIONS and "QuantMultA" not in name}
    assert received.keys() == names
    for name in names:
        np.testing.assert_array_equal(received[name], expected[name], err_msg=name)
    again = import_model(output)
    assert again.source_tokenizer == imported.source_tokenizer
    assert again.target_tokenizer == imported.target_tokenizer
    assert again.model.config == imported.model.config
    assert again.decoding == search


@pytest.mark.parametrize("side", ["source", "target"])
def test_unknown_pieces_of_a_side_make_both_files_have_all_ids(side, tmp_path, load_program):
    load_program(TOYS / "make.py").make_opus(tmp_path / "origin", incomplete=(side,))
    imported = import_model(tmp_path / "origin")
    tokenizers = {"source": imported.source_tokenizer, "target": imported.target_tokenizer}
    assert [name for name in tokenizers if tokenizers[name].has_unknown_pieces] == [side]
    (tmp_path / "export").mkdir()
    written(tmp_path / "export", engine_of(*imported), imported.decoding)
    for name, tokenizer in tokenizers.items():
        text = (tmp_path / "export" / f"{name}.vocab.yml").read_text("utf-8")
        names = {int(id): name for name, id in yaml.load(text, yaml.BaseLoader).items()}
        ids = range(2, tokenizer.vocabulary_size)  # Marian has neither padding nor BOS.
        assert [names[id - 2] for id in ids] == list(tokenizer.pieces_of(ids))
    again = import_model(tmp_path / "export")
    assert (again.source_tokenizer, again.target_tokenizer) == (*tokenizers.values(),)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", ["opus", "student"])
def test_an_independent_reference_reads_the_probabilities_of_a_trained_model(name, tmp_path):
    imported, chance = import_model(TOYS / name), np.random.default_rng(5)
    model, search = imported.model, {"length_normalization": "marian"}
    for layer in projections_of(model):
        layer.enable_lora(2)
    for variable in model.trainable_variables:
        noise = chance.normal(size=variable.shape, scale=0.1).astype("float32")
        if variable is model.target_embedding.embeddings:
            noise[BOS_ID] = 0
        variable.assign(variable + noise)
    engine = engine_of(*imported)
    written(tmp_path, engine, search)
    assert import_model(tmp_path).decoding["max_length_ratio"] == 2.0  # the run's default
    with np.load(tmp_path / "model.npz") as file:
        tensors = dict(file)
    options = yaml.load(bytes(tensors[marian.OPTIONS]).split(b"\0")[0], yaml.BaseLoader)
    scored = engine.score(SOURCES, TARGETS, length_penalty=0.0, **search)
    for source, target, translation in zip(SOURCES, TARGETS, scored, strict=True):
        rows = (
            tokenizer.tokenize(text, add_eos=True)
            for tokenizer, text in zip(imported[1:3], (source, target), strict=True)
        )
        # Marian has neither padding nor BOS.
        ids = ([id - 2 for id in row] for row in rows)
        expected = marian_reference.log_probabilities(tensors, options, *ids).sum()
        assert translation.log_probability == pytest.approx(expected, abs=1e-3)


@pytest.mark.slow
def test_the_command_writes_a_folder_that_translates_as_the_run(tmp_path, capsys):
    origin = with_short_translations(import_run(TOYS / "opus", tmp_path / "run"))
    output = tmp_path / "back"
    options = ["export", "--model", origin, "--format", "marian", "--output", str(output)]
    assert run(options) == 0
    captured = capsys.readouterr()
    assert re.search(r"model of Marian, .* (\d+) of \1 translations equal", captured.out)
    assert "begins with zeros" not in captured.err
    command = "source.spm --output_format piece < in.txt | marian-decoder --config decoder.yml"
    assert command in (output / "README.md").read_text("utf-8")
    assert (
        f"Next: spm_encode --model {output}/source.spm --output_format piece < in.txt | "
        f"marian-decoder --config {output}/decoder.yml | spm_decode --model {output}/target.spm; "
    ) in captured.out
    assert run([*options, "--overwrite", "--set", "length_normalization=gnmt"]) == 2
    assert "`--set length_normalization` 'marian'" in capsys.readouterr().err


def test_the_tolerance_of_bfloat16_is_wider_as_an_import_computes_in_float32(monkeypatch):
    monkeypatch.setattr(foreign, "imported_process", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(foreign, "verify", lambda *arguments: arguments[3])
    monkeypatch.setattr(MarianExporter, "difference", lambda *_: "")
    for dtype, name in (("float32", "none"), ("bfloat16", "bfloat16")):
        engine = mock.Mock(**{"model.compute_dtype": dtype})
        assert MarianExporter().verify(engine, None, {}, None) is TOLERANCES[name]


PRE, BIAS, PADDING = {"normalize_first": True}, {"output_bias": True}, "no probability: train"
WIDER = [(MarianExporter, {}, [], "begins with zeros: only models that do can be exported")]
WIDER += [(MarianExporter, {}, ["start"], "neither padding nor BOS: train the model")]
WIDER += [(MarianExporter, BIAS, ["start", PAD_ID], "neither padding nor BOS: train the model")]
WIDER += [(MarianExporter, BIAS, ["start", PAD_ID, BOS_ID], "")]
WIDER += [(HuggingFaceExporter, {}, [], "")]
WIDER += [(HuggingFaceExporter, PRE, [], PADDING), (HuggingFaceExporter, PRE | BIAS, [], PADDING)]
WIDER += [(HuggingFaceExporter, PRE | BIAS, [PAD_ID], "")]


@pytest.mark.parametrize(("exporter", "fields", "changes", "advice"), WIDER)
def test_a_model_that_gives_lost_tokens_probability_has_a_wider_limit_and_its_own_advice(
    exporter, fields, changes, advice, make_engine, monkeypatch
):
    monkeypatch.setattr(foreign, "imported_process", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(foreign, "verify", lambda *arguments: arguments[3])
    engine = make_engine(**fields)
    for change in changes:
        if change == "start":
            table = np.asarray(engine.model.target_embedding.embeddings).copy()
            table[BOS_ID] = 0
            engine.model.target_embedding.embeddings.assign(table)
        else:  # as an import bans it, and a training moves it
            bias = np.asarray(engine.model.output_bias).copy()
            bias[change] = -99.5
            engine.model.output_bias.assign(bias)
    tolerance, exact = exporter().verify(engine, None, {}, None), TOLERANCES["none"]
    assert tolerance.score == (0.02 if advice else exact.score)
    assert (tolerance.equal, tolerance.alignment) == (exact.equal, exact.alignment)
    assert advice in tolerance.advice and (tolerance == exact) is not bool(advice)


def test_what_marians_decoder_does_otherwise_is_announced(make_engine, capsys):
    engine = make_engine(**OF_MARIAN, normalize_first=True)
    options = RankedOptions(length_normalization="marian")
    MarianExporter().resolve_export_options(engine, options)
    messages = capsys.readouterr().err
    assert "begins with zeros" in messages and "computes this pre-norm model" in messages


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layer_norm_epsilon": 1e-5}, "`layer_norm_epsilon` 1e-06. Received: 1e-05"),
        ({"position_layout": "interleaved"}, "'interleaved'. Export a model that was imported"),
        ({"position_frequencies": "paper"}, "`position_frequencies` 'marian'"),
        ({"positions": "learned"}, "`positions` 'sinusoidal' or 'none'"),
        ({"positions": "rotary"}, "has sinusoidal, learned or no positions"),
        ({"activation": "tanh"}, "`activation` 'relu' or 'silu' or 'gelu'"),
        ({"num_kv_heads": 1}, "`num_kv_heads` None"),
        ({"sliding_window": 3}, "`sliding_window` None"),
        ({"cross_heads": (1,)}, r"`cross_heads` None. Received: \(1,\)"),
    ],
)
def test_a_model_that_marian_does_not_have_is_one_line(make_engine, fields, message):
    engine = make_engine(**{**OF_MARIAN, **fields})
    options = RankedOptions(length_normalization="marian")
    with pytest.raises(InputError, match=message) as caught:
        MarianExporter().resolve_export_options(engine, options)
    assert "\n" not in str(caught.value)
