"""Plans of devices for engines whose tests are about texts and scores, not about batches."""

import contextlib
import dataclasses
import functools

import pytest

from keras_transformer import Translator
from keras_transformer.engine.device import DevicePlan
from keras_transformer.engine.model_engine import ModelEngine

# Options of `ModelEngine`: each search is one graph, for all sentences of a call. To make programs
# takes nearly all of the time of a test that translates.
ONE_GRAPH = {
    "with_xla": False,
    "plan": DevicePlan(
        rows=(4, 16, 64),
        search_lengths=1,
        first_capacity=256,  # One loop: each longer capacity is traced as a loop of its own.
        can_shrink=False,
        workers=1,
        memory=2**40,
    ),
}


@contextlib.contextmanager
def one_graph(**fields):
    """Within the block all engines are made with `ONE_GRAPH`, also those of commands and trainings.

    Its plan has other values of some `fields`.
    """
    options = {**ONE_GRAPH, "plan": dataclasses.replace(ONE_GRAPH["plan"], **fields)}
    make = ModelEngine.__init__

    @functools.wraps(make)
    def make_with_one_graph(engine, *arguments, **others):
        make(engine, *arguments, **{**others, **options})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelEngine, "__init__", make_with_one_graph)
        yield


def in_one_graph(run):
    """The `Translator` of a run, with `ONE_GRAPH`."""
    translator = Translator.load(run)
    return Translator(translator.engine.with_(**ONE_GRAPH), translator.defaults)
