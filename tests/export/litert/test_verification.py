import contextlib
import copy
import dataclasses
import json
from types import SimpleNamespace

import pytest

from keras_transformer import Translation
from keras_transformer.errors import VerificationError
from keras_transformer.export.litert import verification
from keras_transformer.export.litert.verification import verify_litert
from keras_transformer.export.verification import teacher_forced

pytestmark = pytest.mark.tensorflow


def test_every_search_of_every_file_was_compared(litert_report, texts):
    report = litert_report.verification
    names = {f"{kind}, {search}" for kind in ("ids", "text") for search in ("greedy", "beam")}
    assert set(report) == {"batch_sizes", *names}
    for name in names:
        assert report[name]["texts"] == sum(report["batch_sizes"]) > len(texts)
        assert report[name]["ties"] <= 2


def test_a_difference_from_the_live_model_is_found(litert_report, make_engine, texts):
    other = make_engine(normalize_first=True, seed=2)
    with pytest.raises(VerificationError, match="ids, greedy: .* translations differ"):
        verify_litert(litert_report.folder, other, litert_report.manifest, texts[:5])
    close = {**litert_report.manifest, "quantize": "int8"}
    with pytest.raises(VerificationError, match="ids, greedy: the live model's score"):
        verify_litert(litert_report.folder, other, close, texts[:5])


def test_a_file_that_does_not_run_is_found(litert_report, engine, tmp_path, texts):
    (tmp_path / "export.json").write_text(json.dumps(litert_report.manifest))
    (tmp_path / "tokenizer.model").write_bytes(
        (litert_report.folder / "tokenizer.model").read_bytes()
    )
    (tmp_path / "model_ids.tflite").write_bytes(b"\x1c\x00\x00\x00TFL3")
    with pytest.raises(VerificationError, match="must load and run in a fresh process"):
        verify_litert(tmp_path, engine, litert_report.manifest, texts[:5])


@pytest.fixture(scope="module")
def asked(litert_report, engine, texts):
    """`asked(damage, quantize)`: the report, after `damage(answers, sources)` of a real export."""
    kept = {}
    real = verification._fresh_process

    def asked(damage=None, quantize="int8"):
        @contextlib.contextmanager
        def ask(folder, batches, *rest):
            if not kept:
                with real(folder, batches, *rest) as wait:
                    kept.update(wait())
            answers = copy.deepcopy(kept)
            if damage is not None:
                damage(answers, batches)
            yield lambda: answers

        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(verification, "_fresh_process", ask)
            manifest = {**litert_report.manifest, "quantize": quantize}
            return verify_litert(litert_report.folder, engine, manifest, texts)

    return asked


def results(answer, batches):
    """Each search's results of each batch, with the batch."""
    for search in answer["searches"].values():
        yield from zip(search["results"], batches, strict=True)


@pytest.mark.parametrize("quantize", ["float16", "int8"])
def test_a_good_export_regrets_nothing(asked, quantize):
    report = asked(quantize=quantize)
    for search in ("greedy", "beam"):
        assert abs(report[f"ids, {search}"]["mean_regret"]) < 1e-3
        assert report[f"text, {search}"]["same_translation"] >= report["text, beam"]["texts"] - 2


def test_garbage_with_the_live_models_scores_of_it_is_refused(asked, engine, litert_report):
    def garble(answers, batches):
        for kind in ("ids", "text"):
            for (found, batch), (ids, _) in zip(
                results(answers[kind], batches), results(answers["ids"], batches), strict=True
            ):
                places = [i for i, row in enumerate(ids["ids"]) if row]
                if kind == "ids":
                    for i in places:  # Other pieces, as many.
                        row = ids["ids"][i]
                        ids["ids"][i] = [id if id == 2 else 4 + (7 * id) % 49 for id in row]
                rows = [ids["ids"][i] for i in places]
                texts = engine.target_tokenizer.detokenize(rows)
                penalty = litert_report.manifest["length_penalty"]
                scored = teacher_forced(engine, [batch[i] for i in places], rows, penalty)
                for i, text, each in zip(places, texts, scored, strict=True):
                    found["translation"][i], found["score"][i] = text, each.score

    with pytest.raises(VerificationError, match="^ids, greedy: how far a translation scores below"):
        asked(garble)


def test_another_tokenizer_in_either_file_is_refused(asked):
    def other(kind):
        def damage(answers, batches):
            for found, _ in results(answers[kind], batches):
                found["translation"] = [each.swapcase() for each in found["translation"]]

        return damage

    with pytest.raises(VerificationError, match="^ids, greedy: the text must be that of the ids"):
        asked(other("ids"))
    with pytest.raises(VerificationError, match="^text, greedy: the texts must be those of the"):
        asked(other("text"))


