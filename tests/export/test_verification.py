import math
import subprocess

import pytest

from keras_transformer.export import verification
from keras_transformer.export.verification import (
    FLOAT32,
    SIXTEEN_BIT,
    VerificationError,
    compare,
    sample_texts,
    verification_batches,
    verify,
)

HUNDRED = [(f"text {i}", -float(i)) for i in range(100)]


def test_equal_translations_have_no_ties():
    found = compare(HUNDRED, HUNDRED)
    assert (found.texts, found.ties, found.largest_score_difference) == (100, 0, 0.0)


def test_one_other_translation_is_named():
    received = [*HUNDRED[:7], ("wrong", -7.5), *HUNDRED[8:]]
    with pytest.raises(VerificationError) as error:
        compare(HUNDRED, received)
    assert str(error.value) == (
        "1 of 100 translations differ between the live model and the export. "
        "Received first: 'wrong' (-7.500000) instead of 'text 7' (-7.000000)."
    )


def test_scores_may_differ_absolutely_or_relatively():
    # 2e-3 is more than 1e-3, and less than 1e-3 of 50.
    assert compare([("a", -50.0)], [("a", -50.002)]).largest_score_difference == pytest.approx(2e-3)
    assert compare([("a", -0.0005)], [("a", 0.0)]).ties == 0
    for score, other in ((-1.0, -1.002), (-1.0, math.nan), (-math.inf, -1.0)):
        with pytest.raises(VerificationError, match="1 of 1"):
            compare([("a", score)], [("a", other)])
    assert compare([("a", -1.0)], [("a", -1.04)], SIXTEEN_BIT).ties == 0


def test_one_near_tie_of_a_hundred_is_let_pass_and_two_are_not():
    def with_ties(count, difference):
        ties = [("other", score - difference) for _, score in HUNDRED[:count]]
        return [*ties, *HUNDRED[count:]]

    assert compare(HUNDRED, with_ties(1, 9e-5), FLOAT32).ties == 1
    with pytest.raises(VerificationError, match="2 of 100 .* almost equal scores"):
        compare(HUNDRED, with_ties(2, 9e-5), FLOAT32)
    with pytest.raises(VerificationError, match="1 of 100 translations differ between"):
        compare(HUNDRED, with_ties(1, 2e-4), FLOAT32)


def test_a_missing_translation_is_found():
    with pytest.raises(VerificationError, match="99 for 100 texts"):
        compare(HUNDRED, HUNDRED[1:])


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


@pytest.mark.tensorflow
def test_a_folder_that_does_not_load_fails(engine, tmp_path):
    with pytest.raises(VerificationError, match="run in a fresh process.*exit status"):
        verify(tmp_path, engine, ["a man"], beam_size=3, length_penalty=0.8)


def test_an_interrupt_ends_the_fresh_process(monkeypatch):
    started = []

    class Interrupted(subprocess.Popen):
        def __init__(self, command, **options):
            super().__init__(["sleep", "60"], **options)
            started.append(self)

        def communicate(self, *_, **__):
            raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        verification._ask_fresh_process("folder", [], rewrite_graph=True)
    assert started[0].poll() is not None
