"""Models of Marian and Hugging Face against an independent NumPy reference and their own scores."""

import json
import pathlib
import re
import shutil
import struct

import marian_reference
import numpy as np
import pytest
import sentencepiece
import yaml

from keras_transformer import Translator
from keras_transformer.cli.main import run
from keras_transformer.decoding.search import score_targets
from keras_transformer.engine import ModelEngine
from keras_transformer.engine.run_folder import RunFiles
from keras_transformer.errors import InputError
from keras_transformer.ids import BOS_ID, EOS_ID, UNK_ID
from keras_transformer.importing import import_model, import_run, marian
from keras_transformer.locks import locked_folder

pytestmark = pytest.mark.tensorflow

TOYS = pathlib.Path(__file__).parents[1] / "data" / "marian"
OURS = pytest.mark.parametrize("name", ["opus", "student"])
SHARED = pathlib.Path(__file__).parents[3] / "shared" / "data" / "marian"
with_shared_toys = pytest.mark.skipif(
    not SHARED.is_dir(), reason=f"needs Marian's toys with their scores in {SHARED}"
)
SUPPORTED = ["post_relu_tied", "post_gelu", "default_normalizer", "opus_layout", "pre_ssru"]
SUPPORTED += ["post_ssru_guided", "pre_swish_separate"]
SOURCES = ["the old child sees a small house", "a cat", "yes, the river moves"]
SPELLINGS = [">>epo<< a cat", " >>epo<<  a cat", ">>epo<<a cat", "\u00a0>>epo<<\u3000a cat"]
TARGETS = ["la kato movas", "la maljuna infano vidas malgrandan domon", "jes"]


@pytest.fixture(scope="module")
def imported():
    """Models of folders, each imported once."""
    models = {}

    def get(folder):
        if folder not in models:
            models[folder] = import_model(folder)
        return models[folder]

    return get


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


@OURS
def test_words_have_the_probabilities_of_an_independent_reference(imported, name):
    folder = TOYS / name
    toy, path = imported(folder), marian.model_file(folder)
    tensors = marian.read_tensors(path)
    options = yaml.load(bytes(tensors[marian.OPTIONS]).split(b"\0")[0], yaml.BaseLoader)
    all_scores = word_scores(toy, SOURCES, TARGETS)
    for source, target, scores in zip(SOURCES, TARGETS, all_scores, strict=True):
        ids = toy.source_tokenizer.tokenize(source, add_eos=True)
        written = toy.target_tokenizer.tokenize(target, add_eos=True)
        # In the file the end is 0 and the unknown token 1.
        sides = ([id - 2 for id in row] for row in (ids, written))
        expected = marian_reference.log_probabilities(tensors, options, *sides)
        np.testing.assert_allclose(scores, expected, atol=1e-4)


def test_a_weight_of_int8_is_its_number_over_the_multiplier(load_program):
    make = load_program(TOYS / "make.py")
    tensors = marian.read_tensors(TOYS / "student" / "model.intgemm8.bin")
    arrays = make.tensors(len(tensors["Wemb"]), np.random.default_rng(2), ssru=True)
    for name, array in arrays.items():
        step = np.abs(array).max() / 127
        np.testing.assert_allclose(tensors[name], array, atol=step * 0.51 if "W" in name else 0)


