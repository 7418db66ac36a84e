"""The comparison of an export with its model refuses every kind of difference by its tolerance."""

import ctypes
import dataclasses
import json
import math
import os
import signal
import threading
import time
import types

import numpy as np
import pytest

from keras_transformer.base.errors import VerificationError
from keras_transformer.engine.translation import Translation
from keras_transformer.export import verification
from keras_transformer.export.verification import (
    NUM_TEXTS,
    SENTENCES,
    TOLERANCES,
    _interruptible,
    chosen_texts,
    compare,
)
from keras_transformer.extras.ctranslate2 import export as ctranslate2

TEXTS = [f"text {i}" for i in range(50)]
EVERY_TOLERANCE = {**TOLERANCES, "ctranslate2": ctranslate2.CTranslate2Exporter.tolerances["none"]}
ALIGNMENT = np.array([[0.75, 0.25], [0.5, 0.5], [0.0, 1.0]], "float32")


def translations(score=-4.0, **fields):
    """A translation of each text, with a log-probability and an alignment."""
    fields = {"log_probability": 2 * score, "alignment": ALIGNMENT, **fields}
    return [Translation(text.upper(), score, **fields) for text in TEXTS]


def compared(received, tolerance=TOLERANCES["none"], expected=None):
    return compare(TEXTS, expected or translations(), received, tolerance)


def replaced(index, **fields):
    """The right translations, but for one of them."""
    received = translations()
    received[index] = dataclasses.replace(received[index], **fields)
    return received


def test_equal_translations_pass_and_are_counted():
    report = compared(translations())
    assert (report["texts"], report["equal"], report["chrf"]) == (50, 50, 100)
    for name in ("score", "log_probability", "alignment"):
        assert report[f"mean_{name}_difference"] == 0
    assert json.loads(json.dumps(report))["tolerance"]["equal"] == 0.95


def test_what_a_format_does_not_give_is_not_compared():
    report = compared(translations(log_probability=math.nan, alignment=None))
    assert set(report) == {"texts", "equal", "chrf", "mean_score_difference", "tolerance"}


@pytest.mark.parametrize("name", EVERY_TOLERANCE)
def test_each_tolerance_lets_a_little_less_pass_and_nothing_more(name):
    tolerance = EVERY_TOLERANCE[name]
    fewest = math.ceil(tolerance.equal * len(TEXTS))

    def with_equal(equal):
        wrong = [dataclasses.replace(t, text=f"other {t.text}") for t in translations()]
        return translations()[:equal] + wrong[equal:]

    def aligned(difference):
        changed = ALIGNMENT + np.array([difference / 2, -difference / 2], "float32")
        return translations(alignment=changed)

    nats = tolerance.score * 4.0  # of the mean score
    cases = [
        ("translations are equal", with_equal(fewest), with_equal(fewest - 1)),
        ("`score`", *(translations(-4 - f * nats, log_probability=-8) for f in (0.9, 1.1))),
        ("`log_probability`", *(translations(log_probability=-8 + f * nats) for f in (1.8, 2.2))),
        ("`alignment`", *(aligned(f * tolerance.alignment) for f in (0.9, 1.1))),
    ]
    for message, passing, refused in cases:
        compared(passing, tolerance)
        with pytest.raises(VerificationError, match=message):
            compared(refused, tolerance)


@pytest.mark.parametrize("name", EVERY_TOLERANCE)
@pytest.mark.parametrize("number", [math.nan, -math.inf])
def test_scores_that_are_no_numbers_are_refused_however_few(name, number):
    with pytest.raises(VerificationError, match="`score` differs by (nan|inf) on average"):
        compared(replaced(7, score=number), EVERY_TOLERANCE[name])


def test_a_confident_model_has_a_limit_in_nats():
    expected = translations(-0.01)
    near, far = translations(-0.0104), translations(-0.015)
    assert compared(near, expected=expected)["mean_score_difference"] == pytest.approx(4e-4)
    with pytest.raises(VerificationError, match=r"by 0\.0050 on average, expected at most 0\.0010"):
        compared(far, expected=expected)


