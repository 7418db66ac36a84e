import json

import pytest

from keras_transformer import Translation
from keras_transformer.errors import VerificationError
from keras_transformer.export import litert_verification
from keras_transformer.export.litert_verification import verify_litert

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


# From here on the live model and what the files answer are made by hand.

LONGEST = 13
TEXTS = ["a man", "", "two dogs", "a girl", "two dogs runs in the park.", "a", "b", "c"]
BATCHES = [TEXTS[:3], [], TEXTS[3:]]
SCORED = [text for text in TEXTS if 0 < len(text) < 20]  # All but the blank and the cut one.
MANIFEST = {
    "searches": ["greedy", "beam"],
    "quantize": "none",
    "source_lengths": [13],
    "beam_size": 3,
    "length_penalty": 0.8,
}


class Live:
    """Translates to upper case with the score -0.5, and scores all that it is given with -0.5."""

    max_source_length = LONGEST

    def __init__(self, tokenizer):
        self.source_tokenizer = tokenizer
        self.searched, self.scored = [], []

    def translate(self, texts, **options):
        self.searched.append(options)
        return [Translation(text.upper(), -0.5) for text in texts]

    def score(self, sources, targets, length_penalty):
        self.scored.append((sources, targets, length_penalty))
        return [Translation("scored", -0.5) for _ in targets]


def answer(difference=0.0, translations=None):
    """Of one file: where the live model can score a text, its score is lower by `difference`."""
    results = []
    translations = iter(translations or [text.upper() for text in TEXTS])
    for batch in BATCHES:
        results.append(
            {
                "translation": [next(translations) for _ in batch],
                "score": [-0.5 - difference * (text in SCORED) for text in batch],
                "ids": [[len(text), 2] if text else [] for text in batch],
            }
        )
    search = {"results": results, "call_seconds": [0.25] * len(BATCHES)}
    return {"load_seconds": 0.125, "searches": {"greedy": search, "beam": search}}


@pytest.fixture
def verify(tokenizer, monkeypatch):
    """`verify(answers, quantize)`: the report, and the live model that was asked."""

    def verify(answers, quantize="none"):
        live = Live(tokenizer)
        monkeypatch.setattr(litert_verification, "verification_batches", lambda *args: BATCHES)
        monkeypatch.setattr(litert_verification, "_ask_fresh_process", lambda *args: answers)
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
    assert report == {"batch_sizes": [3, 0, 5], **dict.fromkeys(names, compared)}
    common = {"length_penalty": 0.8, "long_input": "truncate"}
    greedy, beam = ({"beam_size": size, **common} for size in (1, 3))
    assert live.searched == [greedy] * 3 + [beam] * 3


@pytest.mark.parametrize("wrong", ["ids", "text"])
def test_one_other_translation_of_either_file_is_found(verify, wrong):
    other = [text.upper() if text != "a girl" else "A BOY" for text in TEXTS]
    # Too close for a difference of the scores, too far apart for a tie.
    answers = {"ids": answer(), "text": answer(), wrong: answer(5e-4, other)}
    with pytest.raises(VerificationError, match=f"^{wrong}, greedy: 1 of 8 translations .*A BOY"):
        verify(answers)


# Six of eight scores differ; the least that is allowed is 0.02, and of the mean score, 0.5, a
# share: 0.005 in float16 makes 0.0225, 0.08 in int8 makes 0.06.
@pytest.mark.parametrize(
    ("quantize", "close", "far"), [("float16", 0.02, 0.04), ("int8", 0.07, 0.09)]
)
def test_of_fewer_bits_the_live_models_score_of_the_same_ids_is_close(verify, quantize, close, far):
    other = ["OTHER", *(text.upper() for text in TEXTS[1:])]
    report, live = verify({"ids": answer(close, other)}, quantize)
    found = report["ids, beam"]
    assert (found["texts"], found["same_translation"]) == (8, 7)
    assert found["mean_score_difference"] == pytest.approx(close * 6 / 8)
    assert found["largest_score_difference"] == pytest.approx(close)
    assert live.scored == [(SCORED, [[len(text), 2] for text in SCORED], 0.8)] * 2
    with pytest.raises(VerificationError, match="ids, greedy: the scores must be close"):
        verify({"ids": answer(far)}, quantize)


def test_of_fewer_bits_texts_score_as_ids_do(verify):
    # Each is close to the live model's, but not to the other.
    for one, other in ((0.07, -0.07), (-0.07, 0.07)):
        verify({"ids": answer(one), "text": answer(one)}, "int8")
        with pytest.raises(VerificationError, match="text, greedy: the scores must be close"):
            verify({"ids": answer(one), "text": answer(other)}, "int8")


def test_a_missing_translation_is_found(verify):
    short = answer()
    for search in short["searches"].values():
        search["results"] = search["results"][:1]
    for quantize, message in (("none", "3 for 8 texts"), ("int8", "3 translations of 8 texts")):
        with pytest.raises(VerificationError, match=f"text, greedy: .*{message}"):
            verify({"ids": answer(), "text": short}, quantize)


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """`ask(program)`: what a process that runs this program instead answers."""

    def ask(program):
        path = tmp_path / "program.py"
        path.write_text(f"import sys, pathlib\nfolder, request, answer = sys.argv[1:]\n{program}")
        monkeypatch.setattr(litert_verification, "_PROCESS", path)
        return litert_verification._ask_fresh_process(tmp_path / "model", [["ä"], []])

    return ask


def test_the_fresh_process_gets_the_batches_and_gives_the_answer(ask, tmp_path):
    copy = "pathlib.Path(answer).write_bytes(pathlib.Path(request).read_bytes())"
    assert ask(copy) == {"batches": [["ä"], []]}
    tell = "pathlib.Path(answer).write_text(f'[\"{folder}\"]')"
    assert ask(tell) == [str(tmp_path / "model")]


FAILING = {
    "no answer": ("pass", "exit status 0, no message"),
    "an exit status": ("sys.exit(7)", "exit status 7, no message"),
    "lines": ("print('one', file=sys.stderr)\nsys.exit('two\\n\\n')", "exit status 1, two$"),
    "an exception after the answer": (
        "pathlib.Path(answer).write_text('[]')\nraise OSError('three')",
        "exit status 1, OSError: three$",
    ),
}


@pytest.mark.parametrize("case", FAILING)
def test_a_process_that_fails_is_told_by_its_last_line(ask, case):
    program, message = FAILING[case]
    with pytest.raises(VerificationError, match=f"must load and run .* Received: .*{message}"):
        ask(program)
