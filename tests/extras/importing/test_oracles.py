"""Imported models have the scores and texts that Marian and transformers give."""

import json
import re
import shutil

import numpy as np
import pytest
from device_plans import ONE_GRAPH
from marian_toys import TOYS

from keras_transformer import Translator
from keras_transformer.base.ids import EOS_ID
from keras_transformer.decoding.search import score_targets
from keras_transformer.engine import ModelEngine
from keras_transformer.export import export_ctranslate2
from keras_transformer.extras.importing.importing import import_model, read_model

pytestmark = pytest.mark.tensorflow

SUPPORTED = ["post_relu_tied", "post_gelu", "default_normalizer", "opus_layout", "pre_ssru"]
SUPPORTED += ["post_ssru_guided", "pre_swish_separate"]


# A folder: normalization, activation, mixer of the decoder; width, heads, inner width, blocks of
# both sides; shared tables; names of both vocabularies.
MODELS = {
    "ctranslate2_post_gelu_tied_int8": ("post gelu", (16, 4, 32, 1, 2), "all", (57, 57)),
    "ctranslate2_post_relu_zero_start": ("post relu", (16, 2, 32, 1, 1), "all", (57, 57)),
    "ctranslate2_pre_relu_untied": ("pre relu", (16, 2, 32, 2, 1), "none", (41, 41)),
    "hugging_face_fp16": ("post gelu", (16, 2, 32, 2, 2), "all", (59, 59)),
    "hugging_face_legacy": ("post silu", (16, 4, 24, 1, 2), "all", (59, 59)),
    "hugging_face_sharded": ("post relu", (16, 2, 32, 1, 1), "none", (59, 59)),
    "hugging_face_sharded_safetensors": ("post silu", (12, 2, 32, 1, 1), "all", (59, 59)),
    "hugging_face_tied": ("post relu", (16, 2, 32, 2, 2), "all", (59, 59)),
    "hugging_face_views": ("post silu", (12, 2, 20, 1, 1), "all", (59, 59)),
    "hugging_face_zip": ("post relu", (16, 2, 32, 2, 1), "all", (59, 59)),
    "languages_m2m100": ("pre relu", (16, 2, 32, 2, 1), "all", (168, 168)),
    "languages_nllb": ("pre relu", (16, 4, 24, 1, 2), "all", (266, 266)),
    "languages_small100": ("pre relu", (12, 2, 24, 2, 1), "all", (168, 168)),
    "marian_default_normalizer": ("post relu", (16, 2, 32, 2, 2), "all", (64, 64)),
    "marian_opus_layout": ("post relu", (16, 2, 32, 2, 2), "all", (46, 46)),
    "marian_post_gelu": ("post gelu", (16, 2, 32, 2, 2), "all", (64, 64)),
    "marian_post_relu_tied": ("post relu", (16, 2, 32, 2, 2), "all", (64, 64)),
    "marian_post_ssru_guided": ("post relu ssru", (16, 2, 32, 2, 2), "all", (64, 64)),
    "marian_pre_ssru": ("pre silu ssru", (16, 2, 32, 2, 2), "all", (64, 64)),
    "marian_pre_swish_separate": ("pre silu", (16, 2, 32, 2, 2), "none", (44, 40)),
}
SIZES = ("model_dim", "num_heads", "intermediate_dim", "num_encoder_layers", "num_decoder_layers")
# Of each program: what its models add to variances, which logits do not tell, its ranking, and its
# first position.
PROGRAMS = {"marian": (1e-6, "marian", 0), "hugging": (1e-5, "length", 0)}
PROGRAMS["languages"] = (1e-5, "length", 2)
# Where a language's token stands, and how many languages there are.
LANGUAGES = {"languages_m2m100": ("source", "target", 100), "languages_nllb": ("source", "target")}
LANGUAGES["languages_nllb"] += (202,)
LANGUAGES["languages_small100"] = ("target", None, 100)


@pytest.mark.parametrize("name", MODELS)
def test_a_folder_is_read_as_the_model_that_it_is(oracle, name):
    model = read_model(oracle(name))
    kind, sizes, tables, vocabularies = MODELS[name]
    fields = {"decoder": "attention", **model.fields}
    first, activation, *mixer = kind.split()
    assert (fields["normalize_first"], fields["activation"]) == (first == "pre", activation)
    assert fields["decoder"] == (mixer or ["attention"])[0]
    assert tuple(fields[size] for size in SIZES) == sizes
    assert model.tensors.tied_embeddings == tables
    assert tuple(len(vocabulary.names) for vocabulary in model.vocabularies) == vocabularies
    assert model.tensors.dtype == ("float16" if name.endswith("fp16") else "float32")
    program = name.partition("_")[0]
    received = fields["layer_norm_epsilon"], model.decoding["length_normalization"]
    received += (fields.get("position_offset", 0),)
    assert received == PROGRAMS.get(program, received)
    if program == "hugging":
        penalty = 0.6 if name.endswith("fp16") else 1.0
        search = {"beam_size": 4, "length_penalty": penalty, "early_stopping": False}
        assert model.decoding == {**search, "length_normalization": "length"}
    languages = model.languages and (
        *(model.languages.source_prefix, model.languages.target_prefix),
        len(model.languages.tokens),
    )
    assert languages == LANGUAGES.get(name)