def test_a_translation_of_nothing_or_none_of_something_is_refused(asked):
    def damage(answers, batches):
        for found, batch in results(answers["ids"], batches):
            if len(batch) > 1:
                found["ids"][0], found["translation"][0] = [], ""

    with pytest.raises(VerificationError, match="empty for a blank source. Received: ''"):
        asked(damage)


def test_every_length_is_run(tokenizer, litert_report, monkeypatch):
    asked = []
    monkeypatch.setattr(
        verification, "_fresh_process", lambda *args: asked.append(args[1:]) or {}["x"]
    )
    engine = SimpleNamespace(source_tokenizer=tokenizer, max_source_length=13)
    with pytest.raises(KeyError):
        verify_litert("folder", engine, litert_report.manifest, ["a man", "two dogs"])
    ((batches, lengths, searches),) = asked
    assert lengths[-2:] == [7, 13] and set(lengths[:-2]) == {None} and searches == 2
    for batch, length in zip(batches[-2:], lengths[-2:], strict=True):
        assert all(len(ids) < length for ids in tokenizer.tokenize(batch))


# From here on the live model and what the files answer are made by hand.

LONGEST = 13
TEXTS = ["a man", "", "two dogs", "a girl", "two dogs runs in the park.", "a", "b", "c"]
BATCHES = [TEXTS[:3], [], TEXTS[3:]]
SCORED = [text for text in TEXTS if text]  # All but the blank one.
MANIFEST = {
    "searches": ["greedy", "beam"],
    "quantize": "none",
    "source_lengths": [13],
    "beam_size": 3,
    "length_penalty": 0.8,
}


def as_ids(text):
    return [*map(ord, text), 2] if text else []


class Live:
    """Translates to upper case with the score -0.5, and scores what it is given by `forced`."""

    max_source_length, max_target_length = LONGEST, 64
    continues_source = False

    def __init__(self, tokenizer, forced=-0.5):
        self.source_tokenizer = tokenizer
        self.target_tokenizer = self
        self.searched, self.scored, self.forced = [], [], forced

    def tokenize(self, text, add_eos):
        return as_ids(text)

    def detokenize(self, rows):
        return ["".join(chr(id) for id in row if id > 2) for row in rows]

    def translate(self, texts, **options):
        self.searched.append(options)
        return [Translation(text.upper(), -0.5, ids=tuple(as_ids(text))) for text in texts]

    def score(self, sources, targets, length_penalty):
        self.scored.append((sources, targets, length_penalty))
        forced = self.forced
        forced = forced if isinstance(forced, list) else [forced] * len(targets)
        return [Translation("scored", each) for each in forced]


def answer(difference=0.0, translations=None):
    """Of one file: where the live model can score a text, its score is lower by `difference`."""
    results = []
    translations = iter(translations or [text.upper() for text in TEXTS])
    for batch in BATCHES:
        found = [next(translations) for _ in batch]
        results.append(
            {
                "translation": found,
                "score": [-0.5 - difference * (text in SCORED) for text in batch],
                "ids": [as_ids(text) for text in found],
            }
        )
    search = {"results": results, "call_seconds": [0.25] * len(BATCHES)}
    return {"load_seconds": 0.125, "searches": {"greedy": search, "beam": search}}


@pytest.fixture
def verify(tokenizer, monkeypatch):
    """`verify(answers, quantize, forced)`: the report, and the live model that was asked."""

    def verify(answers, quantize="none", forced=-0.5):
        live, ready = Live(tokenizer, forced), contextlib.nullcontext(lambda: answers)
        monkeypatch.setattr(verification, "fitting_texts", lambda *args: [])
        monkeypatch.setattr(verification, "verification_batches", lambda *args: BATCHES)
        monkeypatch.setattr(verification, "_fresh_process", lambda *args: ready)
        return verify_litert("folder", live, {**MANIFEST, "quantize": quantize}, TEXTS), live

    return verify


def test_equal_translations_pass(verify):
    report, live = verify({"ids": answer(), "text": answer()})
    compared = {
        "texts": 8,
        "ties": 0,
        "largest_score_difference": 0.0,
        "load_seconds": 0.125,
        "call_seconds": [0.25] * 3,
    }
    names = ("ids, greedy", "text, greedy", "ids, beam", "text, beam")
    assert report == {"batch_sizes": [3, 0, 5, 0], **dict.fromkeys(names, compared)}
    common = {"length_penalty": 0.8, "long_input": "truncate"}
    greedy, beam = ({"beam_size": size, **common} for size in (1, 3))
    assert live.searched == [greedy, beam]


