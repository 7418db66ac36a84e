import json
import re
import sys

import keras
import numpy as np
import pytest
from decoding_oracles import ban_padding_and_bos, log_softmax
from small_corpus import recipe_values

from keras_transformer import Tokenizer, Transformer, TransformerConfig
from keras_transformer.cli.main import run
from keras_transformer.decoding import Constraints, Greedy, decode
from keras_transformer.engine import ModelEngine
from keras_transformer.engine.run_folder import save_model
from keras_transformer.errors import InputError
from keras_transformer.export import export_ctranslate2
from keras_transformer.export.ctranslate2 import export as ctranslate2
from keras_transformer.export.ctranslate2.export import convert_to_ctranslate2
from keras_transformer.ids import BOS_ID, EOS_ID
from keras_transformer.training import Recipe, RunFolder

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
        (dict(decoder="ssru"), "SSRU goes into a SavedModel, a LiteRT file or a page"),
        (dict(sliding_window=5), "has no `sliding_window`. Received: sliding_window=5"),
    ],
)
def test_what_the_other_engine_does_not_have_is_told(tmp_path, fields, message):
    sizes = dict(model_dim=24, num_heads=4, num_encoder_layers=1, num_decoder_layers=1)
    model = Transformer(TransformerConfig(VOCABULARY, intermediate_dim=8, **sizes, **fields))
    with pytest.raises(InputError, match=message):
        convert_to_ctranslate2(model, PIECES, PIECES, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("normalize_first", "tie_embeddings", "positions", "heads"),
    [
        (False, "all", "sinusoidal", {}),
        (True, "all", "learned", {"encoder_heads": [1, 2], "decoder_heads": [1]}),
        (False, "decoder", "learned", {}),
        (False, "all", "none", {}),
        (True, "none", "sinusoidal", {"decoder_heads": [2], "cross_heads": [1]}),
    ],
)
def test_the_other_engine_finds_the_same_translations(
    tmp_path, rng, randomize, engine_of_theirs, normalize_first, tie_embeddings, positions, heads
):
    config = TransformerConfig(
        VOCABULARY,
        model_dim=24,
        num_heads=3,
        intermediate_dim=40,
        num_encoder_layers=2,
        num_decoder_layers=1,
        normalize_first=normalize_first,
        tie_embeddings=tie_embeddings,
        positions=positions,
        max_length=64,
        **heads,
    )
    model = randomize(Transformer(config))
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
    found = decode(model.step, cache, Greedy(), constraints, limit)
    theirs = translator.translate_batch(
        source, beam_size=1, max_decoding_length=limit, min_decoding_length=0
    )
    for ours, result in zip(np.asarray(found.ids)[:, 0].tolist(), theirs, strict=True):
        ours = ours[: ours.index(EOS_ID)] if EOS_ID in ours else ours
        assert result.hypotheses[0] == [PIECES[i] for i in ours]

    # What a search reports there is a tenth of a percent off its own scoring, which is exact.
    targets = rng.integers(4, VOCABULARY, (5, 3))
    scored = translator.score_batch(source, [[PIECES[i] for i in row] for row in targets])
    read = np.pad(targets, ((0, 0), (1, 0)), constant_values=BOS_ID)
    expected = np.pad(targets, ((0, 0), (0, 1)), constant_values=EOS_ID)
    log_probabilities = log_softmax(model((ids, read)))
    np.testing.assert_allclose(
        [result.log_probs for result in scored],
        np.take_along_axis(log_probabilities, expected[..., None], -1)[..., 0],
        rtol=1e-4,
        atol=1e-4,
    )


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
    assert report.verification["equal"] >= 0.5 * report.verification["texts"] > 0


# At most 13 and 17 tokens, in either vocabulary.
SOURCES = ["a man", "two dogs", "läuft"]
TARGETS = ["ON A BENCH", "A GIRL", "IN KÖLN."]


@pytest.fixture
def exported(tmp_path, make_engine, tokenizer, other_tokenizer, capsys):
    """`exported()`: the folder that the command made of a run, what it printed, the engine."""

    def exported():
        engine = make_engine(other_tokenizer, tie_embeddings="decoder")
        folder = RunFolder(tmp_path / "run")
        tokenizers = (tokenizer, other_tokenizer)
        folder.create(Recipe.from_dict(recipe_values(tmp_path)), tokenizers, {})
        save_model(engine.model, folder.model_file)
        arguments = ["--model", str(folder.path), "--output", str(tmp_path / "new")]
        code = run(["export", "--json", "--format", "ctranslate2", *arguments])
        captured = capsys.readouterr()
        return code, tmp_path / "new", captured, engine

    return exported


def test_the_folder_scores_texts_as_the_run_does_and_needs_nothing_else(
    exported, engine_of_theirs, monkeypatch, capsys
):
    code, folder, captured, engine = exported()
    assert code == 0, captured.err
    report = json.loads(captured.out)
    assert report["output"] == str(folder)
    names = ["source_tokenizer.model", "target_tokenizer.model"]
    assert {"model.bin", "config.json", *names} <= set(report["files"])

    # As its README says, and in its folder alone.
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(folder)
    found = {}
    exec(code, found)
    assert capsys.readouterr().out.startswith("['")
    scored = found["translator"].score_batch(
        found["source"].encode(SOURCES, out_type=str), found["target"].encode(TARGETS, out_type=str)
    )
    expected = engine.score(SOURCES, TARGETS)
    for ours, theirs in zip(expected, scored, strict=True):
        np.testing.assert_allclose(
            theirs.log_probs, ours.token_log_probabilities, rtol=1e-4, atol=1e-4
        )


def test_an_earlier_export_is_replaced_only_when_that_is_asked_for(
    tmp_path, engine, engine_of_theirs, monkeypatch
):
    monkeypatch.setattr(ctranslate2.CTranslate2Exporter, "verify", lambda *_: {})
    output = tmp_path / "new"
    export_ctranslate2(engine, output)
    with pytest.raises(ValueError, match="exists already"):
        export_ctranslate2(engine, output)
    (output / "README.md").write_text("old")
    export_ctranslate2(engine, output, overwrite=True)
    assert (output / "README.md").read_text() != "old"
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_without_the_extra_one_line_names_it_and_nothing_is_left(exported, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    code, folder, captured, _ = exported()
    assert (code, captured.out) == (2, "")
    *_, last = captured.err.splitlines()
    assert last == (
        "keras-transformer: CTranslate2 is needed (package ctranslate2): "
        'pip install "keras-transformer-nmt[ctranslate2]".'
    )
    assert [path.name for path in folder.parent.iterdir()] == ["run"]
