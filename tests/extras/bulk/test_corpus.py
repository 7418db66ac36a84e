"""Files over Ray Data: complete, in order, whoever dies."""

import functools
import gzip
import io
import itertools
import os
import pathlib
import signal
import subprocess
import sys
import time
import types
import warnings

import numpy as np
import pytest
from fakes import FakeEngine
from live_server import WORDS, processes_below, wait_for

from keras_transformer import Translation, Translator
from keras_transformer.base.errors import InputError
from keras_transformer.base.files import locked_folder
from keras_transformer.cli.formats import as_text
from keras_transformer.cli.lines import read_chunks, write_results
from keras_transformer.engine.steps.glossary import Glossary, glossary_of
from keras_transformer.extras.bulk import corpus
from keras_transformer.extras.bulk.chunks import Worker, fingerprint
from keras_transformer.text.languages import Languages

pytestmark = pytest.mark.tensorflow


def write(folder, name, content):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(content)


DECIDING = "recipe.yaml model.keras export.json saved_model.pb variables/variables.index assets/m"
LOGS = "history.csv metrics.json samples.txt .model.partial.keras checkpoints/1.keras"


def test_a_job_is_another_one_when_a_file_that_decides_the_answer_changes(tmp_path):
    model = tmp_path / "model"
    for name in f"{DECIDING} {LOGS}".split():
        write(model, name, "before")
    (tmp_path / "link").symlink_to(model)
    fingerprints = [fingerprint(str(model))]
    for name in LOGS.split():
        write(model, name, "after")
        assert fingerprint(str(tmp_path / "link")) == fingerprints[0]
    for name in DECIDING.split():
        write(model, name, "after")
        fingerprints.append(fingerprint(str(model)))
    assert len(set(fingerprints)) == len(fingerprints)
    assert fingerprint(str(model / "saved_model.pb")) == fingerprints[-1]


@pytest.mark.slow
def test_a_killed_worker_and_a_killed_command_lose_nothing(light, left_behind, tmp_path):
    pytest.importorskip("ray.data", reason="comes with the extra [cluster]")
    psutil = pytest.importorskip("psutil", reason="comes with the extra [test]")
    output = tmp_path / "out"
    texts = {"a.txt": [" ".join(words) for words in itertools.product(WORDS, repeat=3)] * 4}
    texts["b.txt"] = [text if i % 3 else "" for i, text in enumerate(texts["a.txt"][:23])]
    inputs = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt.gz")]
    write(tmp_path, "a.txt", "".join(line + "\n" for line in texts["a.txt"]))
    content = "\ufeff" + "\r\n".join(texts["b.txt"])
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(content.encode()))
    command = [sys.executable, "-m", "keras_transformer", "translate", f"--model={light}"]
    command += ["--engine=ray", "--workers=1", "--set=chunk_lines=99"]
    command += [*inputs, f"--output={output}"]
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[3])}
    with open(tmp_path / "log", "w") as file:
        first = subprocess.Popen(command, stdout=file, stderr=file, env=environment)

    def wait(condition):
        wait_for(lambda: condition() or first.poll() is not None, 600)
        assert first.poll() is None

    def parts():
        return len(list(output.glob(".parts/a.txt/[0-9]*.txt")))

    wait(parts)
    # A second command may not translate into the folder.
    with pytest.raises(InputError, match="out: another process writes to this folder"):
        corpus.translate_corpus(light, inputs, output, chunk_lines=99)
    os.kill(processes_below(first.pid, "ray::MapWorker")[0], signal.SIGKILL)
    done = parts()
    # Its chunk is done again by another worker, then the command itself is killed.
    wait(lambda: parts() > done + 3)
    left_behind += psutil.Process(first.pid).children(recursive=True)
    first.kill()
    first.wait(timeout=600)
    assert len(left_behind) > 3 and not (output / "a.txt").exists()
    second = corpus.translate_corpus(light, inputs, output, chunk_lines=99, with_ray=False)
    lines = sum(map(len, texts.values()))
    assert 0 < second["lines_translated"] <= lines - 99 * (done + 3)
    whole = tmp_path / "whole"
    corpus.translate_corpus(light, inputs, whole, chunk_lines=99, with_ray=False)
    for name in texts:
        assert (output / name).read_bytes() == (whole / name).read_bytes()
        assert ((output / name).read_bytes().count(b"\r\n") > 9) == (name == "b.txt")
        pairs = zip(texts[name], (output / name).read_text().splitlines(), strict=True)
        assert not any(translation for text, translation in pairs if not text)
    assert len(set((output / "a.txt").read_text().splitlines())) > 9
    # A further run finds that all is there, and starts nothing.
    again = corpus.translate_corpus(light, inputs, output, chunk_lines=99)
    assert again["lines_translated"] == 0


