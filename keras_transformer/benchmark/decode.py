"""Speed side by side: sentences forced to a number of steps, or a text with a trained run."""

import functools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer.benchmark.engines import choose_engines, versions
from keras_transformer.benchmark.measure import (
    MAX_POSITIONS,
    check_positive,
    in_turns,
    machine,
    matrix_product,
    multiply_adds,
    ratio,
    use_threads,
)
from keras_transformer.config import EOS_ID, UNK_ID, TransformerConfig
from keras_transformer.decoding import DecodingOptions
from keras_transformer.errors import InputError
from keras_transformer.files import read_lines
from keras_transformer.models import Transformer

_MATRIX = "matrix product"


def benchmark_decode(
    preset: str = "transformer_base",
    vocabulary_size: int = 8000,
    length: int = 32,
    steps: int = 32,
    batch_sizes: Sequence[int] = (1, 8, 32),
    beam_sizes: Sequence[int] = (1, 4),
    rounds: int = 5,
    threads: int = 2,
    engines: Sequence[str] | None = None,
    model: Transformer | None = None,
    log: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Tokens per second of each engine on random sentences.

    Args (the others are options of `keras-transformer benchmark decode`):
        length: Tokens of a source, including EOS.
        steps: Tokens of a translation; no id ends a sentence.
        model: A `Transformer` to take instead of a preset's with random weights.
        log: Function called with a line for each step of the work.

    Returns:
        A dict fit for JSON. A `ratio` is the median of the rounds' ratios of a peer's time to
        ours (without it, to that of the first engine, the `reference`); the share of the matrix
        product is that of our floating-point operations per second in the machine's own rate,
        measured in the same rounds.
    """
    check_positive(length=length, steps=steps, rounds=rounds, vocabulary_size=vocabulary_size)
    check_positive(batch_sizes=batch_sizes, beam_sizes=beam_sizes)
    chosen, not_installed = choose_engines(engines)
    use_threads(threads)
    given, model = model, random_model(preset, vocabulary_size) if model is None else model
    _check_sizes(model.config, length, steps)
    log(f"making {', '.join(chosen)}")
    made = {name: engine(model, threads) for name, engine in chosen.items()}
    # What the others are compared with: this package's search, or the first that was named.
    reference = "ours" if "ours" in chosen else next(iter(chosen))
    rows = []
    for batch in batch_sizes:
        source_ids = random_sentences(model.config.vocabulary_size, batch, length)
        for beam_size in beam_sizes:
            log(f"{batch} sentences, beam {beam_size}")
            rows.append(_row(model.config, made, reference, source_ids, beam_size, steps, rounds))
    return {
        "benchmark": "decode",
        "preset": preset if given is None else None,
        "config": model.config.to_dict(),
        "length": length,
        "steps": steps,
        **_circumstances(rounds, threads, chosen, not_installed),
        "reference": reference,
        "rows": rows,
    }


def benchmark_corpus(
    run_folder: str | os.PathLike,
    source_file: str | os.PathLike,
    beam_size: int = 4,
    length_penalty: float | None = None,
    batch_sizes: Sequence[int] = (16, 32, 64, 128),
    rounds: int = 5,
    threads: int = 2,
    engines: Sequence[str] | None = None,
    log: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Seconds that each engine needs for a text, once it is warm; as `benchmark_decode`.

    Blank lines are left out. Each engine takes the batch size that it is fastest with; the length
    penalty is the recipe's by default. `same_as_ours` is the share of sentences with the same
    translation.
    """
    from keras_transformer.training import RunFolder

    check_positive(beam_size=beam_size, batch_sizes=batch_sizes, rounds=rounds)
    chosen, not_installed = choose_engines(engines, corpus=True)
    folder = RunFolder.existing(run_folder)
    sentences = _sentences(source_file)
    if length_penalty is None:
        length_penalty = folder.recipe().decoding.length_penalty
    DecodingOptions(beam_size=beam_size, length_penalty=length_penalty)  # Checks both.
    use_threads(threads)
    text_engine = folder.engine()
    calls, sizes, texts = {}, {}, {}
    for name, engine in chosen.items():
        made = engine(text_engine.model, threads, text_engine)
        translate = functools.partial(made.translate_corpus, sentences, beam_size, length_penalty)
        calls[name], sizes[name], texts[name] = _fastest(translate, batch_sizes)
        log(f"{name}: batches of {sizes[name]}")
    seconds = in_turns(calls, rounds)
    return {
        "benchmark": "corpus",
        "run": str(run_folder),
        "source": str(source_file),
        "sentences": len(sentences),
        "config": text_engine.model.config.to_dict(),
        "beam_size": beam_size,
        "length_penalty": length_penalty,
        **_circumstances(rounds, threads, chosen, not_installed),
        "engines": {
            name: {
                "batch_size": sizes[name],
                "sentences_per_second": round(len(sentences) / statistics.median(times), 2),
                **_beside_ours(name, seconds, texts),
                "seconds": [round(each, 4) for each in times],
            }
            for name, times in seconds.items()
        },
    }


def _sentences(source_file):
    sentences = [line for line in read_lines(source_file) if line.strip()]
    if not sentences:
        raise InputError(f"{source_file}: expected sentences. Received: blank lines alone.")
    return sentences


def _beside_ours(name, seconds, texts):
    if name == "ours" or "ours" not in seconds:
        return {"ratio": None, "same_as_ours": None}
    pairs = list(zip(texts["ours"], texts[name], strict=True))
    same = sum(ours == theirs for ours, theirs in pairs) / len(pairs)
    return {"ratio": ratio(seconds["ours"], seconds[name]), "same_as_ours": round(same, 4)}


def _circumstances(rounds, threads, chosen, not_installed):
    return {
        "rounds": rounds,
        "threads": threads,
        "machine": machine(),
        "versions": versions(chosen),
        "notes": {name: engine.note for name, engine in chosen.items()},
        "not_installed": not_installed,
    }


def random_model(preset: str, vocabulary_size: int) -> Transformer:
    """A `Transformer` of a preset's sizes, always with the same weights."""
    keras.utils.set_random_seed(1)
    try:
        return Transformer(TransformerConfig.from_preset(preset, vocabulary_size))
    except ValueError as error:
        raise InputError(str(error)) from None


def _check_sizes(config, length, steps):
    most = config.max_length if config.positions == "learned" else MAX_POSITIONS
    for name, value in (("length", length), ("steps", steps)):
        if value > most:
            raise InputError(f"`{name}` must be at most {most}. Received: {name}={value}.")
    if config.vocabulary_size <= UNK_ID + 1:
        raise InputError(
            f"`vocabulary_size` must be more than {UNK_ID + 1}, the special ids. "
            f"Received: vocabulary_size={config.vocabulary_size}."
        )


def random_sentences(vocabulary_size: int, batch: int, length: int) -> list[list[int]]:
    """Source ids, a list for each sentence, always the same ones."""
    rng = np.random.default_rng(2)
    ids = rng.integers(UNK_ID + 1, vocabulary_size, (batch, length))
    ids[:, -1] = EOS_ID
    return ids.tolist()


def _row(config, engines, reference, source_ids, beam_size, steps, rounds):
    calls = {}
    for name, engine in engines.items():
        calls[name] = functools.partial(engine.translate, source_ids, beam_size, steps)
        # Compiles, warms up, and shows that the work is what it is said to be.
        lengths = {len(ids) for ids in calls[name]()}
        if lengths != {steps}:
            raise RuntimeError(f"{name} took {sorted(lengths)} steps where {steps} were asked for.")
    calls[_MATRIX], operations = matrix_product()
    calls[_MATRIX]()
    seconds = in_turns(calls, rounds)
    rates = [operations / each / 1e9 for each in seconds.pop(_MATRIX)]
    batch, share = len(source_ids), None
    work = 2 * multiply_adds(config, batch, beam_size, len(source_ids[0]), steps) / 1e9
    if "ours" in seconds:
        pairs = zip(seconds["ours"], rates, strict=True)
        share = round(statistics.median(work / each / rate for each, rate in pairs), 3)
    return {
        "batch": batch,
        "beam_size": beam_size,
        "engines": {
            name: {
                "tokens_per_second": round(batch * steps / statistics.median(times), 1),
                "ratio": None if name == reference else ratio(seconds[reference], times),
                "seconds": [round(each, 6) for each in times],
            }
            for name, times in seconds.items()
        },
        "gigaflops": round(work, 3),
        "matrix_product_gflops_per_second": round(statistics.median(rates), 1),
        "ours_share_of_matrix_product": share,
    }


def _fastest(translate, batch_sizes):
    """The call with the best batch size, that size, and the translations."""
    found = []
    for batch_size in batch_sizes:
        call = functools.partial(translate, batch_size)
        call()  # compiles, warms up
        start = time.perf_counter()
        texts = call()
        found.append((time.perf_counter() - start, batch_size, call, texts))
    _, batch_size, call, texts = min(found, key=lambda each: each[0])
    return call, batch_size, texts


def table(report: dict[str, Any]) -> str:
    """A report as an aligned Markdown table, and below it what one must know to read it."""
    rows = list(_corpus_rows(report) if report["benchmark"] == "corpus" else _decode_rows(report))
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in (rows[0], ["-" * (width - 1) + ":" for width in widths], *rows[1:]):
        cells = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_reading_aid(report)])


