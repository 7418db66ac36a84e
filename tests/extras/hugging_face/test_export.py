"""Folders for transformers: the original's tensors, and the model's logits after a permutation."""

import json
import pathlib

import numpy as np
import pytest
import sentencepiece
from device_plans import ONE_GRAPH

from keras_transformer.base.errors import InputError
from keras_transformer.base.ids import BOS_ID, EOS_ID
from keras_transformer.engine import ModelEngine
from keras_transformer.export.options import SearchedOptions
from keras_transformer.extras.hugging_face.export import HuggingFaceExporter
from keras_transformer.extras.importing.importing import import_model
from keras_transformer.runs.model_card import training_summary
from keras_transformer.runs.run_folder import RunFolder
from keras_transformer.text.languages import Languages

pytestmark = pytest.mark.tensorflow

MAKE = pathlib.Path(__file__).parents[2] / "data" / "marian" / "make.py"
SEARCH = {"length_normalization": "length", "length_penalty": 0.8}


def written(folder, engine, **search):
    exporter = HuggingFaceExporter()
    options = exporter.resolve_export_options(engine, SearchedOptions(**{**SEARCH, **search}))
    folder.mkdir(exist_ok=True)
    exporter.write(engine, folder, options)
    return folder


def tensors_of(folder):
    from safetensors.numpy import load_file

    files = sorted(folder.glob("*.safetensors"))
    return {name: array for file in files for name, array in load_file(file).items()}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("origin", ["toy", "sharded_safetensors"])
def test_an_import_returns_with_its_tensors_and_ids(origin, tmp_path, load_program, oracle):
    if origin == "toy":
        folder = tmp_path / origin
        folder.mkdir()
        load_program(MAKE).make_hugging_face(folder)
    else:
        folder = oracle(f"hugging_face_{origin}")
    model, source, target, _ = import_model(folder)
    output = written(tmp_path / "out", ModelEngine(model, source, target, **ONE_GRAPH))
    expected, received = tensors_of(folder), tensors_of(output)
    assert received.keys() == expected.keys()
    for name, array in expected.items():
        # A side with fewer inner units than the other one is padded with zeros.
        padded = np.zeros_like(received[name])
        padded[tuple(map(slice, array.shape))] = array
        np.testing.assert_array_equal(received[name], padded, err_msg=name)
    files = [json.loads((path / "vocab.json").read_text("utf-8")) for path in (folder, output)]
    assert files[0] == files[1]
    # transformers 5 decodes the target's pieces with the source's file.
    pieces = [name for name in files[0] if not name.startswith("<")]
    texts = [
        sentencepiece.SentencePieceProcessor(model_file=str(path / "source.spm")).decode(pieces)
        for path in (folder, output)
    ]
    assert texts[0] == texts[1]


KINDS = {
    "post_untied": {"activation": "silu", "tie_embeddings": "none", "output_bias": False},
    "two_vocabularies": {"tie_embeddings": "decoder"},
    "pre": {"normalize_first": True, "activation": "gelu"},
    "post_tied": {"activation": "relu"},
    "post_decoder": {"activation": "gelu", "tie_embeddings": "decoder"},
    "halves": {"position_layout": "halves"},
}
TEXTS = ["the old", "a b", "yes, 1 2"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["post_tied", "pre"])
def test_the_permuted_model_translates_as_the_model(kind, make_engine, tmp_path):
    engine = make_engine(num_decoder_layers=2, **KINDS[kind])
    folder = written(tmp_path / "out", engine)
    if kind == "pre":  # CTranslate2's converter starts with padding, which no search may choose.
        tensors = tensors_of(folder)
        np.testing.assert_array_equal(*tensors["model.shared.weight"][-2:])
        assert tensors["final_logits_bias"][0, -2:].tolist() == [0, -100]
    assert {array.dtype.name for array in tensors_of(folder).values()} == {"float32"}
    model, source, target, decoding = import_model(folder)
    limits = {"max_source_length": 13, "max_target_length": 17}
    again = ModelEngine(model, source, target, **limits, **ONE_GRAPH)
    assert decoding == {**decoding, **SEARCH, "beam_size": 4, "early_stopping": True}
    expected, received = (
        one.translate(TEXTS, n_best=4, early_stopping=True, **SEARCH) for one in (engine, again)
    )
    tolerance = 0.05 if kind == "pre" else 1e-4  # without the probability of padding
    for translation, other in zip(expected, received, strict=True):
        assert other.text == translation.text
        assert other.score == pytest.approx(translation.score, abs=tolerance)
        scores = [[one.score for one in side.alternatives] for side in (translation, other)]
        assert scores[0] == pytest.approx(scores[1], abs=tolerance)


