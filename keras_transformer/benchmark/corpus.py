"""A whole corpus with a trained run: text to text, each sentence as long as the model wants."""

import functools
import statistics
import time

from keras_transformer.benchmark.engines import choose_engines, versions
from keras_transformer.benchmark.measure import (
    check_positive,
    in_turns,
    machine,
    ratio,
    use_threads,
)
from keras_transformer.errors import InputError
from keras_transformer.files import read_lines


def benchmark_corpus(
    run_folder,
    source_file,
    beam_size=4,
    length_penalty=None,
    batch_sizes=(16, 32, 64, 128),
    rounds=5,
    threads=2,
    engines=None,
    log=None,
):
    """Seconds that each engine needs for a file, once it is warm.

    Args:
        run_folder: Path of a run folder.
        source_file: Path of a source text, UTF-8, plain or `.gz`. Blank lines are left out.
        beam_size: Hypotheses; 1 is greedy search.
        length_penalty: Exponent of the length penalty; the recipe's by default.
        batch_sizes: Each engine takes the one of these that it is fastest with.
        rounds: Times that each engine translates the file, in turns.
        threads: Threads of each engine.
        engines: Names, of `ours`, `ctranslate2`, `ctranslate2_int8`; all of them by default.
        log: Function that is told the progress.

    Returns:
        A dict fit for JSON; a `ratio` is the median of the rounds' ratios of a peer's time to
        ours, `same_as_ours` the share of sentences with the same translation.

    Raises:
        InputError: The run, the file or an option is not what it must be.
    """
    from keras_transformer.decoding import DecodingOptions
    from keras_transformer.training import RunFolder

    check_positive(beam_size=beam_size, batch_sizes=batch_sizes, rounds=rounds)
    chosen, not_installed = choose_engines(engines, corpus=True)
    folder = RunFolder.existing(run_folder)
    sentences = [line for line in read_lines(source_file) if line.strip()]
    if not sentences:
        raise InputError(f"{source_file}: expected sentences. Received: blank lines alone.")
    if length_penalty is None:
        length_penalty = folder.recipe().decoding.length_penalty
    DecodingOptions(beam_size=beam_size, length_penalty=length_penalty)  # Checks both.
    use_threads(threads)
    log = log or (lambda text: None)
    text_engine = folder.engine()
    calls, sizes, texts = {}, {}, {}
    for name, engine in chosen.items():
        made = engine(text_engine.model, threads, text_engine)
        calls[name], sizes[name], texts[name] = _fastest(
            functools.partial(made.translate_corpus, sentences, beam_size, length_penalty),
            batch_sizes,
        )
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
        "rounds": rounds,
        "threads": threads,
        "machine": machine(),
        "versions": versions(chosen),
        "notes": {name: engine.note for name, engine in chosen.items()},
        "not_installed": not_installed,
        "engines": {
            name: {
                "batch_size": sizes[name],
                "sentences_per_second": round(len(sentences) / statistics.median(times), 2),
                "ratio": None if name == "ours" else ratio(seconds.get("ours"), times),
                "same_as_ours": None if name == "ours" else _same(texts.get("ours"), texts[name]),
                "seconds": [round(each, 4) for each in times],
            }
            for name, times in seconds.items()
        },
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


def _same(ours, theirs):
    if ours is None:
        return None
    return round(sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(ours), 4)