@pytest.fixture
def model_that(tmp_path, monkeypatch):
    """`model_that(translate, languages)`: the path of a model that translates so."""

    def model_that(translate, languages=None):
        engine = FakeEngine(languages=languages, long_inputs=("refuse", "split"))
        loaded = types.SimpleNamespace(translate=translate, engine=engine)
        loaded.check_options = lambda **options: None
        monkeypatch.setattr(Translator, "load", lambda model, threads: loaded)
        write(tmp_path, "model/model.bin", "before")
        return tmp_path / "model"

    return model_that


def test_a_worker_says_which_lines_were_cut_and_which_text_is_at_fault(model_that, tmp_path):
    def translate(texts, long_input):
        assert long_input == "split"
        if "bad" in texts:
            raise InputError("text 2 is bad.")
        warnings.warn("1 text was cut.", stacklevel=2)
        return [Translation(text.upper(), 0.0) for text in texts]

    model = str(model_that(translate))
    worker, later_worker = (Worker(model, fingerprint(model), 1, {}) for _ in range(2))
    row = {"name": "a", "first": 11, "path": "a", "lines": ["x\n", "y\r\n"], "error": ""}
    done = worker(dict(row))
    cut = ["a, lines 11 to 12: 1 text was cut."]
    assert done["lines"] == ["X\n", "Y\r\n"] and done["messages"] == cut
    bad = worker({**row, "lines": ["x\n", "bad\n"]})
    assert bad["error"] == "a, lines 11 to 12: text 2 is bad."
    write(tmp_path, "model/model.bin", "after")
    assert worker(dict(row))["lines"] == ["X\n", "Y\r\n"]
    for _ in range(2):
        done = later_worker(dict(row))
        assert done["count"] == 0 and f"{model}: the files have changed since" in done["error"]


def test_a_job_says_once_which_languages_it_takes(tmp_path, model_that, monkeypatch, capsys):
    # Each chunk has its own worker, as it may have with Ray.
    monkeypatch.setattr(corpus, "Worker", lambda **job: lambda row: Worker(**job)(row))

    def translate(texts, **options):
        return [Translation(text, 0.0) for text in texts]

    model = model_that(translate, Languages(directions=(("en", "pt"),)))
    write(tmp_path, "text", "a\nb\nc\n")
    options = {"chunk_lines": 1, "with_ray": False, "target_language": "pt-BR"}
    corpus.translate_corpus(model, [tmp_path / "text"], tmp_path / "out", **options)
    said = "keras-transformer: The model has no pt-BR; its nearest language is pt.\n"
    assert capsys.readouterr().err == said


def test_a_job_takes_options_of_sentences_and_keeps_white_space(tmp_path, monkeypatch):
    read = []

    class Engine(FakeEngine):
        def translate(self, texts, **options):
            read.extend(filter(None, texts))
            return super().translate(texts, **options)

    engine = Engine(manifest={"split_sentences": True})
    monkeypatch.setattr(Translator, "load", lambda model, threads: Translator(engine))
    write(tmp_path, "model/model.bin", "")
    write(tmp_path, "text", "  Two dogs.  A CAT SLEEPS.\n\n")

    def translate(folder, **options):
        read.clear()
        inputs = [tmp_path / "text"]
        options |= {"with_ray": False, "chunk_lines": 9}
        corpus.translate_corpus(tmp_path / "model", inputs, tmp_path / folder, **options)
        return [*read]

    assert translate("default") == ["Two dogs.", "A CAT SLEEPS."]
    assert (tmp_path / "default" / "text").read_text() == "  TWO DOGS.  A CAT SLEEPS.\n\n"
    assert translate("case", keep_case=True) == ["Two dogs.", "A cat sleeps."]
    assert translate("whole", split_sentences=False) == ["Two dogs.  A CAT SLEEPS."]
    # The sides of a pair are lines.
    assert translate("pairs", records="pairs") == ["Two dogs.  A CAT SLEEPS."]


