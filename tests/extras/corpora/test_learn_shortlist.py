"""Shortlists that a run learns from pairs of texts."""

import numpy as np
import pytest
from small_corpus import PAIRS, recipe_values, write_corpus

from keras_transformer.base.errors import InputError
from keras_transformer.base.files import locked_folder
from keras_transformer.cli import main as cli
from keras_transformer.data import EncodedPairs, encode_pairs
from keras_transformer.extras.corpora import learn_shortlist as module
from keras_transformer.text import Tokenizer
from keras_transformer.text.shortlist import Shortlist
from keras_transformer.training import Recipe, RunFolder, train

pytestmark = pytest.mark.tensorflow

WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier"}
TEXTS = [f"{a} {b} the" for a in WORDS for b in WORDS]
TARGETS = [" ".join(WORDS.get(word, "das") for word in text.split()) for text in TEXTS]


@pytest.fixture(scope="module")
def tokenizers():
    options = {"placeholders": 1, "byte_fallback": True}
    return (
        Tokenizer.train_from_texts(TEXTS, 277, tags=("2de",), terms=True, **options),
        Tokenizer.train_from_texts(TARGETS, 274, **options),
    )


def test_a_word_has_its_translations_and_the_most_frequent_words(monkeypatch):
    monkeypatch.setattr(module, "NUM_CANDIDATES", 1)
    monkeypatch.setattr(module, "NUM_FREQUENT", 1)
    tokenizers = [
        Tokenizer.train_from_texts(texts, 10, whole_words=True) for texts in (TEXTS, TARGETS)
    ]
    source, target = tokenizers
    pairs, _ = encode_pairs(TEXTS, TARGETS, *tokenizers)
    shortlist = module.learn_shortlist(pairs, *tokenizers)
    assert shortlist.frequent.tolist() == [0, 1, 2, 3, *target.tokenize("das")]
    for word, translation in {**WORDS, "the": "das"}.items():
        expected = {*shortlist.frequent.tolist(), *target.tokenize(translation)}
        assert {*shortlist.candidates_of(source.tokenize(word)).tolist()} == expected
    assert shortlist.source_vocabulary_size == source.vocabulary_size


def test_symbols_are_candidates_of_all_and_spellings_of_their_own(tokenizers):
    source, target = tokenizers
    pairs = EncodedPairs.from_lists([[270, 2]], [[270]])
    shortlist = module.learn_shortlist(pairs, *tokenizers)
    pieces, target_pieces = (side.pieces_of(range(side.vocabulary_size)) for side in tokenizers)
    assert target_pieces.index("<ph_1>") in shortlist.frequent
    byte = shortlist.candidates_of([source.byte_ids[65]])
    assert {*target.byte_ids} <= {*byte.tolist()} and len(target.byte_ids) == 256
    letter = shortlist.candidates_of([pieces.index("n")])
    assert target_pieces.index("n") in letter and len(letter) <= len(shortlist.frequent) + 1


def test_more_pairs_than_needed_are_taken_at_equal_distances(tokenizers, monkeypatch):
    monkeypatch.setattr(module, "MAX_PAIRS", 10)
    monkeypatch.setattr(module, "MAX_LINKS", 20)
    monkeypatch.setattr(module, "NUM_FREQUENT", 0)
    for count, expected in ((10, 10), (11, 6), (79, 10), (80, 10), (81, 6)):
        sample = module._sampled((str(i), "") for i in range(count))
        numbers = [int(source) for source, _ in sample]
        assert len(numbers) == expected and len({*np.diff(numbers)}) == 1 and not numbers[0]
    rows = [[270 + i % 2, 2] for i in range(20)], [[20 + i % 2] for i in range(20)]
    shortlist = module.learn_shortlist(EncodedPairs.from_lists(*rows), *tokenizers)
    # Forty links are too many: only pairs at even places are taken.
    assert 20 in shortlist.candidates_of([270]) and 21 not in shortlist.candidates_of([271])


