"""Lines, checksums and pairs of corpora, for chunks of any size."""

import collections
import hashlib
import itertools

import pytest
from pairwise import pairwise
from small_corpus import PAIRS, recipe_values

from keras_transformer.training.recipe import Recipe
from keras_transformer.training.recipe_texts import RecipeTexts


def _recipe(folder, corpora, **data):
    """A recipe of corpora: a dict of part, name and pairs."""
    values = recipe_values(folder)
    values["data"] = {"folder": str(folder), **data}
    for part, of_part in corpora.items():
        values["data"][part] = []
        for name, (pairs, options) in of_part.items():
            for side, ending in enumerate(("en", "de")):
                text = "".join(pair[side] + "\n" for pair in pairs)
                (folder / f"{part}.{name}.{ending}").write_text(text, encoding="utf-8")
            files = {"source": f"{part}.{name}.en", "target": f"{part}.{name}.de", "name": name}
            values["data"][part].append(files | options)
    return Recipe.from_dict(values)


def _lines(corpus, part):
    """The numbers and pairs of each corpus of a part, chunks joined."""
    lines = collections.defaultdict(list)
    for chunk in corpus.lines([part]):
        assert len(chunk.numbers) == len(chunk.pairs)
        lines[chunk.corpus] += zip(chunk.numbers.tolist(), chunk.pairs, strict=True)
    return dict(lines)


@pairwise(
    chunk_lines=[1, 2, 7, 1000],
    hold_out_every=[None, 2, 3, 40],
    options=[{}, {"tag": "bt"}, {"languages": "en-de"}, {"tag": "bt", "languages": "en-fr"}],
    empty=[True, False],
)
def test_lines_and_checksums_are_those_of_the_files(
    chunk_lines, hold_out_every, options, empty, tmp_path
):
    """In chunks of any size, with blank sources."""
    pairs = [
        (" " if empty and i % 5 == 0 else source, target)
        for i, (source, target) in enumerate(PAIRS)
    ]
    plain = {"languages": "en-de"} if "languages" in options else {}
    parts = {"train": {"b": (pairs[:17], options), "a": (pairs[17:], plain)}}
    if hold_out_every is None:
        parts["validation"] = {"v": (pairs[3:9], options), "w": (pairs[:1], plain)}
    data = {} if hold_out_every is None else {"hold_out_every": hold_out_every}
    corpus = RecipeTexts(_recipe(tmp_path, parts, **data), chunk_lines=chunk_lines)

    def tagged(source, options):
        of_language = {"en-de": ">>de<<", "en-fr": ">>fr<<"}.get(options.get("languages"))
        has_tokens = corpus.recipe.data.languages and corpus.recipe.data.languages.tokens
        tokens = [of_language if has_tokens else None, "<bt>" if "tag" in options else None]
        return " ".join([*filter(None, tokens), source]) if source.strip() else source

    for part in ("train", "validation"):
        expected = {}
        for name, (of_corpus, options_of_corpus) in parts[
            "train" if hold_out_every else part
        ].items():
            numbered = [
                (number, (tagged(source, options_of_corpus), target))
                for number, (source, target) in enumerate(of_corpus, start=1)
                if hold_out_every is None
                or (number % hold_out_every == 0) == (part == "validation")
            ]
            expected[name] = numbered
            for side, ending in enumerate(("source", "target")):
                text = "".join(f"{pair[side]}\n" for _, pair in numbered)
                assert (
                    corpus.digests[part][f"{name}.{ending}"]
                    == hashlib.sha256(text.encode()).hexdigest()
                )
        assert {name: rows for name, rows in _lines(corpus, part).items() if rows} == {
            name: rows for name, rows in expected.items() if rows
        }
    rows = itertools.zip_longest(
        *([(name, pair) for _, pair in rows] for name, rows in expected.items())
    )
    assert corpus.first_validation_pairs() == [pair for row in rows for pair in row if pair]


@pytest.mark.parametrize("sizes", [(2100,), (1999,), (1200, 900), (1100, 5, 900)])
def test_the_first_2000_validation_pairs_are_of_all_corpora(sizes, tmp_path):
    of_corpora = {
        f"v{i}": ([(f"{i} {n}", f"{n}") for n in range(size)], {}) for i, size in enumerate(sizes)
    }
    recipe = _recipe(tmp_path, {"train": {"a": (PAIRS, {})}, "validation": of_corpora})
    limit = -(-2000 // len(sizes))
    rows = itertools.zip_longest(
        *([(name, pair) for pair in pairs[:limit]] for name, (pairs, _) in of_corpora.items())
    )
    pairs = RecipeTexts(recipe, chunk_lines=700).first_validation_pairs()
    assert [pair for _, pair in pairs] == [pair[1] for row in rows for pair in row if pair]


def test_duplicates_leave_the_training_pairs_of_later_corpora_only(tmp_path):
    pairs = PAIRS[:12] + PAIRS[3:5]
    validation = {"v": (PAIRS[10:14] + PAIRS[10:12], {}), "w": (PAIRS[5:7], {})}
    train = {"b": (pairs, {}), "a": (pairs, {})}
    corpus = RecipeTexts(_recipe(tmp_path, {"train": train, "validation": validation}))
    datasets, _ = corpus.datasets(corpus.tokenizers())
    assert datasets["train"].pairs.corpora == {"b": 12, "a": 0}
    assert len(datasets["validation"].pairs) == 6 + 2
