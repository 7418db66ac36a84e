import pytest

from keras_transformer.errors import VerificationError
from keras_transformer.export import verification
from keras_transformer.export.live_answers import Call
from keras_transformer.export.verification import verify

MANIFEST = {
    "beam_size": 3,
    "length_penalty": 0.8,
    "signatures": {"serving_default": {}},
    "custom_ops": [],
}


@pytest.mark.tensorflow
def test_a_folder_that_does_not_load_fails(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(verification.LiveAnswers, "answer", lambda *_: {})
    with pytest.raises(VerificationError, match="run in a fresh process.*exit status"):
        verify(tmp_path, engine, MANIFEST, ["a man"])


def answers(**other):
    loader = {"results": [], "uninitialized": [], "load_seconds": 1.0, "call_seconds": [1.0]}
    both = {"session": loader, "module": loader}
    return {**both, "imported": [], "known_ops": [], **other}


@pytest.mark.parametrize(
    "model, other, message",
    [
        ("saved_model", {"imported": ["keras"]}, "without Keras .* Received: keras imported"),
        ("ids", {"known_ops": ["SentencepieceOp"]}, "no custom operation.*SentencepieceOp"),
        (
            "saved_model",
            {"session": {**answers()["session"], "uninitialized": ["weights/3"]}},
            "session loader must initialize .* 1 uninitialized, weights/3 first",
        ),
    ],
)
def test_what_only_a_fresh_process_can_tell_is_looked_at(model, other, message):
    with pytest.raises(VerificationError, match=message):
        verification._check_model(model, [], [], answers(**other), verification.FLOAT32, None, None)


def checked_again(signature):
    """The report of a call where another batch size of the live model agrees with the export."""
    live = {"translation": ["a", "b"], "score": [-1.0, -2.0]}
    received = {"translation": ["a", "c"], "score": [-1.0, -2.5]}
    loader = {**answers()["session"], "results": [received]}
    both = answers(session=loader, module=loader)
    calls, tolerance = [Call(signature, {}, ("one", "two"))], verification.FLOAT32
    return verification._check_model(
        "saved_model", calls, [live], both, tolerance, lambda call: [received], None
    )


def test_where_a_search_differs_the_live_model_is_asked_again():
    report = checked_again("beam")
    for loader in ("session", "module"):
        assert report[loader]["signatures"]["beam"]["as_in_other_batch_sizes"] == 1


def test_where_nothing_is_searched_a_difference_is_one():
    with pytest.raises(VerificationError, match="Signature score: 1 of 2"):
        checked_again("score")


def test_both_models_and_all_signatures_were_verified(report):
    found = report.verification
    names = list(report.manifest["signatures"])
    for loader in ("session", "module"):
        assert list(found["saved_model"][loader]["signatures"]) == names
        assert list(found["ids"][loader]["signatures"]) == ["serving_ids"]
        for name in ("serving_default", "greedy", "beam", "sample", "serving_ids"):
            compared = found["saved_model"][loader]["signatures"][name]
            assert compared["texts"] > 200 and {0, 1} < set(compared["batch_sizes"])
            assert compared["as_in_other_batch_sizes"] == 0
