import collections
import csv
import itertools
import os
import pathlib
import types
import warnings

import numpy as np
import pytest
from small_corpus import PAIRS, recipe_values, write_corpus

from keras_transformer import Tokenizer
from keras_transformer.base import reading
from keras_transformer.base.errors import InputError
from keras_transformer.data import ParallelDataset
from keras_transformer.data.placeholders import with_placeholders
from keras_transformer.engine.device import device_plan
from keras_transformer.text import Labels
from keras_transformer.text.languages import Languages
from keras_transformer.text.symbols import Placeholders
from keras_transformer.text.vocabulary import parsed
from keras_transformer.training import Recipe, RunFolder
from keras_transformer.training.hosts import SINGLE_HOST
from keras_transformer.training.preparing import prepare, resume
from keras_transformer.training.recipe_texts import RecipeTexts, languages_of


@pytest.fixture
def values(tmp_path):
    return recipe_values(write_corpus(tmp_path))


def test_a_joint_vocabulary_is_learned_from_both_sides_another_from_its_side(values, tmp_path):
    files = tmp_path / "train.en", tmp_path / "train.de"
    for sample in (None, 1000):
        values["text"]["sample_sentences"] = sample
        source, target = RecipeTexts(Recipe.from_dict(values)).tokenizers()
        assert source is target and source == Tokenizer.train(files, 150)
    values["text"].update(joint=False, vocabulary_size=100, target_vocabulary_size=120)
    source, target = RecipeTexts(Recipe.from_dict(values)).tokenizers()
    assert source == Tokenizer.train(files[0], 100) and target == Tokenizer.train(files[1], 120)


@pytest.mark.parametrize("name", ["train.en", "train.de"])
def test_a_missing_file_is_an_error_that_names_the_folder_of_the_texts(values, tmp_path, name):
    (tmp_path / name).unlink()
    with pytest.raises(InputError) as caught:
        RecipeTexts(Recipe.from_dict(values)).tokenizers()
    folder = str(tmp_path)
    assert caught.value.message == (
        f"{tmp_path / name}: no such file. The files of a recipe are in `data.folder`. "
        f"Received: data.folder={folder!r}."
    )


@pytest.mark.parametrize("numbers", [False, True])
def test_training_pairs_have_the_placeholders_of_the_recipe(values, tmp_path, numbers):
    lines = {"train.en": "Ask a@b.org, {x} or 12.\n", "train.de": "12 oder {x}, a@b.org.\n"}
    for name, line in lines.items():
        (tmp_path / name).write_text(line, encoding="utf-8")
    values["text"] |= {"placeholders": 2, "placeholder_numbers": numbers}
    (chunk,) = RecipeTexts(Recipe.from_dict(values)).lines(["train"])
    (pair,) = chunk.pairs
    # Two items of three become placeholders: the first ones of the source.
    assert pair == with_placeholders(
        *(line.strip() for line in lines.values()), Placeholders(2, numbers)
    )
    for side in pair:
        assert "<ph_1>" in side and "<ph_2>" in side and "@" not in side and "12" in side


# Batch tokens and shapes of the recipe; fewest steps of an epoch, numbers of shapes of both parts.
SHAPES = [(4096, None, 2, 2, 2), (60, None, 50, 8, 4), (4096, 8, 2, 8, 4), (60, 1, 50, 1, 1)]


