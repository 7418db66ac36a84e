import csv
import dataclasses
import gzip
import io
import json
import lzma
import os
import pathlib
import random
import re
import subprocess
import sys

import pytest
from small_corpus import PAIRS

from keras_transformer.cli import main as cli
from keras_transformer.cli.corpora import paired
from keras_transformer.corpora import cleaning as clean
from keras_transformer.corpora.cleaning import clean_corpora
from keras_transformer.corpora.translation_memory import TranslationMemory
from keras_transformer.data.pairs import PairTable
from keras_transformer.errors import InputError

pytest.importorskip("ftfy", reason="comes with the extra [clean]")


def write(folder, name, lines):
    path = folder / name
    text = "".join(line + "\n" for line in lines).encode(errors="surrogateescape")
    compress = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
    path.write_bytes(compress(text))
    return str(path)


def write_pairs(folder, name, pairs):
    sides = zip((f"{name}.en", f"{name}.de"), zip(*pairs, strict=True), strict=True)
    return tuple(write(folder, file, lines) for file, lines in sides)


def read(path):
    return path.read_text(encoding="utf-8").splitlines()


def rows_of(path):
    return [tuple(row) for row in csv.reader(read(path))]


BROKEN = ("Two dogs play in 1999.", "Zwei Hunde spielen 1998.")


@pytest.fixture(scope="module", params=[1, 2])
def cleaned(request, tmp_path_factory):
    """Two cleaned corpora, a pair of files and a table: the output and the report."""
    base = tmp_path_factory.mktemp("corpora")
    more = [*PAIRS[11:20], ("Copied text", "copied  text"), PAIRS[3]]
    tsv = write(base, "more.tsv.xz", ["\t".join(pair) for pair in more])
    corpora = [write_pairs(base, "some", [*PAIRS[:7], BROKEN, *PAIRS[7:11]]), (tsv, None)]
    return base / "out", clean_corpora(corpora, base / "out", processes=request.param)


def test_pairs_that_break_no_rule_stay_in_order_in_files_of_their_names(cleaned):
    output, _ = cleaned
    assert read(output / "some.en") == [source for source, _ in PAIRS[:11]]
    assert read(output / "some.de") == [target for _, target in PAIRS[:11]]
    assert rows_of(output / "more.csv") == PAIRS[11:20]


def test_the_report_is_in_the_output_and_names_its_files(cleaned):
    output, report = cleaned
    files = ["some.en", "some.de", "more.csv", "report.json"]
    assert sorted(path.name for path in output.iterdir()) == sorted(files)
    assert report == {"output": str(output), **json.loads((output / "report.json").read_text())}
    assert report["files"] == files
    processes = report["options"]["processes"]
    assert processes in (1, 2)
    assert report["options"] == dataclasses.asdict(clean.CleanOptions(processes=processes))


def test_the_report_counts_and_shows_what_each_rule_has_dropped(cleaned):
    _, report = cleaned
    assert report["corpora"] == [
        {
            "files": ["some.en", "some.de"],
            "pairs": 12,
            "kept": 11,
            "undone": 0,
            "dropped": {"numbers": 1},
        },
        {
            "files": ["more.csv"],
            "pairs": 11,
            "kept": 9,
            "undone": 0,
            "dropped": {"copy": 1, "duplicate": 1},
        },
    ]
    examples, (source, target) = report["examples"], BROKEN
    where = {"file": "some.en", "line": 8}
    assert examples["numbers"] == [{**where, "source": source, "target": target}]
    assert [example["line"] for example in examples["copy"] + examples["duplicate"]] == [10, 11]


@pytest.mark.parametrize("duplicates", ["near", "exact", "keep"])
def test_duplicates_are_those_that_comparing_all_pairs_finds(tmp_path, monkeypatch, duplicates):
    rng = random.Random(7)
    words = ["to", "To", "t o", "be,", "be", "or", "5", "5.0", "50"]
    text = lambda end: " ".join(rng.choices(words, k=rng.randint(1, 2))) + end  # noqa: E731
    pairs = [(text("a"), text("b")) for _ in range(700)]
    # Chunks and parts of the hashes that cut the corpus in many places.
    monkeypatch.setattr(clean, "_PAIRS_AT_ONCE", 37)
    monkeypatch.setattr(clean, "_HASHES_AT_ONCE", 101)
    corpora, out = [write_pairs(tmp_path, "x", pairs)], tmp_path / "out"
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
    assert len(expected) == 700 or 10 < len(expected) < 690


