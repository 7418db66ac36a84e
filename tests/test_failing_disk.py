"""A write that fails, or a kill before it, leaves whole files, one line, and a call that works.

Each row is a writer of the package. Every change of the disk fails once, or the disk is full from
there on, or the process is killed there. A row with many changes tries some of them:
`FAILING_CALLS=9999 pytest --slow tests/test_failing_disk.py` tries all.
"""

import collections
import hashlib
import io
import itertools
import os
import pathlib
import re
import shutil
import tempfile
import types
import zipfile

import numpy as np
import pytest
from failing_disk import KINDS, FailingDisk, KilledError
from fakes import FakeEngine
from small_corpus import PAIRS, write_corpus

from keras_transformer import Tokenizer, Translator
from keras_transformer.base.errors import InputError
from keras_transformer.base.files import (
    MANIFEST,
    OwnedFolder,
    temporary_folder,
    write_output,
    write_whole,
)
from keras_transformer.cli import demo
from keras_transformer.cli.bilingual import bilingual_file
from keras_transformer.cli.dates import date_corpus
from keras_transformer.data import encoding
from keras_transformer.engine.evaluation import evaluate_model
from keras_transformer.export import exporter_of
from keras_transformer.extras.bulk.corpus import translate_corpus
from keras_transformer.extras.corpora.cleaning import clean_corpora
from keras_transformer.extras.documents.translating import translate_file
from keras_transformer.extras.importing.fetching.names import local_model
from keras_transformer.extras.importing.importing import import_run
from keras_transformer.extras.serving.server import private_copy
from keras_transformer.extras.serving.translated_files import TranslatedFiles
from keras_transformer.runs.model_file import save_model
from keras_transformer.runs.run_folder import RunFolder
from keras_transformer.text import Labels
from keras_transformer.text.languages import Languages
from keras_transformer.text.shortlist import Shortlist
from keras_transformer.training.checkpoints import remove_partial_files, roll_back

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc")

TESTS = pathlib.Path(__file__).parent
TOY = TESTS / "data" / "marian" / "opus"
CALLS = int(os.environ.get("FAILING_CALLS", "0"))
ROWS = []


def row(*marks, most=150, files="whole", extra=()):
    """Makes a row of `writer(disk, inputs, request)`, which returns a call that writes to `disk`.

    Files are "whole"; or "together" all old or all new; or "resumed", which the next call ends.
    """

    def add(writer):
        values = (writer, CALLS or most, files)
        ROWS.append(pytest.param(*values, id=writer.__name__, marks=marks))
        return writer

    return add


TENSORFLOW = pytest.mark.tensorflow
SLOW = pytest.mark.slow


@row()
def output_behind_a_link(disk, inputs, request):
    (disk / "file").write_text("old")
    (disk / "link").symlink_to(disk / "file")
    return lambda: write_output(disk / "link", "new")


@row(files="together")
def folder_over_an_earlier_one(disk, inputs, request):
    def write(content="new", names=("README.md", "a/model.bin")):
        with OwnedFolder(disk / "out").staged(overwrite=True) as folder:
            for name in names:
                (folder / name).parent.mkdir(exist_ok=True)
                write_whole(folder / name, content)
            write_whole(folder / MANIFEST, f'{{"files": ["{names[-1]}"]}}')

    write("old", ("model.bin",))
    return write


@row(files="together")
def folder_that_is_empty(disk, inputs, request):
    (disk / "out").mkdir()

    def write():
        with OwnedFolder(disk / "out").staged(overwrite=True) as folder:
            write_whole(folder / MANIFEST, "{}")

    return write


@row(files="resumed")  # Each call chooses another name.
def folder_for_a_while(disk, inputs, request):
    def write():
        with temporary_folder(disk / "kt-") as folder:
            (folder / "a").mkdir()

    return write


