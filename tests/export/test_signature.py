"""The one table of signatures, and those who read it."""

import pathlib
import re
from types import SimpleNamespace

import pytest

from keras_transformer.export.signature import LABEL_SIGNATURES, SIGNATURES, Tensor
from keras_transformer.extras.serving.model import signatures_of

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "design" / "folders.md"
IN_CODE = re.compile("`([a-z_]+)`")


def test_a_signature_is_under_its_name_and_says_what_it_returns():
    for name, row in {**SIGNATURES, **LABEL_SIGNATURES}.items():
        assert row.name == name and row.meaning and row.inputs and row.outputs


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_page_of_folders_names_the_inputs_and_outputs_of_the_table(name):
    (row,) = re.findall(rf"^\| `{name}` \|([^|]*)\|([^|]*)\|$", PAGE.read_text("utf-8"), re.M)
    inputs, outputs = (IN_CODE.findall(cell) for cell in row)
    assert inputs == list(SIGNATURES[name].inputs)
    expected = list(SIGNATURES[name].outputs)
    if name in ("sample", "align"):  # "one sample, with …", "the best translation with …"
        expected.remove("translation")
    assert sorted(set(outputs) - {"source"}) == sorted(expected)


def engine_of(manifest, **attributes):
    """What the server reads of an engine."""
    fields = {"languages": None, "capabilities": frozenset({"sample", "align"})}
    fields |= {"manifest": {"beam_size": 5, **manifest}}
    return SimpleNamespace(**{**fields, **attributes})


def test_an_export_without_signatures_is_served_with_those_of_the_table():
    served = signatures_of(engine_of({}, languages=SimpleNamespace(inputs=("target_language",))))
    assert set(served) == {"serving_default", "greedy", "beam", "sample", "align"}
    text = {"text": Tensor("string"), "target_language": Tensor("string")}
    assert served["serving_default"].inputs == text
    assert served["beam"].outputs["score"] == Tensor("float32", (5,))
    assert served["align"].outputs == SIGNATURES["align"].outputs
    assert "seed" not in served["sample"].inputs  # One for all texts, if any.


def test_an_export_is_served_with_the_signatures_of_its_manifest_also_of_earlier_releases():
    text = {"text": {"dtype": "string", "shape": [None]}}
    outputs = {"translation": {"dtype": "string", "shape": [None, 3]}}
    fields = {"beam": {"inputs": text, "outputs": outputs, "custom_ops": []}, "unknown": {}}
    served = signatures_of(engine_of({"signatures": fields, "n_best": 1}))
    assert list(served) == ["beam"]
    assert served["beam"].inputs == {"text": Tensor("string")}
    assert served["beam"].outputs == {"translation": Tensor("string", (3,))}
    assert served["beam"].meaning == SIGNATURES["beam"].meaning