@pytest.mark.slow(after=3)
@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_that_is_imported_again_has_the_models_logits(
    kind, make_engine, other_tokenizer, tmp_path
):
    engine = make_engine(other_tokenizer if kind == "two_vocabularies" else None, **KINDS[kind])
    model, source, target, _ = import_model(written(tmp_path / "out", engine))
    for text in TEXTS:
        ids = engine.source_tokenizer.tokenize([text], add_eos=True)
        assert source.tokenize([text], add_eos=True) == ids
        chance = np.random.default_rng(0)
        targets = [[BOS_ID, *chance.integers(4, target.vocabulary_size, 6)]]
        inputs = np.array(ids), np.array(targets)
        expected, received = np.asarray(engine.model(inputs)), np.asarray(model(inputs))
        np.testing.assert_allclose(received[..., EOS_ID:], expected[..., EOS_ID:], atol=1e-4)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("kind", KINDS)
def test_transformers_computes_the_models_logits(kind, make_engine, other_tokenizer, tmp_path):
    pytest.importorskip("transformers", reason="comes with the extra [peers]")
    torch = pytest.importorskip("torch", reason="comes with the extra [peers]")
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    target = other_tokenizer if kind == "two_vocabularies" else None
    engine = make_engine(target, num_decoder_layers=2, **KINDS[kind])
    folder = written(tmp_path / "out", engine)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    source_names, target_names = (
        one.pieces_of(range(one.vocabulary_size))
        for one in (engine.source_tokenizer, engine.target_tokenizer)
    )
    file = folder / ("target_vocab.json" if kind == "two_vocabularies" else "vocab.json")
    new_source_ids = json.loads((folder / "vocab.json").read_text("utf-8"))
    new_ids = json.loads(file.read_text("utf-8"))
    chance = np.random.default_rng(0)
    targets = np.array([[BOS_ID, *chance.integers(4, len(target_names), 6)]])
    start = model.generation_config.decoder_start_token_id
    new_targets = [[start, *(new_ids[target_names[id]] for id in targets[0, 1:])]]
    for text in TEXTS:
        sources = engine.source_tokenizer.tokenize(text, add_eos=True)
        new_sources = tokenizer([text])["input_ids"]
        assert new_sources == [[new_source_ids[source_names[id]] for id in sources]]
        with torch.no_grad():
            inputs = {"input_ids": new_sources, "decoder_input_ids": new_targets}
            tensors = {name: torch.tensor(ids) for name, ids in inputs.items()}
            new_logits = model(**tensors).logits.numpy()
        logits = np.asarray(engine.model((np.array([sources]), targets)))
        columns = [new_ids[name] for name in target_names[EOS_ID:]]
        np.testing.assert_allclose(new_logits[..., columns], logits[..., EOS_ID:], atol=1e-4)


def test_the_search_goes_along_and_what_transformers_lacks_is_named(make_engine, tmp_path, capsys):
    search = {"beam_size": 3, "length_penalty": 0.5, "early_stopping": False}
    folder = written(tmp_path / "out", make_engine(), **search)
    assert capsys.readouterr().err == ""
    options = json.loads((folder / "generation_config.json").read_text("utf-8"))
    expected = {"num_beams": 3, "length_penalty": 0.5, "early_stopping": False, "max_length": 18}
    assert options == {**options, **expected}
    names = json.loads((folder / "vocab.json").read_text("utf-8"))
    start = options["decoder_start_token_id"]
    assert options["bad_words_ids"] == [[1], *sorted([[start], [names["<pad>"]]])]
    written(tmp_path / "out", make_engine(), length_normalization="gnmt")
    assert "The search of transformers lacks these options" in capsys.readouterr().err


@pytest.mark.slow
def test_the_export_is_verified(make_engine, tmp_path):
    engine, training = make_engine(normalize_first=True), {"training_texts": ["a/b.en", "b.de"]}
    training |= {"validation_bleu": 31.25, "bleu_signature": "nrefs:1"}
    options = {"languages": "en-de", "training": training, **SEARCH}
    report = HuggingFaceExporter().export(engine, tmp_path / "out", TEXTS, **options)
    assert report.verification["equal"] == report.verification["texts"] > 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert "AutoModelForSeq2SeqLM.from_pretrained" in card
    assert "license: other\nlanguage:\n- en\n- de\n---\n" in card
    assert "# Translation model from English to German\n" in card
    assert "trained on `a/b.en`, `b.de`." in card and "have BLEU 31.25 (`nrefs:1`)." in card
    command = f"Next: keras-transformer import {tmp_path / 'out'} --output RUN"
    assert "model for transformers" in report.summary() and command in report.summary()


