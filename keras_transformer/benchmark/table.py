"""A report of `benchmark decode` as a Markdown table."""

from typing import Any


def table(report: dict[str, Any]) -> str:
    """A report as a Markdown table, and below it what one must know to read it."""
    rates = [f"{report['unit']}/s", "ratio", f"same as {report['reference']}", "setting"]
    rows = [["sentences", "search", "engine", *rates], ["---"] * 7]
    for row in report["rows"]:
        search = "greedy" if row["beam_size"] == 1 else f"beam {row['beam_size']}"
        for name, engine in row["engines"].items():
            forms = (("rate", ",.0f"), ("ratio", ".2f"), ("same", ".1%"))
            found = [format(engine[key], form) for key, form in forms]
            rows.append([f"{row['sentences']:,}", search, name, *found, engine["setting"]])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    random = "{preset}, sources of {length} tokens, {steps} forced steps."
    what = random if report["unit"] == "tokens" else "{source}, length penalty {length_penalty}."
    turns = (
        "Medians of {rounds} rounds in turns, each engine with the fastest setting of at most "
        "{threads} threads; a ratio above 1 says that {reference} is faster."
    )
    versions = ", ".join(" ".join(each) for each in report["versions"].items())
    lines += ["", f"{what} {turns}".format(**report)]
    lines += [f"{report['machine']['processor']}, {report['machine']['cores']} cores; {versions}."]
    lines += [f"- {name}: {note}." for name, note in report["notes"].items()]
    absent = '- not installed: {} (pip install "keras_transformer[{}]").'
    lines += [absent.format(*each) for each in report["not_installed"].items()]
    return "\n".join(lines)