@pytest.fixture
def run_without_model(tmp_path, tokenizers):
    """The folder of a run with a recipe and tokenizers."""
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    run.write_sections(recipe_values(tmp_path))
    for side, tokenizer in zip(("source", "target"), tokenizers, strict=True):
        tokenizer.save(run.path / f"{side}_tokenizer.model")
    return run


def test_a_run_learns_from_texts_with_placeholders_and_tells_how_far_it_is(
    run_without_model, tokenizers, tmp_path
):
    told = []
    pairs = [(f"{one} http://a.b", f"{two} http://a.b") for one, two in WORDS.items()] * 4
    path = module.make_shortlist(
        run_without_model.path, iter(pairs), lambda *stage_and_size: told.append(stage_and_size)
    )
    texts = ([f"{pair[side][:-10]}<ph_1>" for pair in pairs] for side in (0, 1))
    expected = module.learn_shortlist(encode_pairs(*texts, *tokenizers)[0], *tokenizers)
    expected.save(tmp_path / "expected.npy")
    assert path == run_without_model.shortlist_file
    assert path.read_bytes() == (tmp_path / "expected.npy").read_bytes()
    total = sum(len(f"{one}\n{two}\n".encode()) for one, two in pairs)
    assert told[0] == ("reading 16 pairs", total)
    assert {stage for stage, _ in told[1:]} == {"learning from 4 pairs"}  # without the same ones
    assert sum(size for _, size in told[1:]) == pytest.approx(total)


def test_without_a_pair_an_earlier_list_stays(run_without_model):
    run_without_model.shortlist_file.write_bytes(b"earlier")
    with pytest.raises(InputError, match="No sentence pair is left"):
        module.make_shortlist(run_without_model.path, [])
    assert run_without_model.shortlist_file.read_bytes() == b"earlier"


@pytest.mark.slow
def test_training_and_the_command_make_the_same_list_once(tmp_path, capsys):
    corpus = write_corpus(tmp_path / "corpus")
    values = recipe_values(corpus, epochs=1, shortlist=True, jit_compile=False)
    run = train(Recipe.from_dict(values), tmp_path / "run")
    content = run.shortlist_file.read_bytes()
    run.shortlist_file.unlink()
    files = [str(corpus / name) for name in ("train.en", "train.de")]
    tsv = corpus / "train.tsv"
    tsv.write_text("".join(f"{s}\t{t}\n" for s, t in PAIRS), encoding="utf-8")
    for corpora in (files, [str(tsv)]):
        assert cli.run(["shortlist", "--model", str(run.path), *corpora, "--progress"]) == 0
        output = capsys.readouterr()
        assert output.out == f"{run.shortlist_file}\n" and "100%" in output.err
        assert run.shortlist_file.read_bytes() == content
    Shortlist([], []).save(run.shortlist_file)
    content = run.shortlist_file.read_bytes()
    train(Recipe.from_dict(values), run.path, resume=True)
    assert run.shortlist_file.read_bytes() == content
    run.shortlist_file.unlink()
    train(Recipe.from_dict(values), run.path, resume=True)
    assert run.shortlist().source_vocabulary_size == 150


def test_a_run_without_translations_or_in_work_gets_no_list(tmp_path, capsys):
    corpus = write_corpus(tmp_path / "corpus")
    command = ["shortlist", "--model", str(tmp_path), str(corpus / "train.en")]
    assert cli.run(command) == 2 and "needs its target" in capsys.readouterr().err
    command.append(str(corpus / "train.de"))
    assert cli.run(command) == 2 and "not a run folder" in capsys.readouterr().err
    values = recipe_values(corpus)
    del values["model"]
    values |= {"model": {"kind": "classifier"}, "decoding": {}}
    RunFolder(tmp_path).write_sections(values)
    assert cli.run(command) == 2
    assert "only a model that translates has a shortlist" in capsys.readouterr().err
    RunFolder(tmp_path).write_sections(recipe_values(corpus))
    Tokenizer.train_from_texts(["a man"] * 9, 8).save(tmp_path / "tokenizer.model")
    with locked_folder(tmp_path):
        assert cli.run(command) == 2 and "writes to this folder" in capsys.readouterr().err
