"""Checkpoints of a run, and recipes that a resumed training may have, over drawn values."""

import pytest
from small_corpus import recipe_values

from keras_transformer.errors import InputError
from keras_transformer.training.checkpoints import last_checkpoint
from keras_transformer.training.recipe import Recipe
from keras_transformer.training.run_folder import RunFolder, check_resumable


def test_checkpoints_are_tried_from_the_newest_on_whatever_their_numbers(tmp_path, capsys):
    """All are damaged, so that each is tried."""
    folder = RunFolder(tmp_path)
    folder.checkpoints.mkdir()
    files = {}
    for epoch in (1, 2, 10, 998, 9999, 10_000, 123_456):
        files[epoch] = folder.checkpoint_file(epoch)
        files[epoch].write_text("damaged")
    with pytest.raises(InputError, match="no whole checkpoint"):
        last_checkpoint(folder, None)
    tried = [line.partition(": ")[0] for line in capsys.readouterr().err.splitlines()]
    assert tried == [str(files[epoch]) for epoch in sorted(files, reverse=True)]
    assert folder.checkpoint_epochs() == sorted(files)


_MEMORY = {"source": "a.tmx", "languages": "en-de", "inline_tags": "keep"}
_TERMS = {"glossary": "terms.tsv"}
_PLACES = [({"train": _MEMORY}, {"train": {**_MEMORY, "source": "elsewhere/b.tmx"}})]
_PLACES += [
    (
        {"train": [{**_MEMORY, "name": "m"}]},
        {"train": [{**_MEMORY, "name": "m", "source": "b.tmx"}]},
    )
]
_PLACES += [({"validation": _MEMORY}, {"validation": {**_MEMORY, "source": "b.tmx"}})]
_PLACES += [(_TERMS, {**_TERMS, "glossary": "elsewhere/terms.tsv"})]
_CHANGED = [({"train": _MEMORY}, {"train": {**_MEMORY, "languages": "en-fr"}}, "train")]
_CHANGED += [({"train": _MEMORY}, {"train": {**_MEMORY, "inline_tags": "drop"}}, "train")]
_CHANGED += [(_TERMS, {}, "glossary"), ({}, {"glossary": "a"}, "glossary")]


@pytest.mark.parametrize(
    "before, after, refused", [*((*places, None) for places in _PLACES), *_CHANGED]
)
def test_a_run_is_resumed_with_moved_memories_and_terms_and_no_others(
    before, after, refused, tmp_path
):
    def recipe(data):
        values = recipe_values(tmp_path)
        values["data"] |= data
        return Recipe.from_dict(values)

    folder = RunFolder(tmp_path)
    folder.write_recipe(recipe(before))
    if refused is None:
        check_resumable(folder, recipe(after))
        return
    with pytest.raises(InputError, match=f"another `data.{refused}`"):
        check_resumable(folder, recipe(after))


_CORPUS = {"name": "a", "source": "a.en", "target": "a.de", "weight": 2.0, "tag": "bt"}
_MOVED = {"source": "b.en", "target": "c.de"}
_OTHERS = {"name": "z", "weight": 1.0, "tag": "news"}


@pytest.mark.parametrize("index", [0, 1])
def test_a_run_is_resumed_with_moved_files_and_no_other_corpora(index, tmp_path):
    corpora = [_CORPUS, {**_CORPUS, "name": "b"}]

    def recipe(*corpora, **training):
        values = recipe_values(tmp_path, **training)
        values["data"] |= {"train": list(corpora)}
        return Recipe.from_dict(values)

    folder = RunFolder(tmp_path)
    folder.write_recipe(recipe(*corpora))
    for key, value in (*_MOVED.items(), *_OTHERS.items()):
        changed = [
            {**corpus, key: value} if i == index else corpus for i, corpus in enumerate(corpora)
        ]
        if key in _MOVED:
            check_resumable(folder, recipe(*changed))
            continue
        with pytest.raises(InputError, match="another `data.train`"):
            check_resumable(folder, recipe(*changed))
    check_resumable(folder, recipe(*corpora, epochs=9))
    for refused in (corpora[::-1], corpora[:1]):
        with pytest.raises(InputError, match="another `data.train`"):
            check_resumable(folder, recipe(*refused))


_FREE = [("training", "early_stopping_patience", 3)]
_FREE += [("training", "sample_translations", 3)]
_FREE += [("training", "shortlist", True), ("training", "epochs", 9)]


@pytest.mark.parametrize("section, key, value", _FREE)
def test_a_run_is_resumed_with_options_that_change_no_weights(section, key, value, tmp_path):
    values, folder = recipe_values(tmp_path), RunFolder(tmp_path)
    earlier = Recipe.from_dict(values)
    folder.write_recipe(earlier)
    values[section][key] = value
    changed = Recipe.from_dict(values)
    assert changed != earlier
    check_resumable(folder, changed)


_WEIGHTS = {"steps_per_epoch": 4, "accumulation_steps": 2, "learning_rate": 0.5, "warmup_steps": 9}
_WEIGHTS |= {
    "seed": 7,
    "batch_tokens": 99,
    "label_smoothing": 0.2,
    "clip_norm": 1.5,
    "ema_momentum": 0.5,
}


@pytest.mark.parametrize("key", _WEIGHTS)
def test_a_run_is_not_resumed_with_options_that_change_weights(key, tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_recipe(Recipe.from_dict(recipe_values(tmp_path)))
    changed = Recipe.from_dict(recipe_values(tmp_path, **{key: _WEIGHTS[key]}))
    with pytest.raises(InputError, match=f"another `training.{key}`"):
        check_resumable(folder, changed)