@pytest.mark.parametrize("wrong", ["ids", "text"])
def test_one_other_translation_of_either_file_is_found(verify, wrong):
    other = [text.upper() if text != "a girl" else "A BOY" for text in TEXTS]
    # Too close for a difference of the scores, too far apart for a tie.
    answers = {"ids": answer(), "text": answer(), wrong: answer(5e-4, other)}
    with pytest.raises(VerificationError, match=f"^{wrong}, greedy: 1 of 8 translations .*A BOY"):
        verify(answers)


def test_another_text_with_the_live_models_best_score_is_found(verify):
    hundred = [text.upper() if text != "a girl" else "A BOY" for text in TEXTS]
    with pytest.MonkeyPatch.context() as monkeypatch:
        tolerance = dataclasses.replace(verification.FLOAT32, share_of_ties=0.2)
        monkeypatch.setattr(verification, "FLOAT32", tolerance)
        for kind in ("ids", "text"):
            answers = {"ids": answer(), "text": answer(), kind: answer(0.0, hundred)}
            verify(answers)
            with pytest.raises(VerificationError, match=f"^{kind}, greedy: 1 of 8 .*score -3.0"):
                verify(answers, forced=-3.0)


# The least that is allowed is 0.02, and of the live model's mean score, 0.5, a share: of the
# scores 0.005 in float16 makes 0.0225, 0.08 in int8 makes 0.06.
@pytest.mark.parametrize(
    ("quantize", "close", "far"), [("float16", 0.02, 0.03), ("int8", 0.05, 0.07)]
)
def test_of_fewer_bits_the_live_models_score_of_the_same_ids_is_close(
    verify, tokenizer, quantize, close, far
):
    other = ["OTHER", *(text.upper() for text in TEXTS[1:])]
    report, live = verify({"ids": answer(close, other)}, quantize)
    found = report["ids, beam"]
    assert (found["texts"], found["same_translation"]) == (8, 7)
    assert found["mean_score_difference"] == pytest.approx(close)
    assert found["largest_score_difference"] == pytest.approx(close)
    sources = [tokenizer.tokenize(text)[: LONGEST - 1] + [2] for text in SCORED]
    targets = [as_ids("OTHER"), *(as_ids(text.upper()) for text in SCORED[1:])]
    assert live.scored == [(sources, targets, 0.8)] * 2
    with pytest.raises(VerificationError, match="ids, greedy: the live model's score"):
        verify({"ids": answer(far)}, quantize)


@pytest.mark.parametrize("quantize", ["float16", "int8"])
def test_of_fewer_bits_no_translation_is_much_worse_than_the_live_models(verify, quantize):
    bounds = verification._BOUNDS[quantize]
    mean, worst = (share * 0.5 + 0.02 for share in bounds[1:])
    for regret, message in ((mean, "mean"), (worst, "most")):
        for factor, refused in ((0.95, False), (1.05, True)):
            # All of them, or one among others that make up for it.
            others = -regret * factor / 6 if message == "most" else regret * factor
            regrets = [regret * factor] + [others] * 6
            answers = answer()
            for search in answers["searches"].values():
                left = iter(regrets)
                for result in search["results"]:
                    rows = zip(result["ids"], result["score"], strict=True)
                    result["score"] = [-0.5 - next(left) if ids else s for ids, s in rows]
            forced = [-0.5 - each for each in regrets]
            if refused:
                with pytest.raises(VerificationError, match=f"scores below .*, {message}: "):
                    verify({"ids": answers}, quantize, forced)
            else:
                verify({"ids": answers}, quantize, forced)


def test_of_fewer_bits_texts_score_as_ids_do(verify):
    # Each is close to the live model's, but not to the other.
    for one, other in ((0.05, -0.05), (-0.05, 0.05)):
        verify({"ids": answer(one), "text": answer(one)}, "int8")
        with pytest.raises(VerificationError, match="text, greedy: score, mean difference"):
            verify({"ids": answer(one), "text": answer(other)}, "int8")


def test_a_missing_translation_is_found(verify):
    short = answer()
    for search in short["searches"].values():
        search["results"] = search["results"][:1]
    for quantize, message in (("none", "3 for 8 texts"), ("int8", "3 for 8 texts")):
        with pytest.raises(VerificationError, match=f"text, greedy: .*{message}"):
            verify({"ids": answer(), "text": short}, quantize)