def test_a_confident_models_sums_over_tokens_have_a_wider_limit():
    expected = translations(-0.1, log_probability=-1.1)
    near, far = (translations(-0.1, log_probability=value) for value in (-1.23, -1.27))
    compared(near, TOLERANCES["int8"], expected)
    with pytest.raises(VerificationError, match=r"expected at most 0\.1500"):
        compared(far, TOLERANCES["int8"], expected)


def test_single_odd_texts_of_an_unsure_model_refuse_nothing():
    odd = replaced(3, text="other", score=-12.0)
    report = compared(odd, TOLERANCES["int8"])
    assert report["equal"] == 49 and report["mean_score_difference"] == pytest.approx(8 / 50)


def test_alignments_of_other_tokens_are_as_wrong_as_can_be():
    with pytest.raises(VerificationError, match="`alignment` differs by 2.0000"):
        compared(translations(alignment=ALIGNMENT[:2]), TOLERANCES["int8"])
    # Shifted by a token of the translation, or of the source.
    for axis in (0, 1):
        with pytest.raises(VerificationError, match="`alignment` differs"):
            compared(translations(alignment=np.roll(ALIGNMENT, 1, axis)), TOLERANCES["int8"])


def test_a_missing_translation_is_refused():
    with pytest.raises(VerificationError, match="another number of translations on 50 texts"):
        compared(translations()[1:])


def test_enough_equal_texts_do_not_excuse_the_others():
    half = len(TEXTS) // 2
    sources = [f"Ein Mann liest Buch {i} im Garten." for i in range(len(TEXTS))]
    expected = [
        dataclasses.replace(translation, text=text)
        for translation, text in zip(translations(), sources, strict=True)
    ]

    def with_other(text):
        others = [dataclasses.replace(t, text=text) for t in translations()]
        return expected[:half] + others[half:]

    tolerance = EVERY_TOLERANCE["ctranslate2"]
    assert tolerance.equal == half / len(TEXTS)
    near = compared(with_other("Ein Mann liest sein Buch im Garten."), tolerance, expected)
    assert 80 < near["chrf"] < 100 and near["equal"] == half
    pattern = r"chrF against its translations is 5\d\.\d+, expected at least 80, on 50 texts"
    with pytest.raises(VerificationError, match=pattern):
        compared(with_other("Zwei Hunde spielen draußen."), tolerance, expected)


def test_texts_without_characters_are_equal_to_themselves():
    empty = translations()
    empty = [dataclasses.replace(t, text="") for t in empty]
    assert compared(empty, expected=empty)["chrf"] == 100


def test_a_refusal_says_how_many_shows_one_and_what_to_do():
    other = [dataclasses.replace(t, text="other") for t in translations()]
    with pytest.raises(VerificationError) as refused:
        compared([translations()[0], *other[1:]], TOLERANCES["int8"])
    assert str(refused.value) == (
        "The export differs from the trained model: 1 translations are equal, expected at least "
        "20, on 50 texts. For 'text 1': 'other' instead of 'TEXT 1'. "
        "Export with `--quantize float16`, or train the model longer."
    )
    far = [dataclasses.replace(t, score=-9.0) for t in translations()]
    far[5] = dataclasses.replace(far[5], score=-10.0)  # the worst one is shown
    with pytest.raises(VerificationError, match="50 texts. For 'text 5': -10.0 instead of -4.0. E"):
        compared(far, TOLERANCES["float16"])


class Words:
    """A tokenizer whose tokens are words."""

    max_source_length = 40

    def __init__(self, language_tokens=0):
        self.language_tokens = language_tokens

    @property
    def source_tokenizer(self):
        return self

    def tokenize(self, texts):
        return [text.split() for text in texts]

    def source_length(self, text):
        return len(text.split()) + 1 + self.language_tokens


def test_texts_are_different_not_blank_and_of_one_padded_length_if_it_has_enough():
    # With EOS, 16 tokens fit the first padded length, and 17 do not.
    short = [" ".join([str(i), *"ab" * 7]) for i in range(100)]
    long = [" ".join([str(i), *"abc" * 5]) for i in range(200)]
    texts = ["", " \t", *short, *short, *long]
    chosen = chosen_texts(texts, Words())
    assert chosen == long[:NUM_TEXTS]
    assert chosen_texts(short, Words())[:NUM_TEXTS] == short[:NUM_TEXTS]


