import hashlib
import json
import math
import shutil
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

from keras_transformer import Translator
from keras_transformer.base.errors import InputError
from keras_transformer.base.ids import EOS_ID
from keras_transformer.decoding import DecodingOptions
from keras_transformer.extras.ctranslate2 import engine as engine_module
from keras_transformer.extras.ctranslate2.export import write_vocabulary_map
from keras_transformer.text.shortlist import Shortlist

pytestmark = pytest.mark.tensorflow

TEXTS = ["a man runs.", "two dogs", "the old clerk", "a girl", "läuft", "in Köln."]


@pytest.fixture(scope="module")
def translator(ctranslate2_report):
    return Translator.load(ctranslate2_report.folder)


def test_a_prefix_of_another_sentence_changes_no_score(translator, monkeypatch):
    # With this vocabulary everything is scored again: as with a large one nothing is here.
    monkeypatch.setattr(engine_module, "_FEW_TOKENS", 0)
    alone = translator.translate(TEXTS)
    together = translator.translate(TEXTS, target_prefixes=["A"] + [""] * (len(TEXTS) - 1))
    for received, expected in list(zip(together, alone, strict=True))[1:]:
        assert (received.text, received.score) == (expected.text, expected.score)


def test_lengths_count_the_forced_token_of_a_language_and_the_least_no_end():
    job = SimpleNamespace(source=[5] * 4, prefix=(), direction=SimpleNamespace(target_prefix=(7,)))
    for least, expected in ((0, 0), (1, 0), (4, 4)):
        options = DecodingOptions(min_length=least)
        assert engine_module._least_length(job, options) == expected
    margin = DecodingOptions().length_margin
    for ratio, expected in ((math.inf, 21), (2.0, 4 * 2 + margin + 1)):
        options = DecodingOptions(max_length_ratio=ratio)
        assert engine_module._length_limit(job, options, 20) == expected


CHANGING_LOGITS = [{"no_repeat_ngram_size": 2}, {"banned_ids": (7, 9)}, {"min_length": 5}]


@pytest.mark.parametrize("options", [*CHANGING_LOGITS, {"sampling": True, "top_k": 7}])
def test_what_changes_the_logits_changes_no_log_probability(
    engine, translator, monkeypatch, options
):
    monkeypatch.setattr(engine_module, "_FEW_TOKENS", 0)
    found = translator.translate(TEXTS, **options)
    scored = engine.score(TEXTS, [row.ids for row in found])
    received, expected = ([row.log_probability for row in side] for side in (found, scored))
    np.testing.assert_allclose(received, expected, atol=1e-3)


def test_a_model_without_a_variable_is_refused_while_it_is_opened(ctranslate2_report, tmp_path):
    folder = tmp_path / "export"
    shutil.copytree(ctranslate2_report.folder, folder)
    manifest = json.loads((folder / "export.json").read_text("utf-8"))
    whole = (folder / "model.bin").read_bytes()
    for name in (b"encoder/layer_0/ffn/linear_0/weight", b"decoder/projection/weight"):
        changed = whole.replace(name + b"\0", name[:-1] + b"x\0")
        assert changed != whole
        (folder / "model.bin").write_bytes(changed)
        manifest["files"]["model.bin"] = hashlib.sha256(changed).hexdigest()
        (folder / "export.json").write_text(json.dumps(manifest), "utf-8")
        with pytest.raises(
            InputError, match="export: CTranslate2 cannot load it.*not found"
        ) as error:
            Translator.load(folder)
        assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def with_shortlist(folder_of_lists):
    return Translator.load(folder_of_lists("ctranslate2"))


@pytest.mark.parametrize(
    "options", [{"target_prefixes": ["THE RIVER", "", "A", "", "IN", ""]}, {"banned_ids": (9, 17)}]
)
def test_it_searches_with_prefixes_and_banned_ids_in_the_whole_vocabulary(
    with_shortlist, listed_engine, options
):
    options |= {"beam_size": 1, "length_penalty": 0.0}
    received = with_shortlist.translate(TEXTS, alignment=True, shortlist=True, **options)
    listed, whole = (listed_engine.translate(TEXTS, shortlist=x, **options) for x in (True, False))
    prefixes = options.get("target_prefixes", ["A"] * len(TEXTS))
    for prefix, ours, *theirs in zip(prefixes, received, listed, whole, strict=True):
        assert ours.ids == theirs[bool(prefix)].ids
        log_probability = theirs[bool(prefix)].log_probability
        assert ours.log_probability == pytest.approx(log_probability, abs=1e-4)


def test_samples_are_candidates(with_shortlist, listed_engine):
    sampled = with_shortlist.translate(TEXTS, sampling=True, top_k=50, temperature=100.0)
    sources = listed_engine.source_tokenizer.tokenize(TEXTS)
    for source, translation in zip(sources, sampled, strict=True):
        assert set(translation.ids) <= set(listed_engine.shortlist.candidates_of([*source, EOS_ID]))


def test_tokens_that_the_map_of_candidates_cannot_hold_are_refused(make_engine, tmp_path):
    engine = make_engine()
    engine.shortlist, engine.target_tokenizer = Shortlist([], [[5]]), mock.MagicMock()
    engine.target_tokenizer.pieces_of.return_value = ["a\tb"]
    with pytest.raises(InputError, match=r"no tokens with spaces, tabs or new lines. Received"):
        write_vocabulary_map(engine, tmp_path / "vmap.txt")
