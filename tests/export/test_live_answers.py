import pytest

from keras_transformer.export.live_answers import LiveAnswers, call_batches


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

    max_source_length, max_target_length = 61, 61

    def __init__(self, tokenizer):
        self.source_tokenizer = self.target_tokenizer = tokenizer
        self.asked = []

    def translate(self, texts, **options):
        from keras_transformer import Translation

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
    live = LiveAnswers(recorder, 3, 0.8, texts)
    calls = live.calls(["serving_default", "beam", "greedy"])
    for call in calls:
        live.answer(call)
    searched = [text for asked, options in recorder.asked for text in asked if "n_best" in options]
    assert len(searched) == len(set(searched))
    assert {len(call.texts) for call in calls} >= {0, 1, 224}


def test_every_sentence_is_sampled_with_its_own_seed_and_options(recorder, texts):
    live = LiveAnswers(recorder, 3, 0.8, texts)
    many, *_ = live.calls(["sample"])
    found = live.answer(many)["translation"]
    expected = [
        f"{text} {seed} {top_k}"
        for text, seed, top_k in zip(
            many.texts, many.inputs["seed"], many.inputs["top_k"], strict=True
        )
    ]
    assert found == expected and len(set(many.inputs["top_k"])) == 2