@pytest.mark.parametrize("batch_tokens, max_shapes, steps, in_training, in_validation", SHAPES)
def test_an_epoch_of_few_steps_has_few_shapes(
    values, tmp_path, batch_tokens, max_shapes, steps, in_training, in_validation
):
    texts = [" ".join(["dog"] * (1 + index % 20)) + f" {index}" for index in range(300)]
    for name in ("train.en", "train.de", "validation.en", "validation.de"):
        (tmp_path / name).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    values["training"] |= {"batch_tokens": batch_tokens, "max_shapes": max_shapes}
    corpus = RecipeTexts(Recipe.from_dict(values))
    datasets, _ = corpus.datasets((tokenizer := Tokenizer.train_from_texts(texts, 39), tokenizer))
    assert len(datasets["train"].shapes) == corpus.max_shapes == in_training
    assert len(datasets["validation"].shapes) == in_validation
    assert datasets["train"].steps_per_epoch >= steps
    assert steps == 50 or datasets["train"].steps_per_epoch < 50
    # Shorter epochs of training have the same shapes, and begin with the same batches, which are in
    # the usual order where no corpus has a weight.
    values["training"]["steps_per_epoch"] = 2
    short, _ = RecipeTexts(Recipe.from_dict(values)).datasets((tokenizer, tokenizer))
    assert short["train"].steps_per_epoch == 2 and short["train"].shapes == datasets["train"].shapes
    assert short["validation"].steps_per_epoch == datasets["validation"].steps_per_epoch
    shapes, seed = datasets["train"].shapes, values["training"].get("seed", 1)
    usual = ParallelDataset(datasets["train"].pairs, shapes=shapes, seed=seed).batches(0)
    for (inputs, _), (expected, _) in zip(short["train"].batches(0), usual, strict=False):
        np.testing.assert_array_equal(inputs[0], expected[0])