class TestVocabulary:
    """A vocabulary file in addition to the SentencePiece models, as OPUS-MT has it."""

    @pytest.fixture
    def names(self):
        ids = yaml.load((TOYS / "opus" / "vocab.yml").read_text("utf-8"), yaml.BaseLoader)
        return sorted(ids, key=lambda name: int(ids[name]))

    def expected(self, side, text, names):
        """The ids of SentencePiece's pieces, each looked up by its name."""
        path = str(TOYS / "opus" / f"{side}.spm")
        pieces = sentencepiece.SentencePieceProcessor(model_file=path).encode(text, out_type=str)
        return [names.index(piece) + 2 if piece in names else UNK_ID for piece in pieces]

    @pytest.mark.parametrize("side", ["source", "target"])
    def test_a_text_is_cut_as_sentencepiece_cuts_it(self, imported, names, side):
        toy = imported(TOYS / "opus")
        tokenizer = getattr(toy, f"{side}_tokenizer")
        texts = SOURCES if side == "source" else TARGETS
        texts = [*texts, f"çé {texts[0]}", f"{texts[1]}ççé ж", "Ж"]
        rows = [tokenizer.tokenize(text) for text in texts]
        assert rows == [self.expected(side, text, names) for text in texts]
        assert any(UNK_ID in row for row in rows)

    def test_the_graph_gives_the_ids_of_python(self, imported):
        from keras_transformer.text.graph import GraphTokenizer

        tokenizer = imported(TOYS / "opus").source_tokenizer
        texts = [*SOURCES, ">>epo<< the cat", *SPELLINGS, ">>fra<<a", "a >>epo<<b"]
        rows = GraphTokenizer(tokenizer).tokenize(texts, add_eos=True).to_list()
        assert rows == tokenizer.tokenize(texts, add_eos=True)
        assert max(map(max, rows)) < tokenizer.vocabulary_size

    def test_a_language_is_one_token_and_no_separator_of_turns(self, imported, names):
        tokenizer = imported(TOYS / "opus").source_tokenizer
        for text in SPELLINGS:
            ids = tokenizer.tokenize(text)
            assert ids[0] == names.index(">>epo<<") + 2
            assert ids[1:] == tokenizer.tokenize("a cat")
        assert tokenizer.turn_id is None and tokenizer.tags == ("epo",)

    @pytest.mark.parametrize("kind", ["user_defined_symbols", "control_symbols"])
    def test_a_language_that_is_a_piece_too_is_one_token(self, load_program, kind):
        from keras_transformer.importing.vocabulary import Vocabulary, tokenizer_of
        from keras_transformer.text.vocabulary import parsed

        make = load_program(TOYS / "make.py")
        model = parsed(make.sentencepiece_model(make.SOURCE, 50, **{kind: [">>epo<<"]}))
        names = ["</s>", "<unk>", ">>epo<<", "▁a"]
        tokenizer = tokenizer_of(Vocabulary(model, names, 0, 1), writes=False)
        assert tokenizer.tags == ("epo",)
        for text in SPELLINGS:
            assert tokenizer.tokenize(text)[:2] == [4, 5]

    def test_a_language_is_a_tag_that_is_checked_against_the_vocabulary(self, imported):
        from keras_transformer.export.saved_model.signatures import Signatures

        toy = imported(TOYS / "opus")
        tokenizers = toy.source_tokenizer, toy.target_tokenizer
        engine = ModelEngine(toy.model, *tokenizers, with_xla=False)
        translator = Translator(engine)
        (expected,) = engine.translate([">>epo<< a cat"], beam_size=1)
        assert expected.text != engine.translate(["a cat"], beam_size=1)[0].text
        received = translator.translate(["a cat", " "], tag="epo", beam_size=1)
        assert [translation.text for translation in received] == [expected.text, ""]
        assert [*translator.stream("a cat", tag="epo")][-1] == expected.text
        (scored,) = translator.score(["a cat"], [expected.text], tag="epo")
        (typed,) = translator.score(["  >>epo<<a cat"], [expected.text])
        assert scored.log_probability == typed.log_probability
        with pytest.raises(InputError, match="`tag` must be one of epo. Received: tag='fra'"):
            translator.translate(["a cat"], tag="fra")
        # The graph of a SavedModel reads the same.
        texts = [*SPELLINGS, ">>epo<<", " >>epo<< "]
        greedy = Signatures(engine, {}).concrete("greedy")
        texts_of_graph = [text.decode() for text in greedy(text=texts)["translation"].numpy()]
        assert texts_of_graph == [expected.text] * len(SPELLINGS) + [""] * 2

    def test_a_piece_of_the_other_side_keeps_its_text_in_a_translation(self, imported, names):
        source = sentencepiece.SentencePieceProcessor(model_file=str(TOYS / "opus" / "source.spm"))
        target = sentencepiece.SentencePieceProcessor(model_file=str(TOYS / "opus" / "target.spm"))
        source_only = [
            name
            for name in names
            if source.piece_to_id(name) != source.unk_id()
            and target.piece_to_id(name) == target.unk_id()
            and len(name.strip("▁")) > 1
        ]
        tokenizer = imported(TOYS / "opus").target_tokenizer
        assert source_only
        for name in source_only:
            text = tokenizer.detokenize([names.index(name) + 2])
            assert text == name.replace("▁", " ").strip()