def test_a_run_tells_its_texts_and_the_bleu_of_its_best_model(tmp_path):
    run = RunFolder(tmp_path)
    train = [{"source": "a.en", "target": "/home/me/a.de"}, {"source": "../m.tmx"}]
    run.write_sections({"data": {"folder": "/home/me/texts", "train": train}})
    texts = {"training_texts": ["texts/a.en", "a.de", "m.tmx"]}
    assert training_summary(run) == texts
    metrics = {"best_validation_bleu": 31.246, "validation_signatures": {"bleu": "nrefs:1"}}
    for average, bleu in (({}, 31.25), ({"average": {"val_bleu": 29.5}}, 29.5)):
        metrics |= average
        run.metrics_file.write_text(json.dumps(metrics))
        measured = {"validation_bleu": bleu, "bleu_signature": "nrefs:1"}
        assert training_summary(run) == texts | measured
    run.write_sections({"data": {"folder": ".", "train": train[0]}})
    assert training_summary(run)["training_texts"] == ["a.en", "a.de"]


def test_a_model_of_many_languages_is_refused_for_its_tokens_not_its_positions(make_engine):
    engine = make_engine(position_frequencies="marian", position_offset=2)
    engine.languages = Languages({"de": "__de__", "en": "__en__"}, target_prefix="target")
    with pytest.raises(InputError, match="by tokens in texts.*__de__.*saved_model, litert or ctr"):
        HuggingFaceExporter().resolve_export_options(engine, SearchedOptions())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layer_norm_epsilon": 1e-6}, "it needs `layer_norm_epsilon` 1e-05. Received: 1e-06."),
        ({"position_frequencies": "marian"}, "`position_frequencies` 'paper'. Received: 'marian'"),
        ({"positions": "learned"}, "it needs `positions` 'sinusoidal'. Received: 'learned'."),
        ({"positions": "rotary"}, "An export to Hugging Face has sinusoidal, learned or no"),
        (
            {"activation": "tanh"},
            "`activation` 'relu' or 'silu' or 'gelu' or 'swish'. Received: 'tanh'.",
        ),
        ({"decoder": "ssru"}, "it needs `decoder` 'attention'. Received: 'ssru'."),
        ({"num_kv_heads": 1}, "it needs `num_kv_heads` None. Received: 1."),
        (
            {"normalize_first": True, "tie_embeddings": "none"},
            "A pre-norm model becomes Pegasus, .* `tie_embeddings: all`. Received: 'none'.",
        ),
    ],
)
def test_a_model_without_a_class_is_one_line(make_engine, fields, message):
    with pytest.raises(InputError, match=message) as error:
        HuggingFaceExporter().resolve_export_options(make_engine(**fields), SearchedOptions())
    assert "\n" not in str(error.value)


CARDS = [
    # Fields of the manifest, and what the card says: languages, title, training, what it lacks.
    ({"languages": None}, "", "", "", "the licence, the languages and the data"),
    (
        {"languages": ["en", "de"], "training_texts": ["a.en", "a.de"]},
        "language:\n- en\n- de\n",
        " from English to German",
        "## Training\n\nThe model was trained on `a.en`, `a.de`.\n\n",
        "the licence and the data",
    ),
    (
        {
            "languages": ["fr", "fr"],
            "licence": "cc-by-4.0",
            "validation_bleu": 31.5,
            "bleu_signature": "tok:13a",
        },
        "language:\n- fr\n",
        " from French to French",
        "## Training\n\nGreedy translations of the validation text have BLEU 31.5 (`tok:13a`).\n\n",
        "the data",
    ),
]
SEVEN = "en de fr es it nl pt".split()
LANGUAGES = {
    "tokens": {code: f">>{code}<<" for code in [*SEVEN, "cs"]},
    "source_prefix": "target",
    "directions": [*((code, "cs") for code in SEVEN), (None, "en")],
}
CARDS += [
    (
        {"languages": None, "language_tokens": LANGUAGES},
        "language:\n" + "".join(f"- {code}\n" for code in [*SEVEN, "cs"]),
        " from English, German, French, Spanish, Italian and 2 more to Czech and English",
        "",
        "the licence and the data",
    )
]


@pytest.mark.parametrize(("manifest", "languages", "direction", "training", "missing"), CARDS)
def test_a_card_says_what_is_known_of_a_model(manifest, languages, direction, training, missing):
    fields = {"language_field": languages, "direction": direction}
    licence = json.dumps(manifest["licence"]) if "licence" in manifest else "other"
    fields |= {"training": training, "missing": missing, "licence": licence}
    assert HuggingFaceExporter().readme_fields(manifest) == fields
