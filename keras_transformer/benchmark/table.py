"""A report as a Markdown table."""

from collections.abc import Iterator
from typing import Any


def table(report: dict[str, Any]) -> str:
    """Renders what `benchmark_decode` or `benchmark_corpus` returned.

    Returns:
        An aligned Markdown table, and below it what one must know to read it.
    """
    rows = _corpus_rows(report) if report["benchmark"] == "corpus" else _decode_rows(report)
    return "\n".join([*_markdown(list(rows)), "", *_reading_aid(report)])


def _decode_rows(report):
    peers = {name for name in report["notes"] if name != report.get("reference", "ours")}
    header = ["sentences", "search"]
    for name in report["notes"]:
        header += [name, "ratio"] if name in peers else [name]
    yield [*header, "matrix product", "our share"]
    for row in report["rows"]:
        cells = [str(row["batch"]), _search(row["beam_size"])]
        for name in report["notes"]:
            engine = row["engines"][name]
            cells.append(_number(engine["tokens_per_second"], ",.0f"))
            if name in peers:
                cells.append(_number(engine["ratio"], ".2f"))
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


def _markdown(rows):
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    rule = ["-" * (width - 1) + ":" for width in widths]
    for row in (rows[0], rule, *rows[1:]):
        cells = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        yield f"| {' | '.join(cells)} |"