def padded(rows):
    width = max(map(len, rows))
    return np.array([[*row, *[0] * (width - len(row))] for row in rows], "int32")


def word_scores(toy, sources, targets):
    """Log-probabilities of the words of targets, a list per target."""
    source = toy.source_tokenizer.tokenize(sources, add_eos=True)
    target = toy.target_tokenizer.tokenize(targets, add_eos=True)
    scores, _ = score_targets(toy.model, padded(source), padded(target))
    scores = np.asarray(scores)
    return [row[: len(ids)] for row, ids in zip(scores, target, strict=True)]


def expected_of(folder):
    files = (TOYS.parent / "oracles" / f"marian_texts.{side}" for side in ("src", "trg"))
    texts = [path.read_text(encoding="utf-8").splitlines() for path in files]
    return texts, json.loads((folder / "expected.json").read_text("utf-8"))


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("name", SUPPORTED)
def test_words_have_marians_own_scores(imported, oracle, name):
    folder = oracle(f"marian_{name}")
    (sources, targets), expected = expected_of(folder)
    all_scores = word_scores(imported(folder), sources, targets)
    for scores, known in zip(all_scores, expected["word_scores"], strict=True):
        np.testing.assert_allclose(scores, known, atol=1e-4)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("name", "search"),
    # Not pre-norm with self-attention: Marian's decoder normalizes other keys than its scorer.
    [
        ("opus_layout", "beam1_normalize1_penalty0"),
        ("post_relu_tied", "beam6_normalize0.6_penalty0"),
        ("post_ssru_guided", "beam4_normalize1_penalty0.3"),
        ("pre_ssru", "beam1_normalize1_penalty0"),
    ],
)
def test_texts_are_marians_own(imported, oracle, name, search):
    folder = oracle(f"marian_{name}")
    (sources, _), expected = expected_of(folder)
    rows, known = search_of(imported(folder), sources, search), expected[search]
    assert len(rows) == len(known)
    for ours, theirs in zip(rows, known, strict=True):
        _, pieces, log_probability, score = theirs[0]
        if ours[0] != pieces:  # A tie of rounding.
            assert abs(ours[1] - score) < 1e-4
        else:
            np.testing.assert_allclose(ours[1:], [score, log_probability], atol=1e-3)


def search_of(toy, sources, search):
    """Pieces, score and log-probability of each translation by a search of `expected.json`."""
    numbers = re.fullmatch(r"beam(\d+)_normalize([\d.]+)_penalty([\d.]+)", search).groups()
    beam, normalize, penalty = map(float, numbers)
    options = {"beam_size": int(beam), "length_penalty": normalize, "word_penalty": penalty}
    options |= {"length_normalization": "marian", "max_length_ratio": 3.0}
    engine = ModelEngine(toy.model, toy.source_tokenizer, toy.target_tokenizer, **ONE_GRAPH)
    tokenizer = toy.target_tokenizer

    def pieces(ids):
        return " ".join(tokenizer.pieces_of([id for id in ids if id != EOS_ID]))

    return [
        (pieces(translation.ids), translation.score, translation.log_probability)
        for translation in engine.translate(sources, batch_size=len(sources), **options)
    ]


def test_bergamots_binary_file_gives_the_scores_of_the_npz(imported, oracle, tmp_path):
    folder = oracle("marian_post_ssru_guided")
    shutil.copyfile(folder / "vocab.spm", tmp_path / "vocab.spm")
    shutil.copyfile(folder / "model.bergamot.bin", tmp_path / "model.bin")
    (sources, targets), _ = expected_of(folder)
    quantized = import_model(tmp_path)
    exact = np.concatenate(word_scores(imported(folder), sources, targets))
    scores = np.concatenate(word_scores(quantized, sources, targets))
    assert np.abs(scores - exact).mean() < 0.1