@row(most=100)
def model(disk, inputs, request):
    import keras

    small = keras.Sequential([keras.layers.Dense(97)])
    small.build((None, 7))
    (disk / "model.keras").write_text("old")
    return lambda: save_model(small, disk / "model.keras")


@row()
def checkpoint_of_lora(disk, inputs, request):
    import keras

    from keras_transformer.training.lora import save_adapter

    small = keras.Sequential([keras.layers.Dense(3)])
    small.build((None, 7))
    small.compile("sgd")
    return lambda: save_adapter(small, disk / "epoch-0001.npz")


def vocabulary():
    return Tokenizer.train_from_texts([text for pair in PAIRS for text in pair], 150)


@row()
def start_of_a_run(disk, inputs, request):
    run, labels = RunFolder(disk / "run"), Labels(["a", "b"])
    arguments = {"model": {"kind": "classifier"}}, (vocabulary(), labels), {"train": {}}

    def write():
        run.create(*arguments, Languages(directions=(("en", "de"),)))
        run.write_sample_pairs(PAIRS)
        Shortlist([3, 5], [[7]] * 300).save(run.shortlist_file)

    return write


@row()
def epochs_of_a_run_after_a_checkpoint(disk, inputs, request):
    run = RunFolder(disk / "run")
    run.checkpoints.mkdir(parents=True)
    training = types.SimpleNamespace(select_by="loss", average_epochs=1)
    for epoch in (1, 2, 3):
        run.candidate_file(epoch).write_text(f"{epoch}")
        run.checkpoint_file(epoch).write_text(f"{epoch}")
        run.add_samples(f"epoch {epoch}\n")
    rows = [{"epoch": epoch, "loss": 3.0, "val_loss": float(epoch)} for epoch in (1, 2, 3)]
    run.write_history(rows)

    def write():
        remove_partial_files(run)
        roll_back(run, 2, training)
        run.write_bad_batch({"epoch": 2})
        run.write_metrics({"bleu": 7.0})

    return write


@row(most=45, files="together")
def clean(disk, inputs, request):
    corpus = write_corpus(inputs / "corpus")
    files = tuple(str(corpus / f"train.{side}") for side in ("en", "de"))
    clean_corpora([files], disk / "out", processes=1, duplicates="keep")
    return lambda: clean_corpora([files], disk / "out", processes=1, overwrite=True)


@row(most=45, files="together")
def demo_data(disk, inputs, request):
    corpus = date_corpus(num_held_out=600)
    request.getfixturevalue("monkeypatch").setattr(demo, "date_corpus", lambda **_: corpus)

    def write():
        with OwnedFolder(disk / "demo").locked():
            demo._prepare(disk / "demo", True)

    return write


@pytest.fixture
def upper_case(monkeypatch):
    """A model that writes upper case, from any path."""
    translator = Translator(FakeEngine(languages=None, long_inputs=("refuse", "split")))
    translator.check_options = lambda **options: None
    monkeypatch.setattr(Translator, "load", lambda *path, **options: translator)
    return translator


@row(files="resumed")
def corpus_in_parts(disk, inputs, request):
    request.getfixturevalue("upper_case")
    (inputs / "model").write_text("")
    (inputs / "a.txt").write_text("a\nb\nc\n")
    paths = [str(inputs / "a.txt")]
    options = {"chunk_lines": 2, "with_ray": False, "records": "pairs"}
    return lambda: translate_corpus(str(inputs / "model"), paths, disk / "out", **options)


@row()
def document(disk, inputs, request):
    translator = request.getfixturevalue("upper_case")
    (inputs / "a.txt").write_text("a dog\n")
    (disk / "b.txt").write_text("old")
    return lambda: translate_file(translator, inputs / "a.txt", disk / "b.txt")


@row()
def sources_beside_translations(disk, inputs, request):
    (disk / "pairs.tsv").write_text("old")

    def write():
        with bilingual_file(str(disk / "pairs.tsv"), (None, None)) as file:
            file.add([("a dog", "A DOG")])
            file.save()

    return write


