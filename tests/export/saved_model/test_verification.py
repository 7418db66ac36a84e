import pytest

from keras_transformer import Translation
from keras_transformer.errors import VerificationError
from keras_transformer.export.saved_model import verification
from keras_transformer.export.saved_model.verification import (
    Call,
    ReferenceOutputs,
    call_batches,
    verify,
)

MANIFEST = {
    "beam_size": 3,
    "length_penalty": 0.8,
    "signatures": {"serving_default": {}},
    "custom_ops": [],
}


@pytest.mark.tensorflow
def test_a_folder_that_does_not_load_fails(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(verification.ReferenceOutputs, "outputs", lambda *_: {})
    with pytest.raises(VerificationError, match="run in a fresh process.*exit status"):
        verify(tmp_path, engine, MANIFEST, ["a man"])


def answers(**other):
    loader = {"results": [], "uninitialized": [], "load_seconds": 1.0, "call_seconds": [1.0]}
    both = {"session": loader, "module": loader}
    return {**both, "known_ops": [], **other}


@pytest.mark.parametrize(
    "model, other, message",
    [
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


def test_batches_have_names(tokenizer, texts):
    batches = call_batches(texts, tokenizer, max_source_length=61)
    assert [len(batches[name]) for name in ("none", "one", "few", "many")] == [0, 1, 32, 224]
    together = batches["all"]
    assert set(texts) <= set(together) and len(together) > 200
    assert "" in together and "\u3000\u00a0" in together
    (too_long,) = batches["too_long"]
    assert len(tokenizer.tokenize(too_long)) > 61
    without = call_batches([], tokenizer, 61)
    assert len(without["many"]) == 224 and all(without["one"])


def test_many_texts_need_one_padded_length(tokenizer):
    texts = ["a man"] * 3 + ["two dogs eats an apple near the river and so on"] * 2
    many = call_batches(texts, tokenizer, max_source_length=200)["many"]
    assert many == ["a man"] * 224


class Recorder:
    """Stands for an engine that answers with the text and the options."""

    continues_source = False
    max_source_length, max_target_length = 61, 61

    def __init__(self, tokenizer):
        self.source_tokenizer = self.target_tokenizer = tokenizer
        self.asked = []

    def translate(self, texts, **options):
        self.asked.append((texts, options))
        seeds = options.get("seed", [0] * len(texts))
        return [
            Translation(f"{text} {seed} {options.get('top_k')}", -1.0)
            for text, seed in zip(texts, seeds, strict=True)
        ]


@pytest.fixture
def recorder(tokenizer):
    return Recorder(tokenizer)


def test_each_text_is_translated_once_for_each_search(recorder, texts):
    live = ReferenceOutputs(recorder, 3, 0.8, texts)
    calls = live.calls(["serving_default", "beam", "greedy"])
    for call in calls:
        live.outputs(call)
    searched = [text for asked, options in recorder.asked for text in asked if "n_best" in options]
    assert len(searched) == len(set(searched))
    assert {len(call.texts) for call in calls} >= {0, 1, 224}


def test_every_sentence_is_sampled_with_its_own_seed_and_options(recorder, texts):
    live = ReferenceOutputs(recorder, 3, 0.8, texts)
    many, *_ = live.calls(["sample"])
    found = live.outputs(many)["translation"]
    expected = [
        f"{text} {seed} {top_k}"
        for text, seed, top_k in zip(
            many.texts, many.inputs["seed"], many.inputs["top_k"], strict=True
        )
    ]
    assert found == expected and len(set(many.inputs["top_k"])) == 2
