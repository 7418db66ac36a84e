"""Models of Marian and Hugging Face against an independent NumPy reference and their own scores."""

import errno
import hashlib
import json
import os
import pathlib
import re
import shutil
import struct
from unittest import mock

import numpy as np
import pytest
import sentencepiece
import yaml
from model_servers import FileServer, make_tar, make_zip

from keras_transformer import Translator
from keras_transformer.cli.main import run
from keras_transformer.decoding.search import score_targets
from keras_transformer.engine import ModelEngine
from keras_transformer.engine.run_folder import RunFiles
from keras_transformer.errors import InputError
from keras_transformer.export import export_ctranslate2
from keras_transformer.files import locked_folder
from keras_transformer.ids import BOS_ID, EOS_ID, UNK_ID
from keras_transformer.interop.importing import import_model, import_run, read_model
from keras_transformer.interop.marian import reader as marian
from keras_transformer.interop.vocabulary import BANNED
from keras_transformer.reading import file_digests
from keras_transformer.text.vocabulary import parsed

pytestmark = pytest.mark.tensorflow

TOYS = pathlib.Path(__file__).parents[1] / "data" / "marian"
SUPPORTED = ["post_relu_tied", "post_gelu", "default_normalizer", "opus_layout", "pre_ssru"]
SUPPORTED += ["post_ssru_guided", "pre_swish_separate"]
ENDS = "</s>: 0\n<unk>: 1\n"
SOURCES = ["the old child sees a small house", "a cat", "yes, the river moves"]
SPELLINGS = [">>epo<< a cat", " >>epo<<  a cat", ">>epo<<a cat", "\u00a0>>epo<<\u3000a cat"]
PRE_NORM = {"transformer_preprocess": "n", "transformer_postprocess": "da"}
PRE_NORM["transformer_postprocess_top"] = "n"
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
        from keras_transformer.interop.vocabulary import Vocabulary, tokenizer_of
        from keras_transformer.text.vocabulary import parsed

        make = load_program(TOYS / "make.py")
        model = parsed(make.sentencepiece_model(make.SOURCE, 50, **{kind: [">>epo<<"]}))
        names = ["</s>", "<unk>", ">>epo<<", "▁a"]
        tokenizer = tokenizer_of(Vocabulary(model, names, 0, 1), is_target=False)
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
        assert translator.directions == [(None, "eo")]
        for language in ("eo", "epo"):
            named = translator.translate(["a cat", " "], target_language=language, beam_size=1)
            assert [(t.text, t.score) for t in named] == [(t.text, t.score) for t in received]
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
    from keras_transformer.interop.vocabulary import of_sentencepiece, tokenizer_of
    from keras_transformer.text.graph import GraphTokenizer
    from keras_transformer.text.vocabulary import parsed

    make = load_program(TOYS / "make.py")
    ids = {"eos_id": 0, "unk_id": 1, "bos_id": -1, "pad_id": -1, "model_type": "bpe"}
    content = make.sentencepiece_model(make.SOURCE, 50, **ids)
    model = parsed(content)
    tokenizer = tokenizer_of(of_sentencepiece(model), is_target=True)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=content)
    expected = [[id + 2 for id in theirs.encode(text)] for text in make.SOURCE]
    assert tokenizer.kind == "bpe"
    assert tokenizer.tokenize(make.SOURCE) == expected
    assert GraphTokenizer(tokenizer).tokenize(make.SOURCE).to_list() == expected
    assert tokenizer.detokenize(expected) == make.SOURCE


