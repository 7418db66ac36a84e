import json
import shutil
import subprocess
import sys

import pytest

from keras_transformer import Translator
from keras_transformer.engine import LiteRTEngine
from keras_transformer.errors import InputError

pytestmark = pytest.mark.tensorflow

TEXTS = ["a man", "", "two dogs", " \t", "läuft 12", "a girl runs", "你好", "\u200b\u2581"]


@pytest.fixture(scope="module")
def exported_file(litert_report):
    return Translator.load(litert_report.folder / "model.tflite")


@pytest.mark.parametrize(("beam_size", "n_best"), [(1, 1), (None, 1), (3, 2)])
def test_it_translates_as_the_live_model(exported_file, engine, beam_size, n_best):
    live = engine.translate(TEXTS, beam_size or 3, 0.8, n_best=n_best)
    for batch_size, threads in ((32, None), (2, 1), (3, 4)):
        found = exported_file.translate(
            TEXTS, beam_size=beam_size, n_best=n_best, batch_size=batch_size, threads=threads
        )
        assert [each.text for each in found] == [each.text for each in live]
        assert [each.score for each in found] == pytest.approx(
            [each.score for each in live], abs=1e-4
        )
        for a, b in zip(found, live, strict=True):
            assert [each.text for each in a.alternatives] == [each.text for each in b.alternatives]


WITHOUT_KERAS = """
import sys
# With None in a module's place its import ends in ImportError.
sys.modules.update(dict.fromkeys(["keras", "tensorflow", "tensorflow_text"]))
sys.argv = ["keras-transformer", "translate", "--model", sys.argv[1]]
from keras_transformer.cli.main import main
main()
"""


@pytest.mark.parametrize("name", ["model.tflite", "."])
def test_the_command_translates_with_a_file_without_tensorflow_or_keras(
    name, litert_report, engine
):
    texts = ["a man", "", "two dogs"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_KERAS, str(litert_report.folder / name)],
        input="".join(text + "\n" for text in texts),
        capture_output=True,
        text=True,
    )
    live = engine.translate(texts, 3, 0.8)
    assert (done.returncode, done.stdout.splitlines()) == (0, [each.text for each in live])


def test_a_translation_has_its_ids_tokens_and_log_probability(exported_file, engine):
    (live,) = engine.translate(["a man"], 3, 0.8)
    (found,) = exported_file.translate(["a man"])
    for name in ("ids", "tokens", "source_tokens"):
        assert getattr(found, name) == getattr(live, name)
    assert found.log_probability == pytest.approx(live.log_probability, abs=1e-4)


def test_nothing_gives_nothing(exported_file):
    assert exported_file.translate([]) == []


def test_a_long_text_is_refused_or_cut_or_split(exported_file, engine):
    long = "a man runs in the park. " * 3
    with pytest.raises(InputError, match="at most 13 tokens"):
        exported_file.translate([long])
    for text, long_input in ((long, "truncate"), ("a man runs. two dogs sit.", "split")):
        with pytest.warns(UserWarning, match="1 of 1 texts"):
            (found,) = exported_file.translate([text], long_input=long_input)
        with pytest.warns(UserWarning):
            (live,) = engine.translate([text], 3, 0.8, long_input=long_input)
        assert found.text == live.text
        assert len(found.parts) == len(live.parts)
    assert len(found.parts) > 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"beam_size": 2}, "1 or what this export was made with, 3"),
        ({"length_penalty": 0.5}, "`length_penalty` is fixed at 0.8 in a LiteRT export"),
        ({"n_best": 3}, "at most 2 in this search"),
        ({"n_best": 2, "beam_size": 1}, "at most 1 in this search"),
        ({"batch_size": 0}, "`batch_size` must be a positive integer"),
        ({"threads": 0}, "`threads` must be a positive integer"),
        ({"alignment": True}, "`alignment` needs a run folder: a LiteRT export can translate"),
        ({"sampling": True}, "`sampling` is fixed at False"),
        ({"bean_size": 3}, "Did you mean `beam_size`?"),
        ({"long_input": "drop"}, "`long_input` must be one of"),
    ],
)
def test_what_it_has_not_is_a_users_mistake(exported_file, options, expected):
    with pytest.raises(InputError) as caught:
        exported_file.translate(["a man"], **options)
    assert expected in str(caught.value)


def test_texts_must_be_strings(exported_file):
    for texts in ("a man", [b"a man"], ["\ud800"]):
        with pytest.raises(InputError):
            exported_file.translate(texts)


def change_manifest(folder, **fields):
    path = folder / "export.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def change_middle(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda f: (f / "model.tflite").unlink(), "no such"),
        (lambda f: (f / "model.tflite").write_bytes(b""), "is not the file that was exp"),
        (lambda f: change_middle(f / "model.tflite"), "is not the file that was exported"),
        (lambda f: (f / "export.json").unlink(), "a folder without export.json"),
        (lambda f: (f / "export.json").write_text("{"), "cannot be read"),
        (lambda f: change_manifest(f, format="other"), '"format" is another'),
        (lambda f: change_manifest(f, files={}), "is not the file that was exported"),
        (lambda f: change_manifest(f, files=5), '"files" or with another type of it'),
        (lambda f: (f / "export.json").write_text('{"format": "keras_transformer.litert"}'), '"f'),
        (lambda f: (f / "tokenizer.model").unlink(), "tokenizer.model"),
    ],
)
def test_a_damaged_export_is_told_in_one_line(litert_report, tmp_path, damage, expected):
    folder = tmp_path / "copy"
    shutil.copytree(litert_report.folder, folder)
    damage(folder)
    with pytest.raises(InputError) as caught:
        Translator.load(folder / "model.tflite")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_is_its_file_and_one_of_version_0_2_its_file_of_ids(
    litert_report, engine, tmp_path
):
    """0.2 named the file from ids to ids `model_ids.tflite`, beside one that took text."""
    old = shutil.copytree(litert_report.folder, tmp_path / "old")
    (old / "model.tflite").rename(old / "model_ids.tflite")
    (old / "model.tflite").write_bytes(b"a file that takes text")
    files = json.loads((old / "export.json").read_text())["files"]
    change_manifest(old, files={"model_ids.tflite": files["model.tflite"], "model.tflite": "0"})
    for folder in (litert_report.folder, old):
        found = LiteRTEngine(folder, threads=1).translate(["two dogs"])
        assert found[0].ids == engine.translate(["two dogs"], 3, 0.8)[0].ids
