import pytest

from keras_transformer import demo
from keras_transformer.data import dates
from keras_transformer.errors import InputError

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def small(monkeypatch):
    """The demo on little data and for one epoch: what it does, not how well."""
    corpus = dates.date_corpus(num_train=400, num_held_out=50)
    monkeypatch.setattr(demo, "date_corpus", lambda: corpus)
    training = {**demo._RECIPE["training"], "epochs": 1, "max_shapes": 1}
    monkeypatch.setattr(
        demo,
        "_RECIPE",
        {**demo._RECIPE, "text": {"vocabulary_size": 260}, "training": training},
    )
    return corpus


@pytest.mark.slow
def test_the_demo_goes_the_whole_way(small, tmp_path):
    table = demo.run_demo(tmp_path / "demo")
    assert "400 in 26 locales" in table
    assert "of 50 (" in table
    for example in demo._EXAMPLES:
        assert example in table
    for name in ("data", "run", "export"):
        assert (tmp_path / "demo" / name).is_dir()
        assert str(tmp_path / "demo" / name) in table
    with pytest.raises(InputError, match="exists already"):
        demo.run_demo(tmp_path / "demo")


def test_the_data_of_the_demo_is_held_out(small, tmp_path):
    (tmp_path / "data").mkdir()
    demo._write_data(tmp_path / "data")
    train = (tmp_path / "data" / "train.target").read_text(encoding="utf-8").splitlines()
    held_out = (tmp_path / "data" / "held_out.target").read_text(encoding="utf-8").splitlines()
    assert (len(train), len(held_out)) == (400, 50)
    assert not set(train) & set(held_out)


def test_a_folder_that_is_no_demo_is_never_overwritten(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="is not a demo's folder"):
        demo.run_demo(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
