"""A trained run on its test set: `KERAS_TRANSFORMER_RUN` names its folder."""

import os
from pathlib import Path

import pytest

from keras_transformer import Translator
from keras_transformer.export import export_litert
from keras_transformer.files import read_lines
from keras_transformer.training import RunFolder, evaluate

RUN = os.environ.get("KERAS_TRANSFORMER_RUN", "")
MULTI30K = Path(__file__).parents[3].parent / "shared" / "data" / "multi30k"

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.slow,
    pytest.mark.corpus,
    pytest.mark.skipif(
        not RUN or not MULTI30K.is_dir(), reason="needs a run and ../shared/data/multi30k"
    ),
]


@pytest.fixture(scope="module")
def corpus():
    lines = read_lines(MULTI30K / "test_2016_flickr.en")
    return lines, read_lines(MULTI30K / "test_2016_flickr.de")


@pytest.fixture(scope="module")
def exports(tmp_path_factory, corpus):
    pytest.importorskip("ai_edge_litert", reason="comes with the extra [litert]")
    engine, folders = RunFolder(RUN).engine(), {}
    for quantize in ("none", "int8"):
        folders[quantize] = tmp_path_factory.mktemp("corpus") / quantize
        options = {"quantize": quantize, "source_lengths": [64]}
        texts = corpus[0][:200]
        export_litert(engine, folders[quantize], verification_texts=texts, **options)
    return folders


@pytest.mark.parametrize("beam_size", [1, 4])
def test_float32_translations_are_the_live_models(exports, corpus, beam_size):
    options = {"beam_size": beam_size, "length_penalty": 0.6}
    live = Translator.load(RUN).translate(corpus[0], **options)
    found = Translator.load(exports["none"]).translate(corpus[0], **options)
    different = [(a, b) for a, b in zip(live, found, strict=True) if a.text != b.text]
    # A near-tie: rounding decides between two hypotheses that are equally good.
    assert all(abs(a.score - b.score) < 1e-4 for a, b in different)
    assert len(different) <= 3


def test_int8_is_small_and_as_good(exports, corpus):
    lines, references = corpus
    for name in ("model.tflite", "model_ids.tflite"):
        size, whole = ((exports[each] / name).stat().st_size for each in ("int8", "none"))
        assert size <= 0.3 * whole
    bleu = {}
    for name, folder in exports.items():
        texts = [each.text for each in Translator.load(folder).translate(lines)]
        bleu[name] = evaluate(texts, references)["bleu"]
    assert abs(bleu["int8"] - bleu["none"]) <= 0.5
