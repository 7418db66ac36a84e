"""Plans of devices for engines whose tests are about texts and scores, not about batches."""

from keras_transformer import Translator
from keras_transformer.engine.device import DevicePlan

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


def in_one_graph(run):
    """The `Translator` of a run, with `ONE_GRAPH`."""
    translator = Translator.load(run)
    return Translator(translator.engine.with_(**ONE_GRAPH), translator.defaults)