def test_a_job_keeps_each_line_end_as_a_stream_of_lines_does(tmp_path, model_that):
    def translate(texts, **options):
        return [Translation(text.upper(), 0.0) for text in texts]

    model, content = model_that(translate), b"\xef\xbb\xbfa \r\n\r\nb\n\r\r\n c\xe2\x80\xa8d\r\ne\r"
    (tmp_path / "text").write_bytes(content)
    options = {"with_ray": False, "chunk_lines": 2}
    corpus.translate_corpus(model, [tmp_path / "text"], tmp_path / "out", **options)
    written = (tmp_path / "out" / "text").read_bytes()
    assert written == b"A \r\n\r\nB\n\r\n C D\r\nE\n"
    stream = io.StringIO()
    write_results(
        lambda lines: translate([line.text for line in lines]),
        read_chunks(io.BytesIO(content), 2),
        as_text,
        stream,
    )
    assert written == stream.getvalue().encode()
    corpus.translate_corpus(model, [tmp_path / "text"], tmp_path / "pairs", "pairs", **options)
    assert b"\r" not in (tmp_path / "pairs" / "text.csv").read_bytes()


def test_a_job_reads_its_glossary_once(tmp_path, model_that):
    translations = []

    def translate(texts, glossary, **options):
        (tmp_path / "terms.tsv").write_text("dog\tKatze\n")
        translations.extend(glossary_of(glossary).matches(text)[0].translation for text in texts)
        return [Translation(text, 0.0) for text in texts]

    write(tmp_path, "terms.tsv", "dog\tHund\n")
    write(tmp_path, "text", "a dog\nthe dog\nno dog\n")
    options = {"glossary": tmp_path / "terms.tsv", "with_ray": False, "chunk_lines": 1}
    corpus.translate_corpus(model_that(translate), [tmp_path / "text"], tmp_path / "out", **options)
    assert translations == ["Hund"] * 3


WRONG_OPTIONS = [({"beamsize": 2}, "There is no option `beamsize`. Did you mean `beam_size`?")]
WRONG_OPTIONS += [({"records": "back", "n_best": 3, "beam_size": 2}, "`n_best` must be at most")]
WRONG_OPTIONS += [({"tag": "2de"}, "`tag` needs a model trained with tags")]
WRONG_OPTIONS += [({"markup": "xml"}, "`markup` must be one of placeholders, html")]
WRONG_OPTIONS += [({"long_input": "cut"}, "`long_input` must be one of")]
WRONG_OPTIONS += [({"glossary": {"a": "b"}}, "`glossary` needs a run folder")]
WRONG_OPTIONS += [({}, "in.txt, line 1: expected UTF-8 text.")]


@pytest.mark.parametrize(("options", "says"), WRONG_OPTIONS)
def test_a_wrong_option_leaves_no_folder_behind(light, tmp_path, options, says):
    source, output = tmp_path / "in.txt", tmp_path / "new" / "out"
    source.write_bytes(b"a man\n" if options else b"\xff\n")
    with pytest.raises(InputError) as caught:
        corpus.translate_corpus(light, [source], output, with_ray=False, **options)
    assert str(caught.value).removeprefix(f"{tmp_path}/").startswith(says)
    assert list(tmp_path.iterdir()) == [source]
    source.write_text("a man\n")
    records = options.get("records", "text")
    report = corpus.translate_corpus(light, [source], output, records, with_ray=False)
    assert report["lines_translated"] == 1


def test_parts_become_a_file_in_order_and_a_damaged_one_is_none(tmp_path):
    for name, texts in ("1-3", "A\nB\nB\n"), ("11-1", "D\n"), ("3-1", "C\n"):
        write(tmp_path, f".parts/in.txt/{name}.txt", texts)
    assert sorted(corpus._parts(tmp_path, "in.txt")) == [1, 3, 11]
    corpus._join(tmp_path, "in.txt")
    assert (tmp_path / "in.txt").read_text() == "A\nB\nB\nC\nD\n"
    for damaged in (b"", b"A\nB", b"A\nB\nB", b"A\nB\n", b"\0\0\0\0"):
        (tmp_path / ".parts" / "in.txt" / "1-3.txt").write_bytes(damaged)
        assert sorted(corpus._parts(tmp_path, "in.txt")) == [3, 11]


@pytest.mark.parametrize("n_best", [1, 2])
def test_parts_of_several_hypotheses_a_line_are_kept_until_a_bad_line_is_mended(
    light, tmp_path, n_best
):
    source, output = tmp_path / "in.txt", tmp_path / "out"
    source.write_bytes(b"a man\ntwo dogs\n\xff\n")
    run = functools.partial(corpus.translate_corpus, light, [source], output, "pairs")
    run = functools.partial(run, with_ray=False, chunk_lines=1, n_best=n_best)
    for _ in range(2):
        with pytest.raises(InputError, match="in.txt, line 3: expected UTF-8"):
            run()
        parts = sorted((output / ".parts" / "in.txt.csv").iterdir())
        assert [len(part.read_text().splitlines()) for part in parts] == [n_best] * 2
    texts = [part.read_bytes() for part in parts]
    parts[0].write_bytes(b"changed\n" * n_best)  # A finished part is not translated again.
    parts[1].write_bytes(b"".join(texts[1].splitlines(True)[: n_best - 1]))  # One that is cut is.
    with pytest.raises(InputError, match="in.txt, line 3"):
        run()
    assert [part.read_bytes() for part in parts] == [b"changed\n" * n_best, texts[1]]