@row()
def translations_of_an_evaluation(disk, inputs, request):
    request.getfixturevalue("upper_case")
    (inputs / "a.txt").write_text("a dog\n")
    paths = {"source": inputs / "a.txt", "reference": inputs / "a.txt", "save": disk / "b.txt"}
    return lambda: evaluate_model("model", **paths)


@row()
def file_of_a_server(disk, inputs, request):
    files = TranslatedFiles(disk)
    files.put(f"{'a' * 32}.done", b"old, and longer")
    return lambda: files.put(f"{'a' * 32}.done", b"new")


@row(files="resumed")  # Each call chooses another name.
def copy_of_an_export_that_is_served(disk, inputs, request):
    request.getfixturevalue("monkeypatch").setattr(tempfile, "tempdir", str(disk))
    (inputs / "model.bin").write_text("weights")
    export = collections.namedtuple("Export", "folder path")(inputs, str(inputs))

    def write():
        with private_copy(export) as copy:
            assert (copy.folder / "model.bin").read_text() == "weights"

    return write


@row(files="together")
def archive_to_import(disk, inputs, request):
    with zipfile.ZipFile(inputs / "model.zip", "w") as archive:
        archive.writestr("a/model.npz", bytes(999))

    def write():
        with local_model(inputs / "model.zip", disk / "run", lambda folder: None):
            pass

    return write


@row(files="resumed")  # Its files have no names.
def texts_as_ids(disk, inputs, request):
    request.getfixturevalue("monkeypatch").setattr(tempfile, "tempdir", str(disk))
    tokenizer = vocabulary()
    lines = encoding.Lines("", "", np.arange(len(PAIRS)), PAIRS)

    def write():
        encoder = encoding.PairEncoder((tokenizer, tokenizer), encoding.PairChecks(99, 99))
        encoding.encode_parts(lambda parts: [lines], {"": encoder})

    return write


@row(TENSORFLOW, SLOW, most=8, files="together")
def imported_run(disk, inputs, request):
    return lambda: import_run(TOY, disk / "run", overwrite=True)


def export(format, fixture, **options):
    def writer(disk, inputs, request):
        engine, texts, _ = map(request.getfixturevalue, (fixture, "texts", "unverified"))
        exporter, out = exporter_of(format), disk / "out"
        return lambda: exporter.export(engine, out, texts[:3], overwrite=True, **options)

    writer.__name__ = f"export_{format}"
    row(TENSORFLOW, SLOW, most=9, files="together")(writer)


# The other formats write as these do. What TensorFlow writes into a SavedModel is not counted:
# tests/export/test_reports.py. A training that ends anywhere is in tests/training/test_resume.py.
export("ctranslate2", "engine")
export("argos", "engine_of_one_vocabulary", languages="en-de")


def contents(disk):
    """Checksums of files by their paths, without times; None for folders."""
    paths = {path.relative_to(disk).as_posix(): path for path in disk.rglob("*")}
    return {name: checksum(path) if path.is_file() else None for name, path in paths.items()}


def checksum(path):
    content = path.read_bytes()
    if path.suffix in {".json", ".csv", ".md", ".html"}:  # checksums, dates, seconds
        content = re.sub(rb"[0-9a-f]{64}|[\d.:@e+-]+", b"0", content)
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(path) as archive:
            content = repr([(name, archive.read(name)) for name in archive.namelist()]).encode()
    return hashlib.sha256(content).hexdigest()