def test_without_texts_there_are_built_in_ones_and_too_few_are_filled_up():
    assert len(set(SENTENCES)) == len(SENTENCES) > NUM_TEXTS
    assert chosen_texts([], Words()) == list(SENTENCES[:NUM_TEXTS])
    chosen = chosen_texts(["one two", "", "one two"], Words())
    assert chosen[0] == "one two" and len(chosen) == NUM_TEXTS and len(set(chosen)) == NUM_TEXTS
    # No built-in text has this padded length: two texts alone would prove little.
    long = [f"{'a b ' * 10} {i}" for i in range(2)]
    chosen = chosen_texts([*long, "one two"], Words())
    assert chosen[:3] == [*long, "one two"] and len(set(chosen)) == NUM_TEXTS
    enough = [f"{'a b ' * 10} {i}" for i in range(NUM_TEXTS // 2)]
    assert chosen_texts([*enough, "one two"], Words()) == enough
    fewer = [*enough[1:], "one two"]
    assert chosen_texts(fewer, Words())[: NUM_TEXTS // 2] == fewer


def test_the_token_of_a_language_counts_in_the_padded_length():
    fitting = [" ".join([str(i), *"ab" * 7]) for i in range(NUM_TEXTS)]  # 16 tokens with EOS
    shorter = [" ".join([str(i), *"ab" * 6]) for i in range(NUM_TEXTS)]
    mixed = [text for pair in zip(fitting, shorter, strict=True) for text in pair]
    assert chosen_texts(mixed, Words()) == mixed[:NUM_TEXTS]
    assert chosen_texts([*fitting, *shorter[1:]], Words(language_tokens=1)) == fitting


def test_half_as_many_texts_suffice_of_one_length_where_half_as_many_are_asked_for():
    longer = [f"{'a b ' * 10} {i}" for i in range(NUM_TEXTS // 4)]
    assert chosen_texts([*longer, "one two"], Words(), NUM_TEXTS // 2) == longer
    assert len(chosen_texts([], Words(), NUM_TEXTS // 2)) == NUM_TEXTS // 2


def test_ctrl_c_ends_a_call_that_no_signal_ends():
    assert _interruptible(lambda text, end="": text + end, "a", end="b") == "ab"
    with pytest.raises(ZeroDivisionError):
        _interruptible(lambda: 1 / 0)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):  # The C library sleeps, and Python cannot wake it.
            _interruptible(ctypes.CDLL(None).sleep, 20)
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("dtype", ["float32", "float16"])  # of the weights
@pytest.mark.parametrize(("large", "texts", "rows"), [(True, 32, 4), (False, NUM_TEXTS, NUM_TEXTS)])
def test_a_large_model_has_fewer_texts_and_small_batches_and_is_freed_before_its_export_is_read(
    monkeypatch, large, texts, rows, dtype
):
    events = []

    class Trained(Words):
        model = types.SimpleNamespace(compute_dtype="float32", variable_dtype=dtype)
        languages = None

        def with_(self, **options):
            # Without XLA, each product would cast its large matrix slowly.
            assert options["with_xla"] == (large and dtype == "float16")
            return self

        def translate(self, texts, **options):
            events.append(("trained", len(texts), options["batch_size"]))
            return [Translation(text, 0.0) for text in texts]

    class Child:
        def send(self, texts, **options):
            events.append(("sent", len(texts)))
            self.texts = texts

        def receive(self):
            return [Translation(text, 0.0) for text in self.texts]

    monkeypatch.setattr(verification, "ModelEngine", Trained)
    monkeypatch.setattr(verification, "is_large", lambda model: large)
    monkeypatch.setattr(verification, "release_weights", lambda model: events.append(("freed",)))
    tolerance = TOLERANCES["none"]
    report = verification.verify(Child(), Trained(), None, tolerance, disposable_weights=True)
    trained, sent = ("trained", texts, rows), ("sent", texts)
    assert events == ([trained, ("freed",), sent] if large else [sent, trained])
    assert report["texts"] == report["equal"] == texts
    events.clear()
    verification.verify(Child(), Trained(), None, tolerance)
    assert events == ([trained, sent] if large else [sent, trained])
