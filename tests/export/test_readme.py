import re

import pytest

from keras_transformer.export.readme import readme_of
from keras_transformer.export.signatures import INPUTS, SIGNATURES

BATCH = {"dtype": "float32", "shape": [None]}
TABLE = {"dtype": "string", "shape": [None, 5]}


def manifest(names=SIGNATURES, custom_ops=("One", "Other")):
    return {
        "beam_size": 5,
        "length_penalty": 0.7,
        "max_source_length": 23,
        "max_target_length": 37,
        "largest_chunk": 31,
        "source_vocabulary_size": 1009,
        "target_vocabulary_size": 1013,
        "shapes": {"rows": [2, 31], "source_lengths": [11, 23]},
        "signatures": {
            name: {
                "inputs": {each: BATCH for each in INPUTS[name]},
                "outputs": {"pieces": TABLE, "score": BATCH},
                "custom_ops": list(custom_ops),
            }
            for name in names
        },
        "versions": {"keras_transformer": "1.2.3", "tensorflow": "4.5.6"},
    }


@pytest.mark.parametrize(
    "line",
    [
        "| beam size | 5 |",
        "| length penalty | 0.7 |",
        "| most tokens of a source | 23, its end included; a longer text is cut there |",
        "| most tokens of a translation | 37 |",
        "| sentences searched at once | 31; a larger batch is divided inside |",
        "| vocabulary, source and target | 1009 and 1013 |",
        "| sentences, padded to | 2, 31 |",
        "| tokens, padded to | 11, 23 |",
        "Made with keras_transformer 1.2.3, tensorflow 4.5.6.",
    ],
)
def test_it_says_what_the_manifest_says(line):
    assert line in readme_of(manifest()).splitlines()


def test_every_signature_has_a_row_of_its_inputs_outputs_and_meaning():
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| (.+?) \|$", readme_of(manifest()), re.M)
    assert [name for name, *_ in rows] == list(SIGNATURES)
    for name, inputs, outputs, _ in rows:
        assert inputs == ", ".join(f"`{each}` float32 [·]" for each in INPUTS[name])
        assert outputs == "`pieces` string [·, 5], `score` float32 [·]"
    assert len({meaning for *_, meaning in rows}) == len(SIGNATURES)


def test_every_signature_has_a_row_of_its_operations():
    some = manifest(["serving_default", "score"])
    some["signatures"]["score"]["custom_ops"] = []
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \|$", readme_of(some), re.M)
    assert rows == [("serving_default", "`One`, `Other`"), ("score", "none")]


def test_ids_are_explained_where_they_are_exported():
    with_ids, without = (
        readme_of(manifest(["serving_default", *more])) for more in (["serving_ids"], [])
    )
    assert "`ids/` is the signature `serving_ids`" in with_ids
    assert "serving_ids" not in without and "`ids/`" not in without


def test_its_program_is_python_that_asks_the_default_signature():
    (program,) = re.findall(r"```python\n(.*?)```", readme_of(manifest()), re.DOTALL)
    compile(program, "README.md", "exec")
    assert 'model.signatures["serving_default"](text=' in program
