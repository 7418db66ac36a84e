"""`report.html` of a run: curves, the best epochs, samples and the recipe on one static page."""

import html
from typing import Any

from keras_transformer.training.recipe import TrainingSection
from keras_transformer.training.run_folder import RunFolder, best_first

_WIDTH, _HEIGHT, _MARGIN = 420, 180, 44
_BEST = 5
# Titles, and the columns of the history that share a picture.
_CURVES = {
    "Loss, nats a token": ("loss", "val_loss"),
    "Perplexity": ("perplexity", "val_perplexity"),
    "Share of tokens predicted right": ("token_accuracy", "val_token_accuracy"),
    "BLEU of greedy translations": ("val_bleu",),
    "Learning rate": ("learning_rate",),
    "Real tokens a second": ("tokens_per_second",),
}
_STYLE = """
:root { color-scheme: light dark; --train: #0072b2; --validation: #d55e00; --grey: #8882; }
@media (prefers-color-scheme: dark) { :root { --train: #56b4e9; --validation: #e69f00; } }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 58rem; padding: 0 1rem }
figure { display: inline-block; margin: 0 1rem 1rem 0; max-width: 100% }
svg { max-width: 100%; height: auto }
svg text { font-size: 11px; fill: currentColor }
polyline { fill: none; stroke-width: 2 }
polyline.train { stroke: var(--train) }
polyline.validation { stroke: var(--validation) }
circle.train { fill: var(--train) }
circle.validation { fill: var(--validation) }
td, th { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid var(--grey) }
table { border-collapse: collapse }
pre { overflow-x: auto; padding: .8rem; background: var(--grey) }
"""


def report(folder: RunFolder, training: TrainingSection, metrics: dict[str, Any]) -> str:
    """The page, as text of HTML that needs nothing from elsewhere.

    Args:
        folder: The finished run.
        training: Its recipe's `training`.
        metrics: What `metrics.json` holds.
    """
    rows = folder.history()
    best = best_first(rows, training.select_by)
    parts = [
        f"<h1>{html.escape(folder.path.name)}</h1>",
        f"<p>{len(rows)} epochs, {metrics['training_minutes']:g} minutes, the best is epoch "
        f"{int(best[0]['epoch'])}.{_average(metrics)} Blue: training, with dropout; orange: "
        "validation.</p>",
        *(_curves(title, columns, rows) for title, columns in _CURVES.items()),
        f"<h2>The best {min(_BEST, len(rows))} epochs</h2>",
        _table(best[:_BEST]),
    ]
    samples = folder.samples().rpartition("epoch ")[2].partition("\n")
    if samples[2]:
        parts.append(f"<h2>Samples of epoch {html.escape(samples[0])}</h2>")
        parts.append(f"<pre>{html.escape(samples[2])}</pre>")
    recipe = folder.recipe_file.read_text(encoding="utf-8")
    parts.append(f"<h2>Recipe</h2><pre>{html.escape(recipe)}</pre>")
    head = (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        f"<title>{html.escape(folder.path.name)}</title><style>{_STYLE}</style>"
    )
    return head + "\n".join(parts) + "</html>\n"


def _average(metrics):
    if "average" not in metrics:
        return ""
    average = metrics["average"]
    epochs = ", ".join(map(str, average["epochs"]))
    place = "is the model" if average["is_the_best_model"] else "is no better than that"
    return f" The average of epochs {epochs} {place}."


def _curves(title, columns, rows):
    columns = [column for column in columns if column in rows[0]]
    values = [row[column] for row in rows for column in columns]
    values = [value for value in values if abs(value) < float("inf")]
    if not values:
        return ""
    low, high = min(values), max(values)
    span = high - low or 1.0
    inner = _WIDTH - 2 * _MARGIN, _HEIGHT - 2 * _MARGIN

    def point(index, value):
        x = _MARGIN + inner[0] * index / max(len(rows) - 1, 1)
        y = _HEIGHT - _MARGIN - inner[1] * (min(value, high) - low) / span
        return f"{x:.1f},{y:.1f}"

    lines = []
    for column in columns:
        kind = "validation" if column.startswith("val_") else "train"
        points = [point(i, row[column]) for i, row in enumerate(rows)]
        lines.append(f'<polyline class="{kind}" points="{" ".join(points)}"/>')
        x, y = points[-1].split(",")  # one epoch alone is a dot
        lines.append(f'<circle class="{kind}" cx="{x}" cy="{y}" r="3"/>')
    bottom = _HEIGHT - _MARGIN
    labels = (
        f'<text x="4" y="{_MARGIN}">{high:.4g}</text><text x="4" y="{bottom}">{low:.4g}</text>'
        f'<text x="{_MARGIN}" y="{bottom + 18}">epoch 1</text>'
        f'<text x="{_WIDTH - _MARGIN}" y="{bottom + 18}" text-anchor="end">{len(rows)}</text>'
    )
    return (
        f'<figure><svg role="img" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}">'
        f'<title>{title}</title><text x="{_MARGIN}" y="18">{title}</text>{labels}{"".join(lines)}'
        "</svg></figure>"
    )


def _table(rows):
    columns = [
        column
        for column in ("epoch", "val_loss", "val_perplexity", "val_token_accuracy", "val_bleu")
        if column in rows[0]
    ]
    cells = ["".join(f"<td>{row[column]:.5g}</td>" for column in columns) for row in rows]
    head = "".join(f"<th>{column}</th>" for column in columns)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<table><tr>{head}</tr>{body}</table>"