HUGGING_FACE = ["zip", "tied", "legacy", "fp16", "sharded", "sharded_safetensors", "views"]


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", HUGGING_FACE)
def test_hugging_faces_logits_and_texts(oracle, name):
    pytest.importorskip("safetensors", reason="comes with the extra [import]")
    folder = oracle(f"hugging_face_{name}")
    toy = import_model(folder)
    known = json.loads((folder / "expected.json").read_text("utf-8"))
    arrays = np.load(folder / "expected.npz")
    # Ours of the file's ids; the file's last id is padding, which no search may choose.
    pad = json.loads((folder / "config.json").read_text())["pad_token_id"]
    ours = [2, 3, *range(4, pad + 2), 0]
    for number, text in enumerate(known["sources"]):
        source = [ours[id] for id in arrays[f"source{number}"]]
        target = [ours[id] for id in arrays[f"target{number}"]]
        assert toy.source_tokenizer.tokenize(text, add_eos=True) == source
        logits = np.asarray(toy.model((np.array([source]), np.array([[1, *target[:-1]]]))))[0]
        expected = arrays[f"logits{number}"][:, :pad]
        np.testing.assert_allclose(logits[:, ours[:pad]], expected, atol=1e-4)
    if name not in ("tied", "fp16"):
        return  # Other layouts of the files of weights.
    engine = ModelEngine(toy.model, toy.source_tokenizer, toy.target_tokenizer, **ONE_GRAPH)
    options = {**toy.decoding, "beam_size": 4, "max_length": 39, "max_length_ratio": float("inf")}
    texts = [translation.text for translation in engine.translate(known["sources"], **options)]
    # At 40 tokens transformers forces the end.
    pairs = zip(texts, known["beam4"], strict=True)
    pairs = [(received, text) for received, (text, ids, _) in pairs if len(ids) < 40]
    assert len(pairs) >= len(texts) - 2
    assert [received for received, _ in pairs] == [text for _, text in pairs]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["m2m100", "nllb", "small100"])
def test_logits_and_texts_of_models_of_many_languages_are_transformers_own(
    oracle, name, tmp_path, unverified
):
    pytest.importorskip("safetensors", reason="comes with the extra [import]")
    folder = oracle(f"languages_{name}")
    toy = import_model(folder)
    model = read_model(folder)
    cases = json.loads((folder / "expected.json").read_text("utf-8"))["cases"]
    arrays = np.load(folder / "expected.npz")
    ours = [4, 0, 2, 3, *range(5, arrays["logits0"].shape[1] + 1)]
    is_forced = cases[0]["forced_bos"] is not None
    for number, case in enumerate(cases):
        source, target = ([ours[id] for id in case[side]] for side in ("input_ids", "labels"))
        sides = ((case["text"], source[1:]), (case["target"], target[is_forced:]))
        for text, ids in sides:
            assert toy.source_tokenizer.tokenize(text, add_eos=True) == ids
        if f"logits{number}" in arrays:  # of NLLB only some, as the vocabulary is large
            logits = np.asarray(toy.model((np.array([source]), np.array([[1, *target[:-1]]]))))[0]
            np.testing.assert_allclose(logits[:, ours], arrays[f"logits{number}"], atol=1e-4)
    tokenizers, languages = toy[1:3], model.languages
    engine = ModelEngine(toy.model, *tokenizers, languages=languages, **ONE_GRAPH)
    sides = zip(*(case["languages"] for case in cases), strict=True)
    options = dict(zip(("source_language", "target_language"), map(list, sides), strict=True))
    options |= {**toy.decoding, "max_length": 39 - is_forced, "max_length_ratio": float("inf")}
    texts = [case["text"] for case in cases]
    # Of both beams, the second is the default in the files of M2M100 and SMaLL-100.
    for search, beam_size in (("greedy", 1), ("beam5_early", 5), ("beam4", 4)):
        options |= {"beam_size": beam_size, "early_stopping": "early" in search}
        translations = engine.translate(texts, **options, allow_unknown=True)
        for translation, case in zip(translations, cases, strict=True):
            _, ids, score = case[search]
            expected = [ours[id] for id in ids[1 + is_forced :]]
            if search != "beam4" or translation.ids == tuple(expected):
                assert translation.ids == tuple(expected)
            elif len(ids) < 40:
                # transformers counts the token of the language, and may stop too early.
                length = len(ids) - 1
                assert translation.score > score * length / (length - is_forced)
        if search == "beam5_early":
            # Of one text: the toys give <unk> much probability, without which CTranslate2 searches.
            export_ctranslate2(engine, tmp_path / "exported", texts[:1], beam_size=beam_size)
            exported = Translator.load(tmp_path / "exported")
            again = exported.translate(texts, **options, allow_unknown=True)
            assert [row.ids for row in again] == [row.ids for row in translations]
