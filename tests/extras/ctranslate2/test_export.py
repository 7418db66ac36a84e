import re
import sys
import tracemalloc
import types

import keras
import numpy as np
import pytest
from decoding_oracles import ban_padding_and_bos, log_softmax

from keras_transformer import Tokenizer, Transformer, TransformerConfig, Translator
from keras_transformer.base.errors import InputError
from keras_transformer.base.ids import BOS_ID, EOS_ID
from keras_transformer.decoding import Constraints, Greedy, decode
from keras_transformer.decoding.search import score_targets
from keras_transformer.engine import ModelEngine
from keras_transformer.export import export_ctranslate2
from keras_transformer.export.options import QuantizedOptions
from keras_transformer.extras.ctranslate2.export import (
    CTranslate2Exporter,
    convert_to_ctranslate2,
)
from keras_transformer.extras.ctranslate2.model_bin import read_variables
from keras_transformer.layers.positions import position_table
from keras_transformer.text.languages import Languages

pytestmark = pytest.mark.tensorflow

VOCABULARY = 61
PIECES = ["<pad>", "<s>", "</s>", "<unk>"] + [f"p{i}" for i in range(4, VOCABULARY)]


@pytest.fixture
def engine_of_theirs():
    return pytest.importorskip("ctranslate2", reason="comes with the extra [ctranslate2]")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(positions="rotary"), "Received: model.positions='rotary', combine_positions='add'"),
        (dict(combine_positions="concatenate"), "combine_positions='concatenate'"),
        (dict(turn_id=4), "does not read conversations; a SavedModel does"),
        (dict(num_kv_heads=2), "has no `num_kv_heads`. Received: num_kv_heads=2"),
        (dict(decoder="ssru"), "other decoders for saved_model, litert, web or marian"),
        (dict(sliding_window=5), "has no `sliding_window`. Received: sliding_window=5"),
    ],
)
def test_what_the_other_engine_does_not_have_is_told(tmp_path, fields, message):
    sizes = dict(model_dim=24, num_heads=4, num_encoder_layers=1, num_decoder_layers=1)
    model = Transformer(TransformerConfig(VOCABULARY, intermediate_dim=8, **sizes, **fields))
    with pytest.raises(InputError, match=message):
        convert_to_ctranslate2(model, PIECES, PIECES, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    "fields",
    [
        # The last block's heads make the alignment; the spec has one number for all blocks.
        dict(
            normalize_first=True,
            layer_norm_epsilon=1e-3,
            source_eos=False,
            positions="learned",
            encoder_heads=[1, 2],
            num_decoder_layers=2,
            decoder_heads=[1, 2],
            cross_heads=[3, 2],
        ),
        dict(),
        dict(tie_embeddings="decoder", positions="none"),
        dict(normalize_first=True, tie_embeddings="none", decoder_heads=[2], cross_heads=[1]),
        dict(activation="tanh"),
        dict(activation="sigmoid", normalize_first=True),
        dict(activation="swish", tie_embeddings="decoder"),
    ],
)
def test_it_finds_the_same_translations(tmp_path, rng, randomize, engine_of_theirs, fields):
    sizes = dict(model_dim=24, num_heads=3, intermediate_dim=40, max_length=64)
    sizes |= dict(num_encoder_layers=2, num_decoder_layers=1)
    model = randomize(Transformer(TransformerConfig(VOCABULARY, **(sizes | fields))))
    convert_to_ctranslate2(model, PIECES, PIECES, tmp_path / "model")
    translator = engine_of_theirs.Translator(str(tmp_path / "model"), compute_type="float32")
    ids = rng.integers(4, VOCABULARY, (5, 7))
    ids[:, -1] = EOS_ID
    source = [[PIECES[i] for i in row[:-1]] for row in ids]
    # All ids may be chosen here, as there.
    limit = 13
    cache = model.start_decoding(keras.ops.convert_to_tensor(ids.astype("int32")), limit)
    limits = keras.ops.full((len(ids),), limit, "int32")
    constraints = Constraints(limits, forbidden_ids=())
    hypotheses = decode(model.step, cache, Greedy(), constraints, limit)
    theirs = translator.translate_batch(
        source, beam_size=1, max_decoding_length=limit, min_decoding_length=0
    )
    for ours, result in zip(np.asarray(hypotheses.ids)[:, 0].tolist(), theirs, strict=True):
        ours = ours[: ours.index(EOS_ID)] if EOS_ID in ours else ours
        assert result.hypotheses[0] == [PIECES[i] for i in ours]

    # What a search reports there is a tenth of a percent off its own scoring, which is exact.
    targets = rng.integers(4, VOCABULARY, (5, 3))
    scored = translator.score_batch(source, [[PIECES[i] for i in row] for row in targets])
    read = np.pad(targets, ((0, 0), (1, 0)), constant_values=BOS_ID)
    expected = np.pad(targets, ((0, 0), (0, 1)), constant_values=EOS_ID)
    log_probabilities = log_softmax(model((ids, read)))
    by_token = np.take_along_axis(log_probabilities, expected[..., None], -1)[..., 0]
    received = [result.log_probs for result in scored]
    np.testing.assert_allclose(received, by_token, rtol=1e-4, atol=1e-4)
    prefixes = [[PIECES[i] for i in row] for row in targets]
    forced = translator.translate_batch(
        source, prefixes, beam_size=1, max_decoding_length=4, return_attention=True
    )
    received = [np.asarray(result.attention[0])[:3] for result in forced]  # without the EOS
    _, alignment = score_targets(model, ids.astype("int32"), expected.astype("int32"))
    np.testing.assert_allclose(received, alignment[:, :3, :-1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("positions", "rows"), [("learned", 1031), ("sinusoidal", 7)])
def test_learned_positions_are_all_there_and_others_as_many_as_are_asked_for(
    tmp_path, randomize, engine_of_theirs, positions, rows
):
    sizes = dict(model_dim=8, num_heads=2, intermediate_dim=8, max_length=1031)
    sizes |= dict(num_encoder_layers=1, num_decoder_layers=1)
    config = TransformerConfig(VOCABULARY, positions=positions, **sizes)
    model = randomize(Transformer(config))
    convert_to_ctranslate2(model, PIECES, PIECES, tmp_path / "model", max_positions=7)
    read = read_variables(tmp_path / "model" / "model.bin")
    for side, layer in (("encoder", model.source_positions), ("decoder", model.target_positions)):
        received = np.asarray(read[f"{side}/position_encodings/encodings"][:])
        np.testing.assert_array_equal(received, position_table(layer, rows, 8))
        assert len(received) == rows


def test_the_longest_translation_after_a_forced_language_has_positions(tmp_path, engine_of_theirs):
    tokens = {code: f">>{code}<<" for code in ("de", "en")}
    texts = ["two dogs sit", "a man sits in the park"] * 9
    tokenizer = Tokenizer.train_from_texts(texts, 30, languages=tokens.values())
    sizes = dict(model_dim=8, num_heads=2, num_encoder_layers=1, num_decoder_layers=1)
    model = Transformer(TransformerConfig(30, intermediate_dim=8, **sizes))
    limits = dict(max_source_length=7, max_target_length=1031)
    languages = Languages(tokens, source_prefix="source", target_prefix="target")
    engine = ModelEngine(model, tokenizer, **limits, languages=languages)
    CTranslate2Exporter().write(engine, tmp_path, {"quantize": "none"})
    translator = engine_of_theirs.Translator(str(tmp_path))
    begun = ["▁>>de<<", *["<unk>"] * 1030]  # CTranslate2 counts the forced token.
    lengths = dict(min_decoding_length=1032, max_decoding_length=1032)
    (result,) = translator.translate_batch([["a"]], [begun], beam_size=1, **lengths)
    assert result.hypotheses[0][:1031] == begun and len(result.hypotheses[0]) == 1032


@pytest.mark.parametrize("is_forced", [False, True])
def test_a_model_that_forces_a_language_is_exported_without_its_shortlist(
    engine_of_theirs, capsys, is_forced
):
    sizes = dict(model_dim=8, num_heads=2, num_encoder_layers=1, num_decoder_layers=1)
    model = Transformer(TransformerConfig(VOCABULARY, intermediate_dim=8, **sizes))
    engine = types.SimpleNamespace(model=model, languages=None, has_target_prefix=is_forced)
    resolved = CTranslate2Exporter().resolve_export_options(
        engine, QuantizedOptions(shortlist=True)
    )
    assert resolved["shortlist"] is not is_forced
    assert ("exporting without the run's" in capsys.readouterr().err) is is_forced


def test_each_unknown_word_is_one_token_there(tmp_path, randomize, engine_of_theirs):
    sentences = ["two dogs sit", "a man sits in the park"] * 9
    words = Tokenizer.train_from_texts(sentences, 14, whole_words=True)
    sizes = dict(model_dim=24, num_heads=3, num_encoder_layers=1, num_decoder_layers=1)
    model = randomize(Transformer(TransformerConfig(14, intermediate_dim=40, **sizes)), 0.7)
    ban_padding_and_bos(model)
    engine = ModelEngine(model, words, max_source_length=13, max_target_length=17)
    texts = ["two dogsled dogs", "a gnu gnus sits", "sit"]
    report = export_ctranslate2(engine, tmp_path / "new", verification_texts=texts)
    assert report.manifest["whole_words"] is True
    assert report.verification["equal"] >= 0.95 * report.verification["texts"] > 0
    for text, translation in zip(
        texts, Translator.load(report.folder).translate(texts), strict=True
    ):
        assert len(translation.source_tokens) == len(text.split()) + 1


def test_its_readme_scores_as_the_run(ctranslate2_report, engine, monkeypatch, capsys):
    folder, scope = ctranslate2_report.folder, {}
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(folder)
    exec(code, scope)
    assert capsys.readouterr().out.startswith("['")
    sources, targets = ["a man", "two dogs", "läuft"], ["ON A BENCH", "A GIRL", "IN KÖLN."]
    scored = scope["translator"].score_batch(
        scope["source"].encode(sources, out_type=str), scope["target"].encode(targets, out_type=str)
    )
    for ours, theirs in zip(engine.score(sources, targets), scored, strict=True):
        np.testing.assert_allclose(theirs.log_probs, ours.token_log_probabilities, atol=1e-4)


def test_without_the_extra_one_line_names_it_and_nothing_is_left(engine, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(InputError, match=r"\(package ctranslate2\): pip install "):
        export_ctranslate2(engine, tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_int8_weights_are_ctranslate2s_also_rows_of_zeros_and_matrices_with_equal_scales(
    engine_of_theirs, tmp_path
):
    sizes = dict(model_dim=24, num_heads=4, num_encoder_layers=1, num_decoder_layers=1)
    model = Transformer(TransformerConfig(VOCABULARY, intermediate_dim=8, **sizes))
    inner = model.encoder.blocks[0].feed_forward.projections[0]
    values = np.array(inner.kernel)
    values[:, 5], values[:, 6] = 0, 1e-38  # one row of the file each
    inner.kernel.assign(values)
    # The same numbers in another order: equal largest numbers, but other weights.
    other = model.decoder.blocks[0].feed_forward.projections[0]
    other.kernel.assign(values[::-1])

    convert_to_ctranslate2(model, PIECES, PIECES, tmp_path / "model", quantize="int8")
    read = read_variables(tmp_path / "model" / "model.bin")
    for name, layer in (("encoder", inner), ("decoder", other)):
        matrix = np.array(layer.kernel).T
        spec = engine_of_theirs.specs.common_spec.LinearSpec()
        spec.weight, spec.bias = matrix.copy(), np.zeros(len(matrix), "float32")
        spec.validate()
        spec.optimize("int8")
        expected = spec.weight.numpy() / spec.weight_scale.numpy()[:, None]
        received = np.asarray(read[f"{name}/layer_0/ffn/linear_0/weight"][:])
        np.testing.assert_array_equal(received, expected.astype("float32"))


@pytest.mark.parametrize(("quantize", "item_bytes"), [("none", 4), ("float16", 2), ("int8", 1)])
def test_embeddings_are_written_without_a_copy(
    engine_of_theirs, tmp_path, monkeypatch, quantize, item_bytes
):
    sizes = dict(model_dim=64, num_heads=1, num_encoder_layers=1, num_decoder_layers=1)
    model = Transformer(TransformerConfig(rows := 10_000, intermediate_dim=8, **sizes))
    pieces = PIECES[:4] + [f"p{i}" for i in range(4, rows)]
    their_save, peaks = engine_of_theirs.specs.TransformerSpec.save, []

    def save(spec, folder):
        tracemalloc.start()
        their_save(spec, folder)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    monkeypatch.setattr(engine_of_theirs.specs.TransformerSpec, "save", save)
    convert_to_ctranslate2(model, pieces, pieces, tmp_path / "model", quantize=quantize)
    table = np.array(model.target_embedding.embeddings)
    assert 0 < peaks[0] < table.size * item_bytes / 2
    read = read_variables(tmp_path / "model" / "model.bin")
    rounding = {"none": 0, "float16": 1e-3, "int8": 1e-2}[quantize] * np.abs(table).max()
    np.testing.assert_allclose(read["decoder/embeddings/weight"][:], table, atol=rounding)