def test_a_table_of_a_spreadsheet_trains_as_the_two_files(values, tmp_path):
    expected = list(RecipeTexts(Recipe.from_dict(values)).lines(["train"]))
    with open(tmp_path / "a.csv", "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, delimiter=";", quoting=csv.QUOTE_ALL)
        table.writerows([("English", "Deutsch"), *PAIRS])
    values["data"]["train"] = {"source": "a.csv", "header": True}
    (lines,) = RecipeTexts(Recipe.from_dict(values)).lines(["train"])
    assert lines.pairs == [pair for chunk in expected for pair in chunk.pairs]


def test_a_pipe_is_refused_where_texts_are_read_again(values, tmp_path):
    os.mkfifo(tmp_path / "pipe.en")
    values["data"]["train"] = {"source": "pipe.en", "target": "train.de"}
    values["text"]["sample_sentences"] = 101
    with pytest.raises(InputError, match="pipe.en: expected a file, which is read several times"):
        RecipeTexts(Recipe.from_dict(values)).tokenizers()


def test_a_target_of_two_turns_is_named_by_its_file_and_line(values, tmp_path):
    (tmp_path / "train.en").write_text("Hi.\nHi. </s> Well?\nHi.\n", encoding="utf-8")
    (tmp_path / "train.de").write_text("Ja.\nNein.\nJa. </s> Nein.\n", encoding="utf-8")
    values["text"]["turn_separator"] = "</s>"
    with pytest.raises(InputError, match=r"train.de, line 3: a target is one turn, .*: '</s>' in"):
        next(RecipeTexts(Recipe.from_dict(values)).lines(["train"]))


def test_two_vocabularies_warn_once_of_characters_that_both_would_lose(values, tmp_path):
    for name, text in (("train.en", "می\u200cخواهم بخوانم\n"), ("train.de", "ಸಾಫ್ಟ್\u200cವೇರ್ ಇದೆ\n")):
        (tmp_path / name).write_text(text * 9, encoding="utf-8")
    values["text"] = {"joint": False, "vocabulary_size": 14, "target_vocabulary_size": 16}
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        RecipeTexts(Recipe.from_dict(values)).tokenizers()
    (warning,) = shown
    assert "`text.normalization: nfkc`" in str(warning.message)


def test_a_language_models_sample_is_of_its_lines_alone(values, tmp_path):
    lines = (tmp_path / "train.en").read_text(encoding="utf-8")
    lines = lines.replace("\n", "\n\n \n") * 4
    (tmp_path / "blank.en").write_text(lines, encoding="utf-8")
    values["data"] |= {part: {"source": "blank.en"} for part in ("train", "validation")}
    values["text"] |= {"vocabulary_size": 120, "sample_sentences": 4 * len(PAIRS)}
    values["model"] = {"kind": "language_model"}
    sources = [source for source, _ in PAIRS] * 4
    expected = Tokenizer.train_from_texts(sources, 120, sample_sentences=len(sources))
    assert RecipeTexts(Recipe.from_dict(values)).tokenizers()[0] == expected


def test_lines_have_the_files_numbers_without_held_out_pairs(values, tmp_path):
    # Held out are lines 3, 6, …; line 4 is equal to line 3, and lines 8 and 11 have no text.
    pairs = [*PAIRS[:3], PAIRS[2], *PAIRS[4:7], ("", ""), *PAIRS[8:10], ("", "x"), *PAIRS[11:]]
    for side, name in enumerate(("train.en", "train.de")):
        (tmp_path / name).write_text("".join(pair[side] + "\n" for pair in pairs), "utf-8")
    del values["data"]["validation"]
    values["data"]["hold_out_every"] = 3
    recipe = Recipe.from_dict(values)
    tokenizers = RecipeTexts(recipe).tokenizers()
    datasets, reports = RecipeTexts(recipe, chunk_lines=7).datasets(tokenizers)
    dropped = {"empty side": (8, 11), "equal to a held-out pair": (4,)}
    drops = reports["train"].dropped
    assert {why: drop.first_lines for why, drop in drops.items()} == dropped
    assert reports["train"].total == 22 and reports["validation"].dropped == {}
    for part, dataset in datasets.items():
        (lines,) = (dataset.lines(0, step) for step in range(dataset.steps_per_epoch))
        held_out = [line for line in range(1, 33) if (line % 3 == 0) == (part != "train")]
        assert lines == [line for line in held_out if line not in (4, 8, 11)]
        ids = tokenizers[0].tokenize([pairs[line - 1][0] for line in lines], add_eos=True)
        assert [dataset.pairs.source(i).tolist() for i in range(len(lines))] == ids
    values["data"]["hold_out_every"] = 99
    with pytest.raises(InputError, match="^validation pairs of `data.hold_out_every: 99`: No"):
        RecipeTexts(Recipe.from_dict(values)).datasets(tokenizers)


@pytest.fixture
def labelled(values, tmp_path):
    """A recipe of a classifier over `label<TAB>text`."""
    lines = [f"{i % 3}\t{text}" for i, (text, _) in enumerate(PAIRS)]
    for name, end in (("train.tsv", []), ("validation.tsv", ["3\tSnow."])):
        (tmp_path / name).write_text("\n".join([*lines, *end]) + "\n", encoding="utf-8")
    values["data"] |= {part: {"source": f"{part}.tsv"} for part in ("train", "validation")}
    values["model"] = {"kind": "classifier", "model_dim": 16}
    values["text"]["vocabulary_size"] = 100
    return Recipe.from_dict(values)


def test_a_classifiers_labels_come_first_and_are_strings_of_their_own(labelled):
    texts, labels = RecipeTexts(labelled).tokenizers()
    assert labels.names == ["0", "1", "2"]
    assert texts == Tokenizer.train_from_texts([text for text, _ in PAIRS], 100)


def test_noise_changes_no_label_and_makes_no_shape_longer_than_the_longest_pair(labelled, tmp_path):
    text = (tmp_path / "train.tsv").read_text("utf-8").replace("0\t", "no\t")
    (tmp_path / "train.tsv").write_text(text, encoding="utf-8")
    values = labelled.to_dict()
    values["data"] |= {"validation": values["data"]["train"], "max_length": 20}
    values["data"]["noise"] = {"upper_case": 0.3}
    noisy = RecipeTexts(Recipe.from_dict(values))
    tokenizers = noisy.tokenizers()
    assert tokenizers[1].names == ["1", "2", "no"]
    assert noisy.datasets(tokenizers)[0]["train"].shapes[-1][1] <= 20


def test_tokens_of_a_language_model_are_its_targets(values):
    values["data"] |= {part: {"source": "train.en"} for part in ("train", "validation")}
    values["model"] = {"kind": "language_model", "model_dim": 16, "num_heads": 2}
    values["text"]["vocabulary_size"] = 100
    recipe = Recipe.from_dict(values)
    datasets, _ = RecipeTexts(recipe).datasets(RecipeTexts(recipe).tokenizers())
    for dataset in datasets.values():
        labels = [labels for _, labels in dataset.batches(0)]
        tokens = sum(np.count_nonzero(batch) for batch in labels)
        assert dataset.real_tokens == tokens
        assert dataset.real_token_share == tokens / sum(batch.size for batch in labels)


@pytest.mark.parametrize(
    ("first", "names", "where", "label"),
    [
        ("0", "012", "validation.tsv, line 33", "3"),
        # Labels of another run, which the training texts must have, too.
        ("0", "01", "train.tsv, line 3", "2"),
        ("", "01", "train.tsv, line 1", ""),
    ],
)
def test_a_label_that_is_not_trained_is_one_line(labelled, tmp_path, first, names, where, label):
    text = (tmp_path / "train.tsv").read_text("utf-8")
    (tmp_path / "train.tsv").write_text(first + text[1:], encoding="utf-8")
    texts, _ = RecipeTexts(labelled).tokenizers()
    known = ", ".join(names)
    expected = f"{where}: expected a label that was trained on ({known}). Received: {label!r}."
    with pytest.raises(InputError) as error:
        RecipeTexts(labelled).datasets((texts, Labels(list(names))))
    assert str(error.value).endswith(expected)


@pytest.fixture
def start(values, tmp_path, monkeypatch):
    """A function that starts a run, and returns how often it has opened each file of a corpus."""
    counts, run = collections.Counter(), RunFolder(tmp_path / "run")
    opened = reading.opened
    monkeypatch.setattr(reading, "opened", lambda path: counts.update([path]) or opened(path))

    def start(**changes):
        recipe = Recipe.from_dict({**values, **changes})
        counts.clear()
        if run.recipe_file.exists():
            resume(recipe, run, SINGLE_HOST, device_plan())
        else:
            prepared = prepare(recipe, run, SINGLE_HOST, device_plan())
            run.create(recipe.to_dict(), prepared.tokenizers, prepared.digests)
        return {pathlib.Path(path).name: count for path, count in counts.items()}

    return start


@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize("files", [{"source": "%s.en", "target": "%s.de"}, {"source": "%s.tsv"}])
@pytest.mark.parametrize("sample", [None, 101])
def test_a_text_is_read_once_and_once_more_where_a_vocabulary_is_learned_from_a_stream(
    values, tmp_path, start, sample, files, held_out
):
    parts = {"train": "train"} if held_out else {"train": "train", "validation": "val"}
    for file in parts.values():
        write_corpus(tmp_path)
        for side, name in enumerate(("en", "de")):
            text = "".join(pair[side] + "\n" for pair in PAIRS)
            (tmp_path / f"{file}.{name}").write_text(text, encoding="utf-8")
        (tmp_path / f"{file}.tsv").write_text("".join("\t".join(p) + "\n" for p in PAIRS), "utf-8")
    data = {
        part: {side: name % file for side, name in files.items()} for part, file in parts.items()
    }
    data |= {"folder": str(tmp_path)} | ({"hold_out_every": 3} if held_out else {})
    changes = {"text": {"vocabulary_size": 60, "sample_sentences": sample}}
    every = {name % file for file in parts.values() for name in files.values()}
    assert start(data=data, **changes) == dict.fromkeys(every, 1 if sample is None else 2)
    # The resumed run has its vocabulary.
    assert start(data=data, **changes) == dict.fromkeys(every, 1)


@pytest.fixture
def corpora(values, tmp_path):
    """A recipe of two corpora: 32 pairs, and 16 the other way round, with tags."""
    for name, side in (("back.de", 1), ("back.en", 0)):
        text = "".join(pair[side] + "\n" for pair in [*PAIRS[:15], ("", "")])
        (tmp_path / name).write_text(text, encoding="utf-8")
    there = {"source": "train.en", "target": "train.de", "name": "there", "tag": "2de"}
    back = {"source": "back.de", "target": "back.en", "name": "back", "tag": "2en"}
    values["data"] |= {"train": [there, {**back, "weight": 2.0}], "validation": [there, back]}
    return values


@pytest.fixture
def encoded(corpora):
    """The tokenizers, datasets and reports of `corpora`."""
    corpus = RecipeTexts(Recipe.from_dict(corpora))
    tokenizers = corpus.tokenizers()
    return tokenizers, *corpus.datasets(tokenizers)


def test_sources_of_several_corpora_begin_with_the_tags_of_their_corpora(encoded):
    (tokenizer, _), datasets, _ = encoded
    assert tokenizer.tags == ("2de", "2en")
    pairs = datasets["train"].pairs
    assert pairs.corpora == {"there": 32, "back": 15}
    sources = tokenizer.detokenize([pairs.source(0), pairs.source(32)])
    assert sources == [f"<2de> {PAIRS[0][0]}", f"<2en> {PAIRS[0][1]}"]


def test_a_report_counts_the_pairs_of_each_corpus(encoded):
    kept = ["47 of 48 pairs kept", "there: 32 of 32 pairs kept", "back: 15 of 16 pairs kept"]
    lines = str(encoded[2]["train"]).splitlines()
    assert lines == [*kept, "  1 dropped, empty side: line 16"]


def test_an_epoch_has_the_pairs_of_a_corpus_as_often_as_its_weight_says(encoded):
    batches = encoded[1]["train"].batches(0)
    rows = sum(np.count_nonzero(ids[:, 0]) for (ids, _), _ in batches)
    assert rows == 32 + 2 * 15


def test_each_validation_corpus_has_batches_of_its_own_in_the_shapes_of_all(encoded):
    validation, back = (encoded[1][name] for name in ("validation", "validation/back"))
    assert back.shapes == validation.shapes and len(back.pairs) == 15
    of_back = back.pairs.source(3).tolist(), back.pairs.target(3).tolist()
    of_all = validation.pairs.source(35).tolist(), validation.pairs.target(35).tolist()
    assert of_back == of_all


def test_the_token_of_the_target_precedes_the_sources_of_several_directions(corpora):
    data = corpora["data"]
    for part in ("train", "validation"):
        data[part] = [
            {"source": corpus["source"], "target": corpus["target"], "languages": languages}
            for corpus, languages in zip(data[part], ("en-de", "de,en-GB"), strict=True)
        ]
    corpus = RecipeTexts(Recipe.from_dict(corpora))
    (there, first), (back, second), *_ = corpus.first_validation_pairs()
    assert (there, back) == ("en-de", "de-en-GB")
    (source, target), tokenizers = PAIRS[0], corpus.tokenizers()
    assert (first[0], second[0]) == (f">>de<< {source}", f">>en-gb<< {target}")
    assert tokenizers[0].tags == ("de", "en-gb") and tokenizers[0].turn_id is None
    assert corpus.directions("train", tokenizers) == {}
    languages = languages_of(Recipe.from_dict(corpora))
    assert languages.directions == (("en", "de"), ("de", "en-GB"))
    train = corpus.datasets(tokenizers)[0]["train"].pairs
    for row, code, text in ((0, "de", source), (32, "en-GB", target)):
        token = tokenizers[0].id_of(languages.tokens[code])
        assert list(train.source(row)) == [token, *tokenizers[0].tokenize(text, add_eos=True)]
    # One target needs no token.
    one = {**data["train"][0], "languages": "fr-de", "name": "more"}
    recipe = Recipe.from_dict(
        {**corpora, "data": {**data, "train": [data["train"][0], one], "validation": [one]}}
    )
    assert not languages_of(recipe).tokens
    # Other codes of the same languages.
    data["validation"][0]["languages"] = "eng-deu"
    data["validation"][1]["languages"] = "de-AT,en"
    third = {**data["train"][0], "languages": "eng,de-Latn", "name": "third"}
    again = Recipe.from_dict({**corpora, "data": {**data, "train": [*data["train"], third]}})
    assert languages_of(again) == languages
    data["validation"][1]["languages"] = "fr-de"
    with pytest.raises(
        InputError, match="Each corpus must name its `languages`.*fr-de in `data.val"
    ):
        Recipe.from_dict(corpora)
    data["train"][0] |= {"languages": None, "name": "first"}
    data["train"].append({**data["train"][1], "languages": "en-de", "name": "third"})
    with pytest.raises(InputError, match="Received: none in `data.train`"):
        Recipe.from_dict(corpora)


@pytest.mark.parametrize(
    ("part", "languages", "advice"),
    [
        ("train", "en-spanish", " Did you mean `en-es`?"),
        ("validation", "english-spanish", " Did you mean `en-es`?"),
        ("train", "en-jp", " Did you mean `en-ja`?"),
        ("validation", "en-xx", ""),
    ],
)
def test_a_code_of_no_language_is_refused_before_texts_are_read(
    values, tmp_path, languages, advice, part
):
    values["data"] |= {name: {"source": "missing.tsv"} for name in ("train", "validation")}
    values["data"]["train"]["languages"] = "eng-spa"  # codes of three letters are codes, too
    values["data"][part]["languages"] = languages
    recipe, run = Recipe.from_dict(values), RunFolder(tmp_path / "run")
    with pytest.raises(InputError) as caught:
        prepare(recipe, run, SINGLE_HOST, device_plan(), recipe_file="mine.yaml")
    rule = f"mine.yaml: `data.{part}.languages` must be two codes of languages, such as en-de"
    assert str(caught.value) == f"{rule}. Received: {languages!r}.{advice}"


def origin_with(languages):
    tokenizers = (types.SimpleNamespace(tag_tokens={}),)
    return types.SimpleNamespace(
        path="RUN", languages=lambda: languages, tokenizers=lambda: tokenizers
    )


def test_a_models_own_codes_may_be_no_languages_and_one_direction_is_no_several(values):
    corpus = values["data"]["train"] | {"languages": "en-xx"}
    values["data"]["train"] = corpus
    own = Languages(directions=(("en", "xx"),))
    assert languages_of(Recipe.from_dict(values), origin_with(own)) == own
    with pytest.raises(InputError, match="must be two codes of languages"):
        languages_of(Recipe.from_dict(values), origin_with(None))
    values["data"]["train"] = [
        corpus | {"name": code, "languages": f"en-{code}"} for code in ("de", "fr")
    ]
    values["data"]["validation"]["languages"] = "en-de"
    one_way = Languages(directions=(("en", "de"),))
    with pytest.raises(InputError, match="RUN: its vocabulary must have tokens of languages"):
        languages_of(Recipe.from_dict(values), origin_with(one_way))


# Sides whose tokens are source prefix, source suffix and target prefix, as models read them.
SIDES = {
    "M2M100": ("source", None, "target"),
    "mBART": (None, "source", "target"),
    "SMaLL-100": ("target", None, None),
    "suffix": (None, "target", None),
    "all": ("target", "source", "target"),
}


@pytest.fixture
def of_languages(corpora):
    """Makes a corpus of two directions for an imported model, and its tokenizers."""
    data = corpora["data"]
    for part in ("train", "validation"):
        data[part] = [
            {"source": corpus["source"], "target": corpus["target"], "languages": languages}
            for corpus, languages in zip(data[part], ("en-de", "de-en"), strict=True)
        ]
    texts = [text for pair in PAIRS for text in pair]
    content, tokenizers = Tokenizer.train_from_texts(texts, 150).model_bytes, []
    for tokens in (("__en__", "__de__"), ("__de__", "__en__")):  # other ids on each side
        model = parsed(content)
        for token in tokens:
            model.pieces.add(piece=token, type=model.pieces[0].CONTROL)
        tokenizers.append(Tokenizer(model.SerializeToString()))

    def of_languages(sides, **changes):
        data.update(changes)
        languages = Languages({"en": "__en__", "de": "__de__"}, *sides)
        recipe = Recipe.from_dict(corpora)
        return RecipeTexts(recipe, tuple(tokenizers), languages=languages), tuple(tokenizers)

    return of_languages


@pytest.mark.parametrize("sides", SIDES.values(), ids=SIDES)
def test_an_imported_model_trains_on_the_ids_of_languages_that_it_translates_with(
    of_languages, sides
):
    corpus, tokenizers = of_languages(sides)
    codes = {0: ("en", "de"), 32: ("de", "en")}
    datasets, reports = corpus.datasets(tokenizers)
    assert reports["train"].unknown == {}
    for part, (row, pair) in itertools.product(("train", "validation"), codes.items()):
        texts = PAIRS[0] if row == 0 else PAIRS[0][::-1]
        tokens = dict(zip(("source", "target"), (f"__{code}__" for code in pair), strict=True))
        readers = tokenizers[0], tokenizers[0], tokenizers[1]
        before, after, first = (
            [tokenizer.id_of(tokens[side])] if side else []
            for tokenizer, side in zip(readers, sides, strict=True)
        )
        pairs = datasets[part].pairs
        source = tokenizers[0].tokenize(texts[0], add_eos=True)
        target = tokenizers[1].tokenize(texts[1])
        assert pairs.source(row).tolist() == [*before, *source, *after]
        assert pairs.target(row).tolist() == [*first, *target]
    # The texts, which are also samples, stay as they are.
    assert corpus.first_validation_pairs()[0][1] == PAIRS[0]
    directions = corpus.directions("validation", tokenizers).values()
    assert [direction.codes for direction in directions] == [*codes.values()]


def test_a_training_has_the_languages_of_each_pair_also_when_it_is_resumed(
    of_languages, corpora, tmp_path
):
    _, tokenizers = of_languages(SIDES["all"])
    languages = Languages({"en": "__en__", "de": "__de__"}, *SIDES["all"])
    origin, run = RunFolder(tmp_path / "origin"), RunFolder(tmp_path / "run")
    origin.create(Recipe.from_dict(corpora).to_dict(), tokenizers, {}, languages)
    recipe = Recipe.from_dict({**corpora, "training": {"start_from": str(origin.path)}})
    new = prepare(recipe, run, SINGLE_HOST, device_plan())
    run.create(new.recipe.to_dict(), new.tokenizers, new.digests, new.languages)
    resumed = resume(recipe, run, SINGLE_HOST, device_plan())
    english = {source for source, _ in PAIRS}
    expected = [("en", "de") if source in english else ("de", "en") for source, _ in new.validation]
    assert new.validation_directions == resumed.validation_directions == expected
    for part in ("train", "validation"):
        flat = [prepared.datasets[part].pairs.source_flat for prepared in (new, resumed)]
        np.testing.assert_array_equal(*flat)


def test_ids_of_languages_count_where_a_pair_may_be_too_long(of_languages):
    corpus, tokenizers = of_languages(SIDES["all"])
    pairs = corpus.datasets(tokenizers)[0]["train"].pairs
    lengths = np.maximum(pairs.source_lengths, pairs.target_lengths + 1)
    for limit in np.unique(lengths)[-3:]:
        corpus, tokenizers = of_languages(SIDES["all"], max_length=int(limit))
        shorter = corpus.datasets(tokenizers)[0]["train"].pairs
        assert len(shorter.lines) == np.sum(lengths <= limit)


@pytest.mark.parametrize(
    ("part", "codes", "expected"),
    [
        ("train", None, "`data.train` needs `languages` such as en-de.* The model has en, de"),
        ("validation", None, "`data.validation` needs `languages`"),
        ("train", "en-fr", "must have the direction|must be one of"),
    ],
)
def test_an_imported_model_needs_the_languages_of_each_corpus_before_a_text_is_read(
    of_languages, corpora, part, codes, expected
):
    corpus = corpora["data"][part][0] | {"languages": codes, "source": "missing.en"}
    data = {name: corpora["data"][name][:1] for name in ("train", "validation")}
    corpus, tokenizers = of_languages(SIDES["M2M100"], **{**data, part: [corpus]})
    with pytest.raises(InputError, match=expected):
        corpus.datasets(tokenizers)


def test_noise_is_refused_where_it_would_lose_the_ids_of_languages(of_languages):
    corpus, tokenizers = of_languages(SIDES["M2M100"], noise={"typos": 0.5})
    with pytest.raises(InputError, match="`data.noise` needs .* Received: typos."):
        corpus.datasets(tokenizers)


def test_a_tag_is_a_language_of_an_imported_model_or_a_new_name(corpora):
    languages = {0: "epo", 1: "zho_Hant"}
    for part, number in itertools.product(("train", "validation"), languages):
        corpora["data"][part][number]["tag"] = languages[number]
    with pytest.raises(InputError, match="only lower-case letters.* Received: zho_Hant"):
        Recipe.from_dict(corpora)
    corpora["training"] = {"start_from": "imported"}
    texts = [text for pair in PAIRS for text in pair]
    model = parsed(Tokenizer.train_from_texts(texts, 150).model_bytes)
    for language in languages.values():  # as `importing` makes them
        model.pieces.add(piece=f"▁>>{language}<<", type=model.pieces[0].USER_DEFINED)
    tokenizer = Tokenizer(model.SerializeToString())
    assert tokenizer.tags == ("epo", "zho_Hant")
    corpus = RecipeTexts(Recipe.from_dict(corpora), (tokenizer, tokenizer))
    train = corpus.datasets((tokenizer, tokenizer))[0]["train"].pairs
    sources = tokenizer.detokenize([train.source(0), train.source(32)])
    assert sources == [f">>epo<< {PAIRS[0][0]}", f">>zho_Hant<< {PAIRS[0][1]}"]


def test_terms_of_a_glossary_are_annotated_in_a_share_of_the_pairs_of_each_epoch(values, tmp_path):
    (tmp_path / "terms.tsv").write_text("dogs\tHund\nbook\tHund\nman\tMann\n", encoding="utf-8")
    values["data"] |= {"glossary": "terms.tsv"}
    values["text"]["vocabulary_size"] = 160
    texts = RecipeTexts(Recipe.from_dict(values))
    tokenizers = texts.tokenizers()
    tokenizer = tokenizers[0]
    assert tokenizer.annotates_terms and "glossary" in texts.digests["train"]
    assert [pair for lines in texts.lines(["train"]) for pair in lines.pairs] == PAIRS
    again = RecipeTexts(Recipe.from_dict(values)).datasets(tokenizers)[0]["train"]
    train, validation = (texts.datasets(tokenizers)[0][part] for part in ("train", "validation"))
    annotated = {
        "Two <term_begin> dogs<term_as> Hund<term_end> play in the snow.",
        "A <term_begin> man<term_as> Mann<term_end> rides a bicycle.",
        "The old <term_begin> man<term_as> Mann<term_end> sleeps.",
        "A <term_begin> man<term_as> Mann<term_end> paints a wall white.",
    }
    seen = set()
    for epoch in range(12):
        batches = [list(dataset.batches(epoch)) for dataset in (train, again)]
        ids = [[row[row > 0] for (ids, _), _ in half for row in ids if row[0]] for half in batches]
        assert all(map(np.array_equal, *ids))
        marked = {text for text in tokenizer.detokenize(ids[0]) if "<term_" in text}
        assert len(marked) < 4
        seen |= marked
    assert seen == annotated
    for (ids, _), _ in validation.batches(0):
        assert not any("<term_" in text for text in tokenizer.detokenize(ids))
    # Another file is another training.
    (tmp_path / "terms.tsv").write_text("dogs\tHunde\n", encoding="utf-8")
    assert RecipeTexts(Recipe.from_dict(values)).digests["train"] != texts.digests["train"]


def test_a_vocabulary_of_another_run_without_a_tag_or_annotations_is_refused(corpora, tmp_path):
    (tmp_path / "terms.tsv").write_text("dogs\tHunde\n", encoding="utf-8")
    tokenizer = Tokenizer.train_from_texts([text for pair in PAIRS for text in pair], 150)
    with pytest.raises(InputError, match="has no tag 2de, 2en: it has none"):
        RecipeTexts(Recipe.from_dict(corpora)).datasets((tokenizer, tokenizer))
    files = {"source": "train.en", "target": "train.de"}
    corpora["data"] |= {"train": files, "validation": files, "glossary": "terms.tsv"}
    with pytest.raises(InputError, match="needs a vocabulary that was learned with it"):
        RecipeTexts(Recipe.from_dict(corpora)).datasets((tokenizer, tokenizer))
