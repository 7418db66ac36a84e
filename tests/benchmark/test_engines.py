import importlib.metadata
import re
import sys

import pytest

from keras_transformer.benchmark.engines import ENGINES, choose_engines, versions
from keras_transformer.errors import InputError


def test_an_engine_that_is_not_installed_is_named_and_left_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    chosen, not_installed = choose_engines(["ctranslate2", "ours", "ctranslate2_int8"])
    assert list(chosen) == ["ours"]
    assert not_installed == {"ctranslate2": "peers", "ctranslate2_int8": "peers"}


def test_all_engines_are_the_default():
    chosen, not_installed = choose_engines()
    assert {*chosen, *not_installed} == set(ENGINES)
    assert set(ENGINES) == {
        "ours",
        "litert",
        "litert_int8",
        "ctranslate2",
        "ctranslate2_in_parts",
        "ctranslate2_int8",
        "keras_hub",
    }


@pytest.mark.parametrize("name", [name for name in ENGINES if ENGINES[name].package])
def test_the_extra_of_an_engine_brings_its_package(name):
    of_extra = [
        re.split(r"[<>=!~ ;\[]", each)[0]
        for each in importlib.metadata.requires("keras_transformer")
        if re.search(rf"extra == ['\"]{ENGINES[name].extra}['\"]", each)
    ]
    assert ENGINES[name].distribution in of_extra


def test_of_a_trained_run_only_those_that_can_take_it():
    chosen, not_installed = choose_engines(corpus=True)
    assert {*chosen, *not_installed} == {"ours", "ctranslate2", "ctranslate2_int8"}


@pytest.mark.parametrize(
    ("names", "corpus", "expected"),
    [
        (["ctranslate"], False, "engine='ctranslate'. Did you mean `ctranslate2`?"),
        (["marian"], False, "engine='marian'"),
        (["keras_hub"], True, "that can take a trained run are ours, ctranslate2"),
        (["ours", "ours"], False, "named once"),
        ([], False, "at least one of"),
    ],
)
def test_a_wrong_list_of_engines_is_a_users_mistake(names, corpus, expected):
    with pytest.raises(InputError) as caught:
        choose_engines(names, corpus=corpus)
    assert expected in str(caught.value)


@pytest.mark.tensorflow
def test_versions_are_of_what_takes_part():
    found = versions({"ours": ENGINES["ours"]})
    assert set(found) == {"keras", "keras_transformer", "tensorflow"}