class Trial:
    """A folder in which a writer is called again and again, from the same start."""

    def __init__(self, disk, write, start=None):
        self.disk, self._write, self._start = disk, write, start or disk.with_name("start")
        shutil.copytree(disk, self._start, symlinks=True)
        self.before = contents(disk)

    def reset(self):
        shutil.rmtree(self.disk)
        shutil.copytree(self._start, self.disk, symlinks=True)

    def call(self, failing=0, kind="broken"):
        """Returns the changes of a call, and its error."""
        with FailingDisk(self.disk, failing, kind) as disk:
            try:
                self._write()
            except (OSError, InputError, KilledError) as error:
                return disk.changes, error.with_traceback(None)
        return disk.changes, None

    def whole(self):
        """Returns the files after an undisturbed call, and those that are different each time."""
        results = []
        for _ in range(2):
            self.reset()
            _, error = self.call()
            assert error is None, error
            results.append(contents(self.disk))
        first, second = results
        assert first.keys() == second.keys()
        volatile = {path for path, content in first.items() if second[path] != content}
        return first | dict.fromkeys(volatile), volatile


def is_one_line(error, disk):
    text = str(error)
    path = error.filename if isinstance(error, OSError) else text
    names_it = str(disk) in str(path) and "partial" not in text
    return names_it and "\n" not in text and re.search("No space left|Input/output", text)


@pytest.mark.parametrize(("writer", "most", "files"), ROWS)
def test_a_failed_write_leaves_the_old_or_the_new_file_and_the_next_call_succeeds(
    writer, most, files, tmp_path, request
):
    for name in ("inputs", "disk"):
        (tmp_path / name).mkdir()
    trial = Trial(
        disk := tmp_path / "disk", writer(tmp_path / "disk", tmp_path / "inputs", request)
    )
    whole, volatile = trial.whole()

    def settled(files):
        return {path: None if path in volatile else content for path, content in files.items()}

    before = settled(trial.before)
    allowed = before.items() | whole.items()
    trial.reset()
    changes, _ = trial.call()

    def problem_of(error):
        """Returns what is wrong after a call that has failed, or None."""
        left = settled(contents(disk))
        named = {path: content for path, content in left.items() if not re.search(r"(^|/)\.", path)}
        if not isinstance(error, KilledError):
            if error is None:
                return None if left == whole else "not whole"
            if not is_one_line(error, disk):
                return f"not one clear line: {error}"
            if left.keys() != named.keys() and files != "resumed":
                return f"left behind: {left.keys() - named.keys()}"
        # A kill between two renames leaves the old files under a temporary name.
        states = (before, whole, {}) if isinstance(error, KilledError) else (before, whole)
        if files == "together" and named not in states:
            return "partly new"
        if files == "whole" and not named.items() <= allowed:
            return f"wrong: {named.items() - allowed}"
        return None

    problems = []
    step = max(1, -(-len(changes) * len(KINDS) // most))
    cases = [(number, kind) for number in range(1, len(changes) + 1) for kind in KINDS]
    for number, kind in cases[:: step + (step % len(KINDS) == 0)]:
        trial.reset()
        _, error = trial.call(number, kind)
        problem = problem_of(error)
        if problem is None:
            _, error = trial.call()
            difference = settled(contents(disk)).items() ^ whole.items()
            if error is not None or difference:
                problem = f"the next call: {error!r}, {difference}"
        if problem:
            problems.append(f"{changes[number - 1]} {number} of {len(changes)}, {kind}: {problem}")
    assert not problems, "\n".join(problems)


def test_a_kill_of_the_recovery_too_leaves_one_whole_output(tmp_path):
    (disk := tmp_path / "disk").mkdir()
    write = folder_over_an_earlier_one(disk, None, None)
    trial = Trial(disk, write)
    recovery = Trial(disk, lambda: recover(disk), disk.with_name("again"))
    whole, _ = trial.whole()
    trial.reset()
    changes, _ = trial.call()
    for first in range(1, len(changes) + 1):
        for second in itertools.count(1):
            trial.reset()
            trial.call(first, "killed")
            _, error = recovery.call(second, "killed")
            recover(disk)
            assert contents(disk) in (trial.before, whole), (first, second)
            if error is None:
                break


def recover(disk):
    with OwnedFolder(disk / "out").locked():
        pass
