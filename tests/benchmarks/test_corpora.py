"""Figures of `clean`, `loader` and `compilations`, of texts that the programs make."""

import collections
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from jax_processes import jax_environment
from small_corpus import PAIRS

from benchmarks import clean, compilations, loader
from keras_transformer.base.compilation_cache import VARIABLE

SPANISH = ["Dos perros juegan en la nieve cerca de la casa.", "Un hombre pinta la pared de blanco."]
UNFAIR = ("A dog sleeps in the house since 1969.", "Ein Hund schläft schon lange im Haus.")


def test_half_of_the_pairs_are_damaged_each_by_its_kind_and_the_others_are_left():
    pairs = [(f"{en} {number}", f"{de} {number}") for number in range(60) for en, de in PAIRS]
    counts = collections.Counter()
    for pair, (damaged, kind) in zip(pairs, clean.damage(pairs, PAIRS, SPANISH), strict=True):
        counts[kind] += 1
        source, target = damaged
        assert (damaged == pair) is (kind is None)
        assert (source == target) is (kind == "copy of the source")
        assert (target in SPANISH) is (kind == "target in another language")
        assert (damaged in PAIRS) is (kind == "sentence of the test set")
        assert ("www." in source) is (kind == "URL on one side") and "www." not in target
        assert ("SchÃ¶n" in target) is (kind == "UTF-8 read as Latin-1")
        assert source.isupper() is (kind == "near-duplicate")
    assert 900 < counts.pop(None) < 1020
    assert len(counts) == 11 and all(60 < count < 120 for count in counts.values())


def test_good_pairs_that_are_removed_are_counted_by_their_rule(tmp_path, monkeypatch, capsys):
    for package in ("ftfy", "py3langid"):
        pytest.importorskip(package, reason="comes with the extra [clean]")

    def damage(pairs, test_pairs, others):
        assert pairs == [*PAIRS[:10], UNFAIR] and test_pairs == PAIRS[30:] and others == SPANISH
        for index, (source, target) in enumerate(pairs):
            if index % 2:
                yield (source, source if index < 6 else target), "copy"
            else:
                yield (source, target), None

    monkeypatch.setattr(clean, "damage", damage)
    near = (PAIRS[3][0].upper(), PAIRS[3][1])
    corpus = zip(*[*PAIRS[:10], near, PAIRS[31], UNFAIR], strict=True)
    contents = *corpus, *zip(*PAIRS[30:], strict=True), [*SPANISH, "No."]
    for name, lines in zip(("en", "de", "test.en", "test.de", "es"), contents, strict=True):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    command = "--source en --target de --other es --test test.en test.de --languages en de"
    monkeypatch.chdir(tmp_path)
    clean.main([*command.split(), "--processes", "1"])
    captured = capsys.readouterr()
    expected = {"good_pairs": 6, "removed_good_pairs": 1, "damaged_pairs": 5}
    expected |= {"removed_good_pairs_by_rule": {"numbers": 1}, "removed_damaged_pairs": 3}
    expected |= {"recall": 0.6, "precision": 0.75, "removed_by_damage": {"copy": 0.6}}
    expected["examples_of_removed_good_pairs"] = {"numbers": [list(UNFAIR)]}
    assert json.loads(captured.out) == expected
    assert "| copy | 60.0% |" in captured.err


@pytest.fixture
def load(clock, tmp_path, monkeypatch, capsys):
    """`load(command, *words)`: the report of the loader, whose vocabularies are small here."""
    recipe = loader._recipe
    small = lambda *rest: recipe(*rest[:3], rest[3] | {"vocabulary_size": 100})  # noqa: E731
    monkeypatch.setattr(loader, "_recipe", small)
    monkeypatch.setattr(loader, "_WORDS", 100)
    clock(loader)

    def load(command, *words):
        loader.main([command, "--folder", str(tmp_path), *words])
        return json.loads(capsys.readouterr().out)

    return load


@pytest.mark.tensorflow
def test_the_loader_reads_all_pairs_of_three_corpora(load, tmp_path, monkeypatch):
    counts, count_nonzero = [], np.count_nonzero

    def counted(first_tokens):
        counts.append(count_nonzero(first_tokens))
        return counts[-1]

    monkeypatch.setattr(np, "count_nonzero", counted)
    report = load("read", "--lines", "7000", "--corpora", "3", "--batches", "3")
    sizes = [len((tmp_path / f"train{i}.a").read_text().splitlines()) for i in ("", 1, 2)]
    assert sizes == [1000, 2000, 4000]
    # A sentence has at least three tokens and an end on both sides.
    assert 0 < report["pairs"] <= 7000 and report["non_padding_tokens"] > 8 * report["pairs"]
    imports, last = report["peak_gib"]["imports"], report["peak_gib"]["epoch 2"]
    assert 0.05 < imports["held"] <= last["held"] <= last["resident"]
    # Stages take a second between two readings; an epoch reads twice more.
    assert report["seconds"] == {"vocabulary": 1, "ids": 1, "epoch 1": 3, "epoch 2": 3}
    assert report["pairs_per_second"] == sum(counts[-4:]) > 4  # of three batches and the first


@pytest.mark.tensorflow
@pytest.mark.parametrize("options", [["--sample", "500", "--held-out"], []])
def test_the_start_of_a_new_and_of_a_resumed_run_is_timed(load, options):
    report = load("start", "--lines", "1500", *options)
    assert 1000 < report["pairs"] <= 1500 - (30 if options else 0)
    assert report["seconds"] == {"sentencepiece": 1, "new": 3, "resumed": 1}


STEPS = "jit(run)", "jit(test_step)", "jit(train_step)"
# With the tests' XLA_FLAGS a program compiles in a fifth of the time, but a step or a search still
# takes five times as long as any of the small ones.
MAIN = """
from benchmarks import compilations
compilations.SECONDS = 0.08
compilations.main()
"""


@pytest.mark.slow
def test_commands_compile_few_programs_with_the_plan_of_a_gpu(tmp_path):
    """On JAX' CPU, in new processes."""
    pytest.importorskip("jax", reason="comes with the extra [jax]")
    compilations.write_corpus(tmp_path, None, 600, held_out=100)
    names = {"TF_XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR"}
    environment = {name: value for name, value in os.environ.items() if name not in names}
    root = Path(compilations.__file__).parents[1]
    environment |= {**jax_environment(root), VARIABLE: "off"}
    reports = {}
    for name in ("train", "evaluate", "export"):
        command = [sys.executable, "-c", MAIN, "one-command", name, tmp_path, "--device=gpu"]
        command.append("--small")
        done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        reports[name] = json.loads(done.stdout)
    most = {"train": 6, "evaluate": 3, "export": 3}
    assert all(reports[name]["count"] <= count for name, count in most.items()), reports
    # Two shapes of training, one of validation, one of all sentences' translations.
    steps = [name for name, _ in reports["train"]["programs"] if name in STEPS]
    assert sorted(steps) == ["jit(run)", "jit(test_step)", "jit(train_step)", "jit(train_step)"]
