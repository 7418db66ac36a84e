"""Corpora in, corpora without the pairs that break a rule out, and a report that says why."""

import csv
import dataclasses
import gzip
import json
import lzma
import os
import pathlib
import re
import shutil
import subprocess
import sys
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_corpus import PAIRS

from keras_transformer.base.errors import InputError
from keras_transformer.cli import main as cli
from keras_transformer.cli.corpora import paired
from keras_transformer.data.pairs import PairTable
from keras_transformer.extras.corpora import cleaning as clean
from keras_transformer.extras.corpora.cleaning import clean_corpora

pytest.importorskip("ftfy", reason="comes with the extra [clean]")


def write(folder, name, lines):
    path = folder / name
    text = "".join(line + "\n" for line in lines).encode(errors="surrogateescape")
    compress = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
    path.write_bytes(compress(text))
    return str(path)


def sides(name, pairs):
    """Lines of the two files of pairs."""
    return dict(zip((f"{name}.en", f"{name}.de"), map(list, zip(*pairs, strict=True)), strict=True))


def write_pairs(folder, name, pairs):
    return tuple(write(folder, file, lines) for file, lines in sides(name, pairs).items())


def read(path):
    return path.read_text(encoding="utf-8").splitlines()


def content_of(path):
    """Lines of a file, or rows of a table."""
    return [tuple(row) for row in csv.reader(read(path))] if path.suffix == ".csv" else read(path)


BROKEN = ("Two dogs play in 1999.", "Zwei Hunde spielen 1998.")


@pytest.mark.parametrize("processes", [1, 2])
def test_pairs_that_break_no_rule_stay_in_order_and_the_report_shows_the_others(
    tmp_path, processes
):
    more = [*PAIRS[11:20], ("Copied text", "copied  text"), PAIRS[3]]
    tsv = write(tmp_path, "more.tsv.xz", ["\t".join(pair) for pair in more])
    corpora = [write_pairs(tmp_path, "some", [*PAIRS[:7], BROKEN, *PAIRS[7:11]]), (tsv, None)]
    output = tmp_path / "out"
    report = clean_corpora(corpora, output, processes=processes)
    assert {path.name: content_of(path) for path in output.glob("*.[!j]*")} == {
        **sides("some", PAIRS[:11]),
        "more.csv": PAIRS[11:20],
    }
    assert report == {"output": str(output), **json.loads((output / "report.json").read_text())}
    assert report["files"] == ["some.en", "some.de", "more.csv", "report.json"]
    assert {*report["files"]} == {path.name for path in output.iterdir()}
    assert report["options"] == dataclasses.asdict(clean.CleanOptions(processes=processes))
    assert report["corpora"] == [
        {"files": ["some.en", "some.de"], "pairs": 12, "kept": 11, "undone": 0}
        | {"dropped": {"numbers": 1}},
        {"files": ["more.csv"], "pairs": 11, "kept": 9, "undone": 0}
        | {"dropped": {"copy": 1, "duplicate": 1}},
    ]
    examples, (source, target) = report["examples"], BROKEN
    where = {"file": "some.en", "line": 8}
    assert examples["numbers"] == [{**where, "source": source, "target": target}]
    assert [example["line"] for example in examples["copy"] + examples["duplicate"]] == [10, 11]


