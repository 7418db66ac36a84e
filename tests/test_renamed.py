"""Former names of Public API work for one release, and say where the user's program has them."""

import inspect
import sys
import types
import warnings

import pytest

from keras_transformer.renamed import renamed_arguments, renamed_names


@pytest.fixture
def module(monkeypatch):
    """A module whose `Rows` is now `collections.OrderedDict`."""
    module = types.ModuleType("renamed_here")
    module.__getattr__ = renamed_names(module.__name__, {"Rows": "collections:OrderedDict"})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_a_former_name_is_the_new_one_and_warns_at_the_line_that_reads_it(module):
    import collections

    with pytest.warns(DeprecationWarning) as told:
        found, line = module.Rows, inspect.currentframe().f_lineno
    assert found is collections.OrderedDict
    assert [(warning.filename, warning.lineno) for warning in told] == [(__file__, line)]
    assert "`renamed_here.Rows` is now `collections.OrderedDict`" in str(told[0].message)


def test_a_name_that_never_was_is_an_attribute_error(module):
    with pytest.raises(AttributeError, match="'renamed_here' has no attribute 'Columns'"):
        module.Columns  # noqa: B018
    assert not hasattr(module, "__path__")


@renamed_arguments(kept="cached", count="size")
def pair(cached, size=2):
    return cached, size


class Layer:
    @renamed_arguments(kept="cached")
    def __init__(self, cached):
        self.cached = cached


def test_a_former_argument_is_the_new_one_and_warns_at_the_line_of_the_call():
    with pytest.warns(DeprecationWarning, match="`count` is now `size`") as told:
        given, line = pair(3, count=5), inspect.currentframe().f_lineno
    assert given == (3, 5)
    assert [(warning.filename, warning.lineno) for warning in told] == [(__file__, line)]
    with pytest.warns(DeprecationWarning, match="`kept` is now `cached`") as told:
        layer, line = Layer(kept=7), inspect.currentframe().f_lineno
    assert layer.cached == 7
    assert [(warning.filename, warning.lineno) for warning in told] == [(__file__, line)]


def test_new_arguments_warn_of_nothing_and_the_signature_has_only_them():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pair(cached=3, size=5) == pair(3, 5) == (3, 5)
    assert list(inspect.signature(pair).parameters) == ["cached", "size"]


def test_both_names_of_an_argument_are_an_error():
    with pytest.raises(TypeError, match="`count` is the former name of `size`"):
        pair(3, count=5, size=7)
