"""A batch in its thread, and what the start tells."""

import pytest
from upper_case import Engine

from keras_transformer import Translator
from keras_transformer.extras.serving import ServerOptions
from keras_transformer.extras.serving.endpoints import Rejection
from keras_transformer.extras.serving.model import Model


def test_a_batch_that_nobody_waits_for_any_more_is_not_run(monkeypatch):
    engine = Engine()
    monkeypatch.setattr(Translator, "load", lambda folder, threads: Translator(engine))
    batch = ("greedy", (), ()), [{"text": "a"}]
    assert [translation.text for translation in Model("folder", 1).run(*batch)] == ["A"]
    engine.calls.clear()
    with pytest.raises(Rejection) as caught:
        Model("folder", 1).run(*batch, lambda: False)
    assert caught.value.status == 504 and not engine.calls


@pytest.mark.parametrize(
    ("shapes", "doing", "done"),
    [
        ({"shapes": {"rows": [1], "source_lengths": [16]}}, "compiling", "compiled"),
        ({}, "warming up", "warmed up"),
    ],
)
def test_only_an_engine_that_compiles_tells_of_compiling(monkeypatch, shapes, doing, done):
    told = []
    monkeypatch.setattr(Translator, "load", lambda folder, threads: Translator(Engine(**shapes)))
    Model("folder", 1).warm_up(ServerOptions(model="folder"), told.append)
    assert told == [f"{doing} 1 shapes of batches", f"{done} 1 of 1 shapes of batches"]
