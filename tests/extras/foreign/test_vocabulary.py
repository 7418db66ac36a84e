"""Vocabularies of Marian, beside the pieces of SentencePiece."""

import pytest
import sentencepiece
import yaml
from device_plans import ONE_GRAPH
from marian_toys import SOURCES, TARGETS, TOYS

from keras_transformer import Translator
from keras_transformer.base.errors import InputError
from keras_transformer.base.ids import UNK_ID
from keras_transformer.engine import ModelEngine
from keras_transformer.text.vocabulary import parsed

pytestmark = pytest.mark.tensorflow

SPELLINGS = [">>epo<< a cat", " >>epo<<  a cat", ">>epo<<a cat", "\u00a0>>epo<<\u3000a cat"]


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
        from keras_transformer.export.saved_model.graph_tokenizer import GraphTokenizer

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
        from keras_transformer.extras.foreign.vocabulary import Vocabulary, tokenizer_of

        make = load_program(TOYS / "make.py")
        model = parsed(make.sentencepiece_model(make.SOURCE, 50, **{kind: [">>epo<<"]}))
        names = ["</s>", "<unk>", ">>epo<<", "▁a"]
        tokenizer = tokenizer_of(Vocabulary(model, names, 0, 1), is_target=False)
        assert tokenizer.tags == ("epo",)
        for text in SPELLINGS:
            assert tokenizer.tokenize(text)[:2] == [4, 5]

    def test_a_language_is_a_tag_that_is_checked_against_the_vocabulary(self, imported):
        toy = imported(TOYS / "opus")
        engine = ModelEngine(toy.model, toy.source_tokenizer, toy.target_tokenizer, **ONE_GRAPH)
        translator = Translator(engine)
        typed, plain = engine.translate([">>epo<< a cat", "a cat"], beam_size=1)
        assert typed.text != plain.text and translator.directions == [(None, "eo")]
        for named in ({"tag": "epo"}, {"target_language": "eo"}, {"target_language": "epo"}):
            received = translator.translate(["a cat", " "], beam_size=1, **named)
            assert [translation.text for translation in received] == [typed.text, " "]
        with pytest.raises(InputError, match="`tag` must be one of epo. Received: tag='fra'"):
            translator.translate(["a cat"], tag="fra")

    @pytest.mark.slow
    def test_all_spellings_of_a_tag_are_one_to_streams_scores_and_graphs(
        self, imported, without_xla
    ):
        from keras_transformer.export.saved_model.signatures import Signatures

        toy = imported(TOYS / "opus")
        engine = ModelEngine(toy.model, toy.source_tokenizer, toy.target_tokenizer, **ONE_GRAPH)
        translator, expected = Translator(engine), engine.translate(SPELLINGS, beam_size=1)
        assert len({translation.text for translation in expected}) == 1
        assert [*translator.stream("a cat", tag="epo")][-1] == expected[0].text
        (scored,) = translator.score(["a cat"], [expected[0].text], tag="epo")
        (typed,) = translator.score(["  >>epo<<a cat"], [expected[0].text])
        assert scored.log_probability == typed.log_probability
        greedy = Signatures(engine, {}).concrete("greedy")
        texts = [*SPELLINGS, ">>epo<<", " >>epo<< "]
        texts_of_graph = [text.decode() for text in greedy(text=texts)["translation"].numpy()]
        assert texts_of_graph == [expected[0].text] * len(SPELLINGS) + [""] * 2

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


def test_names_are_those_of_the_ids_whatever_their_order_and_gaps(load_program):
    from keras_transformer.extras.foreign.vocabulary import tokenizer_of, vocabulary_from_ids

    make = load_program(TOYS / "make.py")
    model = parsed(make.sentencepiece_model(make.SOURCE, 50))
    vocabulary = vocabulary_from_ids(model, {"</s>": 0, "<unk>": 1, "b": 3, "a": 2}, 5)
    assert vocabulary.names == ["</s>", "<unk>", "a", "b", "<missing_4>"]
    pieces = tokenizer_of(vocabulary, is_target=True).pieces_of(range(7))
    assert list(pieces) == ["<pad>", "<s>", "</s>", "<unk>", "a", "b", "<missing_4>"]


def test_bpe_is_cut_as_sentencepiece_cuts_it(load_program):
    from keras_transformer.export.saved_model.graph_tokenizer import GraphTokenizer
    from keras_transformer.extras.foreign.vocabulary import (
        tokenizer_of,
        vocabulary_from_sentencepiece,
    )

    make = load_program(TOYS / "make.py")
    ids = {"eos_id": 0, "unk_id": 1, "bos_id": -1, "pad_id": -1, "model_type": "bpe"}
    content = make.sentencepiece_model(make.SOURCE, 50, **ids)
    model = parsed(content)
    tokenizer = tokenizer_of(vocabulary_from_sentencepiece(model), is_target=True)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=content)
    expected = [[id + 2 for id in theirs.encode(text)] for text in make.SOURCE]
    assert tokenizer.kind == "bpe"
    assert tokenizer.tokenize(make.SOURCE) == expected
    assert GraphTokenizer(tokenizer).tokenize(make.SOURCE).to_list() == expected
    assert tokenizer.detokenize(expected) == make.SOURCE
