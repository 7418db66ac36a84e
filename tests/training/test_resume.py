"""A run that is stopped anywhere and resumed is the run that was never stopped."""

import json
import os
import re
import shutil

import pytest
from device_plans import one_graph
from fakes import FakeEngine
from killed_trainings import check_markers, copied, run_content
from shared_training import SharedModel
from small_corpus import recipe_values, write_corpus

from keras_transformer import Translator
from keras_transformer.engine.translation import Translation
from keras_transformer.training import Recipe, RunFolder, train
from keras_transformer.training.recipe_texts import RecipeTexts

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.usefixtures("plain_graphs")]


class Trainer:
    """Trains small runs that share one compiled model, into which checkpoints are read.

    Args:
        folder: Where the texts are written.
    """

    def __init__(self, folder):
        self.corpus = write_corpus(folder)
        self.shared = SharedModel()
        self.data = {}

    def recipe(self, **training):
        # So large a rate that not every epoch is better than those before.
        options = dict(epochs=9, early_stopping_patience=2, ema_momentum=0.6, jit_compile=False)
        options |= dict(learning_rate=0.9, warmup_steps=8, sample_translations=1)
        values = recipe_values(self.corpus, **{**options, **training})
        values["data"] |= self.data
        values["model"].update(dropout=0.2, model_dim=16, intermediate_dim=16)
        return Recipe.from_dict(values)

    def train(self, path, resume=False, **training):
        class TrainingWithoutEngine(self.shared.training_class()):
            def make_engine(self):
                return FakeEngine(translate=self.weights_as_texts)

            def weights_as_texts(self, texts, **options):
                return [Translation(str(self.model.get_weights()[0].sum()), 0.0) for _ in texts]

        return train(
            self.recipe(**training), path, resume=resume, training_class=TrainingWithoutEngine
        )

    def resume(self, path, **training):
        return self.train(path, resume=True, **training)


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    return Trainer(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def results():
    """`results(folder)`: all that a run leaves, times aside."""

    def results(folder):
        files = {p.relative_to(folder.path).as_posix() for p in folder.path.rglob("*.*")}
        metrics = json.loads(folder.metrics_file.read_text(encoding="utf-8"))
        return {
            "files": {name for name in files if not name.startswith("tensorboard/")},
            "metrics": {key: metrics[key] for key in metrics if key != "training_minutes"},
            "samples": folder.samples(),
            **run_content(folder.path),
        }

    return results


@pytest.fixture(scope="module")
def unbroken(trainer, tmp_path_factory):
    """An unbroken run, and the folder as it was after each change of a file's name.

    Each copy of the folder has its kind: the files that were written or removed, numbers aside.
    """
    base = tmp_path_factory.mktemp("run")
    moments, seen = {}, [set()]

    def keep():
        files = [p for p in (base / "run").rglob("*.*") if "tfevents" not in p.name]
        files = [p for p in files if ".partial" not in str(p.relative_to(base))]
        now = {(p, p.stat().st_ino, p.stat().st_mtime_ns) for p in files}
        changed = frozenset(re.sub(r"\d+", "N", path.name) for path, *_ in now ^ seen[-1])
        if now and changed:
            seen.append(now)
            moments[shutil.copytree(base / "run", base / f"moment-{len(moments)}")] = changed

    def watched(function):
        def call(*arguments, **options):
            function(*arguments, **options)
            keep()

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", watched(os.replace))
        patch.setattr(os, "unlink", watched(os.unlink))
        folder = trainer.train(base / "run")
    return folder, moments


def test_a_run_killed_at_any_moment_ends_as_an_unbroken_one(trainer, unbroken, results, tmp_path):
    folder, moments = unbroken
    rows, expected = folder.history(), results(folder)
    best = min(rows, key=lambda row: row["val_loss"])  # it stopped early
    assert 1 < best["epoch"] == rows[-1]["epoch"] - 2 and rows[-1]["epoch"] < 9
    first = {kind: moment for moment, kind in reversed(moments.items())}
    last = {kind: moment for moment, kind in moments.items()}
    assert len(first) == 7  # The files of its start come at once.
    # Of each kind one moment, of the first epochs and of the last ones in turn.
    for index, kind in enumerate(first):
        moment = (first, last)[index % 2][kind]
        moment = shutil.copytree(moment, tmp_path / moment.name)
        assert results(trainer.resume(moment)) == expected, moment


def test_at_any_moment_a_marker_means_that_all_before_it_is_whole(unbroken):
    models = {}  # contents of the best models, by epoch
    for moment in unbroken[1]:
        folder = RunFolder(moment)
        files = {epoch: folder.candidate_file(epoch) for epoch in range(1, 10)}
        models |= {epoch: file.read_bytes() for epoch, file in files.items() if file.exists()}
        check_markers(moment)
        if epochs := folder.checkpoint_epochs():
            rows = folder.history()[: epochs[-1]]
            best = min(rows, key=lambda row: row["val_loss"])["epoch"]
            if not folder.candidate_file(best).exists():
                assert folder.model_file.read_bytes() == models[best]
    assert len(models) > 1


class Stepwise:
    """A run whose epochs are parts of a pass, and a copy as a kill in its third epoch leaves it."""

    # A kill may come between two batches of one optimizer step.
    options = dict(batch_tokens=128, steps_per_epoch=4, accumulation_steps=2)
    options |= dict(epochs=5, average_epochs=2, early_stopping_patience=None)

    def __init__(self, base):
        self.trainer = trainer = Trainer(base / "corpus")  # Its optimizer has other variables.
        there = {"source": "train.en", "target": "train.de", "tag": "bt", "languages": "en-de"}
        back = {"source": "train.de", "target": "train.en", "languages": "de-en"}
        (trainer.corpus / "terms.tsv").write_text("dogs\tHund\n")
        trainer.data = {
            "noise": {"no_punctuation": 0.1, "typos": 0.2, "subwords": 0.3},
            "glossary": "terms.tsv",
            "train": [{**there, "name": "there", "weight": 0.6}, back],
            "validation": [{**there, "name": name} for name in ("one", "two")],
        }
        self.killed = base / "killed"
        with copied(base / "unbroken", self.killed, 2, 2):
            self.unbroken = trainer.train(base / "unbroken", **self.options)

    def resume(self, path):
        return self.trainer.resume(path, **self.options)


@pytest.fixture(scope="module")
def stepwise(tmp_path_factory):
    return Stepwise(tmp_path_factory.mktemp("stepwise"))


def test_a_training_killed_twice_in_the_middle_of_a_pass_is_the_unbroken_one(
    stepwise, results, tmp_path
):
    recipe, tokenizers = Recipe.of_run(stepwise.unbroken), stepwise.unbroken.tokenizers()
    datasets, _ = RecipeTexts(recipe, tokenizers, languages=recipe.data.languages).datasets(
        tokenizers
    )
    batches = datasets["train"].plan.steps_per_pass
    assert 4 < batches and 8 % batches and 12 % batches  # Both kills are in the middle of a pass.
    check_markers(stepwise.killed)
    with copied(stepwise.killed, tmp_path / "again", 3, 1, ends=True):
        stepwise.resume(stepwise.killed)
    check_markers(tmp_path / "again")
    again = RunFolder(tmp_path / "again")
    assert again.checkpoint_epochs() == [2, 3]
    stepwise.resume(again.path)
    assert results(again) == results(stepwise.unbroken)
    assert len(again.history()) == 5 and again.metrics()["steps_per_epoch"] == 4


def test_a_run_has_the_losses_of_each_validation_corpus(stepwise):
    for row in stepwise.unbroken.history():
        # Both are the same text.
        assert row["val_loss/one"] == row["val_loss/two"] == pytest.approx(row["val_loss"])
    metrics = stepwise.unbroken.metrics()
    assert metrics["pairs"]["train"]["corpora"]["de-en"]["kept"] == 32
    assert set(metrics["best_validation_corpora"]) == {"one", "two"}


def test_a_run_of_both_directions_reads_terms_as_its_training_has_shown_them(stepwise):
    with one_graph():
        both_ways = Translator.load(stepwise.unbroken.path)
    assert both_ways.directions == [("en", "de"), ("de", "en")]
    texts = ["Two dogs.", "Two <term_begin> dogs<term_as> Hund<term_end>."]
    options = dict(tag="bt", beam_size=1, target_language="de")
    plain, annotated = both_ways.translate(texts, **options)
    (glossed,) = both_ways.translate(texts[:1], **options, glossary={"dogs": "Hund"})
    assert glossed.score == pytest.approx(annotated.score) != pytest.approx(plain.score)
    # As the training has written it, which is how exports are verified.
    (typed,) = both_ways.translate([">>de<< <bt> Two dogs."], beam_size=1)
    assert typed.ids == plain.ids and typed.score == pytest.approx(plain.score)
    assert stepwise.unbroken.sample_pairs()[0][0].startswith(">>de<< <bt> ")
    # Each text in its own direction.
    there, back = both_ways.translate(
        ["Two dogs.", "Ein Hund."], target_language=["de", "en"], beam_size=1
    )
    (alone,) = both_ways.translate(["Ein Hund."], source_language="de", beam_size=1)
    assert there.score != plain.score and back.score == pytest.approx(alone.score)
