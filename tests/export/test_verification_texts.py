from keras_transformer.export.verification_texts import (
    fitting_texts,
    sample_texts,
    verification_batches,
)


def test_batches_hold_what_servers_get_wrong(tokenizer, texts):
    batches = verification_batches(texts, tokenizer, max_source_length=61)
    sizes = [len(batch) for batch in batches]
    assert sizes[:6] == [0, 1, 1, 1, 3, 33] and sum(sizes) > 200
    together = [text for batch in batches for text in batch]
    assert set(texts) <= set(together)
    assert max(len(tokenizer.tokenize(text)) for text in together) > 61
    assert [""] in batches and "\u3000\u00a0" in together
    assert any("\U0001f600" in text for text in together)
    assert all(verification_batches([], tokenizer, 61)[1:])


def test_sampled_texts_are_the_same_each_time_and_within_the_vocabulary(tokenizer):
    sampled = sample_texts(tokenizer)
    assert sampled == sample_texts(tokenizer) and len(set(sampled)) > 150
    assert not any(3 in ids for ids in tokenizer.tokenize(sampled))


def test_fitting_texts_are_the_longest_and_one_fills_the_length(tokenizer, texts):
    sizes = {text: len(tokenizer.tokenize(text)) + 1 for text in texts}
    for length in (7, 13, 29):
        blank, *chosen, filled = fitting_texts(texts, tokenizer, length, count=5)
        assert blank == "" and len(chosen) == 5
        fitting = sorted(size for size in sizes.values() if size <= length)
        assert [sizes[text] for text in chosen] == fitting[-5:]
        assert length - 6 < len(tokenizer.tokenize(filled)) + 1 <= length
    assert fitting_texts([], tokenizer, 7) == ["", ""]
