import importlib
import math
import subprocess
import sys
import warnings

import pytest

from keras_transformer.base.errors import InputError
from keras_transformer.engine.evaluation import evaluate_model
from keras_transformer.engine.scores import evaluate, evaluate_labels
from keras_transformer.training import Recipe, train


def test_bleu_is_the_geometric_mean_of_the_four_precisions():
    # 5 of 6 words, 4 of 5 pairs, 3 of 4 triples, 2 of 3 quadruples; equal lengths: no penalty.
    scores = evaluate(["a b c d e x"], ["a b c d e f"])
    expected = 100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** (1 / 4)
    assert math.isclose(scores["bleu"], expected, abs_tol=0.005)
    assert evaluate(["A B C D E X"], ["a b c d e f"])["bleu_lowercase"] == scores["bleu"]
    # An empty translation adds to the length of the references: 6 of 8 words.
    scores = evaluate(["a b c d e x", ""], ["a b c d e f", "g h"])
    assert math.isclose(scores["bleu"], expected * math.exp(1 - 8 / 6), abs_tol=0.005)


SCRIPTS = [("Ein Mann schläft heute hier.", "13a")]
SCRIPTS += [("한 남자가 자전거를 타고 있다.", "13a")]  # Korean has spaces.
SCRIPTS += [
    ("Das Zeichen für Mensch ist 人, ein sehr altes Zeichen.", "13a"),
    ("一个男人骑着自行车。", "zh"),
]
SCRIPTS += [("請用 TensorFlow 2.21 和 Keras 訓練這個模型。", "zh"), ("自転車に乗る。", "char")]
# Two kana of four characters of its own script, and of 27 in all.
SCRIPTS += [("TensorFlow 2.21 と Keras 3.13 で訓練", "char")]
SCRIPTS += [("ผู้ชายกำลังขี่จักรยาน", "char"), ("མི་ཞིག་རྐང་འཁོར་བཞོན་བཞིན་འདུག", "char")]


@pytest.mark.parametrize(("text", "tokenizer"), SCRIPTS)
def test_a_tokenizer_follows_the_script_of_references_and_the_signature_names_it(text, tokenizer):
    scores = evaluate([text] * 3, [text] * 3)
    signatures = scores.pop("signatures")
    assert scores.pop("sentences") == 3 and set(scores) == set(signatures)
    assert list(scores.values()) == [100.0] * 4
    for name, case in (("bleu", "mixed"), ("bleu_lowercase", "lc")):
        assert f"|case:{case}|" in signatures[name] and f"|tok:{tokenizer}|" in signatures[name]
    # The references decide, not what a model writes in their place.
    assert evaluate(["Two dogs."] * 3, [text] * 3)["signatures"] == signatures


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", ["13a", "intl", "zh", "char", "none"])
def test_each_tokenizer_gives_what_sacrebleus_command_gives(tmp_path, tokenizer):
    texts = {"found": ["一个女人骑着自行车，", "“Two” dogs-play in 2026."]}
    texts["wanted"] = ["一个男人骑着自行车。", "“Two” dogs play in 2026 ."]
    for name, lines in texts.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", "wanted", "-i", "found", "-b", "-w", "2"]
    told = subprocess.run(
        [*command, "-tok", tokenizer], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert evaluate(*texts.values(), tokenizer)["bleu"] == float(told.stdout)


def test_a_missing_or_unknown_tokenizer_is_named_before_any_translation(monkeypatch, tmp_path):
    for language in ("ja", "ko"):
        module = importlib.import_module(f"sacrebleu.tokenizers.tokenizer_{language}_mecab")
        monkeypatch.setattr(module, "MeCab", None)
        said = f'tokenizer {language}-mecab needs: pip install "sacrebleu.{language}.".'
        with pytest.raises(InputError, match=said):
            evaluate_model("no model", "no", "files", tokenize=f"{language}-mecab")
        values = {part: {"source": "s", "target": "t"} for part in ("train", "validation")}
        recipe = Recipe.from_dict({"data": {**values, "bleu_tokenizer": f"{language}-mecab"}})
        with pytest.raises(InputError, match=said):
            train(recipe, tmp_path / "run")
    with pytest.raises(InputError, match="`tokenize` must be .* Received: .*'14a'"):
        evaluate(["a"], ["a"], "14a")


def test_a_bleu_of_zero_beside_a_fair_chrf_is_doubted():
    with pytest.warns(UserWarning, match="BLEU is 0.0, but chrF is .*tok:13a"):
        assert evaluate(["Guten Tag!"] * 2, ["Guten Abend!"] * 2)["bleu"] == 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate(["xx"], ["Guten Abend!"])
        evaluate(["Ein Mann schläft heute hier."], ["Ein Mann schläft heute hier."])


@pytest.mark.parametrize(("hypotheses", "references"), [(["a"], ["a", "b"]), ([], [])])
def test_counts_that_do_not_fit_are_refused(hypotheses, references):
    with pytest.raises(InputError, match="as many translations as references"):
        evaluate(hypotheses, references)


def test_labels_are_counted_as_done_by_hand_and_a_blank_text_is_wrong_and_no_class_of_its_own():
    scores = evaluate_labels([*"aabbbc", ""], list("aabaaba"))
    assert (scores["texts"], scores["accuracy"]) == (7, 0.4286)
    assert scores["labels"] == {
        "a": {"precision": 1.0, "recall": 0.4, "f1": 0.5714, "texts": 5},
        "b": {"precision": 0.3333, "recall": 0.5, "f1": 0.4, "texts": 2},
        "c": {"precision": 0.0, "recall": 0.0, "f1": 0.0, "texts": 0},
    }
    assert scores["macro_f1"] == 0.3238
    with pytest.raises(InputError, match="as many labels as texts. Received: 0 predicted"):
        evaluate_labels([], [])