def changed(tmp_path, name="opus", parts=None, files=None, missing=(), **options):
    """A copy of a toy with other options and parts of tensors in its model, and other files."""
    folder = tmp_path / name
    shutil.copytree(TOYS / name, folder)
    path = folder / "model.npz"
    tensors = marian.read_tensors(path)
    settings = yaml.load(bytes(tensors[marian.OPTIONS]).split(b"\0")[0], yaml.BaseLoader)
    settings |= {key.replace("_", "-"): value for key, value in options.items()}
    tensors |= {key: tensors[key][part] for key, part in (parts or {}).items()}
    for file, content in (files or {}).items():
        (folder / file).write_text(content, "utf-8", "surrogateescape")
    for file in missing:
        (folder / file).unlink()
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
        ({"dim_emb": "15"}, "the width must be even, .* 2 heads. Received: 15"),
        ({"transformer_preprocess": "n"}, "normalizations must be all before or all after"),
        ({**PRE_NORM, "version": "v1.10.4 1234"}, "pre-norm models of Marian before 1.11"),
        ({"transformer_ffn_activation": "gelu", "version": "v1.12.0"}, "gelu of Marian before"),
        ({"enc_depth": "1"}, "has no weight for the tensor encoder_l2_ffn_W1"),
        ({"dec_depth": "3"}, "the model has no tensor decoder_l3_self_Wq"),
        ({"enc_depth": "x"}, "`enc-depth` must be an integer of at least 0. Received: 'x'"),
        ({"parts": {"Wemb": np.s_[:, :12]}}, "the shape of .*embeddings must be"),
        ({"parts": {"encoder_l1_self_Wo_ln_scale": np.s_[:, :12]}}, "the shape of .*gamma must be"),
        ({"parts": {"encoder_l1_ffn_W2": np.s_[:, :12]}}, "the shape of .*kernel must be"),
        ({"parts": {"Wemb": np.s_[:-1]}}, "each id must have a row. Received: 48 ids .* 47 rows"),
        ({"parts": {"decoder_ff_logit_out_b": np.s_[:, :12]}}, "48 ids .* 12 rows"),
        ({"files": {"vocab.yml": "</s>: 0\n<unk>: 1\na: 48"}}, "Received: 49 ids .* 48 rows"),
        ({"files": {"vocab.yml": "{}"}}, "expected names with their ids"),
        ({"files": {"vocab.yml": f"{ENDS}a: 44\n"}}, "each row must .* 45 ids .* 48 rows"),
        ({"files": {"vocab.yml": f"{ENDS}a: {10**10}"}}, "Received: 10000000001 ids .* 48 rows"),
        ({"files": {"vocab.yml": f"{ENDS}a: 5\nb: 5"}}, "line 4: .* one name, .* 'a'.* 'b': '5'"),
        ({"files": {"vocab.yml": f"{ENDS}a: 5\na: 6"}}, "line 4: .* one id, .* 5 .* 'a': '6'"),
        ({"files": {"vocab.yml": f"{ENDS}a: x"}}, "line 3: .* an integer .* 'a': 'x'"),
        ({"files": {"vocab.yml": f"{ENDS}[a: 2\n"}}, "vocab.yml, line 4: not valid YAML"),
        ({"files": {"vocab.yml": f"{ENDS}ab\x01: 2"}}, "line 3: .* U\\+0001 at column 3"),
        ({"files": {"vocab.yml": f"{ENDS}\udcff: 2"}}, "line 3: expected UTF-8.* byte 0xff"),
        # The remaining files of OPUS-MT's layout only segment words.
        ({"missing": ["vocab.yml", "decoder.yml"]}, "source.spm: .*only segments words: copy"),
        ({"missing": ["vocab.yml"]}, "decoder.yml: `vocabs` must name files"),
        ({"missing": ["source.spm"]}, "source.spm and target.spm are needed"),
        ({"missing": ["vocab.yml", "decoder.yml", "target.spm"]}, "names with source and target"),
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


def student(tmp_path, change=lambda model: None, name="vocab.en.spm", config=None):
    """A copy of the student with a changed vocabulary, and other options of its decoder."""
    folder = tmp_path / "student"
    shutil.copytree(TOYS / "student", folder)
    model = parsed((folder / "vocab.en.spm").read_bytes())
    change(model)
    (folder / "vocab.en.spm").unlink()
    (folder / name).write_bytes(model.SerializeToString())
    (folder / "config.yml").unlink()
    if config is not None:
        (folder / "config.yml").write_text(config)
    return folder


def without_last(model):
    del model.pieces[-1]


def without_unknown(model):
    model.pieces[1].type = model.pieces[1].CONTROL