def _decode_rows(report):
    reference = report.get("reference", "ours")
    header = ["sentences", "search"]
    for name in report["notes"]:
        header += [name] if name == reference else [name, "ratio"]
    yield [*header, "matrix product", "our share"]
    for row in report["rows"]:
        cells = [str(row["batch"]), _search(row["beam_size"])]
        for name in report["notes"]:
            engine = row["engines"][name]
            cells.append(_number(engine["tokens_per_second"], ",.0f"))
            cells += [] if name == reference else [_number(engine["ratio"], ".2f")]
        cells.append(_number(row["matrix_product_gflops_per_second"], ",.0f"))
        cells.append(_number(row["ours_share_of_matrix_product"], ".0%"))
        yield cells


def _corpus_rows(report):
    yield ["engine", "batch", "seconds", "sentences/s", "ratio", "same as ours"]
    for name, engine in report["engines"].items():
        rate = engine["sentences_per_second"]
        yield [
            name,
            str(engine["batch_size"]),
            _number(report["sentences"] / rate, ",.2f"),
            _number(rate, ",.1f"),
            _number(engine["ratio"], ".2f"),
            _number(engine["same_as_ours"], ".1%"),
        ]


def _reading_aid(report) -> Iterator[str]:
    turns = (
        f"medians of {report['rounds']} rounds in turns, {report['threads']} threads; "
        f"a ratio above 1 says that {report.get('reference', 'ours')} is faster."
    )
    if report["benchmark"] == "corpus":
        yield (
            f"{report['sentences']:,} sentences of {report['source']}, "
            f"{_search(report['beam_size'])}, length penalty {report['length_penalty']}; {turns}"
        )
    else:
        yield (
            f"Tokens per second, {report['preset'] or 'a model given'}, sources of "
            f"{report['length']} tokens, {report['steps']} forced steps; {turns} "
            "Matrix product: float32 GFLOP/s of this machine in the same rounds."
        )
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    yield f"{report['machine']['processor']}, {report['machine']['cores']} cores; {versions}."
    for name, note in report["notes"].items():
        yield f"- {name}: {note}."
    for name, extra in report["not_installed"].items():
        yield f'- not installed: {name} (pip install "keras_transformer[{extra}]").'


def _search(beam_size):
    return "greedy" if beam_size == 1 else f"beam {beam_size}"


def _number(value, form):
    return "" if value is None else format(value, form)
