import json
import os
import shutil
import sys

import pytest

from keras_transformer import Translation
from keras_transformer.base.errors import InputError
from keras_transformer.cli.main import run

ONE_SEGMENT = dict.fromkeys(("split_sentences", "copy_symbols", "keep_case"), False)


@pytest.fixture
def files(tmp_path):
    """The options of two equal files."""
    (tmp_path / "en").write_text("A B C D\n")
    return ["--source", str(tmp_path / "en"), "--reference", str(tmp_path / "en")]


@pytest.mark.parametrize("is_read", [True, False])
def test_a_person_reads_what_takes_long_and_a_program_does_not(call, files, monkeypatch, is_read):
    monkeypatch.setattr("keras_transformer.base.errors.is_terminal", lambda stream: is_read)
    for options, line in (([], "translating"), (["--perplexity"], "scoring")):
        code, _, err, _ = call("evaluate", *files, *options)
        assert (code, err) == (0, f"{line} 1 texts\n" * is_read)


def test_a_translation_memory_has_both_sides(call, tmp_path):
    variants = (f'<tuv xml:lang="{code}"><seg>A B C D</seg></tuv>' for code in ("en", "de"))
    (tmp_path / "a.tmx").write_text(f"<tmx><tu>{''.join(variants)}</tu></tmx>")
    source = ["--source", str(tmp_path / "a.tmx")]
    code, out, _, _ = call("evaluate", *source, "--languages", "en-de")
    assert code == 0 and json.loads(out)["bleu"] == 100.0
    code, out, err, _ = call("evaluate", *source)
    assert (code, out) == (2, "") and "a translation memory needs `--languages`" in err


def test_the_tokenizer_of_bleu_may_be_chosen(call, tmp_path):
    (tmp_path / "zh").write_text("一个男人骑着自行车。\n", encoding="utf-8")
    files = ["--source", str(tmp_path / "zh"), "--reference", str(tmp_path / "zh")]
    for options, tokenizer in (([], "zh"), (["--tokenize", "char"], "char")):
        code, out, err, asked = call("evaluate", *files, *options)
        assert (code, err, asked) == (0, "", [{**ONE_SEGMENT, "long_input": "split"}])
        assert json.loads(out)["bleu"] == 100.0
        assert f"|tok:{tokenizer}|" in json.loads(out)["signatures"]["bleu"]
    code, out, err, _ = call("evaluate", *files, "--tokenize", "13a")
    assert (code, json.loads(out)["bleu"]) == (0, 0.0) and len(err.splitlines()) == 1
    assert err.startswith("keras-transformer: BLEU is 0.0, but chrF is 100.0")


@pytest.mark.parametrize("output", ["no/folder/out.txt", "."])
def test_an_unwritable_file_is_named_before_anything_is_translated(call, tmp_path, files, output):
    code, out, err, asked = call("evaluate", *files, "--save", str(tmp_path / output))
    assert (code, out, asked) == (2, "", [])
    assert err.startswith(f"keras-transformer: {tmp_path / output}: cannot be written: ")
    assert [path.name for path in tmp_path.iterdir()] == ["en"]


@pytest.fixture
def lost_file(recorder, tmp_path, monkeypatch):
    """A path of a file whose folder is removed during the translation."""
    path = tmp_path / "out" / "de"

    def translate(texts, **options):
        shutil.rmtree(path.parent)
        return [Translation(text, -1.0) for text in texts]

    monkeypatch.setattr(recorder, "translate", translate)
    path.parent.mkdir()
    return str(path)


def test_scores_are_printed_though_the_file_is_lost(call, files, lost_file):
    code, out, err, _ = call("evaluate", *files, "--save", lost_file)
    assert (code, json.loads(out)["bleu"]) == (2, 100.0)
    assert err.startswith(f"keras-transformer: {lost_file}: cannot be written: No such file")


def test_a_mistake_stays_the_exit_code_if_nobody_reads_the_scores(monkeypatch, files, lost_file):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stdout, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", stdout)
        assert run(["evaluate", *files, "--save", lost_file, "--model", "run"]) == 2


def test_nothing_is_saved_where_nothing_is_translated(call, tmp_path, files):
    code, out, err, _ = call("evaluate", *files, "--perplexity", "--save", str(tmp_path / "de"))
    assert (code, out) == (2, "") and "`--save` has no effect on perplexity" in err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], [None, -1.0, None, None, -1.0]),
        # A word and the end of the sentence share the three nats of the fake model.
        (["--tsv"], ["null", "1.5000", "null", "null", "1.5000"]),
    ],
)
def test_pairs_of_too_many_tokens_have_null_and_scoring_continues(
    call, tmp_path, options, expected
):
    (tmp_path / "en").write_text("LONG\nb\nc\nLONG d\ne\n")
    (tmp_path / "de").write_text("A\nB\nLONG C\nLONG\nE\n")
    files = ["--source", str(tmp_path / "en"), "--target", str(tmp_path / "de")]
    code, out, err, _ = call("score", *files, *options)
    lines = out.splitlines()
    assert code == 0
    if options:
        assert lines == [
            f"{source}\t{target}\t{value}"
            for source, target, value in zip(
                ["LONG", "b", "c", "LONG d", "e"],
                ["A", "B", "LONG C", "LONG", "E"],
                expected,
                strict=True,
            )
        ]
    else:
        rows = [json.loads(line) for line in lines]
        assert [row["score"] for row in rows] == expected
        assert [row["log_probability"] is None for row in rows] == [x is None for x in expected]
        assert [row["line"] for row in rows] == [1, 2, 3, 4, 5]
    assert err.splitlines() == [
        f"keras-transformer: {tmp_path}/en and {tmp_path}/de, lines 1 to 5: 3 of 5 pairs have no "
        "score. Line 1: At most 9 tokens. Received: 'LONG'"
    ]


def test_scoring_ends_at_another_fault_with_its_line(call, recorder, tmp_path, monkeypatch):
    score = recorder.score

    def refuse(sources, targets, **options):
        results = score(sources, targets, **options)
        if "B" in targets:
            raise InputError("No B.", targets.index("B"))
        return results

    monkeypatch.setattr(recorder, "score", refuse)
    (tmp_path / "en").write_text("LONG\na\nb\nc\n")
    (tmp_path / "de").write_text("X\nA\nB\nC\n")
    files = ["--source", str(tmp_path / "en"), "--target", str(tmp_path / "de")]
    code, out, err, _ = call("score", *files)
    assert code == 2
    assert [json.loads(line)["score"] for line in out.splitlines()] == [None, -1.0]
    assert err.splitlines()[-1].endswith(f"en and {tmp_path}/de, line 3: No B.")


@pytest.mark.parametrize(
    "options",
    [
        "--text a",
        "--output new",
        "--beam-size 2",
        "--from en --to de",
        "--output new --to de",
        "--text a --pairs b c",
    ],
)
def test_options_of_a_sentence_need_a_sentence_and_a_folder(call, options):
    code, out, err, _ = call("inspect", *options.split())
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("keras-transformer: --text and --output need each other")
    received = {flag for flag in options.split() if flag.startswith("--")}
    assert {*line.removesuffix(".").partition("Received: ")[2].split(", ")} == received