def without_end(model):
    model.pieces[0].piece = "<end>"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_last, "vocab.en.spm: each row must have a name. Received: 59 ids .* 60 rows"),
        (without_unknown, "vocab.en.spm: the vocabulary must have <unk>"),
        (without_end, "vocab.en.spm: the vocabulary must have </s>"),
    ],
)
def test_a_vocabulary_that_does_not_fit_is_one_line(tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        import_model(student(tmp_path, change))


def test_one_vocabulary_of_two_is_not_taken_for_both_sides(tmp_path):
    with pytest.raises(InputError, match="names with source and target"):
        import_model(student(tmp_path, name="srcvocab.en.spm"))


# Marian's default is a beam of 12.
@pytest.mark.parametrize(("config", "beam_size"), [(None, 1), ("normalize: 1\n", 12)])
def test_a_student_without_a_config_searches_greedily(tmp_path, config, beam_size):
    assert import_model(student(tmp_path, config=config)).decoding["beam_size"] == beam_size


@pytest.mark.parametrize("is_old", [False, True])
def test_names_are_read_as_marians_yaml_library_writes_them(tmp_path, is_old):
    """yaml-cpp quotes DEL and writes it raw, before 0.6.3 in two bytes. The others are plain."""
    pieces = ["\x7f", "c\x85", "\u2028d", "e\u2029f", "\ufffe", "\uffff", "g\xa0", "---"]
    pieces += ["\x80", "\ufeff", "\u07ff:", "h:i", "\U000f0000"]
    escaped = {"\x80": r"\x80", "\ufeff": r"\ufeff"}
    if is_old:
        escaped |= {"\x7f": "\udcc1\udcbf", "\u07ff:": "\udce0\udc9f\udcbf:"}
    quoted = {name: f'"{escaped.get(name, name)}"' for name in ("\x7f", "\u07ff:", *escaped)}
    lines = [ENDS, *(f"{quoted.get(name, name)}: {id}\n" for id, name in enumerate(pieces, 2))]
    lines += [f"piece{id}: {id}\n" for id in range(2 + len(pieces), 48)]
    toy = import_model(changed(tmp_path, files={"vocab.yml": "".join(lines)}))
    ids = range(4, 4 + len(pieces))
    assert list(toy.target_tokenizer.pieces_of(ids)) == pieces


@pytest.mark.parametrize(
    ("normalize", "exponent"), [("", 0), ("normalize:\n", 1), ("normalize: 0.7\n", 0.7)]
)
def test_normalize_is_0_without_the_option_and_1_without_a_value(tmp_path, normalize, exponent):
    folder = changed(tmp_path, files={"decoder.yml": f"beam-size: 5\n{normalize}"})
    decoding = import_model(folder).decoding
    assert decoding["length_penalty"] == exponent
    # Without an option: Marian's word penalty, and three tokens per token of the source.
    assert (decoding["beam_size"], decoding["word_penalty"]) == (5, 0)
    assert decoding["max_length_ratio"] == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "pytorch_model.bin: cannot be read as weights of PyTorch: File is not a zip file"),
        ({"model_type": "nllb-moe"}, "for Pegasus, are imported. Received: 'nllb-moe'"),
        ({"model_type": "m2m_100", "scale_embedding": False}, "`scale_embedding` must be true"),
        ({"d_model": None}, "`d_model` must be an integer of at least 0. Received: None"),
        ({"encoder_layers": "two"}, "`encoder_layers` must be an integer"),
        ({"pad_token_id": -1}, "`pad_token_id` must be an integer of at least 0"),
        (
            dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 0),
            "multiple of the 0",
        ),
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


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 298763421\n"
FILES = [("opus", name) for name in ("model.npz", "source.spm", "vocab.yml", "decoder.yml")]
FILES += [("student", name) for name in ("model.intgemm8.bin", "vocab.en.spm", "config.yml")]
NEEDED = [("hugging_face", name) for name in ("model.safetensors", "vocab.json", "target.spm")]
OPTIONAL = [("hugging_face", name) for name in ("generation_config.json", "added_tokens.json")]
OPTIONAL += [("hugging_face", name) for name in ("config.json", "tokenizer_config.json")]
OPTIONAL += [("hugging_face", "pytorch_model.bin")]


@pytest.mark.parametrize(("name", "file"), [*FILES, *NEEDED, *OPTIONAL])
def test_a_pointer_of_git_lfs_in_the_place_of_a_file_is_named(tmp_path, make_toy, name, file):
    folder = make_toy(tmp_path, name)
    (folder / file).write_text(POINTER)
    if file == "pytorch_model.bin":
        (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=f"{file}: .* a Git LFS pointer .*git lfs pull"):
        import_model(folder)


@pytest.mark.parametrize(("name", "file"), NEEDED)
def test_a_missing_file_is_no_such_file(tmp_path, make_toy, name, file):
    folder = make_toy(tmp_path, name)
    (folder / file).unlink()
    with pytest.raises(InputError, match=f"{file}: no such file"):
        import_model(folder)


