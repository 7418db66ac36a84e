import io
import json

import pytest

from keras_transformer.errors import InputError
from keras_transformer.streaming import Progress, score_lines


@pytest.fixture
def files(tmp_path):
    def files(sources, targets):
        for name, texts in (("source", sources), ("target", targets)):
            text = "".join(text + "\n" for text in texts)
            (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / "source", tmp_path / "target"

    return files


def test_each_pair_is_a_json_object(translator, files):
    output, told = io.StringIO(), io.StringIO()
    with Progress(file=told) as progress:
        paths = files(["a b", "c"], ["Ä B", "C"])
        score_lines(translator, *paths, output, progress=progress, alignment=True)
    first, second = map(json.loads, output.getvalue().splitlines())
    assert first == {
        "line": 1,
        "source": "a b",
        "target": "Ä B",
        "score": -0.5,
        "log_probability": -0.75,
        "tokens": ["Ä", "B"],
        "token_log_probabilities": [-0.25, -0.25],
        "alignment": [[0.1235]],
        "source_tokens": ["a", "b"],
    }
    assert (second["line"], second["target"]) == (2, "C")
    assert "2 sentences" in told.getvalue()


def test_many_pairs_go_in_chunks(translator, files):
    texts = [str(i) for i in range(1500)]
    output = io.StringIO()
    score_lines(translator, *files(texts, texts), output)
    assert [json.loads(line)["line"] for line in output.getvalue().splitlines()] == list(
        range(1, 1501)
    )
    assert [len(sources) for sources, _ in translator.calls] == [0, 1024, 476]


def test_a_line_at_fault_is_named_with_its_files(translator, files):
    output = io.StringIO()
    with pytest.raises(InputError, match="source and .*target, line 3: Each must be short"):
        score_lines(translator, *files("abcd", ["A", "B", "LONG", "D"]), output)
    assert len(output.getvalue().splitlines()) == 2


def test_files_that_are_not_aligned_are_refused(translator, files):
    with pytest.raises(InputError, match="same number of lines"):
        score_lines(translator, *files("ab", "A"), io.StringIO())
