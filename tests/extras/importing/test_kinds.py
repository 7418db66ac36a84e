"""The models in `tests/data`, and models of other kinds made here, against the NumPy reference."""

import pathlib

import marian_reference
import numpy as np
import pytest
import sentencepiece
import yaml

from keras_transformer.decoding.search import score_targets
from keras_transformer.extras.importing.importing import import_model, import_run
from keras_transformer.extras.marian import reader as marian
from keras_transformer.runs.run_folder import RunFolder

pytestmark = pytest.mark.tensorflow

TOYS = pathlib.Path(__file__).parents[2] / "data" / "marian"
SOURCES = ["the old child sees a small house", "a cat", "yes, the river moves"]
TARGETS = ["la kato movas", "la maljuna infano vidas malgrandan domon", "jes"]
KINDS = ["pre_norm", "pre_norm_ssru", "two_tables", "own_output", "no_bias"]


@pytest.fixture
def make(load_program):
    return load_program(TOYS / "make.py")


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("kind", ["opus", "student", *KINDS])
def test_words_have_the_probabilities_of_an_independent_reference(make, tmp_path, kind):
    assert set(KINDS) == set(make.KINDS)
    folder = tmp_path if kind in KINDS else TOYS / kind
    if kind in KINDS:
        make.make_kind(folder, kind)
    toy, tensors = import_model(folder), marian.read_tensors(marian.model_file(folder))
    options = yaml.load(bytes(tensors[marian.OPTIONS]).split(b"\0")[0], yaml.BaseLoader)
    for source, target in zip(SOURCES, TARGETS, strict=True):
        ids = np.array([toy.source_tokenizer.tokenize(source, add_eos=True)])
        written = np.array([toy.target_tokenizer.tokenize(target, add_eos=True)])
        # In the file the end is 0 and the unknown token 1.
        expected = marian_reference.log_probabilities(tensors, options, *(ids - 2), *(written - 2))
        scores, _ = score_targets(toy.model, ids, written)
        np.testing.assert_allclose(np.asarray(scores)[0], expected, atol=1e-4)


def test_logits_of_a_model_of_many_languages_are_those_of_an_independent_reference(
    make, tmp_path, tmp_path_factory
):
    pytest.importorskip("safetensors", reason="comes with the extra [import]")
    tensors, names = make.make_m2m100(tmp_path, kind := "m2m100")
    toy = import_model(tmp_path)
    # Its file is in float16, and so is the run of it, also in memory.
    in_run = RunFolder(import_run(tmp_path, tmp_path_factory.mktemp("run") / "run")).model()
    assert {weight.dtype for weight in in_run.weights} == {"float16"}
    assert toy.source_tokenizer is toy.target_tokenizer and toy.source_tokenizer.kind == "bpe"
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / make.PIECES))
    # Ours of the file's ids: it begins with <s>, <pad>, </s> and <unk>.
    ours = np.array([4, 0, 2, 3, *range(5, len(names) + 3)])
    options = {"enc-depth": 2, "dec-depth": 1, "transformer-heads": 2}
    options |= {"transformer-preprocess": "n", "transformer-ffn-activation": "relu"}
    languages = [names.index(name) for name in make.LANGUAGES[kind][:2]]
    assert list(toy.source_tokenizer.pieces_of(ours[languages])) == list(make.LANGUAGES[kind][:2])
    for source, target in zip(SOURCES, TARGETS, strict=True):
        rows = []
        for language, text in zip(languages, (source, target), strict=True):
            tokens = pieces.encode(text, out_type=str)
            ids = [names.index(name if name in names else "<unk>") for name in tokens]
            assert 3 in ids  # the unknown token
            assert toy.source_tokenizer.tokenize(text) == ours[ids].tolist()
            rows.append([language, *ids, names.index("</s>")])
        expected = marian_reference.logits(
            tensors, options | marian_reference.OF_M2M100, *rows, start=names.index("</s>")
        )
        inputs = ours[rows[:1]], np.array([[1, *ours[rows[1][:-1]]]])
        for model in (toy.model, in_run):
            received = np.asarray(model(inputs))[0]
            np.testing.assert_allclose(received[:, ours], expected, atol=1e-4)