@pytest.mark.parametrize(("name", "file"), [NEEDED[0], FILES[0]])
@pytest.mark.parametrize("damage", ["half", "text", "pickle"])
def test_a_damaged_model_is_one_line_that_names_no_pickle(tmp_path, make_toy, name, file, damage):
    path = make_toy(tmp_path, name) / file
    if damage == "pickle":
        with open(path, "wb") as stream:
            np.savez(stream, Wemb=np.array([{}]))
    else:
        path.write_bytes(path.read_bytes()[:3000] if damage == "half" else b"<!DOCTYPE html>")
    with pytest.raises(InputError, match=f"{file}: ") as caught:
        import_model(path.parent)
    assert "\n" not in str(caught.value) and "allow_pickle" not in str(caught.value)


class TestHuggingFace:
    """A folder with tokens that were added, and with more options of a search than are here."""

    GENERATION = {"num_beams": 2, "max_length": 40, "min_length": 3, "no_repeat_ngram_size": 4}
    GENERATION |= {
        "bad_words_ids": [["<pad>"], [7], [8, 9]],
        "repetition_penalty": 1.3,
        "top_k": 50,
    }

    @pytest.fixture
    def folder(self, tmp_path, make_toy):
        return make_toy(tmp_path, "hugging_face", self.GENERATION)

    def test_options_that_are_here_are_the_runs_others_are_named(self, folder, tmp_path, capsys):
        import_run(folder, tmp_path / "run")
        decoding = RunFiles(tmp_path / "run").decoding()
        # Our ids have padding, BOS and then the file's; the start of a decoder is no token here.
        assert decoding.banned_ids == (7 + 2,)
        assert (decoding.beam_size, decoding.min_length, decoding.max_target_length) == (2, 3, 39)
        assert decoding.no_repeat_ngram_size == 4
        lines = [line for line in capsys.readouterr().err.splitlines() if "lacks" in line]
        (line,) = lines
        assert line.endswith("repetition_penalty=1.3, bad_words_ids=[[8, 9]]")
        translator = Translator.load(tmp_path / "run")
        translation = translator.translate(SOURCES[:1], beam_size=1)[0]
        assert len(translation.ids) >= 3 and 9 not in translation.ids
        assert "".join(translator.stream(SOURCES[0])) and translator.defaults["min_length"] == 3

    MINIMA = [{"min_length": 7}, {"min_new_tokens": 7}, {"min_length": 2}, {"min_new_tokens": 1}]
    MINIMA += [{"min_length": 1}, {"min_new_tokens": 0}, {"min_length": 9, "min_new_tokens": 2}]

    @pytest.mark.parametrize("kind", ["marian", "m2m100", "small100"])
    def test_the_shortest_translation_is_that_of_transformers(self, load_program, tmp_path, kind):
        safetensors_numpy()
        make, is_forced = load_program(TOYS / "make.py"), kind == "m2m100"
        if kind == "marian":
            make.make_hugging_face(tmp_path)
        else:
            make.make_m2m100(tmp_path, kind)
        for options in self.MINIMA:
            (tmp_path / "generation_config.json").write_text(json.dumps(options))
            received = read_model(tmp_path).decoding.get("min_length", 0)
            tokens = ["<start>", "__de__"] if is_forced else ["<start>"]
            # transformers refuses the end while fewer tokens stand before it: with the start, or
            # without it where new tokens are counted, which come first.
            start, least = (1, options.get("min_new_tokens")), (0, options.get("min_length"))
            first, minimum = start if start[1] is not None else least
            while len(tokens) - first < minimum:
                tokens.append("word")
            words = [token for token in [*tokens, "</s>"] if token in ("word", "</s>")]
            assert max(1, received) == len(words), options
            assert received != 1

    def test_nothing_is_named_where_nothing_is_lost(self, tmp_path, make_toy, capsys):
        folder = make_toy(tmp_path, "hugging_face", {"bad_words_ids": [["<pad>"]], "num_beams": 4})
        assert import_model(folder).decoding.keys().isdisjoint(("banned_ids", "min_length"))
        assert "lacks" not in capsys.readouterr().err

    @pytest.mark.parametrize("banned", [5, [], [7.0], [7, True], [10**6]])
    def test_what_is_no_list_of_ids_cannot_be_banned(self, tmp_path, make_toy, banned):
        folder = make_toy(tmp_path, "hugging_face", {"bad_words_ids": [[7], banned]})
        with pytest.raises(InputError, match="banned tokens must be lists of ids of the vocab"):
            import_model(folder)

    def test_an_added_token_keeps_its_row_and_is_one_token_in_each_text(self, folder):
        toy = import_model(folder)
        names = json.loads((folder / "vocab.json").read_text("utf-8"))
        names |= json.loads((folder / "added_tokens.json").read_text("utf-8"))
        theirs = sentencepiece.SentencePieceProcessor(model_file=str(folder / "source.spm"))
        rows = np.asarray(toy.model.source_embedding.embeddings)
        table = safetensors_numpy().load_file(folder / "model.safetensors")["model.shared.weight"]
        for text in ("the old <x> childs<x> sees", "<x> a cat", "a cat <x>", "<x><x> the tree"):
            # As transformers does: the tokens are cut out, and the rest is SentencePiece's.
            expected = []
            for part in re.split("(<x>)", text):
                pieces = [part] if part == "<x>" else theirs.encode(part, out_type=str)
                expected += [names.get(piece, names["<unk>"]) for piece in pieces]
            ids = toy.source_tokenizer.tokenize(text)
            np.testing.assert_array_equal(rows[ids], table[expected])
            assert toy.target_tokenizer.detokenize(toy.target_tokenizer.tokenize(text)) == text
        # A translation has an added token once, at the beginning of a word.
        bias = np.asarray(toy.model.output_bias)
        indices = [id for id, row in enumerate(rows) if np.array_equal(row, table[names["<x>"]])]
        assert [bias[index] == BANNED for index in indices] == [False, True]