def test_bpe_is_cut_as_sentencepiece_cuts_it(load_program):
    from keras_transformer.importing.vocabulary import of_sentencepiece, tokenizer_of
    from keras_transformer.text.graph import GraphTokenizer
    from keras_transformer.text.vocabulary import parsed

    make = load_program(TOYS / "make.py")
    ids = {"eos_id": 0, "unk_id": 1, "bos_id": -1, "pad_id": -1, "model_type": "bpe"}
    content = make.sentencepiece_model(make.SOURCE, 50, **ids)
    model = parsed(content)
    tokenizer = tokenizer_of(of_sentencepiece(model), writes=True)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=content)
    expected = [[id + 2 for id in theirs.encode(text)] for text in make.SOURCE]
    assert tokenizer.kind == "bpe"
    assert tokenizer.tokenize(make.SOURCE) == expected
    assert GraphTokenizer(tokenizer).tokenize(make.SOURCE).to_list() == expected
    assert tokenizer.detokenize(expected) == make.SOURCE


def changed(tmp_path, name="opus", parts=None, files=None, **options):
    """A copy of a toy with other options and parts of tensors in its model, and other files."""
    folder = tmp_path / name
    shutil.copytree(TOYS / name, folder)
    path = folder / "model.npz"
    tensors = marian.read_tensors(path)
    settings = yaml.load(bytes(tensors[marian.OPTIONS]).split(b"\0")[0], yaml.BaseLoader)
    settings |= {key.replace("_", "-"): value for key, value in options.items()}
    tensors |= {key: tensors[key][part] for key, part in (parts or {}).items()}
    for file, content in (files or {}).items():
        (folder / file).write_text(content, "utf-8")
    tensors[marian.OPTIONS] = np.frombuffer(yaml.safe_dump(settings).encode() + b"\0\0", "int8")
    np.savez(path, **tensors)
    return folder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"type": "s2s"}, "`type` must be 'transformer'"),
        ({"transformer_tied_layers": ["1", "1"]}, "layers that share weights"),
        ({"transformer_no_projection": "true"}, "`transformer-no-projection`"),
        ({"transformer_postprocess_emb": "nd"}, "`transformer-postprocess-emb`"),
        ({"transformer_decoder_autoreg": "average-attention"}, "`transformer-decoder-autoreg`"),
        ({"transformer_alibi_shift": "true"}, "`transformer-alibi-shift` must be 'false'"),
        ({"dim_emb": "15"}, "the width must be even"),
        ({"transformer_preprocess": "n"}, "normalizations must be all before or all after"),
        (
            {"transformer_preprocess": "n", "transformer_postprocess": "da"}
            | {"transformer_postprocess_top": "n", "version": "v1.10.4 1234"},
            "pre-norm models of Marian before 1.11",
        ),
        ({"transformer_ffn_activation": "gelu", "version": "v1.12.0"}, "gelu of Marian before"),
        ({"enc_depth": "1"}, "the tensor encoder_l2_ffn_W1 has no place"),
        ({"dec_depth": "3"}, "the model has no tensor decoder_l3_self_Wq"),
        ({"enc_depth": "x"}, "`enc-depth` must be an integer of at least 0. Received: 'x'"),
        ({"parts": {"Wemb": np.s_[:, :12]}}, "the shape of .*embeddings must be"),
        ({"parts": {"encoder_l1_self_Wo_ln_scale": np.s_[:, :12]}}, "the shape of .*gamma must be"),
        ({"parts": {"encoder_l1_ffn_W2": np.s_[:, :12]}}, "the shape of .*kernel must be"),
        ({"parts": {"Wemb": np.s_[:-1]}}, "each id must have a row. Received: 48 ids .* 47 rows"),
        ({"parts": {"decoder_ff_logit_out_b": np.s_[:, :12]}}, "48 ids .* 12 rows"),
        ({"files": {"vocab.yml": "</s>: 0\n<unk>: 1\na: 48"}}, "Received: 49 ids .* 48 rows"),
        ({"files": {"vocab.yml": "{}"}}, "expected names with their ids"),
        ({"files": {"decoder.yml": "vocabs: [a.yml, vocab.yml]"}}, "must name files .* 'a.yml'"),
        ({"files": {"decoder.yml": "a: b", "b.vocab.yml": ""}}, "names with source and target"),
    ]
    + [
        ({"files": {"decoder.yml": f"{name}: {value}"}}, f"`{name}` must be .*at least 0")
        for name, value in (("beam-size", "twelve"), ("normalize", "true"), ("normalize", "[1]"))
        + (("max-length-factor", ".inf"), ("word-penalty", "-1"))
    ],
)
def test_what_is_not_supported_is_one_line(tmp_path, options, message):
    with pytest.raises(InputError, match=message) as caught:
        import_model(changed(tmp_path, **options))
    assert "\n" not in str(caught.value)