def test_pairs_with_a_side_of_a_test_set_are_dropped(tmp_path):
    pairs = [*PAIRS[:5], ("7000", "7000"), PAIRS[5]]
    test = write(tmp_path, "test.tsv", [f"{PAIRS[1][0].upper()}\tanders", "7000\t\tEin Junge"])
    held_out = [test, write(tmp_path, "test.de", ["", PAIRS[4][1].replace("ä", "a")])]
    corpora, out = [write_pairs(tmp_path, "x", pairs)], tmp_path / "out"
    report = clean_corpora(corpora, out, held_out, processes=1, without=["punctuation"])
    assert [example["line"] for example in report["examples"]["held_out"]] == [2, 5]
    assert read(out / "x.en") == [pairs[i][0] for i in (0, 2, 3, 5, 6)]


@pytest.mark.parametrize("without", [[], ["encoding"]])
def test_a_malformed_line_is_dropped_and_counted(tmp_path, without):
    lines = ["\t".join(pair) for pair in PAIRS[:6]]
    lines[0] = f"{lines[0]}\t0.93"
    lines[2:5] = PAIRS[2][0], f"{lines[3]}\udcff", f"{lines[4]}\t"
    tsv = write(tmp_path, "x.tsv", lines), None
    malformed = [("One", "\udcff"), ("A\tdog", "Ein Hund"), ("A cat", "Eine\tKatze")]
    sides = [PAIRS[0], *malformed, PAIRS[1]]
    corpora, out = [tsv, write_pairs(tmp_path, "y", sides)], tmp_path / "out"
    report = clean_corpora(corpora, out, processes=1, without=without, duplicates="keep")
    assert rows_of(out / "x.csv") == [PAIRS[1], PAIRS[5]]
    assert read(out / "y.en") == [PAIRS[0][0], PAIRS[1][0]]
    assert read(out / "y.de") == [PAIRS[0][1], PAIRS[1][1]]
    dropped = [corpus["dropped"] for corpus in report["corpora"]]
    assert dropped == [{"malformed": 3, "length": 1}, {"malformed": 3}]
    example = {"file": "x.csv", "line": 1, "source": PAIRS[0][0], "target": f"{PAIRS[0][1]}\t0.93"}
    assert report["examples"]["malformed"][0] == example


@pytest.mark.parametrize(("name", "separator"), [("x.csv", "\t"), ("x.csv.gz", ",")])
def test_a_table_of_a_spreadsheet_has_its_cells(tmp_path, name, separator):
    """A cell with a line break is one sentence, and marks that were doubled are single."""
    said = ('"A dog," he said.', '"Ein Hund", sagte er.')
    broken = tuple(side.replace(" ", "\n", 1) for side in PAIRS[0])
    table = io.StringIO()
    rows = [("source", "target"), broken, said, PAIRS[1]]
    csv.writer(table, delimiter=separator, lineterminator="\n").writerows(rows)
    path, out = write(tmp_path, name, table.getvalue().splitlines()), tmp_path / "out"
    with pytest.raises(InputError, match=r"x.*, line 1: .*`header=True`"):
        clean_corpora([(path, None)], out, processes=1)
    report = clean_corpora([(PairTable(path, header=True), None)], out, processes=1)
    assert rows_of(out / "x.csv") == [PAIRS[0], said, PAIRS[1]]
    assert report["corpora"][0]["dropped"] == {}
    held_out = write(tmp_path, "test.csv", [f'"{said[0].replace(chr(34), chr(34) * 2)}",x'])
    report = clean_corpora([(out / "x.csv", None)], tmp_path / "b", [held_out], processes=1)
    assert report["corpora"][0]["dropped"] == {"held_out": 1}


