import pathlib
import shutil

import keras
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from small_corpus import PAIRS, recipe_values

from keras_transformer import Tokenizer, Transformer, TransformerConfig
from keras_transformer.base.errors import InputError
from keras_transformer.base.files import FORMAT_VERSION
from keras_transformer.engine.opening import engine_of_run
from keras_transformer.runs.model_card import described_origin, training_summary
from keras_transformer.runs.model_file import save_model
from keras_transformer.training import Recipe, RunFolder
from keras_transformer.training.checkpoints import remove_partial_files, roll_back
from keras_transformer.training.preparing import check_resumable
from keras_transformer.training.recipe_sections import TrainingSection


def small_model(vocabulary_size=120):
    layers = dict(num_encoder_layers=1, num_decoder_layers=1)
    return Transformer(TransformerConfig(vocabulary_size, 8, 2, 8, **layers))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = RunFolder(tmp_path_factory.mktemp("written") / "run")
    tokenizer = Tokenizer.train_from_texts([text for pair in PAIRS for text in pair], 120)
    recipe = Recipe.from_dict(recipe_values(folder.path.parent))
    folder.create(recipe.to_dict(), (tokenizer, tokenizer), {})
    save_model(small_model(), folder.model_file)
    return folder


@pytest.fixture
def run(written, tmp_path):
    """A copy of `written`: a run may be moved."""
    return RunFolder(shutil.copytree(written.path, tmp_path / "run"))


def test_a_written_run_is_read_back_wherever_it_was_moved(written, run):
    assert Recipe.of_run(run) == Recipe.of_run(written) == Recipe.load(run.recipe_file)
    assert Recipe.of_run(run).text.vocabulary_size == 150
    source, target = run.tokenizers()
    assert source == target and source.vocabulary_size == 120
    engine = engine_of_run(RunFolder.existing(run.path))
    assert engine.model.config.model_dim == 8 and engine.source_tokenizer == source


@pytest.mark.parametrize("version", [None, 1, FORMAT_VERSION + 1, str(FORMAT_VERSION)])
def test_a_run_of_another_version_is_one_line(run, version):
    recipe, text = Recipe.of_run(run), run.recipe_file.read_text()
    line = f"format_version: {FORMAT_VERSION}\n"
    assert text.startswith(line)
    other = "" if version is None else f"format_version: {version!r}\n"
    run.recipe_file.write_text(text.replace(line, other))
    readers = (lambda: Recipe.of_run(run)), run.decoding
    for read in (*readers, lambda: engine_of_run(run), lambda: check_resumable(run, recipe)):
        maker = (
            r"a newer version .*\. Update" if version == FORMAT_VERSION + 1 else "another version"
        )
        with pytest.raises(InputError, match=f"run: {maker} .* or export it again.$"):
            read()
    if version is None:
        assert Recipe.load(run.recipe_file) == recipe  # A recipe needs no version.
    else:
        with pytest.raises(InputError, match="recipe.yaml: a"):
            Recipe.load(run.recipe_file)


def truncated(keep):
    return lambda file: file.write_bytes(file.read_bytes()[:keep])


def dense(file):
    keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).save(file)


def harmful(file):
    code = keras.layers.Lambda(lambda x: x * 2)
    keras.Sequential([keras.Input((3,)), code]).save(file)


def pointer(file):
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 5\n")


DAMAGES = [
    ("model.keras", lambda file: save_model(small_model(77), file), "has 120 ids, the model 77"),
    ("model.keras", dense, "expected one of Transformer, .*LanguageModel. Received: Sequential"),
    ("model.keras", pathlib.Path.unlink, "model.keras: no such model file"),
    ("model.keras", truncated(1), "cannot be read as a Keras model"),
    ("model.keras", pointer, "model.keras: .* a Git LFS pointer"),
    ("tokenizer.model", pointer, "tokenizer.model: .* a Git LFS pointer"),
    ("model.keras", harmful, "cannot be read as a Keras model"),
    ("tokenizer.model", truncated(500), "tokenizer.model"),
    ("tokenizer.model", pathlib.Path.unlink, "tokenizer.model: no such file"),
]


@pytest.mark.parametrize(("name", "damage", "message"), DAMAGES)
def test_a_damaged_file_is_one_line_and_runs_no_code(run, name, damage, message):
    damage(run.path / name)
    with pytest.raises(InputError, match=message) as caught:
        engine_of_run(run)
    assert "\n" not in str(caught.value)


def rolled_back(run):
    roll_back(run, 2, TrainingSection())


HISTORY = "history.csv"
WRONG_HISTORY = "history.csv: cannot be read as the history of a training: "
SAMPLES = "samples.tsv"
# File, content, reader, and the end of the message; all files are of a run, and were damaged later.
CONTENTS = [(HISTORY, b"epoch,val_loss\n1,x\n", RunFolder.history, WRONG_HISTORY + ".*'x'")]
CONTENTS += [(HISTORY, b"epoch,val_loss\n1,2,3\n", RunFolder.history, "line 2 has another number")]
CONTENTS += [(HISTORY, b"epoch,val_loss\n1\n", RunFolder.history, "line 2 has another number")]
CONTENTS += [(HISTORY, b"epoch,val_loss\n1,2\n3,1\n", RunFolder.history, "line 3 .* of epoch 2")]
CONTENTS += [
    (HISTORY, b"epoch,loss\n1,2\n", RunFolder.history, "must have the `val_loss` of epoch 1")
]
CONTENTS += [(HISTORY, b"a,b\n1,2\n", RunFolder.history, "must have the `val_loss` of epoch 1")]
CONTENTS += [(HISTORY, b"\xff\xfe", RunFolder.history, WRONG_HISTORY)]
CONTENTS += [(HISTORY, b"e" * 200_000 + b"\n", RunFolder.history, "larger than field limit")]
CONTENTS += [(HISTORY, b"epoch,val_loss\n1,2\n", rolled_back, "the 2 epochs .* Received: 1")]
CONTENTS += [(HISTORY, b"", rolled_back, "the 2 epochs .* Received: 0")]
CONTENTS += [(SAMPLES, b"a\tb\nc\n", RunFolder.sample_pairs, "line 2: expected a source and a ta")]
for content in (b"", b"{", b"[1]", b"5", b"null", b'{"train": 5}', b"\xff"):
    CONTENTS += [("data.json", content, RunFolder.digests, "cannot be read as checksums of the")]