def test_fewer_names_than_rows_are_told(tmp_path, capsys):
    folder = changed(tmp_path, files={"vocab.yml": "</s>: 0\n<unk>: 1\na: 44\n"})
    assert import_model(folder).model.config.vocabulary_size == 47
    assert "45 ids of the vocabulary and 48 rows of a tensor" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        # A pickle is not read, and the message says how to convert it.
        ({}, "is a pickle.*save_pretrained"),
        ({"d_model": None}, "`d_model` must be an integer of at least 0. Received: None"),
        ({"encoder_layers": "two"}, "`encoder_layers` must be an integer"),
        ({"pad_token_id": -1}, "`pad_token_id` must be an integer of at least 0"),
        (dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 0), "multiple of 0"),
    ],
)
def test_a_folder_of_hugging_face_that_cannot_be_read_is_one_line(tmp_path, changes, message):
    names = ("layers", "attention_heads", "ffn_dim")
    sizes = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in names}
    config = {"model_type": "marian", "scale_embedding": True, "d_model": 16, **sizes}
    config |= {"pad_token_id": 58, "decoder_start_token_id": 58, **changes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(InputError, match=message):
        import_model(tmp_path)


@pytest.mark.parametrize(
    ("size", "kind", "message"),
    [(None, kind, "only float32 and intgemm8 are read") for kind in (0x10002, 0x18001)]
    + [(size, 0x4101, "model.intgemm8.bin") for size in (8, 100, 3000)],
)
def test_tensors_of_other_types_and_a_truncated_file_are_refused(tmp_path, size, kind, message):
    folder = tmp_path / "student"
    shutil.copytree(TOYS / "student", folder)
    path = folder / "model.intgemm8.bin"
    content = path.read_bytes().replace(struct.pack("<Q", 0x4101), struct.pack("<Q", kind))
    path.write_bytes(content[:size])
    with pytest.raises(InputError, match=message):
        import_model(folder)


def test_the_command_makes_a_run_that_translates_as_the_model_does(tmp_path, capsys):
    output = tmp_path / "run"
    assert run(["import", str(TOYS / "opus"), "--output", str(output)]) == 0
    assert capsys.readouterr().out == f"{output}\n"
    translator, toy = Translator.load(output), import_model(TOYS / "opus")
    assert {key: translator.defaults[key] for key in toy.decoding} == toy.decoding
    engine = ModelEngine(toy.model, toy.source_tokenizer, toy.target_tokenizer, with_xla=False)
    expected = [translation.text for translation in engine.translate(SOURCES, **toy.decoding)]
    assert [translation.text for translation in translator.translate(SOURCES)] == expected
    assert run(["import", str(TOYS / "opus"), "--output", str(output)]) == 2
    message = capsys.readouterr().err
    assert "exists already. Give --overwrite to replace it, or another --output." in message


@pytest.mark.parametrize("place", ["RunFiles.write_sections", "save_model"])
def test_an_import_that_was_killed_is_made_again(tmp_path, monkeypatch, place):
    output = tmp_path / "run"

    def killed(*arguments):
        if place == "save_model":
            arguments[1].write_bytes(b"")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(f"keras_transformer.importing.{place}", killed)
        import_run(TOYS / "student", output)
    # Before the recipe is written, the folder is not a run.
    import_run(TOYS / "student", output, overwrite=place == "save_model")
    assert Translator.load(output).translate(SOURCES[:1])


def test_one_process_at_a_time_writes_the_run(tmp_path):
    output = tmp_path / "run"
    with locked_folder(output), pytest.raises(InputError, match="writes to this folder"):
        import_run(TOYS / "student", output)
    assert not output.exists()


@pytest.mark.slow
def test_a_training_starts_from_the_run_with_nothing_but_a_corpus(tmp_path):
    from keras_transformer.training import Recipe, train

    origin = import_run(TOYS / "student", tmp_path / "origin")
    (tmp_path / "a.src").write_text("\n".join(SOURCES * 20) + "\n")
    (tmp_path / "a.trg").write_text("\n".join(TARGETS * 20) + "\n")
    files = {"source": "a.src", "target": "a.trg"}
    recipe = {
        "data": {"folder": str(tmp_path), "train": files, "validation": files}
        | {"drop_duplicates": False, "max_length_ratio": None},
        "training": {"start_from": origin, "epochs": 2, "warmup_steps": 10, "max_shapes": 1}
        | {"batch_tokens": 512, "sample_translations": 0, "jit_compile": False}
        | {"ema_momentum": 0.9},
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    folder = train(Recipe.load(path), tmp_path / "tuned")
    losses = [row["val_loss"] for row in folder.history()]
    assert losses[1] < losses[0]
    assert folder.model().config == import_model(TOYS / "student").model.config
    # Marian's vector of the beginning of a sentence stays zero, and its ranking the default.
    table = folder.model().target_embedding.embeddings
    assert not np.any(table[BOS_ID]) and np.all(np.any(table[EOS_ID:], axis=1))
    assert folder.decoding() == RunFiles(origin).decoding()


def test_a_training_from_a_recipe_without_files_is_one_line(tmp_path):
    from keras_transformer.training import Recipe, train

    origin = import_run(TOYS / "student", tmp_path / "origin")
    recipe = Recipe.load(pathlib.Path(origin) / "recipe.yaml")
    with pytest.raises(InputError, match="`data.train` must name its files"):
        train(recipe, tmp_path / "again")


def expected_of(name):
    corpus = (SHARED / "corpus" / f"test.{side}" for side in ("src", "trg"))
    texts = [path.read_text(encoding="utf-8").splitlines() for path in corpus]
    return texts, json.loads((SHARED / "toys" / name / "expected.json").read_text("utf-8"))


@with_shared_toys
@pytest.mark.parametrize("name", SUPPORTED)
def test_words_have_marians_own_scores(imported, name):
    (sources, targets), expected = expected_of(name)
    all_scores = word_scores(imported(SHARED / "toys" / name), sources, targets)
    for scores, known in zip(all_scores, expected["word_scores"], strict=True):
        np.testing.assert_allclose(scores, known, atol=1e-4)


@with_shared_toys
@pytest.mark.parametrize(
    ("name", "search"),
    # But pre-norm with self-attention: Marian's decoder normalizes other keys than its scorer.
    [(name, "beam1_normalize1_penalty0") for name in SUPPORTED if name != "pre_swish_separate"]
    + [
        ("post_relu_tied", "beam6_normalize0.6_penalty0"),
        ("post_ssru_guided", "beam4_normalize1_penalty0.3"),
    ],
)
def test_texts_are_marians_own(imported, name, search):
    (sources, _), expected = expected_of(name)
    rows, known = search_of(imported(SHARED / "toys" / name), sources, search), expected[search]
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
    engine = ModelEngine(toy.model, toy.source_tokenizer, toy.target_tokenizer, with_xla=False)
    tokenizer = toy.target_tokenizer

    def pieces(ids):
        return " ".join(tokenizer.pieces_of([id for id in ids if id != EOS_ID]))

    return [
        (pieces(translation.ids), translation.score, translation.log_probability)
        for translation in engine.translate(sources, batch_size=len(sources), **options)
    ]


@with_shared_toys
def test_bergamots_binary_file_gives_the_scores_of_the_npz(imported, tmp_path):
    folder = SHARED / "toys" / "post_ssru_guided"
    shutil.copyfile(folder / "vocab.spm", tmp_path / "vocab.spm")
    shutil.copyfile(folder / "model.bergamot.bin", tmp_path / "model.bin")
    (sources, targets), _ = expected_of("post_ssru_guided")
    quantized = import_model(tmp_path)
    exact = np.concatenate(word_scores(imported(folder), sources, targets))
    scores = np.concatenate(word_scores(quantized, sources, targets))
    assert np.abs(scores - exact).mean() < 0.1


@with_shared_toys
def test_hugging_faces_logits_and_texts(imported):
    pytest.importorskip("safetensors")
    folder = SHARED / "hf" / "tied"
    toy = imported(folder)
    known = json.loads((folder / "expected.json").read_text("utf-8"))
    arrays = np.load(folder / "expected.npz")
    pad = json.loads((folder / "config.json").read_text())["pad_token_id"]
    ours = [2, 3, *range(4, pad + 2), 0]  # The file's ids in ours: its padding is the last.
    for number, text in enumerate(known["sources"]):
        source = [ours[id] for id in arrays[f"source{number}"]]
        target = [ours[id] for id in arrays[f"target{number}"]]
        assert toy.source_tokenizer.tokenize(text, add_eos=True) == source
        logits = np.asarray(toy.model((np.array([source]), np.array([[1, *target[:-1]]]))))[0]
        np.testing.assert_allclose(logits[:, ours], arrays[f"logits{number}"], atol=1e-4)
    engine = ModelEngine(toy.model, toy.source_tokenizer, toy.target_tokenizer, with_xla=False)
    options = {**toy.decoding, "beam_size": 4, "max_length": 39, "max_length_ratio": float("inf")}
    texts = [translation.text for translation in engine.translate(known["sources"], **options)]
    assert texts == [text for text, *_ in known["beam4"]]
