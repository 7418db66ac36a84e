import contextlib

import numpy as np
import pytest

from keras_transformer import Translation
from keras_transformer.errors import VerificationError
from keras_transformer.export.ctranslate2 import export as ctranslate2
from keras_transformer.export.ctranslate2 import verification
from keras_transformer.export.ctranslate2.verification import verify_ctranslate2
from keras_transformer.files import file_digests

pytestmark = pytest.mark.tensorflow

SEARCHES = ("greedy", "beam")


@pytest.fixture(scope="module")
def exported(engine, texts, tmp_path_factory):
    pytest.importorskip("ctranslate2", reason="comes with the extra [ctranslate2]")
    folder = tmp_path_factory.mktemp("ctranslate2") / "model"
    report = ctranslate2.export_ctranslate2(engine, folder, verification_texts=texts)
    return folder, report


def test_both_searches_were_compared_and_each_file_has_its_digest(exported, texts):
    folder, report = exported
    for search in SEARCHES:
        assert report["verification"][search]["sentences"] > len(texts)
    assert report["verification"]["greedy"]["different"] == []
    written = {"export.json", "README.md", "verification.json"}
    digests = {name: each for name, each in file_digests(folder).items() if name not in written}
    assert report["manifest"]["files"] == digests and "model.bin" in digests


def test_other_weights_are_found_and_nothing_is_left(make_engine, texts, tmp_path, monkeypatch):
    pytest.importorskip("ctranslate2", reason="comes with the extra [ctranslate2]")
    engine = make_engine(normalize_first=True)
    right = ctranslate2.convert_to_ctranslate2

    def wrong(model, *rest, **options):
        # A converter that forgets a bias.
        bias = model.decoder.blocks[0].feed_forward.projections[1].bias
        kept = np.asarray(bias)
        bias.assign(0 * kept)
        right(model, *rest, **options)
        bias.assign(kept)

    monkeypatch.setattr(ctranslate2, "convert_to_ctranslate2", wrong)
    with pytest.raises(VerificationError, match="^greedy: .* of .* translations differ between"):
        ctranslate2.export_ctranslate2(engine, tmp_path / "new", verification_texts=texts[:20])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_does_not_load_is_told_in_one_line(exported, engine, tmp_path, texts):
    (tmp_path / "export.json").write_bytes((exported[0] / "export.json").read_bytes())
    with pytest.raises(VerificationError, match=r"\(ctranslate2\). Received: exit status"):
        verify_ctranslate2(tmp_path, engine, texts=texts[:3])


class Live:
    """Translates to upper case, but rounds otherwise in batches of one; scores by a dict."""

    continues_source = False

    def __init__(self, tokenizer, alone, scores):
        self.source_tokenizer = self.target_tokenizer = tokenizer
        self.max_source_length = self.max_target_length = 64
        self.alone, self.scores = alone, scores

    def described(self, text):
        ids = (*self.target_tokenizer.tokenize(text), 2)
        values = (self.scores.get(text, -2.0), *[0.0] * (len(ids) - 1))
        total = sum(values)
        return Translation(
            text, total, log_probability=total, ids=ids, token_log_probabilities=values
        )

    def translate(self, texts, batch_size, **_):
        change = self.alone if batch_size == 1 else {}
        return [self.described(change.get(text, text)) for text in texts]

    def score(self, sources, targets, **_):
        return [self.described(text) for text in self.target_tokenizer.detokenize(targets)]


@pytest.mark.parametrize(
    ("alone", "score", "kinds"),
    [
        ({}, -2.00005, (2, 1, 0)),  # a tie: first tokens that are 5e-5 nats apart
        ({}, -2.0002, (2, 0, 1)),
        ({"a girl": "two dogs"}, -9.0, (3, 0, 0)),  # what the live model finds by itself
    ],
)
@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_difference_is_a_tie_where_rounding_may_have_decided(
    tokenizer, alone, score, kinds, beam_size
):
    texts, found = ["a man", "a girl", "a woman"], ["a man", "two dogs", "a woman"]
    live = Live(tokenizer, alone, {"two dogs": score})
    answer = {
        "tokens": [tokenizer.pieces(text) for text in found],
        "translations": found,
    }
    report = verification.compare(live, texts, answer, beam_size, 64)
    assert (report["equal"], len(report["ties"]), len(report["different"])) == kinds
    with pytest.raises(VerificationError, match="tokenizer must be the live model's"):
        wrong = {**answer, "translations": ["a man", "TWO DOGS", "a woman"]}
        verification.compare(live, texts, wrong, beam_size, 64)


@pytest.mark.parametrize(
    ("score", "wrong_search", "share", "message"),
    [
        (-2.0002, "beam", 0.02, None),
        (-2.0002, "beam", 0.05, "beam: .* translations differ between"),
        (-2.00005, "greedy", 0.02, None),
        (-2.00005, "greedy", 0.05, "greedy: .* translations differ between"),
    ],
    ids=["few others", "many others", "few ties", "many ties"],
)
def test_few_translations_may_differ_however_little_they_lose(
    tokenizer, texts, monkeypatch, tmp_path, score, wrong_search, share, message
):
    def answer(texts):
        ids = tokenizer.tokenize(texts)
        tokens, translations = map(tokenizer.pieces_of, ids), tokenizer.detokenize(ids)
        return {"tokens": [*tokens], "translations": translations, "seconds": 1.0}

    @contextlib.contextmanager
    def child_process(program, request, seconds):
        right = request["texts"]
        count = round(share * len(right))
        wrong = ["two dogs"] * count + right[count:]
        yield lambda: [answer(wrong if name == wrong_search else right) for name in SEARCHES]

    monkeypatch.setattr(verification, "child_process", child_process)
    live = Live(tokenizer, {}, {"two dogs": score})
    expected = pytest.raises(VerificationError, match=message) if message else None
    with expected or contextlib.nullcontext():
        report = verify_ctranslate2(tmp_path, live, texts=texts)
        assert report[wrong_search]["equal"] < report[wrong_search]["sentences"]
