"""Checkpoints of a run, and the recipes that a resumed training may have."""

import pytest
from small_corpus import recipe_values

from keras_transformer.base.errors import InputError
from keras_transformer.runs.run_folder import RunFolder
from keras_transformer.training.checkpoints import last_checkpoint
from keras_transformer.training.preparing import check_resumable
from keras_transformer.training.recipe import Recipe


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


MEMORY = {"source": "a.tmx", "languages": "en-de", "inline_tags": "keep"}
A = {"name": "a", "source": "a.en", "target": "a.de", "weight": 2.0, "tag": "bt"}
B, MOVED = {**A, "name": "b"}, {"source": "b.en", "target": "c.de"}
# Changes of the first recipe and of the resumed one, by section.
ALLOWED = {
    "epochs": ({}, {"training": {"epochs": 9}}),
    "patience": ({}, {"training": {"early_stopping_patience": 3}}),
    "samples": ({}, {"training": {"sample_translations": 3}}),
    "a shortlist": ({}, {"training": {"shortlist": True}}),
    "a moved memory": ({"train": MEMORY}, {"train": {**MEMORY, "source": "elsewhere/b.tmx"}}),
    "a moved validation": (
        {"validation": MEMORY},
        {"validation": {**MEMORY, "source": "elsewhere/b.tmx"}},
    ),
    "moved terms": ({"glossary": "terms.tsv"}, {"glossary": "elsewhere/terms.tsv"}),
    "a moved first corpus": ({"train": [A, B]}, {"train": [{**A, **MOVED}, B]}),
    "a moved second corpus": ({"train": [A, B]}, {"train": [A, {**B, **MOVED}]}),
}
WEIGHTS = {"steps_per_epoch": 4, "accumulation_steps": 2, "learning_rate": 0.5, "warmup_steps": 9}
WEIGHTS |= {"seed": 7, "batch_tokens": 99, "label_smoothing": 0.2, "clip_norm": 1.5}
REFUSED = [
    *(({}, {"training": {key: value}}, f"training.{key}") for key, value in WEIGHTS.items()),
    ({}, {"training": {"ema_momentum": 0.5}}, "training.ema_momentum"),
    ({}, {"model": {"model_dim": 32}}, "model.model_dim"),
    ({}, {"text": {"vocabulary_size": 140}}, "text.vocabulary_size"),
    ({}, {"drop_duplicates": False}, "data.drop_duplicates"),
    ({"train": MEMORY}, {"train": {**MEMORY, "languages": "en-fr"}}, "data.train"),
    ({"train": MEMORY}, {"train": {**MEMORY, "inline_tags": "drop"}}, "data.train"),
    ({"glossary": "terms.tsv"}, {}, "data.glossary"),
    ({}, {"glossary": "terms.tsv"}, "data.glossary"),
    ({"train": [A, B]}, {"train": [B, A]}, "data.train"),
    ({"train": [A, B]}, {"train": [A]}, "data.train"),
    *(
        ({"train": [A, B]}, {"train": pair}, "data.train")
        for change in ({"name": "z"}, {"weight": 1.0}, {"tag": "news"})
        for pair in ([{**A, **change}, B], [A, {**B, **change}])
    ),
]


@pytest.fixture
def resume(tmp_path):
    """`resume(before, after)` raises `InputError` where the second recipe may not follow."""

    def recipe(changes):
        values = recipe_values(tmp_path)
        for key, value in changes.items():
            if key in values:
                values[key] |= value
            else:
                values["data"][key] = value
        return Recipe.from_dict(values)

    def resume(before, after):
        folder = RunFolder(tmp_path)
        folder.write_sections(recipe(before).to_dict())
        assert recipe(before) != recipe(after)
        check_resumable(folder, recipe(after))

    return resume


@pytest.mark.parametrize(("before", "after"), ALLOWED.values(), ids=ALLOWED)
def test_a_run_is_resumed_with_options_that_change_no_weights_and_moved_files(
    before, after, resume
):
    resume(before, after)


@pytest.mark.parametrize(("before", "after", "key"), REFUSED)
def test_a_run_is_not_resumed_with_options_that_change_weights(before, after, key, resume):
    with pytest.raises(InputError, match=f"another `{key}`. Received"):
        resume(before, after)
