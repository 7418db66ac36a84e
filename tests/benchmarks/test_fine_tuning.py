import re

import pytest
from marian_toys import SOURCES, TOYS

from benchmarks import fine_tuning
from keras_transformer.interop.importing import import_run


def test_products_have_the_same_price_on_both_sides():
    pairs = fine_tuning.product_pairs(200)
    assert len(dict(pairs)) == 200
    for source, target in pairs:
        (price,) = fine_tuning.PRICE.findall(target)
        # 1.234,50 is 1,234.50 in English.
        assert f"EUR {price.replace('.', ' ').replace(',', '.').replace(' ', ',')}" in source
    pairs = fine_tuning.product_pairs(1000)
    texts = "\n".join(target for _, target in pairs)
    colours = re.findall(
        r"\b(o|a|do|da) (?:espelho|lâmpada|casaco) (vermelh\w|pret\w|nov\w)", texts
    )
    assert len(colours) > 3
    assert all(article[-1] == adjective[-1] for article, adjective in colours)


@pytest.mark.parametrize(
    ("translation", "count"), [("por 1.234,50 €", 1), ("por 1,234.50 €", 0), ("1.234,50 1,00", 0)]
)
def test_a_price_is_right_if_it_is_the_only_one(translation, count):
    assert fine_tuning.right_prices([translation], ["custa 1.234,50 euros"]) == count


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:BLEU is 0.0")  # of texts of one word
def test_a_higher_rate_changes_more_of_a_run(tmp_path, monkeypatch, one_graph):
    monkeypatch.setattr(fine_tuning, "PARTS", {"train": 60, "validation": 6, "test": 6})
    start = import_run(TOYS / "student", tmp_path / "start")
    path = tmp_path / "general.en"
    path.write_text(
        "\n".join(f"{source} {word}" for source in SOURCES for word in ("", "old", "moves")) + "\n",
        encoding="utf-8",
    )
    options = dict(folder=str(tmp_path / "tuned"), epochs=1, mixed=4, sentences=5)
    before, low, high = fine_tuning.fine_tuning(
        start=str(start), general=str(path), peaks=[1e-12, 1.0], **options
    ).figures
    assert before["unchanged of 5"] == low["unchanged of 5"] == 5
    assert high["unchanged of 5"] < 5
    assert before["products BLEU"] == low["products BLEU"]