def safetensors_numpy():
    return pytest.importorskip("safetensors.numpy", reason="comes with the extra [import]")


@pytest.fixture
def make_toy(load_program):
    """`make_toy(tmp_path, name)`: a copy of a toy, or a folder of Hugging Face made of `opus`."""

    def make_toy(tmp_path, name, generation=None):
        folder = tmp_path / name
        if name != "hugging_face":
            shutil.copytree(TOYS / name, folder)
            return folder
        safetensors_numpy()
        folder.mkdir()
        load_program(TOYS / "make.py").make_hugging_face(folder, added=["<x>"])
        contents = {"generation_config.json": generation or {}, "tokenizer_config.json": {}}
        pad = json.loads((folder / "config.json").read_text("utf-8"))["pad_token_id"]
        for file, content in contents.items():
            (folder / file).write_text(json.dumps(content).replace('"<pad>"', str(pad)), "utf-8")
        return folder

    return make_toy


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


@pytest.mark.parametrize(("toy", "make"), [("opus", make_zip), ("student", make_tar)])
def test_a_model_behind_a_url_becomes_a_run_that_names_it(tmp_path, capsys, toy, make):
    pytest.importorskip("httpx2", reason="comes with the extra [import]")
    members = {f"{toy}/{path.name}": path.read_bytes() for path in (TOYS / toy).iterdir()}
    members[f"{toy}/README.md"] = b"---\nlicense: cc-by-4.0\n---\n"
    content = make(tmp_path / "archive", members).read_bytes()
    with FileServer().running() as server:
        server.files["/models/toy?key=secret"] = content
        url = f"{server.url}/models/toy"
        assert run(["import", f"{url}?key=secret", "--output", str(tmp_path / "run")]) == 0
    digest = hashlib.sha256(content).hexdigest()
    lines = capsys.readouterr().err.splitlines()
    assert {f"{url.rpartition('/')[2]}: sha256 {digest}", f"{url}: reading the model"} <= {*lines}
    files, expected = RunFiles(tmp_path / "run"), import_model(TOYS / toy).model
    origin = {"name": url, "revision": None, "licence": "cc-by-4.0", "files": {"toy": digest}}
    assert files.origin() == {name: value for name, value in origin.items() if value}
    for weight, known in zip(files.model().weights, expected.weights, strict=True):
        np.testing.assert_array_equal(weight, known)


@pytest.mark.parametrize("function", ["RunFiles.write_sections", "save_model"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(errno.ENOSPC, "No space left")])
def test_an_import_that_fails_leaves_what_was_there(tmp_path, monkeypatch, function, error):
    output = tmp_path / "run"
    for overwrite in (False, True):
        before = file_digests(output)
        with monkeypatch.context() as patch, pytest.raises((OSError, KeyboardInterrupt)):
            patch.setattr(
                f"keras_transformer.interop.importing.{function}", mock.Mock(side_effect=error)
            )
            import_run(TOYS / "student", output, overwrite=overwrite)
        assert file_digests(output) == before and output.exists() == overwrite
        if not overwrite:
            import_run(TOYS / "student", output)


