"""Folders of Hugging Face: options of their search, added tokens, and what cannot be read."""

import json
import re

import numpy as np
import pytest
import sentencepiece
from marian_toys import TOYS, safetensors_numpy

from keras_transformer import Translator
from keras_transformer.base.errors import InputError
from keras_transformer.base.ids import BOS_ID
from keras_transformer.base.impossible import BANNED
from keras_transformer.extras.importing.importing import import_model, import_run, read_model
from keras_transformer.runs.run_folder import RunFolder

pytestmark = pytest.mark.tensorflow


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
        decoding = RunFolder(tmp_path / "run").decoding()
        # Our ids have padding, BOS and then the file's; the start of a decoder is no token here.
        assert decoding.banned_ids == (7 + 2,)
        assert (decoding.beam_size, decoding.min_length, decoding.max_target_length) == (2, 3, 39)
        assert decoding.no_repeat_ngram_size == 4
        lines = [
            line for line in capsys.readouterr().err.splitlines() if "lacks these search" in line
        ]
        (line,) = lines
        assert line.endswith("repetition_penalty=1.3, bad_words_ids=[[8, 9]]")
        defaults = Translator.load(tmp_path / "run").defaults
        assert (defaults["min_length"], defaults["banned_ids"]) == (3, (9,))

    MINIMA = [{"min_length": 7}, {"min_new_tokens": 7}, {"min_length": 2}, {"min_new_tokens": 1}]
    MINIMA += [{"min_length": 1}, {"min_new_tokens": 0}, {"min_length": 9, "min_new_tokens": 2}]

    @pytest.mark.parametrize("kind", ["hugging_face", "m2m100", "small100"])
    def test_the_shortest_translation_is_that_of_transformers(self, make_toy, tmp_path, kind):
        folder, is_forced = make_toy(tmp_path, kind), kind == "m2m100"
        for options in self.MINIMA:
            (folder / "generation_config.json").write_text(json.dumps(options))
            received = read_model(folder).decoding.get("min_length", 0)
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

    # The limit counts the forced token of a language, and `max_length` the decoder's first input.
    @pytest.mark.parametrize(
        ("kind", "options", "limit"),
        [
            ("hugging_face", {"max_new_tokens": 200}, 200),
            ("m2m100", {"max_new_tokens": 200}, 199),
            ("small100", {"max_new_tokens": 200}, 200),
            ("hugging_face", {"max_length": 200}, 199),
            ("m2m100", {"max_length": 200}, 198),
            ("m2m100", {"max_length": 90, "max_new_tokens": 200}, 199),
        ],
    )
    def test_the_limit_is_that_of_the_tokens_after_a_forced_language(
        self, make_toy, tmp_path, kind, options, limit
    ):
        model = read_model(make_toy(tmp_path, kind, options))
        assert model.limits["max_target_length"] == limit

    @pytest.mark.parametrize("lacking", ["tokenization_small100.py", "tokenizer_config.json"])
    def test_small100_is_known_by_its_tokenizers_name_or_file(self, make_toy, tmp_path, lacking):
        folder = make_toy(tmp_path, "small100")
        (folder / lacking).unlink()
        languages = read_model(folder).languages
        assert (languages.source_prefix, languages.target_prefix) == ("target", None)

    @pytest.mark.parametrize("kind", ["m2m100", "nllb", "small100"])
    def test_languages_have_the_ids_after_the_pieces(self, load_program, tmp_path, kind):
        safetensors_numpy()
        _, names = load_program(TOYS / "make.py").make_m2m100(tmp_path, kind)
        received = read_model(tmp_path).vocabularies[0].names
        assert list(received[: len(names)]) == names and len(received) == len(names) + 2

    def test_a_banned_added_token_is_the_one_at_the_start_of_a_word(self, folder):
        (id,) = json.loads((folder / "added_tokens.json").read_text("utf-8")).values()
        (folder / "generation_config.json").write_text(json.dumps({"bad_words_ids": [[id]]}))
        model = read_model(folder)
        rows = model.vocabularies[1].rows
        assert rows.count(id) == 2  # The second is only within words, and no search chooses it.
        assert model.decoding["banned_ids"] == (rows.index(id),)

    def test_no_search_chooses_a_second_copy_of_an_id(self, folder):
        """The decoder starts with the padding, and the added token has a copy within words."""
        vocabulary = read_model(folder).vocabularies[1]
        bias = vocabulary.bias(np.arange(1.0, len(vocabulary.names) + 1), "a file")
        assert [*np.flatnonzero(bias == BANNED)] == [BOS_ID, len(bias) - 1]
        others = [id + 1 for index, id in enumerate(vocabulary.rows) if bias[index] != BANNED]
        assert [*bias[bias != BANNED]] == others

    @pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors.index.json"])
    def test_of_several_files_of_weights_the_one_that_transformers_reads_is_read(
        self, folder, name
    ):
        (folder / name).write_text("{}")
        assert read_model(folder).tensors.file == folder / "model.safetensors"

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