for content in (b"", b"{", b"[1]", b"5", b"null", b"\xff"):
    for read in (RunFolder.metrics, training_summary):
        CONTENTS += [("metrics.json", content, read, "metrics.json.*: expected ")]
for content in (b'{"average": 5}', b'{"best_validation_bleu": "x"}'):
    CONTENTS += [("metrics.json", content, training_summary, "cannot be read as the metr")]
for content in (b"{train: 5}", b"{train: [5]}", b"{train: {source: [1]}}"):
    content = f"format_version: {FORMAT_VERSION}\ndata: ".encode() + content
    CONTENTS += [("recipe.yaml", content, training_summary, "recipe.yaml: ")]


@pytest.mark.parametrize(("name", "content", "read", "message"), CONTENTS)
def test_another_content_of_a_runs_file_is_one_line(tmp_path, name, content, read, message):
    run = RunFolder(tmp_path)
    run.checkpoints.mkdir()
    run.write_sections({})
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read(run)
    line = str(caught.value)
    assert line.startswith(str(tmp_path / name)) and "\n" not in line and len(line) < 500


def test_only_files_of_a_run_are_replaced(run):
    made = "data.json history.csv samples.txt samples.tsv metrics.json".split()
    made += [".metrics.partial.json", "checkpoints/epoch-0001.keras"]
    made += ["checkpoints/.best-10000.partial.keras"]
    made += [f"tensorboard/{part}/events.out.tfevents.1.host" for part in ("train", "validation")]
    made += ["tensorboard/validation/x"]
    for name in made:
        (run.path / name).parent.mkdir(parents=True, exist_ok=True)
        (run.path / name).write_text("")
    before, check = sorted(run.path.rglob("*")), lambda: run.check_replaceable(True, {})
    with pytest.raises(InputError, match="did not make: tensorboard/validation/x"):
        with run.replaced(check):
            pass
    assert sorted(run.path.rglob("*")) == before
    (run.path / "tensorboard" / "validation" / "x").unlink()
    with run.replaced(check) as new_run:
        new_run.write_sample_pairs([("a", "b")])
        assert run.model_file.is_file()
    assert list(run.path.iterdir()) == [run.sample_pairs_file]


def test_only_temporary_files_of_a_run_are_removed(run):
    own = [".history.partial.csv", "checkpoints/.epoch-0002.partial.keras"]
    foreign = [".thesis.partial.tex", "checkpoints/.history.partial.csv", "history.partial.csv"]
    for name in (*own, *foreign):
        (run.path / name).write_bytes(b"half")
    remove_partial_files(run)
    names = {path.relative_to(run.path).as_posix() for path in run.path.rglob("*partial*")}
    assert names == set(foreign)


ODD = st.text(
    st.sampled_from("ab\t\n\r\\\x0c\u2028 ")
    | st.characters(exclude_categories=["Cs"], exclude_characters="\0\ufeff")
)


@given(pairs=st.lists(st.tuples(ODD, ODD)))
@example(pairs=[])
@example(pairs=[("a\tb", "a\\tb \\"), ("a\r\nb\r", "\\\\n"), (" a  ", "")])
def test_sample_pairs_are_read_as_they_were_written_each_on_one_line(pairs, tmp_path_factory):
    run = RunFolder(tmp_path_factory.mktemp("run"))
    assert run.sample_pairs() == []  # of a run without the file
    run.write_sample_pairs(pairs)
    assert run.sample_pairs() == pairs
    content = run.sample_pairs_file.read_bytes()
    assert content.count(b"\n") == content.count(b"\t") == len(pairs) and b"\r" not in content


def test_samples_are_rolled_back_whatever_their_texts_are(run):
    run.write_history([{"epoch": epoch, "val_loss": 0.5} for epoch in (1, 2, 3)])
    run.samples_file.write_bytes(b"epoch 1\n  a\rb\nepoch 2\n  epoch 3\nepoch 3\n  ha\xc3")
    roll_back(run, 2, TrainingSection())
    assert run.samples_file.read_bytes() == b"epoch 1\n  a\rb\nepoch 2\n  epoch 3\n"


def test_a_metric_that_is_no_number_is_refused(run):
    with pytest.raises(ValueError, match="not JSON compliant"):
        run.write_metrics({"loss": float("nan")})


ORIGINS = [({"name": "a/b", "licence": "mit", "files": {"x": "1"}}, "a/b, licence mit")]
ORIGINS += [({"name": "/home/me/models/opus/", "licence": "mit"}, "opus, licence mit")]
ORIGINS += [({"name": "/home/me/opus", "licence": None}, "opus, licence not named")]
ORIGINS += [({"name": "a/b", "revision": "c1"}, "a/b, revision c1, licence not named"), ({}, "")]


@pytest.mark.parametrize(("origin", "line"), ORIGINS)
def test_the_line_of_an_origin_has_no_folder_of_this_machine_and_says_what_is_not_named(
    tmp_path, origin, line
):
    run = RunFolder(tmp_path)
    run.write_sections({"origin": origin})
    assert described_origin(run) == line