def test_a_kill_while_the_earlier_run_is_removed_leaves_a_replaceable_run(tmp_path, monkeypatch):
    output, remove = import_run(TOYS / "opus", tmp_path / "run"), shutil.rmtree

    def killed(path, *arguments, **options):
        if pathlib.Path(path).parent == tmp_path:
            raise KeyboardInterrupt
        remove(path, *arguments, **options)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", killed)
        import_run(TOYS / "student", output, overwrite=True)
    assert RunFiles(output).model().config.decoder == "ssru"
    import_run(TOYS / "opus", output, overwrite=True)
    assert RunFiles(output).model().config.decoder != "ssru"
    assert os.listdir(tmp_path) == ["run"]


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
    data = {"folder": str(tmp_path), "train": files, "validation": files}
    data |= {"drop_duplicates": False, "max_length_ratio": None}
    training = {"start_from": origin, "epochs": 2, "warmup_steps": 10, "max_shapes": 1}
    training |= {"batch_tokens": 512, "sample_translations": 0, "jit_compile": False}
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({"data": data, "training": training | {"ema_momentum": 0.9}}))
    folder = train(Recipe.load(path), tmp_path / "tuned")
    losses = [row["val_loss"] for row in folder.history()]
    assert losses[1] < losses[0]
    assert folder.model().config == import_model(TOYS / "student").model.config
    # Marian's vector of the beginning of a sentence stays zero, and its ranking the default.
    table = folder.model().target_embedding.embeddings
    assert not np.any(table[BOS_ID]) and np.all(np.any(table[EOS_ID:], axis=1))
    assert folder.decoding() == RunFiles(origin).decoding()
    assert folder.origin() == RunFiles(origin).origin() and folder.origin()


def test_a_training_from_a_recipe_without_files_is_one_line(tmp_path):
    from keras_transformer.training import Recipe, train

    origin = import_run(TOYS / "student", tmp_path / "origin")
    recipe = Recipe.load(pathlib.Path(origin) / "recipe.yaml")
    with pytest.raises(InputError, match="`data.train` must name its files"):
        train(recipe, tmp_path / "again")


def expected_of(folder):
    files = (TOYS.parent / "oracles" / f"marian_texts.{side}" for side in ("src", "trg"))
    texts = [path.read_text(encoding="utf-8").splitlines() for path in files]
    return texts, json.loads((folder / "expected.json").read_text("utf-8"))


@pytest.mark.parametrize("name", SUPPORTED)
def test_words_have_marians_own_scores(imported, oracle, name):
    folder = oracle(f"marian_{name}")
    (sources, targets), expected = expected_of(folder)
    all_scores = word_scores(imported(folder), sources, targets)
    for scores, known in zip(all_scores, expected["word_scores"], strict=True):
        np.testing.assert_allclose(scores, known, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "search"),
    # But pre-norm with self-attention: Marian's decoder normalizes other keys than its scorer.
    [(name, "beam1_normalize1_penalty0") for name in SUPPORTED if name != "pre_swish_separate"]
    + [
        ("post_relu_tied", "beam6_normalize0.6_penalty0"),
        ("post_ssru_guided", "beam4_normalize1_penalty0.3"),
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
    engine = ModelEngine(toy.model, toy.source_tokenizer, toy.target_tokenizer, with_xla=False)
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


HUGGING_FACE = ["tied", "zip", "legacy", "fp16", "sharded", "sharded_safetensors", "views"]


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
    engine = ModelEngine(toy.model, toy.source_tokenizer, toy.target_tokenizer, with_xla=False)
    options = {**toy.decoding, "beam_size": 4, "max_length": 39, "max_length_ratio": float("inf")}
    texts = [translation.text for translation in engine.translate(known["sources"], **options)]
    # At 40 tokens transformers forces the end.
    pairs = zip(texts, known["beam4"], strict=True)
    pairs = [(received, text) for received, (text, ids, _) in pairs if len(ids) < 40]
    assert len(pairs) >= len(texts) - 2
    assert [received for received, _ in pairs] == [text for _, text in pairs]


@pytest.mark.parametrize("name", ["m2m100", "nllb", "small100"])
def test_logits_and_texts_of_models_of_many_languages_are_transformers_own(oracle, name, tmp_path):
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
    engine = ModelEngine(toy.model, *tokenizers, languages=languages, with_xla=False)
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