@pytest.mark.parametrize("name", ["bulk.json", "bulk.json.gz", ".parts", ".b.partial.txt", ".gz"])
def test_an_input_named_as_the_folders_own_files_is_refused(tmp_path, name):
    (tmp_path / name).write_text("a\n")
    with pytest.raises(InputError, match="must not be bulk.json nor begin with a point"):
        corpus.translate_corpus(tmp_path, [tmp_path / name], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def start(tmp_path, monkeypatch):
    """`start(inputs, output, **options)`: starts a job in a folder with a model and `in.txt`."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "model/export.json", "{}")
    write(tmp_path, "in.txt", "a\nb\nc\n")
    return functools.partial(corpus.translate_corpus, "model")


def test_a_second_command_does_not_write_to_the_folder(start, tmp_path):
    message = "out: another process writes to this folder"
    with locked_folder(tmp_path / "out"), pytest.raises(InputError, match=message):
        start(["in.txt"], "out")


def test_a_command_that_was_killed_before_it_had_written_its_job_starts_again(start, tmp_path):
    write(tmp_path, "out/.bulk.partial.json", "{")
    assert start([], "out")["files"] == 0


def test_another_job_does_not_mix_with_what_is_there(start, tmp_path):
    options = {"banned_ids": (5, 7), "logit_bias": {11: -1.0}, "glossary": "terms.tsv"}
    for name in ("terms.tsv", "copy.tsv"):
        write(tmp_path, name, "rack\tGestell\nday\tTag\n")
    terms = {"day": "Tag", "rack": "Gestell"}
    # Equal options are the same job, in any order and of any type.
    for equal in (
        {},
        {"glossary": "copy.tsv"},
        {"glossary": terms},
        {"glossary": Glossary(terms.items())},
        {"banned_ids": np.array([5, 7]), "logit_bias": {np.int64(11): np.float32(-1)}},
        {"banned_ids": [5, 7]},
    ):
        assert start([], "out", **{**options, **equal})["files"] == 0
        assert start([], "out", **dict(reversed({**options, **equal}.items())))["files"] == 0
    message = "out: holds the output of another job, whose model, options or inputs differ"
    for other in ({"banned_ids": (5,)}, {"glossary": None}, {"glossary": {"day": "Tag"}}):
        with pytest.raises(InputError, match=message):
            start([], "out", **{**options, **other})
    with pytest.raises(InputError, match=message):
        start(["in.txt"], "out", **options)
    for name, content in (("terms.tsv", "rack\tRegal\n"), ("model/export.json", "{ }")):
        before = (tmp_path / name).read_text()
        write(tmp_path, name, content)
        with pytest.raises(InputError, match=message):
            start([], "out", **options)
        write(tmp_path, name, before)


def test_an_option_that_no_later_call_could_compare_is_refused(start, tmp_path):
    with pytest.raises(InputError, match="Options must be numbers, texts, .* Received: <object"):
        start(["in.txt"], "out", banned_ids=object())
    assert not (tmp_path / "out").exists()


def test_names_of_many_files_take_time_in_proportion_to_their_number():
    paths = [f"folder/{number}.txt.gz" for number in range(20_000)]
    started = time.process_time()
    assert corpus._names(paths, ".csv")[-1] == "19999.txt.csv"
    assert time.process_time() - started < 2  # Comparing all pairs takes 10 seconds.


WRONG_CALLS = [((["in.txt"], "model"), "model: expected an empty folder")]
WRONG_CALLS += [((["in.txt"], "out", "Pairs"), "`records` must be one of text, pairs, back. .*'Pa")]
WRONG_CALLS += [(("in.txt", "out"), "`inputs` must be a list of paths. Received: 'in.txt'")]
WRONG_CALLS += [((["in.txt", "in.txt.gz"], "out"), "in.txt twice")]
WRONG_CALLS += [((["none"], "out"), "none: cannot be read")]


@pytest.mark.parametrize(("call", "message"), WRONG_CALLS)
def test_a_wrong_input_or_output_is_a_users_mistake(start, call, message):
    with pytest.raises(InputError, match=message):
        start(*call)
