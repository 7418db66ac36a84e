"""Learning rates of a training that starts from a run: what it learns, and what it forgets.

    keras-transformer import STUDENT --output runs/en-pt
    python -m benchmarks.fine_tuning --start runs/en-pt --general test_2016_flickr.en --folder tuned

The new text is 300 English and Portuguese sentences about products with prices, made by rules. The
start translates the general text, so that a change of these translations is what the training
forgets. `--mixed` also trains on general sentences with the start's own translations.
"""

import pathlib
import random
import re
from collections.abc import Sequence
from typing import Any, Literal

from benchmarks import command_line
from benchmarks.command_line import Report, log, markdown
from keras_transformer import Translator
from keras_transformer.data import read_lines
from keras_transformer.errors import InputError
from keras_transformer.training import Recipe, evaluate, train

NOUNS = (
    [("lamp", "a lâmpada"), ("chair", "a cadeira"), ("shelf", "a estante"), ("tent", "a tenda")]
    + [("kettle", "a chaleira"), ("backpack", "a mochila"), ("speaker", "a coluna")]
    + [("mirror", "o espelho"), ("rug", "o tapete"), ("sofa", "o sofá"), ("jacket", "o casaco")]
    + [("drill", "o berbequim"), ("keyboard", "o teclado"), ("blender", "o liquidificador")]
)
# The masculine and the feminine.
ADJECTIVES = {
    "red": ("vermelho", "vermelha"),
    "black": ("preto", "preta"),
    "white": ("branco", "branca"),
    "yellow": ("amarelo", "amarela"),
    "wooden": ("de madeira", "de madeira"),
    "foldable": ("dobrável", "dobrável"),
    "new": ("novo", "nova"),
    "large": ("grande", "grande"),
}
BRANDS = "Veltora", "Nimbrix", "Casaluz", "Ordway", "Brenta", "Kolvik"
TEMPLATES = [
    (
        "The {adjective} {noun} by {brand} costs EUR {price}.",
        "{Article} {nome} {adjetivo} da {brand} custa {preço} euros.",
    ),
    (
        "{brand} {noun}, {adjective}, only EUR {price} with free shipping.",
        "{Nome} {brand}, {adjetivo}, apenas {preço} euros com portes grátis.",
    ),
    (
        "Order the {brand} {noun} today for EUR {price}; it ships in {count} days.",
        "Encomende hoje {article} {nome} {brand} por {preço} euros; é enviad{article} em {count} "
        "dias.",
    ),
    (
        "Price of the {adjective} {noun}: EUR {price} (VAT included).",
        "Preço d{article} {nome} {adjetivo}: {preço} euros (IVA incluído).",
    ),
    (
        "We sold {count} units of the {brand} {noun} at EUR {price} each.",
        "Vendemos {count} unidades d{article} {nome} {brand} a {preço} euros cada.",
    ),
]
# As Portuguese writes them: 1.234,50.
PRICE = re.compile(r"\d[\d.]*,\d\d(?!\d)")
PARTS = {"train": 300, "validation": 40, "test": 60}


def product_pairs(count: int, seed: int = 3) -> list[tuple[str, str]]:
    """Returns different English and Portuguese sentences about products."""
    generator, pairs = random.Random(seed), {}
    while len(pairs) < count:
        noun, translation = generator.choice(NOUNS)
        article, name = translation.split(" ")
        adjective, both_forms = generator.choice(list(ADJECTIVES.items()))
        digits = generator.randint(1, 4)
        price = f"{generator.randrange(5 * 10**digits) / 10 + 5:,.2f}"
        values = {
            "noun": noun,
            "adjective": adjective,
            "brand": generator.choice(BRANDS),
            "count": generator.randrange(2, 30),
            "price": price,
            "article": article,
            "Article": article.upper(),
            "nome": name,
            "Nome": name.capitalize(),
            "adjetivo": both_forms[article == "a"],
            "preço": price.translate(str.maketrans(",.", ".,")),
        }
        source, target = generator.choice(TEMPLATES)
        pairs.setdefault(source.format(**values), target.format(**values))
    return list(pairs.items())