def test_nothing_has_a_final_name_after_a_failure_and_nothing_is_overwritten_unasked(tmp_path):
    (tmp_path / "a").mkdir()
    corpora, output = [write_pairs(tmp_path, "x", PAIRS)], tmp_path / "out"
    broken = write_pairs(tmp_path / "a", "y", [*PAIRS, ("One", "\udcff")])
    scored = write(tmp_path / "a", "scored.tsv", SCORED)
    for wrong, message in (
        ([(corpora[0][0], broken[1])], "x.en with 32 lines, .*y.de with 33 lines"),
        ([*corpora, (scored, None)], "scored.tsv, line 1: expected exactly two columns"),
        ([*corpora, write_pairs(tmp_path / "a", "x", PAIRS)], "which must differ, .* x.en."),
    ):
        with pytest.raises(InputError, match=message):
            clean_corpora(wrong, output, processes=1)
        assert not list(tmp_path.glob("*out*"))
    clean_corpora(corpora, output, processes=1)
    with pytest.raises(InputError, match="out: exists already. Give --overwrite"):
        clean_corpora(corpora, output, processes=1)
    clean_corpora(corpora, output, overwrite=True, processes=1)
    (output / "notes").write_text("mine")
    with pytest.raises(InputError, match="a file that this command did not make: notes"):
        clean_corpora(corpora, output, overwrite=True, processes=1)


ESCAPED = [("Don&apos;t say &quot;no&quot;.", 'Don\'t say "no".', "Sag nicht nein.")]
ESCAPED += [("A stone &amp;amp; a tile.", "A stone & a tile.", "Ein Stein und eine Fliese.")]
ESCAPED += [("A &lt;b&gt;dog&lt;/b&gt; runs.", "A <b>dog</b> runs.", "Ein <b>Hund</b> läuft.")]
ESCAPED += [("AT&T has R&D; here.", "AT&T has R&D; here.", "AT&T hat hier R&D;.")]


def test_escapes_are_undone_and_counted_but_not_where_tags_are_kept(tmp_path):
    corpus = write_pairs(tmp_path, "x", [(source, target) for source, _, target in ESCAPED])
    held_out = [write(tmp_path, "test", ["A stone &amp; a tile."])]
    corpora, out = [corpus], tmp_path / "out"
    report = clean_corpora(corpora, out, processes=1)
    assert read(out / "x.en") == [undone for _, undone, _ in ESCAPED]
    assert report["corpora"][0] | {"files": []} == {
        **{"files": [], "pairs": 4, "kept": 4, "undone": 3, "dropped": {}}
    }
    report = clean_corpora(corpora, out, held_out, overwrite=True, processes=1)
    assert report["corpora"][0] | {"files": []} == {
        **{"files": [], "pairs": 4, "kept": 3, "undone": 2, "dropped": {"held_out": 1}}
    }
    report = clean_corpora(corpora, out, overwrite=True, processes=1, escapes="keep")
    assert read(out / "x.en") == [source for source, *_ in ESCAPED]
    variants = (
        '<tuv lang="en"><seg>a &amp;amp; b</seg></tuv>',
        '<tuv lang="de"><seg>c</seg></tuv>',
    )
    unit = f"<tmx><body><tu>{''.join(variants)}</tu></body></tmx>"
    (tmp_path / "a.tmx").write_text(unit, encoding="utf-8")
    for tags, expected in (("keep", "a &amp;amp; b,c"), ("drop", "a & b,c")):
        memory = TranslationMemory(tmp_path / "a.tmx", "en-de", tags), None
        clean_corpora([memory], out, overwrite=True, processes=1, without=["ratio"])
        assert read(out / "a.csv") == [expected]


def test_paths_of_bytes_that_are_not_utf8_are_in_the_report(tmp_path, capsys):
    name, output = (os.fsdecode(name + b"\xff") for name in (b"a", b"out"))
    sides = zip(*PAIRS[:3], strict=True)
    paths = [write(tmp_path, letter + name, next(sides)) for letter in "xy"]
    output = str(tmp_path / output)
    assert cli.run(["clean", *paths, "--output", output, "--processes", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["output"] == output and report["corpora"][0]["kept"] == 3
    saved = json.loads((pathlib.Path(output) / "report.json").read_text("utf-8"))
    assert saved["corpora"] == report["corpora"] and report["files"][0] == f"x{name}"


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


@pytest.mark.parametrize("side", [0, 1])
def test_a_pipe_is_refused_before_it_is_read(tmp_path, side):
    pipe, end = os.pipe()
    os.close(end)
    corpus = list(write_pairs(tmp_path, "x", PAIRS))
    corpus[side] = f"/dev/fd/{pipe}"
    with pytest.raises(InputError, match=r"fd/\d+: expected a file, which is read several times"):
        clean_corpora([corpus], tmp_path / "out", processes=1)
    os.close(pipe)
    assert not (tmp_path / "out").exists()


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


HOWTO = pathlib.Path(__file__).parents[2] / "docs" / "howto"
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