ROWS = ["\t".join(pair) for pair in PAIRS[:6]]
MALFORMED = [f"{ROWS[0]}\t0.93", ROWS[1], PAIRS[2][0], f"{ROWS[3]}\udcff", f"{ROWS[4]}\t", ROWS[5]]
MALFORMED_PAIRS = [("One", "\udcff"), ("A\tdog", "Ein Hund"), ("A cat", "Eine\tKatze")]
# A cell with a line break is one sentence, and marks that were doubled are single.
SHEET = {
    "source,target": ("source", "target"),
    '"A dog\nruns here.","Ein Hund\nläuft hier."': ("A dog runs here.", "Ein Hund läuft hier."),
    '"""A dog,"" he said.","""Ein Hund"", er."': ('"A dog," he said.', '"Ein Hund", er.'),
    "A cat sleeps.,Eine Katze schläft.": ("A cat sleeps.", "Eine Katze schläft."),
}
_, *IN_SHEET = SHEET.values()
ESCAPED = [("Don&apos;t say &quot;no&quot;.", 'Don\'t say "no".', "Sag nicht nein.")]
ESCAPED += [("A stone &amp;amp; a tile.", "A stone & a tile.", "Ein Stein und eine Fliese.")]
ESCAPED += [("A &lt;b&gt;dog&lt;/b&gt; runs.", "A <b>dog</b> runs.", "Ein <b>Hund</b> läuft.")]
ESCAPED += [("AT&T has R&D; here.", "AT&T has R&D; here.", "AT&T hat hier R&D;.")]
OF_ESCAPES = sides("x", [(escaped, target) for escaped, _, target in ESCAPED])
UNDONE = [(text, target) for _, text, target in ESCAPED]
UNIT = '<tu><tuv lang="en"><seg>{}</seg></tuv><tuv lang="de"><seg>{}</seg></tuv></tu>'
UNITS = UNIT.format("a &amp;amp; b", "c"), UNIT.format("A&#x1F;", "B")
MEMORY = ["<tmx><body>", *UNITS, "</body></tmx>"]
NOT_UTF8 = os.fsdecode(b"x\xff")
# Files with their lines; arguments; the cleaned files; pairs that were dropped, and `undone`.
CASES = {
    "lines of test sets": (
        sides("x", [*PAIRS[:5], ("7000", "7000"), PAIRS[5]])
        | {"test.tsv": [f"{PAIRS[1][0].upper()}\tanders", "7000\t\tEin Junge"]}
        | {"test.de": ["", f"x\t{PAIRS[4][1].replace('ä', 'a')}"]},
        "x.en x.de --held-out test.tsv test.de --without punctuation",
        sides("x", [PAIRS[0], *PAIRS[2:4], ("7000", "7000"), PAIRS[5]]),
        {"held_out": 2},
    ),
    "a repetition of a pair that another rule drops": (
        {"x.en": ["Two dogs play?", "Two dogs play."], "x.de": ["Zwei Hunde spielen."] * 2},
        "x.en x.de",
        {"x.en": ["Two dogs play."], "x.de": ["Zwei Hunde spielen."]},
        {"punctuation": 1},
    ),
    "malformed rows": (
        {"x.tsv": MALFORMED},
        "x.tsv --duplicates keep",
        {"x.csv": [PAIRS[1], PAIRS[5]]},
        {"malformed": 3, "length": 1},
    ),
    "malformed pairs": (
        sides("x", [PAIRS[0], *MALFORMED_PAIRS, PAIRS[1]]),
        "x.en x.de --without encoding",
        sides("x", PAIRS[:2]),
        {"malformed": 3},
    ),
    "a spreadsheet": (
        {"x.csv.gz": SHEET},
        "x.csv.gz --header",
        {"x.csv": IN_SHEET},
        {},
    ),
    "a spreadsheet with tabs": (
        {"x.csv": ["\t".join(f'"{cell}"' for cell in row) for row in IN_SHEET[::2]]},
        "x.csv --no-header",
        {"x.csv": IN_SHEET[::2]},
        {},
    ),
    "cells of a test set": (
        {"x.csv": [*SHEET][1:], "test.csv": ['"""A dog,"" he said.",x']},
        "x.csv --no-header --held-out test.csv",
        {"x.csv": IN_SHEET[::2]},
        {"held_out": 1},
    ),
    "escapes": (OF_ESCAPES, "x.en x.de", sides("x", UNDONE), {"undone": 3}),
    "escapes of a test set": (
        {**OF_ESCAPES, "test": ["A stone &amp; a tile."]},
        "x.en x.de --held-out test",
        sides("x", [UNDONE[0], *UNDONE[2:]]),
        {"undone": 2, "held_out": 1},
    ),
    "escapes that stay": (OF_ESCAPES, "x.en x.de --set escapes=keep", OF_ESCAPES, {}),
    "a memory": (
        {"a.tmx": MEMORY},
        "a.tmx --languages en-de --without ratio",
        {"a.csv": [("a & b", "c")]},
        {"undone": 1, "malformed": 1},
    ),
    "a memory whose tags stay": (
        {"a.tmx": MEMORY},
        "a.tmx --languages en-de --inline-tags keep --without ratio",
        {"a.csv": [("a &amp;amp; b", "c")]},
        {"malformed": 1},
    ),
    "names that are not UTF-8": (
        {NOT_UTF8: [PAIRS[0][0]], "y": [PAIRS[0][1]]},
        f"{NOT_UTF8} y",
        {NOT_UTF8: [PAIRS[0][0]], "y": [PAIRS[0][1]]},
        {},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_lines_become_the_lines_that_break_no_rule(tmp_path, monkeypatch, capsys, case):
    files, arguments, expected, counts = CASES[case]
    monkeypatch.chdir(tmp_path)
    for name, lines in files.items():
        write(tmp_path, name, lines)
    output = tmp_path / (f"{NOT_UTF8}.d" if NOT_UTF8 in files else "out")
    options = ["--output", output.name, "--processes", "1", "--json"]
    assert cli.run(["clean", *arguments.split(), *options]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == {"output": output.name, **json.loads((output / "report.json").read_text())}
    assert {name: content_of(output / name) for name in report["files"][:-1]} == expected
    (corpus,) = report["corpora"]
    assert {"undone": 0, **counts} == {**corpus["dropped"], "undone": corpus["undone"]}
    if case == "malformed rows":
        source, target = PAIRS[0]
        example = {"file": "x.tsv", "line": 1, "source": source, "target": f"{target}\t0.93"}
        assert report["examples"]["malformed"][0] == example


TEXTS = st.lists(
    st.sampled_from(["to", "To", "t o", "be,", "be", "or", "5", "5.0", "50"]), min_size=1
)
TEXTS = TEXTS.map(lambda words: " ".join(words[:2]))


@settings(max_examples=40)
@given(
    pairs=st.lists(st.tuples(TEXTS.map("{}a".format), TEXTS.map("{}b".format)), min_size=1),
    duplicates=st.sampled_from(["near", "exact", "keep"]),
)
def test_duplicates_are_those_that_comparing_all_pairs_finds(tmp_path_factory, pairs, duplicates):
    folder = tmp_path_factory.mktemp("x")
    corpora, out = [write_pairs(folder, "x", pairs)], folder / "out"
    # Chunks and parts of the hashes that cut the corpus in many places.
    with mock.patch.multiple(clean, _PAIRS_AT_ONCE=3, _HASHES_AT_ONCE=5):
        options = dict(duplicates=duplicates, without=["numbers", "punctuation"])
        clean_corpora(corpora, out, processes=1, **options)

    def shape(text):
        if duplicates != "near":
            return text
        return re.sub(r"[^a-z]", "", text.lower()), re.findall(r"\d+", text)

    expected = []
    for pair in pairs:
        alike = any(tuple(map(shape, pair)) == tuple(map(shape, other)) for other in expected)
        if duplicates == "keep" or not alike:
            expected.append(pair)
    assert list(zip(read(out / "x.en"), read(out / "x.de"), strict=True)) == expected
    shutil.rmtree(folder)


def test_nothing_has_a_final_name_after_a_failure_and_nothing_is_overwritten_unasked(tmp_path):
    (tmp_path / "a").mkdir()
    corpora, output = [write_pairs(tmp_path, "x", PAIRS)], tmp_path / "out"
    broken = write_pairs(tmp_path / "a", "y", [*PAIRS, ("One", "\udcff")])
    scored = write(tmp_path / "a", "scored.tsv", SCORED)
    sheet = write(tmp_path / "a", "sheet.csv", SHEET)
    pipe, end = os.pipe()
    os.close(end)
    of_pipe = f"/dev/fd/{pipe}"
    for wrong, message in (
        ([(corpora[0][0], broken[1])], "x.en with 32 lines, .*y.de with 33 lines"),
        ([*corpora, (scored, None)], "scored.tsv, line 1: expected exactly two columns"),
        ([*corpora, write_pairs(tmp_path / "a", "x", PAIRS)], "which must differ, .* x.en."),
        ([(sheet, None)], "sheet.csv, line 1: .*`header=True`"),
        ([(of_pipe, broken[1])], r"fd/\d+: expected a file, which is read several times"),
        ([(broken[0], of_pipe)], r"fd/\d+: expected a file, which is read several times"),
    ):
        with pytest.raises(InputError, match=message):
            clean_corpora(wrong, output, processes=1)
        assert not list(tmp_path.glob("*out*"))
    os.close(pipe)
    clean_corpora(corpora, output, processes=1)
    with pytest.raises(InputError, match="out: exists already. Give --overwrite"):
        clean_corpora(corpora, output, processes=1)
    clean_corpora(corpora, output, overwrite=True, processes=1)
    (output / "notes").write_text("mine")
    with pytest.raises(InputError, match="a file that this command did not make: notes"):
        clean_corpora(corpora, output, overwrite=True, processes=1)


def report_of(*dropped):
    rows = [
        {"pairs": sum(counts.values()) + 1000, "kept": 1000, "dropped": counts}
        for counts in dropped
    ]
    return {"output": "out", "corpora": rows}


def test_the_summary_counts_all_corpora_with_the_hardest_rule_first():
    shown = clean.summary(report_of({"copy": 25, "urls": 60}, {"copy": 75, "held_out": 340}))
    assert shown.splitlines() == [
        "kept      2,000   80.0% of 2,500 pairs",
        "held_out    340   13.6%",
        "copy        100    4.0%",
        "urls         60    2.4%",
        "Examples of dropped pairs: out/report.json",
    ]


@pytest.mark.parametrize("count", [0, 8, 9, 12])
def test_the_summary_has_at_most_ten_lines_that_count_each_pair(count):
    report = report_of({f"rule{i}": 2**i for i in range(count)})
    *lines, last = clean.summary(report).splitlines()
    if not count:  # Nothing was dropped, so there are no examples.
        lines, last = [last], ""
    assert len(lines) == min(count, 8) + 1
    shown = [int(re.search(r"([\d,]+) +[\d.]+%", line)[1].replace(",", "")) for line in lines]
    assert sum(shown) == report["corpora"][0]["pairs"]
    assert ("other rules" in lines[-1]) == (count > 8)


def test_the_command_ends_with_the_summary_and_writes_json_on_request(tmp_path, capsys):
    paths = write_pairs(tmp_path, "x", [*PAIRS[:3], PAIRS[0]])
    command = ["clean", *map(str, paths), "--output", str(tmp_path / "out"), "--processes", "1"]
    assert cli.run(command) == 0
    output = capsys.readouterr()
    assert output.out == f"{tmp_path}/out\n"
    *_, kept, dropped, last = output.err.splitlines()
    assert [kept, dropped] == ["kept       3   75.0% of 4 pairs", "duplicate  1   25.0%"]
    # The path can be opened where the command was given.
    assert pathlib.Path(last.removeprefix("Examples of dropped pairs: ")).samefile(
        tmp_path / "out/report.json"
    )
    assert cli.run([*command, "--overwrite", "--json"]) == 0
    written, saved = capsys.readouterr(), json.loads((tmp_path / "out/report.json").read_text())
    assert json.loads(written.out) == {"output": f"{tmp_path}/out", **saved}
    assert written.err == output.err


def test_the_command_pairs_files_and_passes_options_on(tmp_path, monkeypatch, capsys):
    asked = []

    def record(corpora, output, progress, **options):
        asked.append((corpora, output, options))
        return {"output": output, "corpora": []}

    monkeypatch.setattr(clean, "clean_corpora", record)
    arguments = ["a.en", "a.de", "b.tsv.zst", "--output", "out", "--without", "numbers", "copy"]
    arguments += ["--set", "source_scripts=[Han, Hiragana]", "--set", "max_ratio=2", "--overwrite"]
    assert cli.run(["clean", *arguments, "--held-out", "t.en"]) == 0
    assert capsys.readouterr().out == "out\n"
    options = {"overwrite": True, "without": ["numbers", "copy"], "max_ratio": 2.0}
    options |= {"source_scripts": ["Han", "Hiragana"], "held_out": ["t.en"]}
    assert asked == [([("a.en", "a.de"), ("b.tsv.zst", None)], "out", options)]
    with pytest.raises(InputError, match="A source needs its target .* Received: c.en last."):
        paired(["a.tsv", "b.en", "b.de", "c.en"])
    assert paired(["a.csv", "b.en", "b.de"], True) == [
        (PairTable("a.csv", True), None),
        ("b.en", "b.de"),
    ]
    with pytest.raises(InputError, match="`header` belongs to a table"):
        paired(["a.en", "a.de"], header=False)


HOWTO = pathlib.Path(__file__).parents[3] / "docs" / "howto"
BEST = ["e,f", "g,h"]
SCORED = ["e\tf\t0.5", "g\th\t0.93"]
AHEAD, BACK = ["a\tb\t4", "g\th\t1", "e\tf\t1"], ["b\ta\t2", "h\tg\t1.3333", "f\te\t1"]


PROGRAMS = [("clean", "zcat", {"scored.tsv.gz": ["a b\tc d\t0.4", *SCORED]}, "bicleaner")]
PROGRAMS += [("clean", "paste opus", {"opus.en": "aeg", "opus.de": "cfh"}, "opusfilter")]
# Dual cross-entropies of 5, 1.5 and 1.
PROGRAMS += [("clean", "paste ahead", {"ahead.tsv": AHEAD, "back.tsv": BACK}, "best")]
PROGRAMS += [("synthesize", "paste", {"synthetic/mono.de.csv": ["a,c", *BEST]}, "best")]


@pytest.mark.slow
@pytest.mark.parametrize(("page", "mark", "files", "result"), PROGRAMS)
def test_a_pages_program_reads_the_scores_of_others(tmp_path, page, mark, files, result):
    blocks = re.findall(r"```bash\n(.*?)```", (HOWTO / f"{page}.md").read_text(), re.DOTALL)
    (block,) = [code for code in blocks if code.startswith(mark)]
    (tmp_path / "synthetic").mkdir()
    for name, lines in files.items():
        write(tmp_path, name, lines)
    scores = [[0.9, 0.2], [0.8, 0.9], [1.0, 0.6]]
    write(tmp_path, "scores.jsonl", [json.dumps({"LanguageIDFilter": pair}) for pair in scores])
    write(tmp_path, "synthetic/mono.de.csv.scores", ["-10.7000", "-0.0100", "-0.2000"])
    python = f"PATH={pathlib.Path(sys.executable).parent}:$PATH\n"
    program = python + block.partition("keras-transformer")[0]
    subprocess.run(["bash", "-ec", program], cwd=tmp_path, check=True)
    if page == "synthesize":
        assert read(tmp_path / f"{result}.csv") == BEST
    else:
        sides = (read(tmp_path / f"{result}.{language}") for language in ("en", "de"))
        assert list(map(",".join, zip(*sides, strict=True))) == BEST