def right_prices(translations: Sequence[str], references: Sequence[str]) -> int:
    """Returns how many translations have the prices of their references, and no others."""
    pairs = zip(translations, references, strict=True)
    return sum(PRICE.findall(text) == PRICE.findall(reference) for text, reference in pairs)


def fine_tuning(
    *,
    start: str,
    general: str,
    folder: str,
    mode: Literal["full", "lora"] = "full",
    peaks: Sequence[float] = (1e-5, 3e-5, 1e-4, 3e-4),
    epochs: int = 10,
    batch_tokens: int = 2048,
    lora_rank: int = 16,
    mixed: int = 0,
    sentences: int = 200,
) -> Report:
    """Compares learning rates on products and on general text.

    Args:
        start: Run to start from, English to Portuguese.
        general: File of general English sentences.
        folder: Directory of the texts and runs.
        mode: Train all weights, or LoRA's matrices.
        peaks: Highest learning rates.
        epochs: Number of epochs.
        batch_tokens: As in a recipe.
        lora_rank: As in a recipe.
        mixed: Number of general sentences to train on, after those that are compared.
        sentences: Number of general sentences that are compared.
    """
    lines = read_lines(general)
    if len(lines) < sentences + mixed:
        rule = f"`general` must have at least {sentences + mixed} lines"
        raise InputError(f"{rule}. Received: {general} of {len(lines)} lines.")
    texts = pathlib.Path(folder)
    texts.mkdir(parents=True, exist_ok=True)
    pairs, tests = product_pairs(sum(PARTS.values())), []
    for part, size in PARTS.items():
        tests, pairs = pairs[:size], pairs[size:]
        _write(texts, part, tests)
    translator = Translator.load(start)
    general_texts = [result.text for result in translator.translate(lines[: sentences + mixed])]
    corpora = [{"name": "products", "source": "train.en", "target": "train.pt"}]
    if mixed:
        _write(texts, "general", list(zip(lines, general_texts, strict=False))[sentences:])
        corpora.append({"name": "general", "source": "general.en", "target": "general.pt"})

    def measured(translator) -> dict[str, Any]:
        sources, references = map(list, zip(*tests, strict=True))
        products = [result.text for result in translator.translate(sources)]
        others = [result.text for result in translator.translate(lines[:sentences])]
        unchanged = sum(map(str.__eq__, others, general_texts[:sentences]))
        return {
            "products BLEU": evaluate(products, references)["bleu"],
            f"prices of {len(tests)}": right_prices(products, references),
            "general BLEU": evaluate(others, general_texts[:sentences])["bleu"],
            f"unchanged of {sentences}": unchanged,
        }

    rows = [{"peak": None, **measured(translator)}]
    for peak in peaks:
        training: dict[str, Any] = {
            "start_from": start,
            "peak_learning_rate": peak,
            "epochs": epochs,
            "batch_tokens": batch_tokens,
            "sample_translations": 0,
        }
        if mode == "lora":
            training["lora_rank"] = lora_rank
        validation = {"source": "validation.en", "target": "validation.pt"}
        data = {"folder": folder, "train": corpora, "validation": validation}
        run = texts / f"{mode}-{peak:g}"
        train(Recipe.from_dict({"data": data, "training": training}), run, overwrite=True)
        rows.append({"peak": peak, **measured(Translator.load(run))})
        log(markdown(rows[-1:]))
    return Report(rows, markdown(rows))


def _write(folder, name, pairs):
    for side, lines in zip(("en", "pt"), zip(*pairs, strict=True), strict=True):
        (folder / f"{name}.{side}").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    command_line.run(fine_tuning, arguments=arguments)


if __name__ == "__main__":
    main()
